"""Resuming from saved positions: every record once, over restarts and changes of the topic."""

from __future__ import annotations

import json

import pytest
from tests.kafka_client import produce
from tests.kafka_support import (
    grow,
    kafka,
    numbered,
    opened,
    read,
    slices_of,
    slices_until,
    state_after,
    transaction,
    values,
)
from tests.topics import Topics

from forebay.errors import StateError
from forebay.state import Position, Range, State


def test_a_reader_goes_on_behind_the_last_row_that_was_delivered(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(100))
    source = kafka(make_topic.bootstrap, topic, slice_rows=7)
    seen: list[bytes | None] = []
    saved: dict[str, Position] = {}
    while len(seen) < 100:
        with opened(source, saved) as reader:
            slices = [s.head(5) for s in slices_of(reader, rows=1)]
            seen += values(slices)
            saved = {
                k: Position.from_json(k, p.to_json())
                for k, p in state_after(reader, slices).items()
            }
    assert seen == numbered(100)


def test_what_was_overtaken_is_read_again(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(20))
    position = Position(15, pending=(Range(3, 6),))
    source = kafka(make_topic.bootstrap, topic)
    with opened(source, {f"kafka:{topic}/0": position}) as reader:
        assert reader.positions() == {f"kafka:{topic}/0": position}
        (s,) = slices_of(reader)
    assert s.start == 3
    assert values(position.remaining(s)) == [*numbered(3, start=3), *numbered(5, start=15)]


def test_a_position_between_records_is_a_position(make_topic: Topics) -> None:
    topic = make_topic()
    transaction(make_topic.bootstrap, topic, numbered(2), commit=True)
    transaction(make_topic.bootstrap, topic, numbered(2, start=2), commit=True)
    found = read(kafka(make_topic.bootstrap, topic), {f"kafka:{topic}/0": Position(2)})
    assert values(found) == [b"2", b"3"]


def test_partitions_added_since_the_checkpoint_are_read_from_their_first_record(
    make_topic: Topics,
) -> None:
    topic = make_topic(2)
    source = kafka(make_topic.bootstrap, topic, start="latest")
    with opened(source) as reader:
        saved = dict(reader.positions())
    grow(make_topic.bootstrap, topic, 4)
    for p in range(4):
        produce(make_topic.bootstrap, topic, [b"%d" % p], partition=p)
    assert sorted(v for v in values(read(source, saved)) if v) == numbered(4)


def test_partitions_added_while_running_are_read_from_their_first_record(
    make_topic: Topics,
) -> None:
    topic = make_topic(1)
    source = kafka(make_topic.bootstrap, topic, start="latest", until=None)
    with opened(source) as reader:
        grow(make_topic.bootstrap, topic, 2)
        produce(make_topic.bootstrap, topic, numbered(3), partition=1)
        slices = slices_of(reader, rows=3)
    assert {s.split for s in slices} == {f"kafka:{topic}/1"}
    assert values(slices) == numbered(3)


def test_a_partition_of_the_state_that_is_not_there_is_an_error(make_topic: Topics) -> None:
    topic = make_topic(2)
    saved = {f"kafka:{topic}/5": Position(3)}
    with pytest.raises(StateError, match=rf"kafka:{topic}/5.*only 2 partitions"):
        read(kafka(make_topic.bootstrap, topic), saved)


def test_the_state_of_another_topic_is_an_error_that_names_both(make_topic: Topics) -> None:
    topic = make_topic()
    with pytest.raises(StateError, match=f"'orders'.*'{topic}'"):
        read(kafka(make_topic.bootstrap, topic), {"kafka:orders/0": Position(3)})


def test_the_state_of_another_kind_of_source_is_an_error(make_topic: Topics) -> None:
    with pytest.raises(StateError, match="no partition of a Kafka topic"):
        read(kafka(make_topic.bootstrap, make_topic()), {"delta:clicks": Position(3)})


def test_the_state_of_64_partitions_is_small(make_topic: Topics) -> None:
    topic = make_topic(64)
    for p in range(64):
        produce(make_topic.bootstrap, topic, [b"v"], partition=p)
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        splits = state_after(reader, slices_until(reader, lambda s: False))
    assert all("epoch" in (p.token or {}) for p in splits.values())
    far = {k: Position(10**9, token=p.token, base=10**9 - 1) for k, p in splits.items()}
    assert len(json.dumps(State(splits=far).to_json())) <= 10_240

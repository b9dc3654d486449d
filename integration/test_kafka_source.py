"""The Kafka source against each broker: what the dev broker might show too kindly."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition
from integration.conftest import Broker
from tests.kafka_client import produce
from tests.kafka_support import (
    committed,
    grow,
    kafka,
    numbered,
    opened,
    read,
    rows_of,
    slices_of,
    slices_until,
    state_after,
    transaction,
    values,
    wait_for,
)
from tests.topics import Topics

from forebay.deadletter import Letter
from forebay.errors import ConfigError, DataLossError
from forebay.slice import Failure
from forebay.state import Position
from forebay_kafka import KafkaSink


def split(topic: str) -> str:
    return f"kafka:{topic}/0"


def test_records_come_with_all_that_belongs_to_them(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    headers = [("a", b"1"), ("a", None), ("b", b"\xff")]
    records: list[dict[str, Any]] = [
        {"value": b"v", "key": b"k", "headers": headers, "timestamp": 1_700_000_000_123},
        {"value": None, "key": b"k"},
        {"value": b"", "key": None},
    ]
    produce(broker.bootstrap, topic, records)
    rows = rows_of(read(kafka(broker.bootstrap, topic)))
    assert [(r["offset"], r["key"], r["value"]) for r in rows] == [
        (0, b"k", b"v"),
        (1, b"k", None),
        (2, None, b""),
    ]
    assert rows[0]["headers"] == [{"key": k, "value": v} for k, v in headers]
    assert rows[0]["timestamp"] == 1_700_000_000_123


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "snappy"])
def test_every_compression_can_be_read(broker: Broker, make_topic: Topics, codec: str) -> None:
    topic = make_topic()
    produce(
        broker.bootstrap,
        topic,
        numbered(1000),
        settings={"compression.type": codec, "linger.ms": 50},
    )
    assert values(read(kafka(broker.bootstrap, topic))) == numbered(1000)


@pytest.mark.parametrize(("commit", "expected"), [(True, numbered(5)), (False, [])])
def test_a_read_ends_behind_the_marker_of_a_transaction(
    broker: Broker, make_topic: Topics, commit: bool, expected: list[bytes]
) -> None:
    topic = make_topic()
    transaction(broker.bootstrap, topic, numbered(5), commit=commit)
    with opened(kafka(broker.bootstrap, topic)) as reader:
        slices = slices_of(reader)
        saved = state_after(reader, slices)
    assert values(slices) == expected
    assert saved[split(topic)].offset == 6
    produce(broker.bootstrap, topic, numbered(3, start=6))
    assert values(read(kafka(broker.bootstrap, topic), saved)) == numbered(3, start=6)


def test_resuming_again_and_again_gives_every_record_once(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic(2)
    for p in range(2):
        produce(broker.bootstrap, topic, numbered(60, start=100 * p), partition=p)
    source = kafka(broker.bootstrap, topic, slice_rows=9)
    seen: list[bytes | None] = []
    saved: dict[str, Position] = {}
    while len(seen) < 120:
        with opened(source, saved) as reader:
            slices = [s.head(7) for s in slices_of(reader, rows=1)]
            seen += values(slices)
            saved = state_after(reader, slices)
    assert sorted(seen, key=lambda v: int(v or b"")) == [*numbered(60), *numbered(60, start=100)]


def test_retention_that_passed_the_position_is_a_counted_loss(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(100))
    saved = {split(topic): Position(10)}
    deleted = make_topic.admin.delete_records([TopicPartition(topic, 0, 50)])
    for future in deleted.values():
        future.result()
    with pytest.raises(DataLossError, match="from offset 10 to 49"):
        read(kafka(broker.bootstrap, topic), saved)
    with opened(kafka(broker.bootstrap, topic, on_gap="earliest"), saved) as reader:
        assert values(slices_of(reader)) == numbered(50, start=50)
        assert reader.stats().lost == 40


def test_a_topic_that_was_re_created_is_not_resumed_silently(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(20))
    with opened(kafka(broker.bootstrap, topic)) as reader:
        saved = state_after(reader, slices_of(reader))
    make_topic.recreate(topic)
    produce(broker.bootstrap, topic, numbered(50, start=1000))
    with pytest.raises(DataLossError, match="deleted and re-created"):
        read(kafka(broker.bootstrap, topic), saved)
    again = read(kafka(broker.bootstrap, topic, on_gap="earliest"), saved)
    assert values(again) == numbered(50, start=1000)


def test_a_topic_that_is_re_created_under_a_running_reader_is_noticed(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(20))
    with opened(kafka(broker.bootstrap, topic, until=None)) as reader:
        slices_of(reader, rows=20)
        make_topic.recreate(topic)
        produce(broker.bootstrap, topic, numbered(50, start=1000))
        with pytest.raises(DataLossError, match="deleted and re-created"):
            slices_until(reader, lambda s: False)


def test_partitions_added_while_running_are_read_from_their_first_record(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic(1)
    with opened(kafka(broker.bootstrap, topic, start="latest", until=None)) as reader:
        grow(broker.bootstrap, topic, 2)
        produce(broker.bootstrap, topic, numbered(3), partition=1)
        assert values(slices_of(reader, rows=3)) == numbered(3)


def test_times_find_their_records(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    now = 1_700_000_000_000
    produce(broker.bootstrap, topic, [{"value": b"%d" % i, "timestamp": now + i} for i in range(9)])
    start, until = {"timestamp": now + 3}, {"timestamp": now + 6}
    found = read(kafka(broker.bootstrap, topic, start=start, until=until))
    assert values(found) == numbered(3, start=3)


def test_an_unknown_topic_is_an_error(broker: Broker, make_topic: Topics) -> None:
    missing = make_topic() + "-not"
    with pytest.raises(ConfigError, match=f"no topic '{missing}'"):
        read(kafka(broker.bootstrap, missing))


def test_dead_letters_come_back(broker: Broker, make_topic: Topics) -> None:
    topic, dead = make_topic(), make_topic(2)
    produce(broker.bootstrap, topic, [{"value": b"bad", "key": b"k", "headers": [("a", b"1")]}])
    (row,) = rows_of(read(kafka(broker.bootstrap, topic)))
    failure = Failure(offset=0, stage="decode", reason="not JSON", original=row)
    sink = KafkaSink(dead, {"bootstrap.servers": broker.bootstrap})
    sink.write([letter := Letter(split=split(topic), failure=failure)])
    sink.close()
    assert list(sink.letters()) == [letter]


def test_published_positions_are_seen_by_other_tools(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(5))
    group = f"{topic}-trained"
    with opened(kafka(broker.bootstrap, topic, commit_group=group)) as reader:
        reader.publish(state_after(reader, slices_of(reader)))
        wait_for(lambda: committed(broker.bootstrap, topic, group) == 5, "it is committed")

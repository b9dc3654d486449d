"""Where reading begins and ends: by position and the end of the partition, never by a record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
from tests.kafka_client import produce
from tests.kafka_support import (
    kafka,
    numbered,
    opened,
    read,
    slices_of,
    state_after,
    transaction,
    values,
)
from tests.topics import Topics

from forebay.errors import ConfigError, SourceStalled
from forebay_kafka.clienterrors import ErrorLog
from forebay_kafka.devbroker import DevBrokerProcess
from forebay_kafka.lag import partitions_of, survey
from forebay_kafka.opening import Openings
from forebay_kafka.positions import Instant


def test_a_read_ends_behind_the_marker_of_a_transaction(make_topic: Topics) -> None:
    topic = make_topic()
    transaction(make_topic.bootstrap, topic, numbered(5), commit=True)
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        slices = slices_of(reader)
        assert values(slices) == numbered(5)
        assert state_after(reader, slices)[f"kafka:{topic}/0"].offset == 6


def test_an_aborted_transaction_gives_nothing_and_moves_the_position(make_topic: Topics) -> None:
    topic = make_topic()
    transaction(make_topic.bootstrap, topic, numbered(5), commit=False)
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        slices = slices_of(reader)
        assert values(slices) == []
        assert state_after(reader, slices)[f"kafka:{topic}/0"].offset == 6


def test_uncommitted_records_come_where_they_are_asked_for(make_topic: Topics) -> None:
    topic = make_topic()
    transaction(make_topic.bootstrap, topic, numbered(5), commit=False)
    dirty = kafka(make_topic.bootstrap, topic, config={"isolation.level": "read_uncommitted"})
    assert values(read(dirty)) == numbered(5)


def test_gaps_between_offsets_are_no_loss_and_no_lag(make_topic: Topics) -> None:
    topic = make_topic()
    for i in range(3):
        transaction(make_topic.bootstrap, topic, numbered(2, start=2 * i), commit=i != 1)
    with opened(kafka(make_topic.bootstrap, topic, slice_rows=1)) as reader:
        slices = slices_of(reader)
        assert values(slices) == [b"0", b"1", b"4", b"5"]
        assert [s.start for s in slices] == [0, *(s.next_offset for s in slices[:-1])]
        assert reader.stats().lost == 0
        assert state_after(reader, slices)[f"kafka:{topic}/0"].offset == 9
        assert reader.ends() == {f"kafka:{topic}/0": 9}


def test_an_empty_topic_is_finished_at_once(make_topic: Topics) -> None:
    with opened(kafka(make_topic.bootstrap, make_topic(3))) as reader:
        assert reader.finished()
        assert reader.poll(0.0) is None


def test_records_written_after_the_opening_are_not_read(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(10))
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        produce(make_topic.bootstrap, topic, numbered(10, start=10))
        slices = slices_of(reader)
    assert values(slices) == numbered(10)
    assert slices[-1].next_offset == 10


def test_the_position_is_where_the_bound_is_not_behind_it(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(10))
    until = {topic: {0: 4}}
    with opened(kafka(make_topic.bootstrap, topic, until=until)) as reader:
        slices = slices_of(reader)
        assert state_after(reader, slices)[f"kafka:{topic}/0"].offset == 4
    assert values(slices) == numbered(4)


def test_a_bound_among_markers_is_where_the_position_stops(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(3))
    transaction(make_topic.bootstrap, topic, numbered(5), commit=False)
    with opened(kafka(make_topic.bootstrap, topic, until={topic: {0: 5}})) as reader:
        slices = slices_of(reader)
        assert state_after(reader, slices)[f"kafka:{topic}/0"].offset == 5
    assert values(slices) == numbered(3)


def test_an_end_too_far_on_is_cut_with_a_warning(
    make_topic: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(3))
    assert values(read(kafka(make_topic.bootstrap, topic, until={topic: {0: 99}}))) == numbered(3)
    assert f"99 of kafka:{topic}/0, which ends at 3" in caplog.text


TIMES = [1_000, 2_000, 3_000, 4_000]


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        ("earliest", "latest", [0, 1, 2, 3]),
        ("latest", "latest", []),
        ({"timestamp": 2_000}, "latest", [1, 2, 3]),
        ({"timestamp": 2_001}, {"timestamp": 4_000}, [2]),
        ({"timestamp": datetime.fromtimestamp(3, timezone.utc)}, "latest", [2, 3]),
        ({"timestamp": "1970-01-01T00:00:04Z"}, "latest", [3]),
        ({"timestamp": 9_999}, "latest", []),
        ("earliest", {"timestamp": 9_999}, [0, 1, 2, 3]),
    ],
)
def test_reading_begins_and_ends_where_it_is_told(
    make_topic: Topics, start: Any, until: Any, expected: list[int]
) -> None:
    topic = make_topic()
    records = [{"value": b"%d" % i, "timestamp": t} for i, t in enumerate(TIMES)]
    produce(make_topic.bootstrap, topic, records)
    found = values(read(kafka(make_topic.bootstrap, topic, start=start, until=until)))
    assert found == [b"%d" % i for i in expected]


def test_offsets_name_where_to_begin_and_other_partitions_begin_at_their_first(
    make_topic: Topics,
) -> None:
    topic = make_topic(2)
    for p in range(2):
        produce(make_topic.bootstrap, topic, numbered(3), partition=p)
    found = values(read(kafka(make_topic.bootstrap, topic, start={topic: {1: 2}})))
    assert sorted(v for v in found if v) == [b"0", b"1", b"2", b"2"]


@pytest.mark.parametrize(
    ("start", "says"), [({0: 4}, "which ends at 3"), ({7: 0}, "partition 7 .* has 1 partitions")]
)
def test_a_start_that_does_not_exist_is_an_error(
    make_topic: Topics, start: dict[int, int], says: str
) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(3))
    with pytest.raises(ConfigError, match=says):
        read(kafka(make_topic.bootstrap, topic, start={topic: start}))


def test_a_run_that_starts_at_the_end_remembers_where_that_was(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(3))
    with opened(kafka(make_topic.bootstrap, topic, start="latest")) as reader:
        saved = dict(reader.positions())
    produce(make_topic.bootstrap, topic, numbered(2, start=3))
    assert values(read(kafka(make_topic.bootstrap, topic, start="latest"), saved)) == [b"3", b"4"]


def test_a_bounded_read_never_ends_with_a_part(make_topic: Topics) -> None:
    with DevBrokerProcess() as broker:
        topics = Topics(broker.bootstrap)
        topic = topics()
        produce(broker.bootstrap, topic, numbered(100))
        with opened(kafka(broker.bootstrap, topic, stall_seconds=1.5)) as reader:
            broker.faults.pause()
            with pytest.raises(SourceStalled, match="records 0 to 99 wait"):
                slices_of(reader)
            assert not reader.finished()
            broker.faults.resume()


@contextmanager
def being_written_to(bootstrap: str, topic: str) -> Iterator[None]:
    """Records come as fast as they can while this lasts."""
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            produce(bootstrap, topic, numbered(50), settings={"linger.ms": 0})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def test_a_topic_that_is_being_written_to_is_not_taken_for_one_that_was_cut(
    make_topic: Topics,
) -> None:
    topic = make_topic()
    with being_written_to(make_topic.bootstrap, topic):
        for _ in range(20):
            with opened(kafka(make_topic.bootstrap, topic, start="latest", until=None)):
                pass


def test_a_record_that_came_after_the_ends_were_asked_for_may_be_the_first_to_be_read(
    make_topic: Topics,
) -> None:
    topic = make_topic()
    records = [{"value": b"x", "timestamp": 1_000 * n} for n in range(1, 7)]
    produce(make_topic.bootstrap, topic, records[:2])
    source = kafka(make_topic.bootstrap, topic)
    cluster = source._cluster(ErrorLog(str))
    topics = cluster.topics([topic])
    news = survey(cluster, topics, partitions_of(topics), committed=True)
    produce(make_topic.bootstrap, topic, records[2:])
    (opening,) = Openings(cluster, news, Instant(5_000), None, "here").all({}, "fail")
    assert (opening.at, opening.gap) == (4, None)

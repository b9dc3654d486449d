"""What a Kafka topic gives: every record once, with all that belongs to it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.kafka_client import produce
from tests.kafka_support import (
    kafka,
    numbered,
    opened,
    read,
    rows_of,
    slices_of,
    slices_until,
    values,
)
from tests.topics import Topics

from forebay.slice import Slice


def test_a_record_comes_with_all_that_belongs_to_it(make_topic: Topics) -> None:
    topic = make_topic()
    headers = [("a", b"1"), ("a", None), ("b", b"\xff")]
    record = {"value": b"v", "key": b"k", "headers": headers, "timestamp": 1_700_000_000_123}
    produce(make_topic.bootstrap, topic, [record])
    (row,) = rows_of(read(kafka(make_topic.bootstrap, topic)))
    assert row == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": 1,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": k, "value": v} for k, v in headers],
    }


def test_the_time_of_a_record_is_its_event_time(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, [{"value": b"v", "timestamp": 5}])
    (s,) = (s for s in read(kafka(make_topic.bootstrap, topic)) if len(s))
    assert s.event_times is not None
    assert s.event_times.tolist() == [5]


def test_the_time_of_arrival_is_told_apart(make_topic: Topics) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(make_topic.bootstrap, topic, [{"value": b"v", "timestamp": 5}])
    (row,) = rows_of(read(kafka(make_topic.bootstrap, topic)))
    assert row["timestamp_type"] == 2
    assert row["timestamp"] > 5


@pytest.mark.parametrize("payload", ["auto", "arrow", "objects"])
def test_null_and_empty_stay_different(make_topic: Topics, payload: str) -> None:
    topic = make_topic()
    records = [
        {"value": v, "key": k} for v, k in [(None, b"a"), (b"", None), (b"{}", b""), (b"x", b"c")]
    ]
    produce(make_topic.bootstrap, topic, records)
    with opened(kafka(make_topic.bootstrap, topic, payload=payload)) as reader:
        rows = rows_of(slices_of(reader))
        assert reader.stats().tombstones == 1
    assert [(r["value"], r["key"]) for r in rows] == [(r["value"], r["key"]) for r in records]


def test_tombstones_can_be_left_out_and_their_offsets_still_count(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, [{"value": v} for v in (None, b"a", None)])
    with opened(kafka(make_topic.bootstrap, topic, tombstones="skip")) as reader:
        slices = slices_of(reader)
        assert reader.stats().tombstones == 2
    assert values(slices) == [b"a"]
    assert (slices[0].start, slices[-1].next_offset) == (0, 3)


@pytest.mark.parametrize(("size", "kind"), [(10, pa.Array), (450, pa.Array), (1000, np.ndarray)])
def test_large_values_stay_where_the_client_put_them(
    make_topic: Topics, size: int, kind: type
) -> None:
    topic = make_topic()
    sent = [bytes([i]) * size for i in range(20)]
    produce(make_topic.bootstrap, topic, sent)
    slices = read(kafka(make_topic.bootstrap, topic))
    assert isinstance(slices[0].columns["value"], kind)
    assert values(slices) == sent


def test_large_values_come_as_arrow_where_that_is_asked_for(make_topic: Topics) -> None:
    topic = make_topic()
    sent = [bytes([i]) * 5000 for i in range(20)]
    produce(make_topic.bootstrap, topic, sent)
    slices = read(kafka(make_topic.bootstrap, topic, payload="arrow"))
    assert isinstance(slices[0].columns["value"], pa.Array)
    assert values(slices) == sent


def test_only_the_columns_asked_for_are_built(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, [b"a"])
    (row,) = rows_of(read(kafka(make_topic.bootstrap, topic, columns=("value", "offset"))))
    assert list(row) == ["offset", "value"]


def test_one_reader_gives_all_partitions_of_all_topics(make_topic: Topics) -> None:
    topics = [make_topic(3), make_topic(2)]
    for topic, partitions in zip(topics, (3, 2), strict=True):
        for p in range(partitions):
            produce(make_topic.bootstrap, topic, numbered(50, start=100 * p), partition=p)
    rows = rows_of(read(kafka(make_topic.bootstrap, topics)))
    assert len(rows) == 250
    for topic, p in {(r["topic"], r["partition"]) for r in rows}:
        mine = [r for r in rows if (r["topic"], r["partition"]) == (topic, p)]
        assert [r["offset"] for r in mine] == list(range(50))
        assert [r["value"] for r in mine] == numbered(50, start=100 * p)


def test_a_rank_reads_only_what_it_owns(make_topic: Topics) -> None:
    topic = make_topic(4)
    for p in range(4):
        produce(make_topic.bootstrap, topic, [b"%d" % p], partition=p)
    source = kafka(make_topic.bootstrap, topic)
    ranks = [values(read(source, owns=lambda s, r=rank: s.owner(2) == r)) for rank in (0, 1)]  # type: ignore[misc]
    assert sorted(v for r in ranks for v in r if v) == numbered(4)
    assert all(len(r) == 2 for r in ranks)


def test_slices_are_bounded_in_rows_and_bytes(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, [b"x" * 1000] * 100 + [b"y" * 20_000])
    slices = read(kafka(make_topic.bootstrap, topic, slice_rows=30, slice_bytes=10_000))
    sizes = [sum(len(v or b"") for v in values([s])) for s in slices if len(s)]
    assert sum(sizes) == 120_000
    assert max(map(len, slices)) <= 30
    assert sorted(sizes)[-1] == 20_000, "a record larger than the bound comes alone"
    assert sorted(sizes)[-2] <= 10_000


def test_the_slices_of_a_split_follow_each_other_without_a_hole(make_topic: Topics) -> None:
    topic = make_topic(2)
    for p in range(2):
        produce(make_topic.bootstrap, topic, numbered(400), partition=p)
    slices = read(kafka(make_topic.bootstrap, topic, slice_rows=50))
    for split in {s.split for s in slices}:
        mine = [s for s in slices if s.split == split]
        assert [s.start for s in mine] == [0, *(s.next_offset for s in mine[:-1])]
        assert mine[-1].next_offset == 400


def test_a_paused_split_gives_nothing_and_loses_nothing(make_topic: Topics) -> None:
    topic = make_topic(2)
    for p in range(2):
        produce(make_topic.bootstrap, topic, numbered(100), partition=p)
    with opened(kafka(make_topic.bootstrap, topic, slice_rows=10)) as reader:
        first = slices_of(reader, rows=10)
        reader.pause([f"kafka:{topic}/0"])
        other = slices_until(reader, lambda s: len(of_split([*first, *s], topic, 1)) == 100)
        reader.pause([])
        rest = slices_of(reader)
    assert not of_split(other, topic, 0)
    for p in range(2):
        assert of_split([*first, *other, *rest], topic, p) == numbered(100)


def of_split(slices: list[Slice], topic: str, partition: int) -> list[bytes | None]:
    return values(s for s in slices if s.split == f"kafka:{topic}/{partition}")


def test_new_records_come_soon_also_one_by_one(make_topic: Topics) -> None:
    topic = make_topic()
    with opened(kafka(make_topic.bootstrap, topic, until=None)) as reader:
        for i in range(5):
            produce(make_topic.bootstrap, topic, [b"%d" % i])
            assert values(slices_of(reader, rows=1)) == [b"%d" % i]

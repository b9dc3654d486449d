"""Readers count what they do: always under the same names, and never less than before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import KafkaError
from tests.counting import CountingSource
from tests.delta_slices import opened as delta_opened
from tests.delta_tables import append
from tests.kafka_client import produce
from tests.kafka_support import all_splits, kafka, numbered, opened, slices_of
from tests.test_ray_parts import WISH
from tests.test_recording import ListRecorder
from tests.topics import Topics

from forebay import Pipeline, ThreadEngine, mix
from forebay.hybrid import AtOffsets, HybridSource
from forebay.mixing.repeat import Repeated
from forebay.ray.reading import ReaderCounts, Reading
from forebay.recording import RecordedSource
from forebay.source import Counting, Reader, counts_of
from forebay.testing import MemorySource
from forebay_delta import DeltaSource
from forebay_kafka.clienterrors import ErrorLog


def read_all(reader: Reader) -> Iterator[Mapping[str, float]]:
    """Poll a bounded reader to its end; its counts after each poll."""
    while not set(reader.finished_splits()) >= reader.positions().keys():
        reader.poll(0.05)
        yield counts_of(reader)


def test_a_kafka_reader_counts_under_the_same_names_before_and_after(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, [*numbered(10), {"value": None, "key": b"k"}])
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        before = reader.counts()
        slices_of(reader)
        after = reader.counts()
    assert before.keys() == after.keys() and not any(before.values())
    assert (after["records"], after["bytes"], after["tombstones"]) == (11, 10, 1)


def test_errors_of_the_client_are_counted_by_few_kinds_that_are_always_there() -> None:
    log = ErrorLog(str)
    names = set(log.by_kind())
    for code in (KafkaError._TRANSPORT, KafkaError._SSL, KafkaError.TOPIC_AUTHORIZATION_FAILED):
        log(KafkaError(code))
    log(KafkaError(KafkaError._BAD_MSG))
    for code in range(1, 80):
        log(KafkaError(code))
    kinds = log.by_kind()
    assert kinds.keys() == names
    assert (kinds["unreachable"], kinds["unreadable"]) == (2, 1)
    assert sum(kinds.values()) == 83


def test_a_delta_reader_counts_rows_files_and_versions(tmp_path: Path) -> None:
    for i in range(3):
        append(tmp_path, range(i * 10, i * 10 + 10))
    with delta_opened(DeltaSource(str(tmp_path), until="latest")) as reader:
        names = set(reader.counts())
        *_, after = read_all(reader)
    assert after.keys() == names
    assert (after["rows"], after["files"], after["lost_rows"]) == (30, 3, 0)


def test_a_reader_that_is_recorded_counts_as_it_did() -> None:
    reader = RecordedSource(CountingSource({"a": range(30)}), ListRecorder()).open({}, all_splits)
    *_, after = read_all(reader)
    reader.close()
    assert after == {"rows": 30}


def test_the_counts_of_a_mix_are_those_of_its_members_together() -> None:
    a, b = CountingSource({"a": range(30)}), CountingSource({"b": range(12)})
    c = MemorySource({"c": range(5)})
    mixed = mix({"a": a, "b": b, "c": c}, {"a": 3, "b": 2, "c": 1}, when_dry="others")
    with Pipeline(mixed).batch(5).loader() as loader:
        assert sum(batch.rows for batch in loader) == 47
        assert loader.reader_counts() == {"rows": 42}


def test_a_source_that_is_repeated_counts_on_from_round_to_round() -> None:
    reader = Repeated("a", CountingSource({"a": range(10)}, slice_rows=4), {}, all_splits)
    counted = [0.0]
    while counted[-1] < 45:
        reader.poll(0.0)
        counted.append(reader.counts()["rows"])
    assert counted == sorted(counted)


def test_history_and_live_are_counted_together_and_history_still_once_it_is_over() -> None:
    past = CountingSource({"h": range(20)}, name="files")
    live = CountingSource({"a": range(30)}, name="records")
    source = HybridSource(past, live, AtOffsets({"a": 5}))
    with Pipeline(source).batch(5).loader() as loader:
        assert sum(batch.rows for batch in loader) == 45
        assert loader.reader_counts() == {"files": 20, "records": 25}


def test_a_reader_that_does_not_count_is_none_that_counted_nothing() -> None:
    reader = MemorySource({"a": range(3)}).open({}, all_splits)
    assert not isinstance(reader, Counting) and counts_of(reader) == {}


def test_counts_go_on_when_a_loader_is_closed_and_started_again() -> None:
    source = CountingSource({"a": range(40)}, slice_rows=10)
    with Pipeline(source).batch(10).loader(engine=ThreadEngine()) as loader:
        next(iter(loader))
        loader.close()
        before = loader.reader_counts()["rows"]
        list(loader)
    assert loader.reader_counts()["rows"] >= before + 30


def test_what_a_reader_of_ray_counted_comes_with_every_report() -> None:
    reading = Reading((CountingSource({"a": range(30)}), all_splits))
    reading.open({}, {})
    report, _ = reading.read(WISH)
    assert report.counts == {"rows": 30}


def test_readers_that_die_and_are_followed_by_others_never_count_down() -> None:
    counts, seen = ReaderCounts(), [0.0]
    for _ in range(20):
        for rows in (0, 3, 9):
            counts.told({"rows": rows})
            seen.append(counts.all()["rows"])
        counts.begin_anew()
        seen.append(counts.all()["rows"])
    assert seen == sorted(seen) and seen[-1] == 180

"""What a source gives is recorded as it comes, and no state is ahead of the recording."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.kafka_support import all_splits

from forebay import Loader, Pipeline
from forebay.columns import as_numpy
from forebay.errors import ConfigError, SourceError
from forebay.plugins import Plugins
from forebay.recording import (
    Place,
    Portion,
    RecordedReader,
    RecordedSource,
    Recorder,
    place_after,
)
from forebay.slice import Slice, Token
from forebay.source import Owns, Split
from forebay.state import Position
from forebay.testing import Fail, MemorySource
from forebay.topology import SINKS, Topology, TopologyError, json_schema, load

HOUR = 3600.0


@dataclass
class ListRecorder:
    """Keeps what it is given in a list; can be held up, and can fail."""

    rows: int = 1 << 30
    nbytes: int = 1 << 30
    seconds: float = HOUR
    written: list[list[Slice]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    failures: list[Exception] = field(default_factory=list)
    closed: int = 0

    def __post_init__(self) -> None:
        self.go_on.set()

    @property
    def portion(self) -> Portion:
        return Portion(rows=self.rows, nbytes=self.nbytes, seconds=self.seconds)

    def open(self) -> ListRecorder:
        return self

    def write(self, slices: Sequence[Slice]) -> None:
        assert self.go_on.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(list(slices))

    def close(self) -> None:
        self.closed += 1

    def offsets(self, split: str = "a") -> list[int]:
        """What is recorded of a split, in order."""
        slices = [s for part in self.written for s in part if s.split == split]
        return [at for s in slices for at in s.offsets.tolist()]

    def values(self) -> list[int]:
        """The column ``value`` of what is recorded."""
        slices = [s for part in self.written for s in part]
        return [v for s in slices for v in as_numpy(s.columns["value"]).tolist()]


@dataclass(frozen=True)
class Scripted:
    """A source that gives the slices that it was made with."""

    slices: Sequence[Slice]
    bounded: bool = False

    def splits(self) -> Sequence[Split]:
        return [Split(id="a", group="a", number=0)]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> ScriptedReader:
        return ScriptedReader(list(self.slices), dict(positions))


@dataclass
class ScriptedReader:
    """Reads a ``Scripted``."""

    slices: list[Slice]
    given: dict[str, Position]

    def positions(self) -> Mapping[str, Position]:
        return self.given

    def poll(self, timeout: float) -> Slice | None:
        return self.slices.pop(0) if self.slices else None

    def pause(self, splits: Collection[str]) -> None: ...

    def finished_splits(self) -> Collection[str]:
        return ()

    def ends(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None: ...


def rows(start: int, stop: int, token: Token | None = None, resets: bool = False) -> Slice:
    offsets = np.arange(start, stop, dtype=np.int64)
    return Slice(
        split="a",
        columns={"value": offsets.copy()} if stop > start else {},
        offsets=offsets,
        start=start,
        next_offset=stop,
        token=token,
        resets=resets,
    )


def opened(recorder: Recorder, *slices: Slice, at: Position | None = None) -> RecordedReader:
    source = RecordedSource(Scripted(slices), recorder)
    return source.open({} if at is None else {"a": at}, all_splits)


def loader(recorder: Recorder, data: Sequence[Any], size: int = 4, **options: Any) -> Loader:
    source = MemorySource({"a": data}, slice_rows=5)
    return Pipeline(source).record(recorder).batch(size).loader(**options)


# -- what is recorded ------------------------------------------------------------------------------


def test_every_row_is_recorded_as_the_source_gave_it_whatever_the_stages_leave() -> None:
    recorder = ListRecorder()
    pipeline = Pipeline(MemorySource({"a": list(range(20)), "b": list(range(7))}))
    few = pipeline.record(recorder).filter(lambda row: row["value"] % 5 == 0, per="row")
    with few.batch(3).loader() as of:
        assert sorted(v for b in of for v in b["value"].tolist()) == [0, 0, 5, 5, 10, 15]
    assert recorder.offsets("a") == list(range(20))
    assert recorder.offsets("b") == list(range(7))


def test_batches_and_positions_are_those_of_the_source_alone() -> None:
    data = list(range(50))
    recorded = loader(ListRecorder(), data)
    alone = Pipeline(MemorySource({"a": data}, slice_rows=5)).batch(4).loader()
    for mine, other in zip(recorded, alone, strict=True):
        assert mine["value"].tolist() == other["value"].tolist()
        assert recorded.state_dict() == alone.state_dict()


def test_what_a_trainer_writes_into_a_batch_does_not_change_the_recording() -> None:
    recorder = ListRecorder()
    with loader(recorder, [{"value": np.full(3, i)} for i in range(20)], size=5) as of:
        for batch in of:
            batch["value"].zero_()
    assert [v[0] for v in recorder.values()] == list(range(20))  # type: ignore[index]


@pytest.mark.parametrize(
    ("limit", "parts"),
    [({"rows": 10}, [10, 10, 5]), ({"nbytes": 160}, [10, 10, 5]), ({"seconds": 1e-9}, None)],
)
def test_a_portion_is_written_when_it_is_full_or_old(
    limit: dict[str, Any], parts: list[int] | None
) -> None:
    recorder = ListRecorder(**limit)
    with loader(recorder, list(range(25))) as of:
        list(of)
    written = [sum(map(len, part)) for part in recorder.written]
    assert sum(written) == 25
    assert parts is None or written == parts


# -- a state is never ahead ------------------------------------------------------------------------


def test_a_state_is_given_only_when_all_that_it_covers_is_recorded() -> None:
    recorder = ListRecorder()
    with loader(recorder, list(range(100))) as of:
        for _, _batch in zip(range(5), of, strict=False):
            assert recorder.offsets() == []
        at = of.state_dict()["splits"]["a"]["offset"]
        assert at == 20
        assert set(range(at)) <= set(recorder.offsets())


def test_a_state_waits_for_the_recording() -> None:
    recorder, states = ListRecorder(), list[dict[str, Any]]()
    recorder.go_on.clear()
    with loader(recorder, list(range(100))) as of:
        batches = iter(of)
        next(batches)
        waiting = threading.Thread(target=lambda: states.append(of.state_dict()))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive() and not states
        recorder.go_on.set()
        waiting.join(30)
        assert states and recorder.offsets()


def test_closing_records_all_that_was_read_and_leaves_no_thread() -> None:
    recorder = ListRecorder()
    of = loader(recorder, list(range(100)))
    batches = iter(of)
    next(batches)
    of.close()
    of.close()
    assert set(range(of.state_dict()["splits"]["a"]["offset"])) <= set(recorder.offsets())
    assert recorder.closed == 1
    assert not [t for t in threading.enumerate() if t.name == "forebay-record"]


# -- a slow recording ------------------------------------------------------------------------------


def test_where_the_recording_cannot_keep_up_reading_waits_and_the_buffer_stays_bounded() -> None:
    recorder = ListRecorder(rows=10, nbytes=160)
    recorder.go_on.clear()
    slices = [rows(i, i + 5) for i in range(0, 500, 5)]
    reader = opened(recorder, *slices)
    given = [s for _ in range(10) if (s := reader.poll(0.01)) is not None]
    assert sum(map(len, given)) * 16 <= 2 * 160 + slices[0].nbytes
    recorder.go_on.set()
    while len(given) < len(slices):
        if (s := reader.poll(1.0)) is not None:
            given.append(s)
    reader.close()
    assert recorder.offsets() == list(range(500))


def test_a_slice_larger_than_the_buffer_is_recorded_all_the_same() -> None:
    recorder = ListRecorder(nbytes=8)
    with loader(recorder, list(range(30))) as of:
        assert sum(b.rows for b in of) == 30
    assert recorder.offsets() == list(range(30))


# -- a recording that fails ------------------------------------------------------------------------


def test_a_failure_ends_the_reading_with_what_the_recorder_said() -> None:
    recorder = ListRecorder(rows=10, failures=[SourceError("disk full")])
    with pytest.raises(SourceError, match="disk full"), loader(recorder, range(10_000)) as of:
        list(of)


def test_no_state_is_given_after_a_failure_also_when_the_loader_was_closed() -> None:
    recorder = ListRecorder(failures=[SourceError("disk full")])
    of = loader(recorder, range(100))
    batches = iter(of)
    next(batches)
    for _ in range(2):
        with pytest.raises(SourceError, match="disk full"):
            of.state_dict()
    of.close()
    with pytest.raises(SourceError, match="disk full"):
        of.state_dict()


def test_a_failure_while_closing_is_raised_once() -> None:
    of = loader(ListRecorder(failures=[SourceError("disk full")]), range(100))
    batches = iter(of)
    next(batches)
    with pytest.raises(SourceError, match="disk full"):
        of.close()
    of.close()


def test_what_could_not_be_recorded_comes_first_when_the_loader_goes_on() -> None:
    recorder = ListRecorder(rows=10, failures=[SourceError("disk full")])
    of = loader(recorder, list(range(200)))
    trained: list[int] = []
    with pytest.raises(SourceError, match="disk full"):
        for batch in of:
            trained += batch["value"].tolist()
    for batch in of:
        trained += batch["value"].tolist()
    assert trained == list(range(200))
    of.close()
    recorded = recorder.offsets()
    assert list(dict.fromkeys(recorded)) == list(range(200))


def test_an_error_of_the_source_is_raised_and_what_came_before_is_recorded() -> None:
    recorder = ListRecorder()
    with pytest.raises(SourceError, match="the test said so"):
        list(loader(recorder, [*range(12), Fail(), 12]))
    assert recorder.offsets() == list(range(12))


# -- logs that begin anew --------------------------------------------------------------------------


def test_how_far_a_log_is_recorded_is_ordered_also_where_it_was_cut() -> None:
    at = place_after(rows(0, 100, {"id": "t", "epoch": 5}))
    assert at == Place(5, 100)
    again, new = rows(90, 110, {"id": "t", "epoch": 5}), rows(80, 90, {"id": "t", "epoch": 6})
    assert at.remaining(again).offsets.tolist() == list(range(100, 110))
    assert at.remaining(new) is new
    older = rows(0, 70, {"id": "t", "epoch": 4})
    assert len(place_after(new).remaining(older)) == len(place_after(new).remaining(again)) == 0


def test_a_new_log_that_its_token_does_not_tell_from_the_old_one_is_refused() -> None:
    reader = opened(ListRecorder(), rows(9, 9, resets=True), rows(9, 12), at=Position(20))
    assert reader.poll(1.0) is not None
    with pytest.raises(SourceError, match=r"a began anew at offset 9, .*another app_id"):
        reader.poll(1.0)
    reader.close()


@pytest.mark.parametrize("token", [{"id": "new"}, {"id": "old", "epoch": 7}])
def test_a_new_log_that_its_token_tells_from_the_old_one_is_recorded(token: Token) -> None:
    recorder, at = ListRecorder(), Position(20, token={"id": "old", "epoch": 6})
    reader = opened(recorder, rows(9, 9, token, resets=True), rows(9, 12, token), at=at)
    while reader.poll(0.01) is not None:
        pass
    reader.close()
    assert recorder.offsets() == [9, 10, 11]


# -- configuration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NullRecorder:
    """Records nothing; holds configuration only."""

    path: str
    flush_bytes: int = 1 << 20

    @property
    def portion(self) -> Portion:
        return Portion(rows=1, nbytes=self.flush_bytes, seconds=1.0)

    def open(self) -> ListRecorder:
        return ListRecorder()


def test_a_recorded_source_can_be_pickled() -> None:
    source = RecordedSource(MemorySource({"a": [1, 2]}), NullRecorder("x"))
    source.open({}, all_splits).close()
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.source, copy.recorder) == (source.source, source.recorder)
    copy.flush()


def test_something_else_than_a_recorder_is_refused() -> None:
    thing: Any = object()
    with pytest.raises(ConfigError, match="object is no recorder"):
        Pipeline(MemorySource({})).record(thing)
    with pytest.raises(ConfigError, match="seconds must be positive"):
        Portion(rows=1, nbytes=1, seconds=0)


RECORDERS = Plugins("no.such.group", "recorder type", {"null": NullRecorder, "other": Split})
SOURCES = Plugins("no.such.group", "source type", {"memory": MemorySource})
TOPOLOGY = "source: {type: memory, data: {a: [1, 2]}}\nbatch: 2\nrecord: "


@pytest.fixture
def parse(tmp_path: Path) -> Callable[[str], Topology]:
    def parse(section: str) -> Topology:
        (tmp_path / "t.yaml").write_text(TOPOLOGY + section)
        return load(tmp_path / "t.yaml", sources=SOURCES, recorders=RECORDERS)

    return parse


def test_a_topology_says_where_to_record(parse: Callable[[str], Topology]) -> None:
    topology = parse("{type: 'null', path: x, flush_bytes: 2MiB}")
    assert topology.pipeline.recorder == NullRecorder("x", 2 << 20)
    assert [b["value"].tolist() for b in topology.loader()] == [[1, 2]]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{type: nul, path: x}", "3:16: record.type: there is no recorder type 'nul'; did you"),
        ("{type: 'null', pth: x}", "3:24: record.pth: unknown key; did you mean 'path'?"),
        ("{type: other, id: x, group: x, number: 1}", "record: Split is no recorder: no portion"),
    ],
)
def test_what_is_wrong_with_the_section_is_told_with_its_line(
    parse: Callable[[str], Topology], section: str, told: str
) -> None:
    with pytest.raises(TopologyError) as e:
        parse(section)
    assert told in str(e.value)


def test_the_json_schema_has_the_recorders() -> None:
    recorders = Plugins("no.such.group", "recorder type", {"null": NullRecorder})
    schema = json_schema(SOURCES, SINKS, recorders)
    jsonschema.Draft202012Validator.check_schema(schema)
    (shape,) = schema["properties"]["record"]["oneOf"]
    assert shape["properties"]["type"] == {"const": "null"}
    assert shape["required"] == ["type", "path"]
    none = json_schema(SOURCES, SINKS, Plugins("no.such.group", "recorder type"))
    jsonschema.Draft202012Validator.check_schema(none)

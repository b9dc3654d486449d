"""What every engine must keep: the loader relies on it.

Sources, stages and events are such that an engine may run them in other processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import Engine, Feed, Plan, Position, Slice, SourceError, StageError
from forebay.columns import Columns
from forebay.rng import Run
from forebay.stage import Filter, Map
from forebay.testing import Fail, FileEvent, MemoryReader, MemorySource, Stall

DATA = {"a": list(range(50)), "b": list(range(100, 120)), "empty": []}
SECONDS = 30.0
"""Longer than any engine takes to start."""


def plan(data: Any = None, **changes: Any) -> Plan:
    source = MemorySource(DATA if data is None else data, bounded=changes.pop("bounded", True))
    same = Map("same", lambda c: c)
    defaults: dict[str, Any] = {
        "source": source,
        "stages": [same],
        "positions": {},
        "owns": lambda split: True,
        "run": Run(),
        "workers": (1, 2),
    }
    return Plan(**{**defaults, **changes})


def drained(feed: Feed) -> list[Slice]:
    """Everything that is left, released at once; the feed is closed."""
    taken = []
    while not feed.done:
        s = feed.take(1.0)
        if s is not None:
            taken.append(s)
            feed.release(s)
    feed.close()
    return taken


def first(feed: Feed) -> Slice:
    """The next slice, however long the engine takes to start."""
    while (s := feed.take(SECONDS)) is None:
        assert not feed.done
    return s


def filled(feed: Feed) -> list[Slice]:
    """Slices, none released, until the window is full."""
    taken = []
    while not feed.full:
        s = feed.take(1.0)
        taken += [s] if s is not None else []
    return taken


def waits(columns: Columns) -> Columns:
    time.sleep(0.02)
    return columns


def works(columns: Columns) -> Columns:
    began = time.thread_time()
    while time.thread_time() < began + 0.02:
        continue
    return columns


def offsets(slices: list[Slice]) -> list[int]:
    return [int(o) for s in slices for o in s.offsets]


@dataclass(frozen=True)
class Says:
    """Does nothing to the rows; says when it was reached, and waits where it is told to."""

    waits_at: frozenset[int]
    until: FileEvent

    def __call__(self, columns: Columns) -> Columns:
        if self.waits_at & set(np.asarray(columns["value"]).tolist()):
            self.until.wait(60)
        return columns


@dataclass(frozen=True, slots=True)
class WatchedSource(MemorySource):
    """Tells what its reader did."""

    end_seen: FileEvent | None = None
    closed: FileEvent | None = None

    def open(self, positions: Any, owns: Any) -> MemoryReader:
        return WatchedReader(self, {k: Position(0, base=0) for k in self.data})


class WatchedReader(MemoryReader):
    _source: WatchedSource

    def finished_splits(self) -> Collection[str]:
        finished = super().finished_splits()
        if "a" in finished and self._source.end_seen is not None:
            self._source.end_seen.set()
        return finished

    def close(self) -> None:
        super().close()
        if self._source.closed is not None:
            self._source.closed.set()


class BeginsAnew(MemorySource):
    """A split whose first rows are followed by those of a new log, from offset 0 again."""

    def open(self, positions: Any, owns: Any) -> MemoryReader:
        return Beginning(self, {"a": Position(0, base=0)})


class Beginning(MemoryReader):
    def poll(self, timeout: float) -> Slice | None:
        s = super().poll(timeout)
        if s is None or s.start != 7:
            return s
        return replace(s, start=0, offsets=s.offsets - 7, next_offset=7, resets=True)


def breaks_at_7(columns: Columns) -> Columns:
    return {} if 7 in np.asarray(columns["value"]) else columns


class EngineContract:
    """The cases; a subclass in a test file says with a fixture ``engine`` which engine it is."""

    def test_slices_of_a_split_come_in_order_and_without_a_hole(self, engine: Engine) -> None:
        taken = drained(engine.start(plan(workers=(1, 3))))
        for split, rows in DATA.items():
            at = 0
            for s in [s for s in taken if s.split == split]:
                assert s.start == at
                at = s.next_offset
            assert at == len(rows)

    def test_reading_begins_at_the_low_end_of_the_positions(self, engine: Engine) -> None:
        at = {"a": Position(40, base=0), "b": Position(20, base=0)}
        feed = engine.start(plan(positions=at))
        assert feed.positions == {**at, "empty": Position(0, base=0)}
        assert sorted(offsets(drained(feed))) == list(range(40, 50))

    def test_only_owned_splits_are_read(self, engine: Engine) -> None:
        feed = engine.start(plan(owns=lambda split: split.id == "b"))
        assert set(feed.positions) == {"b"}
        assert {s.split for s in drained(feed)} == {"b"}

    def test_slices_without_rows_are_given_too(self, engine: Engine) -> None:
        none = Filter("none", lambda c: np.zeros(len(c["value"]), bool))
        taken = drained(engine.start(plan(stages=[none])))
        assert sum(map(len, taken)) == 0
        assert max(s.next_offset for s in taken if s.split == "a") == 50

    def test_without_stages_rows_are_given_as_they_were_read(self, engine: Engine) -> None:
        taken = drained(engine.start(plan(stages=[])))
        given = [v for s in taken if s.split == "b" for v in np.asarray(s.columns["value"])]
        assert given == DATA["b"]

    def test_splits_read_to_their_end_are_exhausted_once_all_was_taken(
        self, engine: Engine
    ) -> None:
        feed = engine.start(plan())
        drained(feed)
        assert set(feed.exhausted()) == set(DATA)

    def test_a_split_of_which_a_slice_is_still_in_a_stage_is_not_exhausted(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        opened, end_seen = FileEvent(tmp_path / "opened"), FileEvent(tmp_path / "end")
        source = WatchedSource({"a": [1, 2, 3]}, end_seen=end_seen)
        slow = Map("slow", Says(frozenset([1]), opened))
        feed = engine.start(plan(source=source, stages=[slow]))
        assert end_seen.wait(SECONDS)
        assert feed.take(0.1) is None
        assert set(feed.exhausted()) == set()
        opened.set()
        drained(feed)
        assert set(feed.exhausted()) == {"a"}

    def test_take_returns_none_within_its_timeout_while_nothing_comes(self, engine: Engine) -> None:
        feed = engine.start(plan({"a": []}, bounded=False))
        assert feed.take(0.05) is None
        assert not feed.done
        feed.close()

    def test_an_error_of_the_reader_is_raised_after_the_slices_before_it(
        self, engine: Engine
    ) -> None:
        feed = engine.start(plan({"a": [1, 2, 3, Fail("gone")]}))
        taken: list[Slice] = []
        with pytest.raises(SourceError, match="a@3: gone"):
            while True:
                taken += [first(feed)]
        assert offsets(taken) == [0, 1, 2]
        feed.close()

    def test_an_error_of_a_stage_is_raised_in_its_turn(self, engine: Engine) -> None:
        stage = Map("broken", breaks_at_7)
        feed = engine.start(plan({"a": list(range(50))}, stages=[stage]))
        taken: list[Slice] = []
        with pytest.raises(StageError, match="stage 'broken' failed on a@7"):
            while True:
                taken += [first(feed)]
        assert offsets(taken) == list(range(7))
        feed.close()

    def test_no_more_than_the_bound_is_read_until_room_is_given_back(self, engine: Engine) -> None:
        feed = engine.start(plan({"a": list(range(10_000))}, max_bytes=20_000, bounded=False))
        held = filled(feed)
        assert 20_000 <= feed.bytes_in_flight() <= 20_000 + 2 * 7 * 16 + 2_000
        for s in held:
            feed.release(s)
        assert first(feed).start == held[-1].next_offset
        feed.close()

    def test_a_wanted_split_is_read_beyond_a_full_window(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        released = FileEvent(tmp_path / "released")
        data = {"a": list(range(10_000)), "b": [Stall(released), 1, 2, 3]}
        feed = engine.start(plan(data, max_bytes=2_000, bounded=False))
        filled(feed)
        released.set()
        feed.want(["b"])
        assert first(feed).split == "b"
        feed.close()

    def test_of_each_stage_it_is_known_how_much_of_its_time_was_cpu_time(
        self, engine: Engine
    ) -> None:
        feed = engine.start(plan(stages=[Map("waits", waits), Map("works", works)]))
        drained(feed)
        waiting, working = feed.stages().values()
        assert waiting.cpu_seconds is not None and working.cpu_seconds is not None
        assert waiting.cpu_seconds < waiting.busy_seconds / 2
        assert working.cpu_seconds > waiting.cpu_seconds

    def test_workers_can_be_added_and_taken_away_within_the_bounds(self, engine: Engine) -> None:
        feed = engine.start(plan(workers=(1, 3), bounded=False))
        (name,) = feed.pools()
        for wanted, given in ((3, 3), (0, 1), (9, 3)):
            feed.resize(name, wanted)
            while feed.pools()[name].workers != given:
                feed.take(0.05)
        feed.close()

    def test_closing_leaves_no_thread_and_closes_the_reader(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        closed = FileEvent(tmp_path / "closed")
        feed = engine.start(plan(source=WatchedSource(DATA, bounded=False, closed=closed)))
        first(feed)
        assert not closed.is_set()
        feed.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("forebay-")]
        assert closed.is_set()

    def test_nothing_is_overtaken_where_a_split_begins_anew(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        opened = FileEvent(tmp_path / "opened")
        slow = Map("slow", Says(frozenset([0, 7]), opened))
        source = BeginsAnew({"a": list(range(21))})
        feed = engine.start(plan(source=source, stages=[slow], order="arrival", workers=(1, 3)))
        assert feed.take(0.3) is None
        opened.set()
        given = [v for s in drained(feed) for v in np.asarray(s.columns["value"]).tolist()]
        assert (set(given[:7]), given[7]) == (set(range(7)), 7)
        assert set(given[8:]) == set(range(8, 21))

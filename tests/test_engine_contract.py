"""What every engine must keep: the loader relies on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forebay import Engine, Feed, Plan, Position, Slice, SourceError, StageError, ThreadEngine
from forebay.columns import Columns
from forebay.rng import Run
from forebay.stage import Filter, Map
from forebay.testing import Fail, MemoryReader, MemorySource, Stall

ENGINES: dict[str, Callable[[], Engine]] = {"threads": ThreadEngine}
DATA = {"a": list(range(50)), "b": list(range(100, 120)), "empty": []}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


def plan(data: Any = None, **changes: Any) -> Plan:
    source = MemorySource(DATA if data is None else data, bounded=changes.pop("bounded", True))
    same = Map("same", lambda c: c)
    defaults: dict[str, Any] = {
        "source": source,
        "stages": [same],
        "positions": {},
        "owns": lambda split: True,
        "run": Run(),
    }
    return Plan(**{**defaults, **changes})


def drained(feed: Feed) -> list[Slice]:
    taken = []
    while not feed.done:
        s = feed.take(1.0)
        if s is not None:
            taken.append(s)
            feed.release(s)
    return taken


def test_slices_of_a_split_come_in_order_and_without_a_hole(engine: Engine) -> None:
    feed = engine.start(plan(workers=(4, 4)))
    taken = drained(feed)
    for split, rows in DATA.items():
        mine = [s for s in taken if s.split == split]
        at = 0
        for s in mine:
            assert s.start == at
            at = s.next_offset
        assert at == len(rows)
    feed.close()


def test_reading_begins_at_the_low_end_of_the_positions(engine: Engine) -> None:
    feed = engine.start(plan(positions={"a": Position(40, base=0), "b": Position(20, base=0)}))
    assert sorted(o for s in drained(feed) for o in s.offsets) == list(range(40, 50))
    assert feed.positions["a"] == Position(40, base=0)
    assert feed.positions["empty"] == Position(0, base=0)
    feed.close()


def test_only_owned_splits_are_read(engine: Engine) -> None:
    feed = engine.start(plan(owns=lambda split: split.id == "b"))
    assert {s.split for s in drained(feed)} == {"b"}
    assert set(feed.positions) == {"b"}
    feed.close()


def test_slices_without_rows_are_given_too(engine: Engine) -> None:
    feed = engine.start(plan(stages=[Filter("none", lambda c: np.zeros(len(c["value"]), bool))]))
    taken = drained(feed)
    assert sum(map(len, taken)) == 0
    assert max(s.next_offset for s in taken if s.split == "a") == 50
    feed.close()


def test_splits_read_to_their_end_are_exhausted_once_all_was_taken(engine: Engine) -> None:
    feed = engine.start(plan())
    drained(feed)
    assert set(feed.exhausted()) == set(DATA)
    feed.close()


def test_a_split_of_which_a_slice_is_still_in_a_stage_is_not_exhausted(engine: Engine) -> None:
    opened, end_seen = threading.Event(), threading.Event()

    class Watched(MemoryReader):
        def finished_splits(self) -> Collection[str]:
            finished = super().finished_splits()
            if "a" in finished:
                end_seen.set()
            return finished

    class Source(MemorySource):
        def open(self, positions: Any, owns: Any) -> MemoryReader:
            return Watched(self, {"a": Position(0, base=0)})

    def slow(columns: Columns) -> Columns:
        opened.wait(60)
        return columns

    feed = engine.start(plan(source=Source({"a": [1, 2, 3]}), stages=[Map("slow", slow)]))
    assert end_seen.wait(30)
    assert feed.take(0.1) is None
    assert set(feed.exhausted()) == set()
    opened.set()
    drained(feed)
    assert set(feed.exhausted()) == {"a"}
    feed.close()


def test_take_returns_none_within_its_timeout_while_nothing_comes(engine: Engine) -> None:
    feed = engine.start(plan({"a": []}, bounded=False))
    assert feed.take(0.05) is None
    assert not feed.done
    feed.close()


def test_an_error_of_the_reader_is_raised_after_the_slices_before_it(engine: Engine) -> None:
    feed = engine.start(plan({"a": [1, 2, 3, Fail("gone")]}))
    taken: list[Slice] = []
    with pytest.raises(SourceError, match="a@3: gone"):
        while True:
            s = feed.take(1.0)
            taken += [s] if s is not None else []
    assert [o for s in taken for o in s.offsets] == [0, 1, 2]
    feed.close()


def test_an_error_of_a_stage_is_raised_in_its_turn(engine: Engine) -> None:
    def broken(columns: Columns) -> Columns:
        return {} if 7 in np.asarray(columns["value"]) else columns

    feed = engine.start(plan({"a": list(range(50))}, stages=[Map("broken", broken)]))
    taken: list[Slice] = []
    with pytest.raises(StageError, match="stage 'broken' failed on a@7"):
        while True:
            s = feed.take(1.0)
            taken += [s] if s is not None else []
    assert [o for s in taken for o in s.offsets] == list(range(7))
    feed.close()


def test_no_more_than_the_bound_is_read_until_room_is_given_back(engine: Engine) -> None:
    feed = engine.start(plan({"a": list(range(10_000))}, max_bytes=20_000, bounded=False))
    held: list[Slice] = []
    while (s := feed.take(0.3)) is not None:
        held.append(s)
    assert 20_000 <= feed.bytes_in_flight() <= 20_000 + 2 * 7 * 16 + 2_000
    feed.release(held[0])
    assert feed.take(5.0) is not None
    feed.close()


def test_a_wanted_split_is_read_beyond_a_full_window(engine: Engine) -> None:
    released = threading.Event()
    data = {"a": list(range(10_000)), "b": [Stall(released), 1, 2, 3]}
    feed = engine.start(plan(data, max_bytes=2_000, bounded=False))
    while feed.take(0.3) is not None:
        pass
    released.set()
    feed.want(["b"])
    s = feed.take(5.0)
    assert s is not None
    assert s.split == "b"
    feed.close()


def test_workers_can_be_added_and_taken_away_within_the_bounds(engine: Engine) -> None:
    feed = engine.start(plan(workers=(1, 4), bounded=False))
    (name,) = feed.pools()
    assert feed.pools()[name].workers == 4
    feed.resize(name, 0)
    while feed.pools()[name].workers > 1:
        feed.take(0.01)
    feed.resize(name, 9)
    assert feed.pools()[name].workers == 4
    feed.close()


def test_closing_leaves_no_thread_and_closes_the_reader(engine: Engine) -> None:
    opened: list[MemoryReader] = []

    class Source(MemorySource):
        def open(self, positions: Any, owns: Any) -> MemoryReader:
            opened.append(super().open(positions, owns))
            return opened[-1]

    before = threading.active_count()
    feed = engine.start(plan(source=Source(DATA, bounded=False)))
    feed.take(1.0)
    assert [reader.closed for reader in opened] == [False]
    feed.close()
    assert threading.active_count() == before
    assert [reader.closed for reader in opened] == [True]


class Beginning(MemoryReader):
    """A split whose first rows are followed by those of a new log, from offset 0 again."""

    def poll(self, timeout: float) -> Slice | None:
        s = super().poll(timeout)
        if s is None or s.start != 7:
            return s
        return replace(s, start=0, offsets=s.offsets - 7, next_offset=7, resets=True)


class BeginsAnew(MemorySource):
    def open(self, positions: Any, owns: Any) -> MemoryReader:
        return Beginning(self, {"a": Position(0, base=0)})


def test_nothing_is_overtaken_where_a_split_begins_anew(engine: Engine) -> None:
    opened = threading.Event()

    def slow(columns: Columns) -> Columns:
        if {0, 7} & set(np.asarray(columns["value"]).tolist()):
            opened.wait(60)
        return columns

    source = BeginsAnew({"a": list(range(21))})
    stages = [Map("slow", slow)]
    feed = engine.start(plan(source=source, stages=stages, order="arrival", workers=(4, 4)))
    assert feed.take(0.3) is None
    opened.set()
    given = [v for s in drained(feed) for v in np.asarray(s.columns["value"]).tolist()]
    assert (set(given[:7]), given[7]) == (set(range(7)), 7)
    assert set(given[8:]) == set(range(8, 21))
    feed.close()

"""A trainer that pauses costs lag, not memory: reading stops when the window is full."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pytest

from forebay import Feed, Pipeline, Plan, Position, Slice, ThreadEngine
from forebay.columns import Columns
from forebay.rng import Run
from forebay.source import Owns, Split
from forebay.stage import Map
from forebay.testing import MemorySource


class Endless:
    """An unbounded source of 1 kB rows that counts the bytes it gave."""

    bounded = False

    def __init__(self, splits: int = 1) -> None:
        self.given = 0
        self.names = [f"s{i}" for i in range(splits)]
        self._next = dict.fromkeys(self.names, 0)
        self._paused: Collection[str] = ()

    def splits(self) -> list[Split]:
        return [Split(id=name, group="e", number=i) for i, name in enumerate(self.names)]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> Endless:
        return self

    def positions(self) -> Mapping[str, Position]:
        return {name: Position(0, base=0) for name in self.names}

    def poll(self, timeout: float) -> Slice | None:
        name = next((n for n in self.names if n not in self._paused), None)
        if name is None:
            return None
        start, self._next[name] = self._next[name], self._next[name] + 10
        self.given += 10_000
        columns = {"value": np.zeros((10, 1_000), np.uint8)}
        offsets = np.arange(start, start + 10, dtype=np.int64)
        return Slice(
            split=name, columns=columns, offsets=offsets, start=start, next_offset=start + 10
        )

    def pause(self, splits: Collection[str]) -> None:
        self._paused = splits

    def finished_splits(self) -> Collection[str]:
        return ()

    def ends(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._paused = self.names


def settled(value: Callable[[], int]) -> int:
    """The value once it has stopped changing."""
    before = -1
    while before != (now := value()):
        before = now
        time.sleep(0.2)
    return before


def test_reading_stops_while_the_trainer_pauses_and_goes_on_after() -> None:
    source = Endless()
    with Pipeline(source).batch(10).loader(max_bytes=200_000) as of:
        batches = iter(of)
        next(batches)
        assert 180_000 <= settled(lambda: source.given) <= 230_000
        for _ in range(5):
            next(batches)
        assert 230_000 <= settled(lambda: source.given) <= 290_000


def test_stages_that_inflate_rows_are_counted_by_what_comes_out() -> None:
    def inflate(columns: Columns) -> Columns:
        return {"value": np.repeat(np.asarray(columns["value"]), 20, axis=1)}

    source = Endless()
    of = Pipeline(source).map(inflate).batch(10).loader(max_bytes=2_000_000, workers=2)
    with of:
        next(iter(of))
        assert settled(lambda: source.given) <= 2_000_000 // 20 + 100_000
        assert of.stats().bytes_in_flight <= 2_600_000


def test_slices_that_give_no_rows_stop_coming_too_while_the_trainer_pauses() -> None:
    seen = itertools.count()

    def first_fifteen_slices(columns: Columns) -> Any:
        return np.full(len(columns["value"]), next(seen) < 15)

    source = Endless()
    pipeline = Pipeline(source).filter(first_fifteen_slices).batch(100)
    with pipeline.loader(max_bytes=200_000, workers=1) as of:
        batches = iter(of)
        assert next(batches).rows == 100
        assert settled(lambda: source.given) <= 6_000_000


def test_the_originals_of_failed_rows_count_as_bytes_in_flight() -> None:
    def failing(columns: Columns) -> Columns:
        raise ValueError("bad")

    source = MemorySource({"a": [b"x" * 1_000] * 10_000}, slice_rows=10)
    stage = Map("failing", failing)
    plan = Plan(
        source=source,
        stages=[stage],
        positions={},
        owns=lambda split: True,
        run=Run(),
        max_bytes=100_000,
    )
    feed = ThreadEngine().start(plan)
    letters = 0
    while (s := feed.take(0.5)) is not None:
        letters += len(s.failures)
    feed.close()
    assert 0 < letters <= 200


def taken_and_released(feed: Feed) -> weakref.ref[Any]:
    """The values of the next slice, held by nobody here."""
    s = feed.take(30)
    assert s is not None
    feed.release(s)
    return weakref.ref(s.columns["value"])


def test_a_slice_that_overtook_a_stuck_one_is_not_kept_once_it_was_taken() -> None:
    opened = threading.Event()

    def stuck(columns: Columns) -> Columns:
        if 0 in np.asarray(columns["value"]):
            opened.wait(60)
        return {"value": np.asarray(columns["value"]).copy()}

    source = MemorySource({"a": list(range(100))})
    plan = Plan(
        source=source,
        stages=[Map("stuck", stuck)],
        positions={},
        owns=lambda split: True,
        run=Run(),
        order="arrival",
        workers=(2, 2),
    )
    feed = ThreadEngine().start(plan)
    taken = [taken_and_released(feed) for _ in range(13)]
    kept = [ref for ref in taken[:-1] if ref() is not None]
    opened.set()
    feed.close()
    assert kept == []


def test_few_slices_are_let_in_before_it_is_known_how_much_the_stages_inflate_them() -> None:
    opened = threading.Event()

    def slow(columns: Columns) -> Columns:
        opened.wait(60)
        return columns

    source = Endless()
    plan = Plan(
        source=source,
        stages=[Map("slow", slow)],
        positions={},
        owns=lambda split: True,
        run=Run(),
        workers=(2, 2),
    )
    feed = ThreadEngine().start(plan)
    given = settled(lambda: source.given)
    opened.set()
    feed.close()
    assert given <= 6 * 10_000


def test_a_full_window_never_locks_out_the_split_whose_turn_it_is() -> None:
    source = Endless(splits=3)
    of = Pipeline(source).batch(64).loader(max_bytes=50_000, order="deterministic")
    with of:
        batches = iter(of)
        given = [next(batches).origins.splits for _ in range(6)]
    assert given == [("s0",), ("s1",), ("s2",)] * 2


def test_the_end_of_one_split_is_noticed_while_the_window_is_full_of_others() -> None:
    source = MemorySource({"long": list(range(2_000)), "short": [1, 2, 3]})
    of = Pipeline(source).batch(100).loader(max_bytes=10_000, order="deterministic")
    assert sum(b.rows for b in of) == 2_003


def test_no_more_batches_than_prefetch_says_wait_for_the_trainer() -> None:
    with Pipeline(Endless()).batch(10).loader(prefetch=3) as of:
        next(iter(batches := iter(of)))
        assert settled(lambda: of.stats().ready_batches) == 3
        next(batches)


def test_a_shuffle_window_larger_than_the_bound_is_cut_short_not_waited_for() -> None:
    of = Pipeline(Endless()).shuffle(10_000).batch(10).loader(max_bytes=200_000)

    with of:
        batches: Any = iter(of)
        assert next(batches).rows == 10


@pytest.mark.parametrize("size", [7, 64])
def test_the_end_of_a_shuffle_window_in_a_batch_leaves_the_next_window_room(size: int) -> None:
    of = Pipeline(Endless()).shuffle(10_000).batch(size).loader(max_bytes=150_000)

    with of:
        batches: Any = iter(of)
        assert [next(batches).rows for _ in range(40)] == [size] * 40


def test_a_batch_larger_than_the_bound_is_read_beyond_it_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = MemorySource({"a": list(range(1_000)), "b": list(range(1_000))})
    pipeline = Pipeline(source).map(lambda c: c, name="same").batch(700)

    with caplog.at_level(logging.WARNING, logger="forebay"):
        assert [b.rows for b in pipeline.loader(max_bytes=2_000)] == [700, 700, 600]
    assert caplog.text.count("do not fit into max_bytes: reading beyond it") == 1

"""A worker that stands still while its peers go on is replaced, and no row is lost or repeated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from forebay import ConfigError, Feed, Pipeline, Plan, Slice, StageError, ThreadEngine
from forebay.columns import Columns
from forebay.engine import Order
from forebay.rng import Run
from forebay.stage import Map
from forebay.testing import MemorySource

DATA = {"a": list(range(300)), "b": list(range(1000, 1300))}


class HangsAt:
    """A stage that hangs on one row the first ``times`` times, until it is let go."""

    def __init__(self, row: int, times: int) -> None:
        self.row, self.left = row, times
        self.runs = 0
        self.let_go = threading.Event()

    def __call__(self, columns: Columns) -> Columns:
        if self.row in np.asarray(columns["value"]):
            self.runs += 1
            if self.runs <= self.left:
                self.let_go.wait(60)
        return columns


def started(stage: Callable[[Columns], Columns], order: Order = "split", workers: int = 3) -> Feed:
    plan = Plan(
        source=MemorySource(DATA, slice_rows=5),
        stages=[Map("decode", stage)],
        positions={},
        owns=lambda split: True,
        run=Run(),
        order=order,
        workers=(workers, workers),
    )
    return ThreadEngine(hung_seconds=0.2).start(plan)


def drained(feed: Feed) -> list[Slice]:
    taken = []
    while not feed.done:
        if (s := feed.take(0.05)) is not None:
            taken.append(s)
            feed.release(s)
    return taken


def values(slices: list[Slice]) -> list[int]:
    return [v for s in slices if len(s) for v in np.asarray(s.columns["value"]).tolist()]


@pytest.mark.parametrize("order", ["split", "arrival"])
def test_its_slice_is_run_once_more_and_every_row_comes_once(order: Order) -> None:
    stage = HangsAt(27, times=1)
    feed = started(stage, order)
    rows = values(drained(feed))
    assert sorted(rows) == sorted([*DATA["a"], *DATA["b"]])
    assert stage.runs == 2
    assert feed.pools()["stages"].replaced == 1
    stage.let_go.set()
    feed.close()


def test_what_a_replaced_worker_brings_late_is_dropped() -> None:
    stage = HangsAt(27, times=1)
    feed = started(stage)
    rows = values(drained(feed))
    (hanging,) = [t for t in threading.enumerate() if t.name.startswith("forebay-work")][:1]
    stage.let_go.set()
    feed.close()
    hanging.join(30)
    assert not hanging.is_alive()
    assert feed.take(0.05) is None
    assert len(rows) == len(set(rows)) == 600


def test_the_pool_keeps_its_size_and_its_counts_never_fall() -> None:
    stage = HangsAt(27, times=1)
    feed = started(stage)
    seen = []
    while not feed.done:
        seen.append(feed.pools()["stages"])
        if (s := feed.take(0.05)) is not None:
            feed.release(s)
    assert {pool.workers for pool in seen} == {3}
    busy = [pool.busy_seconds for pool in seen]
    assert all(before <= after + 1e-9 for before, after in pairwise(busy))
    stage.let_go.set()
    feed.close()


def test_the_last_slice_of_all_is_run_once_more_too() -> None:
    stage = HangsAt(1299, times=1)
    feed = started(stage)
    assert len(values(drained(feed))) == 600
    stage.let_go.set()
    feed.close()


def test_a_slice_that_hangs_twice_ends_reading_with_its_place() -> None:
    stage = HangsAt(27, times=9)
    feed = started(stage)
    with pytest.raises(StageError, match=r"'decode' failed on a@2\d: the rows to offset \d+ were"):
        drained(feed)
    stage.let_go.set()
    feed.close()


def test_a_lone_worker_is_never_taken_for_hanging() -> None:
    stage = HangsAt(27, times=1)
    feed = started(stage, workers=1)
    for _ in range(40):
        feed.take(0.02)
    assert feed.pools()["stages"].replaced == 0
    stage.let_go.set()
    drained(feed)
    feed.close()


def test_closing_leaves_a_thread_that_still_hangs_behind_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = HangsAt(27, times=1)
    feed = started(stage)
    drained(feed)
    with caplog.at_level(logging.WARNING, "forebay"):
        feed.close()
    assert "still hang in a stage and are left behind" in caplog.text
    stage.let_go.set()


def test_a_loader_goes_on_past_a_hanging_worker() -> None:
    stage = HangsAt(27, times=1)
    options: dict[str, Any] = {"engine": ThreadEngine(hung_seconds=0.2), "workers": 3}
    with Pipeline(MemorySource(DATA, slice_rows=5)).map(stage).batch(10).loader(**options) as of:
        rows = [v for batch in of for v in batch["value"].tolist()]
        stage.let_go.set()
    assert sorted(rows) == sorted([*DATA["a"], *DATA["b"]])


def test_patience_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="hung_seconds must be positive"):
        ThreadEngine(hung_seconds=0)

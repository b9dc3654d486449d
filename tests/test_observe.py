"""A monitor sees what a loader does, in numbers that only grow, and harms nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import Pipeline
from forebay.columns import Columns
from forebay.deadletter import kind_of
from forebay.histogram import Durations
from forebay.loader import Loader
from forebay.observe.monitor import Monitor
from forebay.observe.snapshot import FORMAT, Snapshot
from forebay.testing import MemorySource

ROWS = 400


def loader(**options: Any) -> Loader:
    data = {f"m/{i}": list(range(ROWS)) for i in range(2)}
    source = MemorySource(data, slice_rows=50)
    return Pipeline(source).map(doubled).filter(kept).batch(20).loader(**options)


def doubled(columns: Columns) -> dict[str, Any]:
    values = np.asarray(columns["value"])
    if (values == 7).any() and len(values) == 1:
        raise ValueError("seven: not wanted")
    if (values == 7).any():
        raise ValueError("some are seven")
    return {"value": values * 2}


def kept(columns: Columns) -> Any:
    return np.asarray(columns["value"]) % 4 == 0


class Kept:
    """An output that keeps all it is given."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.closed = False
        self.filled = threading.Event()

    def write(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        self.filled.set()

    def close(self) -> None:
        self.closed = True


class Broken(Kept):
    """An output that fails at once."""

    def write(self, snapshot: Snapshot) -> None:
        super().write(snapshot)
        raise OSError("disk full")


@pytest.fixture
def end() -> Iterator[Snapshot]:
    """The last snapshot of a whole run."""
    with loader() as of, Monitor(of, gpus=False) as monitor:
        for _ in of:
            continue
    yield monitor.history()[-1]


def test_each_stage_tells_its_rows_and_its_failures(end: Snapshot) -> None:
    doubling, filtering = end.stages["doubled"], end.stages["kept"]
    assert (doubling.rows_in, doubling.rows_out, doubling.failed) == (2 * ROWS, 2 * ROWS - 2, 2)
    assert (filtering.rows_in, filtering.rows_out, filtering.failed) == (2 * ROWS - 2, ROWS, 0)
    assert doubling.busy_seconds > 0
    assert list(end.stages) == ["doubled", "kept"]


def test_each_split_tells_how_far_it_is(end: Snapshot) -> None:
    assert end.ended == "done"
    assert {k: (s.position, s.end, s.lag_records) for k, s in end.splits.items()} == {
        "m/0": (ROWS, ROWS, 0),
        "m/1": (ROWS, ROWS, 0),
    }


def test_dead_letters_are_counted_by_the_kind_of_their_reason(end: Snapshot) -> None:
    assert end.letters.total == 2
    assert end.letters.by_reason == {"doubled/ValueError": 2}
    assert [(x.offset, x.reason) for x in end.letters.last] == [
        (7, "ValueError: seven: not wanted")
    ] * 2


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ValueError: no number: 'x'", "ValueError"),
        ("not a JPEG or PNG: it starts with 00", "not a JPEG or PNG"),
        ("killed its process, 3 times in this stage", "killed its process, # times in this stage"),
        ("a" * 200, "a" * 59 + "…"),
    ],
)
def test_kinds_of_dead_letters_hold_no_values(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


def test_the_times_of_the_steps_add_up(end: Snapshot) -> None:
    steps = end.steps
    assert end.batches == ROWS // 20
    assert steps.steps == end.batches
    assert end.wait_seconds.count == end.batches
    assert end.step_seconds.count == end.batches - 1
    parts = (steps.starved, steps.copy, steps.compute, steps.other)
    assert sum(p for p in parts if p is not None) == pytest.approx(steps.seconds, rel=1e-3)


def test_a_pause_is_told_by_its_name_and_is_no_part_of_the_training() -> None:
    with loader() as of:
        batches = iter(of)
        next(batches)
        with of.pause("evaluation"):
            threading.Event().wait(0.02)
        next(batches)
        times = of.stats().steps
    assert times.pauses["evaluation"] >= 0.02
    assert times.other == times.pauses["evaluation"]
    assert times.compute is not None and times.compute <= times.seconds - 0.02


def test_three_lags_tell_what_was_read_given_and_saved() -> None:
    source = MemorySource({"m/0": list(range(1000))}, slice_rows=100)
    with Pipeline(source).batch(50).loader(prefetch=1, workers=1) as of:
        batches = iter(of)
        next(batches)
        of.state_dict()
        next(batches)
        split = of.splits()["m/0"]
    assert (split.end, split.delivered, split.saved) == (1000, 100, 50)
    assert split.fetched is not None and split.fetched >= 100


def test_counts_go_on_where_the_pass_before_ended() -> None:
    with loader(passes=2) as of:
        for _ in of:
            continue
        once = of.stats()
        for _ in of:
            continue
        twice = of.stats()
    assert once.stages["doubled"].rows_in == 2 * ROWS
    assert twice.stages["doubled"].rows_in == 4 * ROWS
    assert twice.source_wait_seconds >= once.source_wait_seconds > 0


def test_a_snapshot_is_json_and_back(end: Snapshot) -> None:
    text = json.dumps(end.to_json())
    assert Snapshot.from_json(json.loads(text)) == end


def test_a_snapshot_of_a_later_version_is_read_as_far_as_it_is_known(end: Snapshot) -> None:
    assert Snapshot.from_json({**end.to_json(), "moods": ["good"]}) == end
    with pytest.raises(ValueError, match="update Forebay"):
        Snapshot.from_json({**end.to_json(), "format": FORMAT + 1})


def test_an_output_that_fails_is_left_out_and_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, broken = Kept(), Broken()
    with loader() as of, Monitor(of, outputs=[broken, good], interval=0.01, gpus=False) as monitor:
        for _ in of:
            continue
        good.filled.wait(10)
        while len(monitor.history()) < 3:
            threading.Event().wait(0.01)
    assert len(broken.snapshots) == 1
    assert len(good.snapshots) > 1
    assert good.closed
    assert caplog.text.count("Broken failed") == 1


def test_a_monitor_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with loader() as of, Monitor(of, interval=0.01):
        next(iter(of))
    assert set(threading.enumerate()) <= before


def test_durations_fall_into_the_bucket_whose_bound_they_do_not_exceed() -> None:
    counter = Durations([1.0, 2.0, 5.0])
    for seconds in (0.5, 1.0, 1.5, 5.0, 9.0):
        counter.add(seconds)
    taken = counter.taken()
    assert taken.counts == (2, 1, 1, 1)
    assert taken.sum == 17.0


def test_ages_of_many_rows_are_counted_as_one_by_one() -> None:
    times, now = np.sort(np.random.default_rng(3).integers(0, 100, 500)).astype(float), 90.0
    together, alone = Durations([1, 5, 20, 60]), Durations([1, 5, 20, 60])
    together.add_since(times, now)
    for t in times:
        alone.add(max(now - t, 0.0))
    assert together.taken().counts == alone.taken().counts
    assert together.taken().sum == pytest.approx(alone.taken().sum)


def test_a_quantile_lies_between_the_bounds_of_its_bucket() -> None:
    counter = Durations([1.0, 2.0, 4.0])
    for seconds in (0.5, 1.5, 1.6, 3.0):
        counter.add(seconds)
    assert counter.taken().quantile(0.5) == 1.5
    assert counter.taken().quantile(1.0) == 4.0
    assert Durations([1.0]).taken().quantile(0.5) is None

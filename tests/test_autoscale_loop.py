"""The loop around a policy, on real feeds and loaders."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeGpus

from forebay import ConfigError, Loader, Pipeline, Plan, ThreadEngine
from forebay.autoscale import (
    AutoscaleLoop,
    Autoscaling,
    Decision,
    DecisionLog,
    Guards,
    Observation,
    Sample,
    Starvation,
    Taken,
    TraceFile,
    read_trace,
)
from forebay.autoscale import loop as loop_module
from forebay.autoscale.gil import LockProbe
from forebay.columns import Columns
from forebay.engine import Feed
from forebay.rng import Run
from forebay.stage import Map
from forebay.stepclock import FakeStepClock, HostClock
from forebay.testing import MemorySource, TurnableClock

ENDLESS = MemorySource({"a": list(range(100_000))}, bounded=False)


class Always:
    """A policy that wants the same size, whatever it sees."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def decide(self, observation: Observation) -> Sequence[Decision]:
        return [Decision(name, self.workers, "always") for name in observation.pools]


class Broken:
    def decide(self, observation: Observation) -> Sequence[Decision]:
        raise ValueError("no idea")


@pytest.fixture
def feed() -> Any:
    plan = Plan(
        source=ENDLESS,
        stages=[Map("same", lambda c: c)],
        positions={},
        owns=lambda split: True,
        run=Run(),
        workers=(1, 8),
    )
    feed = ThreadEngine().start(plan)
    feed.resize("stages", 2)
    yield feed
    feed.close()


def settle(feed: Feed, workers: int) -> None:
    """Wait until the pool has its size."""
    while feed.pools()["stages"].workers != workers:
        if (s := feed.take(0.01)) is not None:
            feed.release(s)


def loop_on(feed: Feed, log: DecisionLog, clock: TurnableClock, **settings: Any) -> AutoscaleLoop:
    def look() -> Sample:
        clock.turn(1.0)
        return Sample(at=clock(), pools=feed.pools())

    return AutoscaleLoop(feed, look, Autoscaling(**settings), log, clock=clock)


def until(loader: Loader, condition: Callable[[], bool], step: float = 0.0) -> None:
    """Train until something is so."""
    for _ in loader:
        time.sleep(step)
        if condition():
            return


def slow(seconds: float) -> Callable[[Columns], Columns]:
    def stage(columns: Columns) -> Columns:
        time.sleep(seconds * len(columns["value"]))
        return columns

    return stage


def test_what_a_policy_wants_is_done_and_kept_with_its_reason(feed: Feed) -> None:
    settle(feed, 2)
    log = DecisionLog(10)
    loop_on(feed, log, TurnableClock(50.0), policy=Always(6)).tick()
    settle(feed, 6)
    assert log.list() == [
        Taken(
            at=51.0,
            since=51.0,
            times=1,
            pool="stages",
            before=2,
            workers=6,
            reason="always",
            applied=True,
        )
    ]


def test_a_dry_run_decides_and_does_nothing(feed: Feed) -> None:
    settle(feed, 2)
    log = DecisionLog(10)
    loop_on(feed, log, TurnableClock(), policy=Always(6), dry_run=True).tick()
    assert [(t.workers, t.applied) for t in log.list()] == [(6, False)]
    assert feed.pools()["stages"].workers == 2


def test_a_policy_that_fails_leaves_the_sizes_and_says_so_once(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    settle(feed, 2)
    log = DecisionLog(10)
    loop = loop_on(feed, log, TurnableClock(), policy=Broken())
    loop.tick()
    loop.tick()
    (taken,) = log.list()
    assert taken.reason == "hold: the policy raised ValueError: no idea"
    assert caplog.text.count("the autoscale policy failed") == 1


def test_a_look_that_fails_holds_until_one_succeeds(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def look() -> Sample:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise OSError("no broker")
        return Sample(at=float(looks), pools=feed.pools())

    settle(feed, 2)  # on its way there it has six workers, too
    log = DecisionLog(10)
    loop = AutoscaleLoop(feed, look, Autoscaling(policy=Always(6), interval=0.01), log)
    loop.start()
    settle(feed, 6)
    loop.stop()
    loop.join()
    assert caplog.text.count("could not look or act") == 1
    assert log.list()[0].reason == "always"


def test_equal_decisions_to_hold_are_one_entry_that_counts(feed: Feed) -> None:
    settle(feed, 2)
    log = DecisionLog(10)
    loop = loop_on(feed, log, TurnableClock(), policy=Always(2))
    for _ in range(5):
        loop.tick()
    (taken,) = log.list()
    assert (taken.times, taken.since, taken.at, taken.holds) == (5, 1.0, 5.0, True)


def test_only_the_last_decisions_are_kept() -> None:
    log = DecisionLog(3)
    for i in range(9):
        log.add(float(i), i, Decision("p", i + 1, "up"), applied=True)
    assert [t.workers for t in log.list()] == [7, 8, 9]


def test_every_change_is_a_line_in_the_log(feed: Feed, caplog: pytest.LogCaptureFixture) -> None:
    settle(feed, 2)
    with caplog.at_level(logging.INFO, "forebay.autoscale"):
        loop_on(feed, DecisionLog(10), TurnableClock(), policy=Always(6)).tick()
    assert "stages: 2 to 6 workers: always" in caplog.text


def test_observations_are_recorded_line_by_line(feed: Feed, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    clock = TurnableClock()
    loop = AutoscaleLoop(
        feed,
        lambda: Sample(at=clock(), pools=feed.pools()),
        Autoscaling(policy=Always(2)),
        DecisionLog(1),
        trace=TraceFile(path),
        clock=clock,
    )
    for _ in range(3):
        loop.tick()
        clock.turn(2.0)
    assert [o.at for o in read_trace(path)] == [0.0, 2.0, 4.0]


def test_a_trace_that_is_there_is_kept_when_a_run_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("of before\n")
    TraceFile(path)
    assert path.read_text() == ""
    assert (tmp_path / "trace.jsonl.1").read_text() == "of before\n"


def test_a_starving_trainer_makes_the_pool_of_its_loader_grow() -> None:
    of = Pipeline(ENDLESS).map(slow(0.004), workers=(1, 8)).batch(10)
    with of.loader(autoscale=Autoscaling(interval=0.2)) as loader:
        until(loader, lambda: any(t.workers > t.before for t in loader.decisions()), step=0.005)
        (grown, *_) = [t for t in loader.decisions() if t.workers > t.before]
    assert grown.applied
    assert grown.reason.startswith("the trainer starves")


def test_a_slow_trainer_makes_it_shrink_and_never_grow() -> None:
    guards = Guards(patience=1.0, cool_down=1.0)
    of = Pipeline(ENDLESS).map(slow(0.001), workers=(1, 6)).batch(10)
    with of.loader(autoscale=Autoscaling(interval=0.2, guards=guards)) as loader:
        until(loader, lambda: loader.decisions()[-1:] != [] and loader.stats().workers == 1, 0.05)
        taken = loader.decisions()
    assert not [t for t in taken if t.workers > t.before]
    assert any("are enough" in t.reason for t in taken if t.workers < t.before)


def test_workers_given_as_a_number_stay_that_many() -> None:
    with Pipeline(ENDLESS).map(slow(0.0), workers=3).batch(10).loader() as loader:
        assert loader.pools() == {}
        batches = iter(loader)  # a loop that is forgotten ends everything
        next(batches)
        assert loader.stats().workers == 3
        assert [(p.workers, p.least, p.most) for p in loader.pools().values()] == [(3, 3, 3)]
        assert "forebay-autoscale" not in {t.name for t in threading.enumerate()}
        assert loader.decisions() == []


def test_a_range_turns_it_on_and_none_turns_it_off() -> None:
    of = Pipeline(ENDLESS).map(slow(0.0), workers=(1, 3)).batch(10)
    for autoscale, runs in (("auto", True), ("lag", True), (None, False)):
        with of.loader(autoscale=autoscale) as loader:
            batches = iter(loader)
            next(batches)
            names = {t.name for t in threading.enumerate()}
        assert ("forebay-autoscale" in names) is runs
    assert "forebay-autoscale" not in {t.name for t in threading.enumerate()}


def test_it_begins_with_a_worker_a_cpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.threads.cpu_share", lambda: 1.5)
    with Pipeline(ENDLESS).map(slow(0.0), workers=(1, 8)).batch(10).loader() as loader:
        next(iter(loader))
        first = loader.decisions()[0]
    assert (first.before, first.workers) == (8, 2)
    assert first.reason == "begins with a worker for each of 1.5 CPUs"


def test_a_device_clock_that_says_nobody_starves_keeps_the_pool_from_growing() -> None:
    of = Pipeline(ENDLESS).map(slow(0.004), workers=(1, 8)).batch(10)
    settings = Autoscaling(interval=0.1)
    with of.loader(autoscale=settings, step_clock=lambda: FakeStepClock(0.0)) as loader:
        until(loader, lambda: sum(t.times for t in loader.decisions()) > 15)
        taken = loader.decisions()
    assert not [t for t in taken if t.workers > t.before]


def test_a_loader_whose_device_nvml_calls_busy_gets_no_more_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus = FakeGpus(tmp_path, monkeypatch)
    gpus.say(**{"0.util": 99})
    monkeypatch.setattr("forebay.session.cuda_uuid", lambda: "GPU-fake-0")
    of = Pipeline(ENDLESS).map(slow(0.004), workers=(1, 8)).batch(10)
    with of.loader(autoscale=Autoscaling(interval=0.1)) as loader:
        until(loader, lambda: any("busy 99%" in t.reason for t in loader.decisions()))
        assert not [t for t in loader.decisions() if t.workers > t.before]
    assert "forebay-nvml" not in {t.name for t in threading.enumerate()}


def test_a_trace_can_be_recorded_without_scaling(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    of = Pipeline(ENDLESS).map(slow(0.0), workers=2).batch(10)
    with of.loader(record_trace=str(path)) as loader:
        until(loader, lambda: path.read_text().count("\n") > 1, step=0.01)
    assert read_trace(path)[-1].pools["stages"].workers == 2


def test_a_trace_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    before = threading.active_count()
    loader = Pipeline(ENDLESS).batch(10).loader(record_trace=str(tmp_path / "no" / "t.jsonl"))
    with pytest.raises(ConfigError, match="cannot be written"):
        next(iter(loader))
    assert threading.active_count() == before


def test_the_loop_ends_with_its_loader() -> None:
    before = threading.active_count()
    loader = Pipeline(ENDLESS).map(slow(0.0), workers=(1, 3)).batch(10).loader()
    next(iter(loader))
    loader.close()
    assert threading.active_count() == before


def test_a_policy_that_does_not_return_does_not_hold_up_the_end(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def look() -> Sample:
        asked.set()
        answer.wait()
        raise RuntimeError("too late")

    monkeypatch.setattr(loop_module, "_JOIN_SECONDS", 0.0)
    loop = AutoscaleLoop(feed, look, Autoscaling(interval=0.01), DecisionLog(9))
    loop.start()
    asked.wait()
    loop.stop()
    loop.join()
    answer.set()
    assert "the autoscaler does not end: it waits for an answer" in caplog.text


def test_a_wait_that_goes_on_counts_as_waiting() -> None:
    clock = TurnableClock()
    host = HostClock(clock)
    host.wait_begins()
    clock.turn(2.0)
    assert host.starved_seconds() == 2.0
    host.wait_ends()
    clock.turn(5.0)
    assert host.waited_seconds() == 2.0


def test_the_probe_tells_a_thread_that_holds_the_lock_from_one_that_does_not() -> None:
    stop = threading.Event()

    def hold() -> None:
        while not stop.is_set():
            sum(range(20_000))

    def naps() -> float | None:
        probe = LockProbe()
        for _ in range(30):
            probe.nap()
        return probe.share()

    free = naps()
    thread = threading.Thread(target=hold)
    thread.start()
    held = naps()
    stop.set()
    thread.join()
    assert free is not None
    assert held is not None
    assert held >= 0.5 > free


def test_threads_that_cannot_help_are_not_added_and_the_reason_says_so() -> None:
    def python(columns: Columns) -> Columns:
        for _ in columns["value"]:
            sum(i * i for i in range(20_000))
        return columns

    hurried = Autoscaling(policy=Starvation(catch_up_seconds=1.0), interval=0.3)
    of = Pipeline(ENDLESS).map(python, workers=(1, 32)).batch(10)
    with of.loader(autoscale=hurried) as loader:
        until(loader, lambda: any("interpreter's lock" in t.reason for t in loader.decisions()))
        assert loader.stats().workers < 32


def test_a_probe_that_has_seen_too_little_says_nothing() -> None:
    assert LockProbe().share() is None


def test_taken_decisions_tell_whether_they_hold() -> None:
    log = DecisionLog(5)
    log.add(1.0, 2, Decision("p", 2, "hold: all is well"), applied=False)
    (taken,) = log.list()
    assert taken.holds
    assert not replace(taken, workers=3).holds

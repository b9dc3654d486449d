"""What drove other autoscalers to their limits, to nothing, or to the wrong pool: in the simulator,
with made-up metrics, and on real threads where it can come about there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from forebay import Loader, Pipeline
from forebay.autoscale import Autoscaling, Decision, Guards, Sample, SourceSeen
from forebay.autoscale.baselines import Ours
from forebay.autoscale.observation import Observation, PoolSeen, TrainerSeen
from forebay.autoscale.policies import Lag, Starvation
from forebay.autoscale.scenario import PoolModel, Scenario, constant, scenarios
from forebay.autoscale.simulate import Controller, Outcome, simulate
from forebay.columns import Columns
from forebay.state import Position
from forebay.testing import MemoryReader, MemorySource

STEADY = scenarios()["steady"]


class Stuck:
    """A partition beside the others whose lag never falls, whatever is done."""

    def __init__(self, to: Controller, lag: int) -> None:
        self.to, self.lag = to, lag

    def steps(self, sample: Sample) -> Sequence[Decision]:
        ends = {**sample.ends, "kafka:clicks/9": self.lag}
        behind = {**sample.behind, "kafka:clicks/9": self.lag}
        return self.to.steps(replace(sample, ends=ends, behind=behind))


def workers(outcome: Outcome, pool: str = "decode", after: float = 0.0) -> list[int]:
    return [p.workers[pool] for p in outcome.points if p.at >= after]


@pytest.mark.parametrize("policy", [Starvation(), Lag()])
def test_lag_that_no_worker_can_work_off_drives_nothing_to_the_limit(
    policy: Starvation | Lag,
) -> None:
    stuck = simulate(STEADY, Stuck(Ours(Autoscaling(policy=policy)), lag=1_000_000))
    assert max(workers(stuck, after=60)) <= 8
    assert STEADY.pools["decode"].most == 32


def test_two_pools_in_a_row_share_a_small_budget_by_their_service_times() -> None:
    slow_to_start = PoolModel(row_seconds=constant(0.21), start_seconds=4.0, workers=1, cpu=1.0)
    scenario = Scenario(
        name="two",
        seconds=120,
        arrival=constant(100.0),
        demand=constant(100.0),
        backlog=5_000,
        pools={
            "read": PoolModel(row_seconds=constant(0.17), start_seconds=0.5, workers=11, cpu=1.0),
            "infer": slow_to_start,
        },
        cpus=12,
    )
    outcome = simulate(scenario, Ours(Autoscaling()))
    last = [p for p in outcome.points if p.at >= 60]
    assert {(p.workers["read"], p.workers["infer"]) for p in last} <= {(5, 7), (5, 6), (6, 6)}
    assert min(p.capacity for p in last) >= 0.85 * 12 / (0.17 + 0.21)


@pytest.mark.parametrize("name", ["starvation", "lag"])
def test_a_metric_that_is_no_number_is_not_known(name: Any) -> None:
    busy = PoolSeen(workers=4, queued=20, busy=1.0, rate=10.0, throughput=40.0, most=32)
    hungry = TrainerSeen(demand=100.0, starved=0.6)
    seen = Observation(at=1.0, pools={"decode": busy}, trainer=hungry)
    policy = Autoscaling(policy=name).chosen()
    for source in (SourceSeen(lag=math.nan, arrival=9.0), SourceSeen(lag=9.0, arrival=math.nan)):
        (decision,) = policy.decide(replace(seen, sources={"clicks": source}))
        assert decision.workers == 4
        assert "of clicks is not known" in decision.reason


@dataclass(frozen=True)
class Broker:
    """Whether a source tells where it ends: yes, or an error, or nothing."""

    says: list[str]


class Forgetful(MemorySource):
    """A source whose ends are asked of a broker that may fail."""

    def open(self, positions: Mapping[str, Position], owns: Any) -> MemoryReader:
        reader = super().open(positions, owns)
        told = reader.ends

        def ends() -> Mapping[str, int]:
            if BROKER.says[-1] == "fails":
                raise OSError("no coordinator")
            return told() if BROKER.says[-1] == "tells" else {}

        reader.ends = ends  # type: ignore[method-assign]
        return reader


BROKER = Broker(["tells"])
ROWS = {"a": list(range(200_000))}
HURRIED = Autoscaling(interval=0.1, guards=Guards(patience=0.5, cool_down=0.5))


def slow(seconds: float) -> Callable[[Columns], Columns]:
    def stage(columns: Columns) -> Columns:
        time.sleep(seconds * len(np.asarray(columns["value"])))
        return columns

    return stage


def ticks(loader: Loader) -> int:
    """Decisions until now."""
    return sum(t.times for t in loader.decisions())


@pytest.mark.parametrize("trouble", ["fails", "tells nothing"])
def test_a_source_that_tells_nothing_for_a_while_keeps_its_workers(trouble: str) -> None:
    BROKER.says.append("tells")
    of = Pipeline(Forgetful(ROWS, bounded=False)).map(slow(0.001), workers=(1, 6)).batch(10)
    with of.loader(autoscale=HURRIED) as loader:
        batches = iter(loader)
        while not [t for t in loader.decisions() if t.workers < t.before]:
            next(batches)  # a trainer that is slow: the pool begins to shrink
            time.sleep(0.05)
        BROKER.says.append(trouble)
        at, before = time.monotonic(), loader.pools()["stages"].workers
        while time.monotonic() < at + 3:  # far beyond the patience
            next(batches)
            time.sleep(0.05)
        held = loader.pools()["stages"].workers
    assert held == before >= 1


def test_a_trainer_that_begins_to_starve_gets_workers_within_a_few_decisions() -> None:
    of = Pipeline(MemorySource(ROWS, bounded=False)).map(slow(0.002), workers=(1, 8)).batch(10)
    with of.loader(autoscale=Autoscaling(interval=0.3)) as loader:
        batches = iter(loader)
        while ticks(loader) < 8:
            next(batches)
            time.sleep(0.06)
        assert not [t for t in loader.decisions() if t.workers > t.before]
        began = ticks(loader)
        while not [t for t in loader.decisions() if t.workers > t.before]:
            next(batches)
            time.sleep(0.001)
        assert ticks(loader) - began <= 8


def test_stages_in_a_row_share_one_pool_of_threads_so_that_none_takes_anothers_share() -> None:
    of = Pipeline(MemorySource(ROWS)).map(slow(0.0)).map(slow(0.0), workers=(1, 12)).batch(10)
    with of.loader() as loader:
        batches = iter(loader)
        next(batches)
        assert list(loader.pools()) == ["stages"]

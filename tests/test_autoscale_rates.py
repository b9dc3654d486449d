"""Observations are differences of counts; what cannot be told from them is None."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.autoscale import Observation, Observer, Sample
from forebay.engine import PoolStats


def pool(**changes: Any) -> PoolStats:
    return PoolStats(
        **{"workers": 2, "busy_seconds": 0.0, "queued_slices": 0, "rows": 0, **changes}
    )


def watched(*samples: Sample) -> Observation:
    observer = Observer()
    return [observer.observe(sample) for sample in samples][-1]


def second(i: int, **changes: Any) -> Sample:
    """A source of 50 rows/s; a trainer that takes 100 while it works, and works half the time."""
    found: dict[str, Any] = {
        "at": float(i),
        "ends": {"kafka:clicks/0": 1000 + 30 * i, "kafka:clicks/1": 20 * i},
        "behind": {"kafka:clicks/0": 500, "kafka:clicks/1": 0},
        "pools": {"decode": pool(busy_seconds=1.0 * i, cpu_seconds=0.25 * i, rows=50 * i)},
        "batches": 5 * i,
        "rows": 50 * i,
        "starved_seconds": 0.5 * i,
        "ready": 0.5,
    }
    return Sample(**{**found, **changes})


def test_lag_and_arrivals_are_those_of_all_splits_of_a_source() -> None:
    seen = watched(*map(second, range(8)))
    assert list(seen.sources) == ["kafka:clicks"]
    assert (seen.lag, seen.arrival) == (500, 50)


def test_a_trainers_demand_is_what_it_takes_while_it_does_not_wait() -> None:
    trainer = watched(*map(second, range(8))).trainer
    assert (trainer.demand, trainer.starved, trainer.ready) == (100, 0.5, 0.5)


def test_demand_counts_rows_of_the_source_where_stages_drop_some() -> None:
    kept = [second(i, rows=5 * i) for i in range(8)]
    assert watched(*kept).trainer.demand == 100


def test_a_pools_rate_is_that_of_a_worker_that_works() -> None:
    found = watched(*map(second, range(8))).pools["decode"]
    assert (found.rate, found.throughput, found.busy, found.cpu) == (50, 50, 0.5, 0.25)


def test_a_first_sample_tells_nothing_that_is_a_rate() -> None:
    seen = watched(second(0))
    found = seen.pools["decode"]
    assert seen.arrival is None
    assert (seen.trainer.demand, seen.trainer.starved) == (None, None)
    assert (found.rate, found.busy, found.cpu, found.throughput) == (None, None, None, None)


def test_a_source_that_does_not_tell_its_end_is_not_there() -> None:
    silent = second(8, ends={}, behind={})
    seen = watched(*map(second, range(8)), silent)
    assert (seen.lag, seen.arrival) == (None, None)


def test_arrivals_are_known_again_as_soon_as_a_source_tells_its_end_again() -> None:
    silent = [second(i, ends={}, behind={}) for i in (8, 9)]
    assert watched(*map(second, range(8)), *silent, second(10)).arrival == 50


def test_a_split_that_appears_is_no_arrival() -> None:
    grown = second(8)
    ends = {**grown.ends, "kafka:clicks/2": 1_000_000}
    seen = watched(*map(second, range(8)), second(8, ends=ends))
    assert seen.arrival == 50


def test_a_trainer_that_pauses_keeps_the_demand_that_it_had() -> None:
    paused = [second(i, batches=35, rows=350, starved_seconds=3.5) for i in range(8, 40)]
    trainer = watched(*map(second, range(8)), *paused).trainer
    assert trainer.starved == 0
    assert trainer.demand is not None
    assert trainer.demand == pytest.approx(100, rel=0.01) or trainer.demand < 100


def test_an_idle_pool_keeps_the_rate_that_it_had() -> None:
    idle = [second(i, pools={"decode": pool(busy_seconds=7.0, rows=350)}) for i in range(8, 40)]
    found = watched(*map(second, range(8)), *idle).pools["decode"]
    assert (found.rate, found.busy) == (50, 0)


def test_a_device_whose_starving_is_not_known_is_not_taken_for_fed() -> None:
    trainer = watched(*[second(i, starved_seconds=None) for i in range(8)]).trainer
    assert (trainer.starved, trainer.demand) == (None, None)


def test_two_looks_at_one_moment_tell_no_rates() -> None:
    seen = watched(second(3), second(3))
    assert (seen.arrival, seen.trainer.starved) == (None, None)
    assert seen.pools["decode"].throughput is None


def test_how_busy_the_device_is_is_the_mean_of_what_is_known_of_the_last_seconds() -> None:
    told = [0.1, 0.1, 0.9, None, 0.7]
    samples = [second(i, device_busy=busy) for i, busy in enumerate(told)]
    assert watched(*samples).trainer.device_busy == pytest.approx(0.8)
    assert watched(*map(second, range(8))).trainer.device_busy is None

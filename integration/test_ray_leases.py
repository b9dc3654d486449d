"""The Ray engine by leases, on a real Ray: what it does where the installed Ray is not known."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from typing import Any

import pytest
from integration.local_ray import kill, processes_of, small_engine
from tests.engine_contract import EngineContract, Says, drained, first, offsets, plan

from forebay import Engine
from forebay.ray import RayEngine
from forebay.ray import leases as leases_module
from forebay.ray.feed import RayFeed
from forebay.ray.leases import LeaseExecution
from forebay.stage import Map
from forebay.testing import FileEvent

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    # Ray leaves the log of a data set open when another one runs beside it.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in.*ray-data:pytest.PytestUnraisableExceptionWarning"
    ),
]


class TestLeases(EngineContract):
    """All cases hold, also that of the number of workers: a pool of the new size follows."""

    @pytest.fixture
    def engine(self, ray_cluster: str) -> Engine:
        return by_leases(ray_cluster)


def by_leases(address: str) -> RayEngine:
    return small_engine(address, leases="always")


def finishing(feed: RayFeed, taken: list[Any]) -> list[int]:
    """The offsets of all that was taken and is left."""
    for s in taken:
        feed.release(s)
    return offsets(taken + drained(feed))


def runs_of(feed: RayFeed) -> list[Any]:
    """The data sets of the feed's execution, the newest last."""
    assert isinstance(feed._execution, LeaseExecution)
    return feed._execution._runs


@pytest.mark.parametrize("victim", ["MapWorker", "Readforebay", "Reading"])
def test_a_killed_process_loses_and_repeats_nothing(ray_cluster: str, victim: Any) -> None:
    rows = list(range(3000))
    feed = by_leases(ray_cluster).start(plan({"a": rows}, workers=(1, 1), max_bytes=30_000))
    taken = [first(feed) for _ in range(10)]
    victims = processes_of(victim)
    assert victims
    for process in victims:
        kill(process)
    assert finishing(feed, taken) == rows


def test_a_new_pool_follows_when_leases_run_out_and_nothing_is_lost(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_LEASES", 2)
    monkeypatch.setattr(leases_module, "_PARCELS_PER_RUN", 20)
    rows = list(range(3000))
    feed = by_leases(ray_cluster).start(plan({"a": rows}, workers=(1, 1), max_bytes=10_000))
    taken: list[Any] = [first(feed)]
    seen: set[int] = set()
    while len(seen) < 3:
        feed.release(taken[-1])
        taken.append(first(feed))
        seen.add(runs_of(feed)[-1].number)
    assert finishing(feed, taken[-1:]) == rows[len(offsets(taken[:-1])) :]
    assert offsets(taken) == rows[: len(offsets(taken))]


def test_a_parcel_that_ray_never_gives_back_runs_again(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, calls = LeaseExecution._take, count(1)
    monkeypatch.setattr(leases_module, "_STALLED_SECONDS", 1.0)
    monkeypatch.setattr(LeaseExecution, "_take", lambda *a: take(*a) if next(calls) != 3 else None)
    rows = list(range(1000))
    feed = by_leases(ray_cluster).start(plan({"a": rows}, workers=(1, 1), max_bytes=30_000))
    assert offsets(drained(feed)) == rows


def test_closing_ends_workers_that_never_will(ray_cluster: str, tmp_path: Any) -> None:
    never = FileEvent(tmp_path / "never")
    hangs = Map("hangs", Says(frozenset([0]), never))
    feed = by_leases(ray_cluster).start(plan({"a": range(10)}, stages=[hangs], workers=(1, 1)))
    while not feed.pools()["stages"].workers:
        feed.take(0.1)
    feed.close()
    while processes_of("MapWorker"):
        never.wait(0.1)


UNKNOWN = """
import logging
from ray.data._internal.execution import execution_callback
known = execution_callback.ExecutionCallback
del execution_callback.ExecutionCallback
import forebay.ray
execution_callback.ExecutionCallback = known  # Ray itself cannot do without
logging.basicConfig(format="%(message)s")
from forebay import ConfigError
from integration.local_ray import small_engine
from tests.engine_contract import drained, offsets, plan
try:
    taken = drained(small_engine({address!r}, leases={leases!r}).start(plan(workers=(1, 1))))
    print(len(offsets(taken)), "rows")
except ConfigError as e:
    print(e)
"""


def on_an_unknown_ray(address: str, leases: str) -> str:
    """What a run says in a process whose Ray Data lacks a name that the engine uses."""
    run = subprocess.run(
        [sys.executable, "-c", UNKNOWN.format(address=address, leases=leases)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return run.stdout


def test_a_ray_that_is_not_known_is_used_by_leases_and_it_is_said_so(ray_cluster: str) -> None:
    said = on_an_unknown_ray(ray_cluster, "auto")
    assert "cannot import name 'ExecutionCallback'" in said
    assert "It runs by leases instead, on public names of Ray only" in said
    assert "70 rows" in said


def test_a_ray_that_is_not_known_is_refused_where_leases_are_not_wanted(ray_cluster: str) -> None:
    said = on_an_unknown_ray(ray_cluster, "never")
    assert "changed. Install a version it was tested with" in said
    assert "by leases instead" not in said

"""The autoscaler of a loader on a real Ray: it grows and shrinks a pool of actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from integration.local_ray import CPUS, small_engine
from tests.engine_contract import first, plan

from forebay import Loader, Pipeline
from forebay.autoscale import Autoscaling, Guards
from forebay.columns import Columns
from forebay.ray.nodes import Nodes
from forebay.testing import MemorySource

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
]
ROWS = MemorySource({"a": list(range(200_000))}, bounded=False)
HURRIED = Autoscaling(interval=0.5, guards=Guards(patience=2, cool_down=1))


def slow(columns: Columns) -> Columns:
    time.sleep(0.01 * len(np.asarray(columns["value"])))
    return columns


def until(loader: Loader, batches: Any, condition: Callable[[], bool], step: float) -> list[int]:
    """Train until something is so; the rows."""
    rows = []
    while not condition():
        rows += next(batches)["value"].tolist()
        time.sleep(step)
    return rows


def test_a_pool_grows_under_starvation_and_shrinks_again_and_no_row_is_lost(
    ray_cluster: str,
) -> None:
    of = Pipeline(ROWS).map(slow, workers=(1, 3)).batch(10)
    with of.loader(engine=small_engine(ray_cluster), autoscale=HURRIED) as loader:
        batches = iter(loader)

        def workers() -> int:
            return sum(p.workers for p in loader.pools().values())

        rows = until(loader, batches, lambda: workers() == 3, step=0.01)
        rows += until(loader, batches, lambda: workers() == 1, step=0.2)
        taken = loader.decisions()
    assert rows == list(range(len(rows)))
    grown = [t for t in taken if t.workers > t.before]
    assert grown[-1].workers == 3
    assert all(t.reason.startswith("the trainer starves") for t in grown)
    assert taken[0].reason == "begins with the least of 1 to 3"


def test_workers_that_were_asked_for_count_as_starting_until_they_are_there(
    ray_cluster: str,
) -> None:
    feed = small_engine(ray_cluster).start(plan(bounded=False, workers=(1, 3)))
    feed.resize("stages", 1)
    first(feed)
    feed.resize("stages", 3)
    pool = feed.pools()["stages"]
    assert pool.workers + pool.starting == 3
    assert pool.starting >= 2
    while (pool := feed.pools()["stages"]).starting:
        assert pool.workers + pool.starting == 3
    assert pool.workers == 3
    feed.close()


class Neighbour:
    """Somebody else's work on the cluster."""

    def works(self) -> bool:
        return True


def test_what_others_take_of_the_cluster_is_not_there_for_workers(ray_cluster: str) -> None:
    small_engine(ray_cluster).start(plan()).close()  # so that this process is attached
    nodes = Nodes({"CPU": 0.5}, most_cpus=None, fresh_seconds=0.0)
    while nodes.cpus(workers=0) != CPUS:
        time.sleep(0.1)
    neighbour = ray.remote(num_cpus=2)(Neighbour).remote()
    assert ray.get(neighbour.works.remote())
    while nodes.cpus(workers=0) == CPUS:
        time.sleep(0.1)
    assert nodes.cpus(workers=0) == CPUS - 2
    assert nodes.cpus(workers=4) == CPUS
    ray.kill(neighbour)


def test_asking_for_nodes_does_no_harm_where_nobody_can_give_them(ray_cluster: str) -> None:
    small_engine(ray_cluster).start(plan()).close()
    nodes = Nodes({"CPU": 0.5}, most_cpus=64.0, fresh_seconds=0.0)
    assert nodes.cpus(workers=0) == 64.0
    nodes.ask(workers=100)
    nodes.close()

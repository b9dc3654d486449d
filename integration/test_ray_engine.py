"""The Ray engine on a real Ray, on this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from integration.local_ray import kill, processes_of, small_engine
from tests.engine_contract import EngineContract, drained, first, offsets, plan

from forebay import Engine, Pipeline
from forebay.columns import Columns, as_numpy
from forebay.stage import Map
from forebay.testing import MemorySource

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
]


class TestRay(EngineContract):
    @pytest.fixture
    def engine(self, ray_cluster: str) -> Engine:
        return small_engine(ray_cluster)


def dies_at_77(columns: Columns) -> Columns:
    """As a segmentation fault or the kernel's memory killer would."""
    if 77 in np.asarray(columns["value"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return columns


def test_a_record_that_kills_its_process_becomes_a_dead_letter(ray_cluster: str) -> None:
    rows = list(range(200))
    feed = small_engine(ray_cluster).start(plan({"a": rows}, stages=[Map("deadly", dies_at_77)]))
    taken = drained(feed)
    (letter,) = [f for s in taken for f in s.failures]
    assert (letter.offset, letter.stage, letter.original) == (77, "deadly", {"value": 77})
    assert letter.reason == "killed its process, 2 times in this stage"
    assert offsets(taken) == [o for o in rows if o != 77]
    assert not list(Path("/dev/shm").glob("forebay-*"))


@pytest.mark.parametrize("victim", ["Reading", "MapWorker"])
def test_a_killed_process_loses_and_repeats_nothing(ray_cluster: str, victim: str) -> None:
    data = {"a": list(range(3000)), "b": list(range(1500))}
    feed = small_engine(ray_cluster).start(plan(data, workers=(1, 1), max_bytes=30_000))
    taken = [first(feed)]
    kill(processes_of(victim)[0])  # type: ignore[arg-type]
    feed.release(taken[0])
    taken += drained(feed)
    for split, rows in data.items():
        assert [o for s in taken if s.split == split for o in s.offsets] == rows


def test_an_execution_that_ends_is_started_anew_where_it_was(ray_cluster: str) -> None:
    data = {"a": list(range(3000))}
    feed = small_engine(ray_cluster).start(plan(data, workers=(1, 1), max_bytes=30_000))
    taken = [first(feed)]
    assert feed._execution is not None
    feed._execution._executor.shutdown(force=True)
    feed.release(taken[0])
    taken += drained(feed)
    assert offsets(taken) == data["a"]


def images(columns: Columns) -> Columns:
    numbers = as_numpy(columns["n"])
    ragged = np.empty(len(numbers), object)
    ragged[:] = [np.full((n % 3 + 1, 2), n, np.float16) for n in numbers]
    return {**columns, "image": np.ones((len(numbers), 4, 5, 3), np.uint8), "ragged": ragged}


def test_columns_come_out_of_the_kind_they_are_on_threads(ray_cluster: str) -> None:
    data = {"a": [{"value": b"x" * i, "name": "é" * i, "n": i} for i in range(20)]}
    source = MemorySource(data)
    on_ray, on_threads = (
        [
            {k: v.tolist() if hasattr(v, "tolist") else str(v) for k, v in b.items()}
            for b in Pipeline(source).map(images).batch(8).loader(engine=engine, workers=1)
        ]
        for engine in (small_engine(ray_cluster), "threads")
    )
    assert on_ray == on_threads


def test_the_deterministic_order_is_that_of_threads(ray_cluster: str) -> None:
    source = MemorySource({"a": list(range(300)), "b": list(range(150))})
    pipeline = Pipeline(source).map(lambda c, rng: {**c, "r": rng.uniform()}).batch(32)
    given = [
        [b["r"].tolist() for b in pipeline.loader(engine=engine, order="deterministic", workers=2)]
        for engine in (small_engine(ray_cluster), "threads")
    ]
    assert given[0] == given[1]

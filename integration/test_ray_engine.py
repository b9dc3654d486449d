"""The Ray engine on a real Ray, on this machine."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from integration.local_ray import await_that, kill, processes_of, small_engine
from tests.counting import CountingSource
from tests.engine_contract import EngineContract, drained, first, offsets, plan

from forebay import ConfigError, Engine, EngineError, Pipeline, ProcessError
from forebay.columns import Columns, as_numpy
from forebay.ray import RayEngine, lookout
from forebay.ray.execution import Execution
from forebay.ray.host import HostedExecution
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


class TestRayInTheTrainer(EngineContract):
    @pytest.fixture
    def engine(self, ray_cluster: str) -> Engine:
        return here(ray_cluster)


def here(address: str, **changes: Any) -> RayEngine:
    """Ray's scheduling loop in this process, where it can be looked into, and starts sooner."""
    return small_engine(address, scheduler="trainer", **changes)


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
    assert letter.reason == "killed its process or hung, 2 times in this stage"
    assert offsets(taken) == [o for o in rows if o != 77]
    assert not list(feed._setup.attempts.parent.glob(f"{feed._setup.attempts.name}*"))


@pytest.mark.parametrize("victim", ["Reading", "MapWorker", "Host"])
def test_a_killed_process_loses_and_repeats_nothing(ray_cluster: str, victim: str) -> None:
    data = {"a": list(range(3000)), "b": list(range(1500))}
    feed = small_engine(ray_cluster).start(plan(data, workers=(1, 1), max_bytes=30_000))
    taken = [first(feed)]
    kill(processes_of(victim)[0])  # type: ignore[arg-type]
    feed.release(taken[0])
    taken += drained(feed)
    for split, rows in data.items():
        assert [o for s in taken if s.split == split for o in s.offsets] == rows


def test_what_readers_count_never_steps_back_however_many_die(ray_cluster: str) -> None:
    source = CountingSource({"a": range(3000)}, slice_rows=10)
    asked = replace(plan(workers=(1, 1), max_bytes=30_000), source=source)
    feed = small_engine(ray_cluster).start(asked)
    counted = [0.0]
    for kills in range(4):
        while not feed.done and counted[-1] < 400 * (kills + 1):
            if (s := feed.take(1.0)) is not None:
                feed.release(s)
            counted.append(feed.reader_counts().get("rows", 0.0))
        kill(processes_of("Reading")[0])
    drained(feed)
    counted.append(feed.reader_counts()["rows"])
    assert counted == sorted(counted) and counted[-1] > 1600


def test_an_execution_that_ends_is_started_anew_where_it_was(ray_cluster: str) -> None:
    data = {"a": list(range(3000))}
    feed = here(ray_cluster).start(plan(data, workers=(1, 1), max_bytes=30_000))
    taken = [first(feed)]
    assert isinstance(feed._execution, Execution)
    feed._execution._executor.shutdown(force=True)
    feed.release(taken[0])
    taken += drained(feed)
    assert offsets(taken) == data["a"]


def test_an_execution_that_never_runs_ends_in_an_error(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(execution: Execution) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(Execution, "_dataset", refuses)
    feed = here(ray_cluster).start(plan())
    with pytest.raises(EngineError, match=r"RuntimeError: not today\); 5 new starts did not help"):
        while True:
            feed.take(1.0)
    feed.close()


def test_an_execution_is_followed_by_a_new_one_in_time(ray_cluster: str) -> None:
    engine = here(ray_cluster, roll_hours=1 / 3600)
    data = {"a": range(1_000_000)}
    feed = engine.start(plan(data, workers=(1, 1), max_bytes=30_000))
    taken, seen = [first(feed)], {feed._execution}
    more = 50  # than the window holds: some went through the new one
    while more:
        feed.release(taken[-1])
        taken.append(first(feed))
        more -= feed._execution not in seen
    feed.close()
    assert offsets(taken) == list(range(taken[-1].next_offset))


@pytest.mark.parametrize(("scheduler", "window"), [("actor", 30_000), ("trainer", 1 << 20)])
def test_a_parcel_that_ray_never_gives_back_is_read_again(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch, scheduler: str, window: int
) -> None:
    executor: Any = {"actor": HostedExecution, "trainer": Execution}[scheduler]
    put, calls = executor.put, count(1)
    monkeypatch.setattr(lookout, "_LOST_SECONDS", 1.0)
    monkeypatch.setattr(executor, "put", lambda *a: put(*a) if next(calls) != 3 else None)
    data = {"a": list(range(1000))}
    engine = small_engine(ray_cluster, scheduler=scheduler)
    feed = engine.start(plan(data, workers=(1, 1), max_bytes=window))
    assert offsets(drained(feed)) == data["a"]


def large(columns: Columns) -> Columns:
    return {"image": np.ones((len(columns["value"]), 200_000), np.uint8)}


def test_arrays_are_views_of_the_object_store_which_empties_as_they_are_let_go(
    ray_cluster: str,
) -> None:
    stages = [Map("large", large)]
    feed = small_engine(ray_cluster).start(
        plan({"a": range(100_000)}, stages=stages, max_bytes=4 << 20)
    )
    until = 128 << 20
    while until > 0:
        s = first(feed)
        image = np.asarray(s.columns["image"])
        assert in_the_store(image)
        feed.release(s)
        until -= image.nbytes
    # What finished is gone; what was read and not finished yet, and one parcel more, may be there.
    await_that(lambda: bytes_in_the_store() < 16 << 20)
    feed.close()


def in_the_store(array: np.ndarray[Any, Any]) -> bool:
    at = array.__array_interface__["data"][0]
    maps = [m.split() for m in Path("/proc/self/maps").read_text().splitlines() if "plasma" in m]
    ranges = [[int(x, 16) for x in m[0].split("-")] for m in maps]
    return any(low <= at < high for low, high in ranges)


def bytes_in_the_store() -> float:
    name = "object_store_memory"
    total: float = ray.cluster_resources()[name]
    return total - float(ray.available_resources().get(name, 0.0))


def test_a_loader_says_in_words_what_it_cannot_attach_to(ray_cluster: str) -> None:
    with pytest.raises(ConfigError, match="this process is attached to the Ray cluster at"):
        RayEngine(address="10.1.2.3:6379").start(plan())
    said = attached_elsewhere("127.0.0.1:1")
    assert "nobody answers at the address of the Ray cluster, 127.0.0.1:1" in said
    said = attached_elsewhere(ray_cluster, RAY_AUTH_TOKEN="0" * 64)
    assert "copy ~/.ray/auth_token of the head node" in said


def attached_elsewhere(address: str, **variables: str) -> str:
    """What an engine in a process of its own says when it is to attach."""
    code = (
        "from forebay.ray import cluster\n"
        "from forebay import EngineError\n"
        f"try: cluster.connect({address!r}, {{}})\n"
        "except EngineError as e: print(e)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout


def test_stages_that_a_worker_cannot_load_are_an_error_in_words(ray_cluster: str) -> None:
    feed = here(ray_cluster).start(plan(stages=[Map("mine", Unloadable())]))
    with pytest.raises(ConfigError, match="a Ray worker cannot load the stages: ImportError: no"):
        first(feed)
    feed.close()


class Unloadable:
    """As a module that is installed on this machine only."""

    def __call__(self, columns: Columns) -> Columns:
        return columns

    def __reduce__(self) -> Any:
        return fails_to_load, ()


def fails_to_load() -> Any:
    raise ImportError("no module of this name")


def test_a_forked_process_is_refused(ray_cluster: str) -> None:
    said, say = mp.Pipe(duplex=False)
    child = mp.get_context("fork").Process(target=tries, args=(ray_cluster, say))
    child.start()
    assert "was forked off one that is attached to Ray" in said.recv()
    child.join()


def tries(address: str, say: Any) -> None:
    try:
        small_engine(address).start(plan())
    except ProcessError as e:
        say.send(str(e))


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
        for engine in (here(ray_cluster), "threads")
    )
    assert on_ray == on_threads


def test_the_deterministic_order_is_that_of_threads(ray_cluster: str) -> None:
    source = MemorySource({"a": list(range(300)), "b": list(range(150))})
    pipeline = Pipeline(source).map(lambda c, rng: {**c, "r": rng.uniform()}).batch(32)
    given = [
        [b["r"].tolist() for b in pipeline.loader(engine=engine, order="deterministic", workers=2)]
        for engine in (here(ray_cluster), "threads")
    ]
    assert given[0] == given[1]

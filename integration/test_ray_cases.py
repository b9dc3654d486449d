"""What is known to go wrong in jobs on Ray: deaths again and again, memory, full disks."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import random
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from integration.local_ray import await_that, kill, processes_of

from forebay import EngineError, Loader, Pipeline
from forebay.columns import Columns, as_numpy
from forebay.deadletter import Letter
from forebay.ray import RayEngine
from forebay.testing import MemorySource

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
]

STORE = 80 << 20
"""Bytes of the smallest object store that Ray makes, and a little."""
ALLOWED, STEP = 3 << 30, 32 << 20
"""Bytes that all may take until Ray kills workers, and that one of them takes at a time."""


@dataclass
class Box:
    """A dead-letter sink that keeps the letters."""

    letters: list[Letter] = field(default_factory=list)

    def write(self, letters: Any) -> None:
        self.letters += letters

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def loader(address: str | None, stage: Any, rows: int, **options: Any) -> Loader:
    """Of a split with the rows 0, 1 and on."""
    engine = RayEngine(address=address, num_cpus=0.5)
    options = {"engine": engine, "workers": (2, 2), **options}
    sink = options.pop("sink", None)
    source = MemorySource({"a": list(range(rows))}, slice_rows=20)
    return Pipeline(source).map(stage).dead_letters(sink).batch(20).loader(**options)


def values(batches: Iterator[Any] | Loader) -> list[int]:
    return [int(v) for batch in batches for v in batch["value"]]


def takes_a_moment(columns: Columns) -> Columns:
    time.sleep(0.002 * len(columns["value"]))
    return columns


def test_workers_that_die_every_few_seconds_lose_and_repeat_nothing(ray_cluster: str) -> None:
    of, taken, deaths = loader(ray_cluster, takes_a_moment, 3000, max_bytes=200_000), [], 0
    for batch in of:
        taken += batch["value"].tolist()
        if len(taken) >= 500 * (deaths + 1) and (workers := processes_of("MapWorker")):
            kill(random.Random(deaths).choice(workers))
            deaths += 1
    assert deaths >= 4
    assert taken == list(range(3000))


def exits_at_777(columns: Columns) -> Columns:
    if 777 in as_numpy(columns["value"]):
        os._exit(1)
    return columns


def test_a_record_that_exits_its_process_is_the_only_one_that_does_not_come(
    ray_cluster: str,
) -> None:
    box = Box()
    of = loader(ray_cluster, exits_at_777, 1000, sink=box)
    assert values(of) == [v for v in range(1000) if v != 777]
    assert of.stats().dead_letters == 1
    assert [(x.failure.offset, x.failure.original) for x in box.letters] == [(777, {"value": 777})]


def exits_at_random(columns: Columns) -> Columns:
    if random.random() < 0.05:
        os._exit(1)
    return columns


def test_workers_that_exit_at_random_come_through_or_end_in_an_error(ray_cluster: str) -> None:
    box = Box()
    try:
        taken = values(loader(ray_cluster, exits_at_random, 200, sink=box))
    except EngineError as e:
        assert "12 workers died on a@" in str(e)
    else:
        letters = [x.failure.offset for x in box.letters]
        assert Counter(taken + letters) == Counter(range(200))


class ExitsWhenLoaded:
    """As a library that crashes when it is imported."""

    def __call__(self, columns: Columns) -> Columns:
        return columns

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_workers_that_die_while_they_start_end_in_an_error(ray_cluster: str) -> None:
    with pytest.raises(EngineError, match=r"5 Ray workers died .* while they loaded the stages"):
        values(loader(ray_cluster, ExitsWhenLoaded(), 100))


def takes_too_much_at_77(columns: Columns) -> Columns:
    """The process may not have more memory than it has, as in a container."""
    if 77 in as_numpy(columns["value"]):
        most = psutil.Process().memory_info().vms + (64 << 20)
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        try:
            np.ones(256 << 20, np.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    return columns


def test_a_record_that_gets_no_memory_is_a_dead_letter_and_kills_no_worker(
    ray_cluster: str,
) -> None:
    box = Box()
    taken = values(loader(ray_cluster, takes_too_much_at_77, 200, sink=box))
    assert taken == [v for v in range(200) if v != 77]
    (letter,) = box.letters
    assert letter.failure.offset == 77
    assert "Memory" in letter.failure.reason


def grows_at_77(columns: Columns) -> Columns:
    """Takes memory until it is killed for it, or has far more than the test allows."""
    if 77 in as_numpy(columns["value"]):
        taken: list[Any] = []
        while len(taken) < 2 * ALLOWED // STEP:
            taken.append(np.ones(STEP, np.uint8))
            time.sleep(0.02)  # Ray looks ten times a second
    return columns


def own_ray(run: Any, folder: Path, **variables: str) -> Any:
    """What ``run(folder)`` says in a process with a small Ray of its own."""
    spawn = mp.get_context("spawn")
    hear, say = spawn.Pipe(duplex=False)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    process = spawn.Process(target=run_and_say, args=(run, folder, say))
    process.start()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        assert hear.poll(200), "it says nothing"
        return hear.recv()
    finally:
        process.terminate()
        process.join()


def run_and_say(run: Any, folder: Path, say: Any) -> None:
    say.send(run(folder))


def of_small_ray(folder: Path, stage: Any, rows: int, **options: Any) -> Loader:
    init = {
        "num_cpus": 4,
        "include_dashboard": False,
        "log_to_driver": False,
        "object_store_memory": STORE,
        "object_spilling_directory": str(folder),
    }
    if not ray.is_initialized():
        ray.init(**init)
    return loader(None, stage, rows, **options)


def grows(folder: Path) -> Any:
    box = Box()
    taken = values(of_small_ray(folder, grows_at_77, 200, sink=box))
    return taken, [(x.failure.offset, x.failure.reason) for x in box.letters]


def test_a_record_for_which_ray_kills_its_worker_again_and_again_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    memory = psutil.virtual_memory()
    if memory.available < 3 * ALLOWED:
        pytest.skip(f"needs {3 * ALLOWED >> 30} GB of free memory")
    share = 1 - (memory.available - ALLOWED) / memory.total
    taken, letters = own_ray(
        grows,
        tmp_path,
        RAY_memory_usage_threshold=str(share),
        RAY_memory_monitor_refresh_ms="100",
    )
    assert taken == [v for v in range(200) if v != 77]
    assert letters == [(77, "killed its process or hung, 2 times in this stage")]


def large(columns: Columns) -> Columns:
    return {"image": np.ones((len(columns["value"]), 30_000), np.uint8), **columns}


def files_while_the_trainer_is_slow(folder: Path) -> list[str]:
    of = of_small_ray(folder, large, 1_000_000)
    batches = iter(of)
    for _ in range(5):
        next(batches)
        filled(of)
    return [str(p) for p in folder.rglob("*") if p.is_file()]


def filled(of: Loader) -> None:
    """Wait until nothing more comes into the window, as a trainer that is busy does."""
    before = -1
    while of.stats().bytes_in_flight > before:
        before = of.stats().bytes_in_flight
        time.sleep(2.0)


def test_ray_spills_nothing_to_disk_however_slow_the_trainer_is(tmp_path: Path) -> None:
    assert own_ray(files_while_the_trainer_is_slow, tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 20 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a full disk is not tested here: that needs the right to mount a small one")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def said_when_all_is_full(folder: Path) -> str:
    of = of_small_ray(folder, large, 1_000_000)
    others = [ray.put(np.ones(10 << 20, np.uint8)) for _ in range(7)]
    try:
        values(of)
    except EngineError as e:
        return str(e)
    return f"nothing, and {len(others)} objects of others are there"


def test_a_full_store_and_a_full_disk_end_the_run_in_words(small_disk: Path) -> None:
    said = own_ray(said_when_all_is_full, small_disk)
    assert "the disk that Ray spills to, too (" in said
    assert "start again from the checkpoint" in said


def test_a_killed_trainer_was_given_what_each_of_its_states_says(
    ray_cluster: str, tmp_path: Path
) -> None:
    path = tmp_path / "states"
    trainer = mp.get_context("spawn").Process(target=logs_states, args=(ray_cluster, path))
    trainer.start()
    await_that(lambda: path.exists() and len(path.read_bytes().splitlines()) > 40, 120)
    trainer.kill()
    trainer.join()
    given: list[int] = []
    for number, line in enumerate(path.read_bytes().splitlines()[:-1]):
        said = json.loads(line)
        if number % 10 == 0:
            assert Counter(given) + Counter(left(said["before"])) == Counter(range(1500))
        given += said["rows"]
        if number % 10 == 0:
            assert Counter(given) + Counter(left(said["after"])) == Counter(range(1500))


def logs_states(address: str, path: Path) -> None:
    """Say of each step what it was given, and the states before it and after it."""
    of = loader(address, takes_a_moment, 1500, order="arrival")
    batches = iter(of)
    with path.open("w") as log:
        while True:
            before, batch = of.state_dict(), next(batches)
            said = {"before": before, "rows": batch["value"].tolist(), "after": of.state_dict()}
            print(json.dumps(said), file=log, flush=True)


def left(state: Any) -> list[int]:
    """What a loader gives that goes on from a state, on threads: that is quicker."""
    of = loader(None, as_it_is, 1500, engine="threads", order="arrival")
    of.load_state_dict(state)
    return values(of)


def as_it_is(columns: Columns) -> Columns:
    return columns

"""The Ray engine in whatever trains: ranks of torchrun, workers of Ray Train, a DataLoader."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Literal

import pytest
from integration import attached_trainer
from integration.local_ray import await_that, processes_of, small_engine
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from tests.engine_contract import plan
from torch.utils.data import DataLoader

from forebay.ray import lookout
from forebay.ray import reading as reading_module
from forebay.ray.reading import ActorReading, SourceLost

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(240),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]

# Not the fork server of other tests: its environment is from before the cluster, without its token.
SPAWN = mp.get_context("spawn")
WHO: tuple[Literal["Reading", "MapWorker", "Host"], ...] = ("Reading", "MapWorker", "Host")


def rows_of(folder: Path) -> list[list[int]]:
    """What each rank wrote down."""
    return [json.loads(p.read_text()) for p in sorted(folder.glob("rank-*"))]


def test_ranks_of_torchrun_share_the_splits_and_the_cluster(
    ray_cluster: str, tmp_path: Path
) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [attached_trainer.__file__, str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, *command, *script],
        env={**os.environ, "RAY_ADDRESS": ray_cluster, "OMP_NUM_THREADS": "1"},
        timeout=200,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    shares = rows_of(tmp_path)
    assert sorted(r for share in shares for r in share) == attached_trainer.ROWS
    assert [len(share) for share in shares] == [len(attached_trainer.ROWS) // 2] * 2


def test_workers_of_ray_train_share_the_splits_of_the_cluster_they_run_on(
    ray_cluster: str, tmp_path: Path
) -> None:
    trainer = TorchTrainer(
        attached_trainer.train_worker,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(tmp_path / "train")),
    )
    trainer.fit()
    assert sorted(r for share in rows_of(tmp_path) for r in share) == attached_trainer.ROWS


def test_a_data_loader_without_workers_gives_the_batches_as_they_are(ray_cluster: str) -> None:
    loader = attached_trainer.loader(small_engine(ray_cluster))
    given = [r for batch in DataLoader(loader, batch_size=None) for r in batch["value"].tolist()]
    assert sorted(given) == attached_trainer.ROWS


def test_workers_without_room_on_the_cluster_are_told_of_in_words(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookout, "_ROOM_SECONDS", 1.0)
    feed = small_engine(ray_cluster, resources={"absent": 1}).start(plan())
    await_that(lambda: "no Ray worker has started" in caplog.text)
    assert "each asks for {'num_cpus': 0.5, 'resources': {'absent': 1}}, and free" in caplog.text
    feed.close()


def test_a_reader_without_room_on_the_cluster_is_told_of_in_words(
    ray_cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading_module, "_PATIENCE_SECONDS", 1.0)
    reading = ActorReading(attached_trainer.source(), bool, {"resources": {"absent": 1}})
    with ThreadPoolExecutor() as pool:
        opened = pool.submit(reading.open, {}, {})
        await_that(lambda: "it may wait for room on the cluster" in caplog.text)
        reading.stop()
        assert isinstance(opened.exception(), SourceLost)


START = """
from integration.attached_trainer import endless
from forebay import EngineError
from forebay.ray import RayEngine
loader = endless(RayEngine(num_cpus=0.5))
batches = iter(loader)
next(batches)
"""
SHUTDOWN = """
import ray
ray.shutdown()
try:
    for _ in batches: pass
except EngineError as e:
    print(e)
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        pytest.param("", "", id="closes nothing"),
        pytest.param(SHUTDOWN, "ray.shutdown() was called in this process", id="shuts Ray down"),
    ],
)
def test_a_trainer_may_end_without_closing_anything(ray_cluster: str, then: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", START + then],
        env={**os.environ, "RAY_ADDRESS": ray_cluster},
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    assert said in ended.stdout


@pytest.fixture
def trainer(ray_cluster: str) -> Iterator[SpawnProcess]:
    """A process that trains for ever."""
    await_that(lambda: not any(map(processes_of, WHO)))
    said, say = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=attached_trainer.train_for_ever, args=(ray_cluster, say))
    process.start()
    assert said.recv() == "trains"
    yield process
    process.kill()
    process.join()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_a_trainer_that_ends_leaves_no_process_on_the_cluster(
    trainer: SpawnProcess, name: str
) -> None:
    assert all(map(processes_of, WHO))
    assert trainer.pid is not None
    os.kill(trainer.pid, getattr(signal, name))
    trainer.join()
    await_that(lambda: not any(map(processes_of, WHO)))

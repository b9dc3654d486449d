"""However a trainer on Ray ends, nothing of it is left: no process, no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import pytest
from integration import stopping_trainer
from integration.local_ray import processes_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
Kind = Literal["Reading", "MapWorker", "Host"]
SECONDS = 100.0
"""More than Ray takes to end what belonged to a process that is gone."""


@dataclass(frozen=True)
class Trainer:
    """A trainer that trains."""

    process: subprocess.Popen[str]
    attempts: Path
    """What the files of its run begin with."""

    def says(self, word: str) -> None:
        """Wait for a word; Ray's own lines may come before it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        pytest.fail(f"the trainer ended before it said {word!r}")

    def files(self) -> list[Path]:
        """Files of its run."""
        return list(self.attempts.parent.glob(f"{self.attempts.name}*"))


@contextmanager
def training(way: str, *address: str) -> Iterator[Trainer]:
    """A trainer in a process group of its own, as a shell starts one."""
    process = subprocess.Popen(
        [sys.executable, stopping_trainer.__file__, way, *address],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            files = next(line for line in process.stdout if line.startswith(stopping_trainer.FILES))
            prefix = files.removeprefix(stopping_trainer.FILES).strip()
            trainer = Trainer(process, Path(prefix))
            trainer.says("training")
            yield trainer
        finally:
            process.kill()


def end(trainer: Trainer, way: str) -> None:
    """Let it end, or make it."""
    if way == "ctrl-c":  # goes to all that belongs to the terminal
        os.killpg(trainer.process.pid, signal.SIGINT)
    elif way in ("SIGTERM", "SIGKILL"):
        trainer.process.send_signal(signal.Signals[way])
    elif way == "close":
        trainer.says("closed")
        return
    trainer.process.wait(SECONDS)


@pytest.mark.parametrize("way", ["break", "ctrl-c", "SIGTERM", "SIGKILL"])
def test_a_ray_of_its_own_ends_with_the_trainer(way: str) -> None:
    with training(way) as trainer:
        processes = psutil.Process(trainer.process.pid).children(recursive=True)
        assert any("ray::MapWorker" in " ".join(p.cmdline()) for p in processes)
        end(trainer, way)
    assert not psutil.wait_procs(processes, SECONDS)[1]
    assert way == "SIGKILL" or not trainer.files()


@pytest.mark.parametrize("way", ["close", "ctrl-c", "SIGTERM", "SIGKILL"])
def test_a_cluster_that_was_there_gets_rid_of_all_that_a_trainer_had(
    ray_cluster: str, way: str
) -> None:
    with training(way, ray_cluster) as trainer:
        kinds: list[Kind] = ["Reading", "MapWorker", "Host"]
        processes = [psutil.Process(pid) for kind in kinds for pid in processes_of(kind)]
        assert len(processes) >= 4
        end(trainer, way)
        assert not psutil.wait_procs(processes, SECONDS)[1]
    assert way == "SIGKILL" or not trainer.files()

"""The demos' training loop: the one that a user writes, with a log of what it trained.

The loader's state goes into the model's checkpoint, and a run that finds a checkpoint goes on from
it. Run in a process of its own, so that it can be killed.
"""

from __future__ import annotations

import json
import time
from typing import Any

from forebay import Loader, checkpoint
from forebay.demo.network import Job
from forebay.demo.task import Task
from forebay.runlog import RunLog

_SAVE_EVERY = 5


def train(task: Task, loader: Loader) -> None:
    """Train until the data ends or the process is killed, saying how it goes on standard output.

    Batches have the columns ``image`` (uint8 ``[rows, height, width, 3]``), ``label`` (a number
    of ``SHAPES``) and ``id`` (what is counted in the end).
    """
    job = Job(task.seed)
    step = _resume(task, job, loader)
    log = RunLog(task.log, resumed_at=step)
    reporter = _Reporter(loader, job)
    reporter.say(step)  # ready: from here on it can be killed
    with loader:
        for batch in loader:
            job.train(batch["image"], batch["label"])
            step += 1
            log.step(step, batch["id"].tolist())
            if step % _SAVE_EVERY == 0:
                _save(task, job, loader, step)
            reporter.tick(step)
        _save(task, job, loader, step)
    reporter.say(step)


def _resume(task: Task, job: Job, loader: Loader) -> int:
    saved = checkpoint.load_torch(task.checkpoint)
    if saved is None:
        return 0
    job.model.load_state_dict(saved["model"])
    job.optimiser.load_state_dict(saved["optimiser"])
    job.accuracy = saved["accuracy"]
    loader.load_state_dict(saved["data"])
    step: int = saved["step"]
    return step


def _save(task: Task, job: Job, loader: Loader, step: int) -> None:
    """Model and data position in one file: there is no moment when only one of them is new."""
    checkpoint.save_torch(
        task.checkpoint,
        {
            "model": job.model.state_dict(),
            "optimiser": job.optimiser.state_dict(),
            "accuracy": job.accuracy,
            "data": loader.state_dict(),
            "step": step,
        },
    )


class _Reporter:
    """Tells the demo how the training goes, in JSON lines on standard output."""

    def __init__(self, loader: Loader, job: Job) -> None:
        self._loader, self._job = loader, job
        self._next = 0.0

    def tick(self, step: int) -> None:
        """Speak twice a second."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.5
            self.say(step)

    def say(self, step: int) -> None:
        """Print what is known now."""
        stats = self._loader.stats()
        lag = self._loader.lag()
        line: dict[str, Any] = {
            "step": step,
            "rows": stats.rows,
            "seconds": stats.seconds,
            "wait_seconds": stats.wait_seconds,
            "lag": sum(lag.values()) if lag else None,
            "ready_batches": stats.ready_batches,
            "dead_letters": stats.dead_letters,
            "freshness_seconds": stats.freshness_seconds,
            "accuracy": self._job.accuracy,
        }
        print(json.dumps(line), flush=True)

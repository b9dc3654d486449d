"""The demo's trainer: a small network that learns the pictures as they come in.

The same loop that a user writes: the loader's state goes into the model's checkpoint, and a run
that finds a checkpoint goes on from it. Run as a process, so that it can be killed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from forebay import ErrorBudget, Loader, Pipeline, augment, checkpoint, decode
from forebay.columns import Columns, as_numpy
from forebay.letterbox import FolderSink
from forebay.runlog import RunLog
from forebay_kafka import KafkaSource
from forebay_kafka.demo.leash import end_with_parent
from forebay_kafka.demo.pictures import SHAPES
from forebay_kafka.demo.producer import KEY
from forebay_kafka.demo.task import BATCH, SIZE, Task

SAVE_EVERY = 5


def ids_and_labels(columns: Columns) -> Columns:
    """Read the number and the label out of the keys."""
    keys = np.frombuffer(b"".join(as_numpy(columns["key"]).tolist()), KEY)
    return {"image": columns["value"], "id": keys["id"].copy(), "label": keys["label"].copy()}


def pipeline(source: KafkaSource, task: Task) -> Pipeline:
    """From records to batches of pictures, labels and ids."""
    return (
        Pipeline(source)
        .decode(decode.jpeg("value", size=(SIZE, SIZE)))
        .map(ids_and_labels)
        .map(augment.flip(column="image"))
        .dead_letters(FolderSink(task.dead_letters), ErrorBudget(share=0.05))
        .shuffle(256, seed=task.seed)
        .batch(BATCH)
    )


def source(task: Task) -> KafkaSource:
    """The demo's topic."""
    config = {"bootstrap.servers": task.bootstrap}
    return KafkaSource(task.topic, config, until="latest" if task.until_end else None)


class Network(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(48 * 16, len(SHAPES)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores ``[rows, shapes]`` of uint8 pictures ``[rows, height, width, 3]``."""
        out: torch.Tensor = self.body(images.permute(0, 3, 1, 2).float() / 127.5 - 1)
        return out


class Job:
    """A model, its optimiser, and how they learn from a batch."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.model = Network()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.accuracy = 0.0

    def train(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step; ``accuracy`` is a running mean of the share that it got right before it."""
        scores = self.model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        self.optimiser.step()
        right = (scores.argmax(1) == labels).float().mean().item()
        self.accuracy += 0.05 * (right - self.accuracy)


def train(task: Task) -> None:
    """Train until the data ends or the process is killed."""
    job = Job(task.seed)
    loader = pipeline(source(task), task).loader(max_bytes=64 << 20, seed=task.seed)
    step = _resume(task, job, loader)
    log = RunLog(task.log, resumed_at=step)
    reporter = _Reporter(loader, job)
    reporter.say(step)  # ready: from here on it can be killed
    with loader:
        for batch in loader:
            job.train(batch["image"], batch["label"])
            step += 1
            log.step(step, batch["id"].tolist())
            if step % SAVE_EVERY == 0:
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


if __name__ == "__main__":
    end_with_parent()
    train(msgspec.json.decode(sys.argv[1], type=Task))

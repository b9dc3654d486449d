"""The trainer on a Delta table that the kill tests kill: it logs every row that it trained."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from integration.delta_writer import part_of

from forebay import Loader, Pipeline, checkpoint
from forebay.runlog import RunLog
from forebay_delta import DeltaSource

Moment = Literal["any", "fetch", "step", "save"]
WRONG = -1
"""Logged in place of an id whose row came with the columns of another."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of the trainer."""

    uri: str
    folder: Path
    storage: Mapping[str, str] = field(default_factory=dict)
    dies: Moment | None = None
    """When to die by its own hand; ``any`` leaves it to somebody else. None: it runs to the end
    of the table as it is then, and returns."""
    after: float = 0.0
    """How long after that moment, or how many batches before it."""
    batch: int = 13
    shuffle: int = 0
    shards: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log(self) -> Path:
        return self.folder / "log"


def loader(task: Task) -> Loader:
    """Read, shuffle, batch."""
    source = DeltaSource(
        task.uri,
        storage_options=dict(task.storage),
        until="latest" if task.dies is None else None,
        shards=task.shards,
        poll_seconds=0.02,
        slice_rows=50,
    )
    pipeline = Pipeline(source).batch(task.batch)
    if task.shuffle:
        pipeline = pipeline.shuffle(task.shuffle, seed=11)
    return pipeline.loader(prefetch=3, **task.options)


def run(task: Task) -> None:
    """Train from the checkpoint on, log every step, save model and data position together."""
    of = loader(task)
    saved = checkpoint.load(task.checkpoint) or {"step": 0, "model": 0, "data": None}
    step, model = saved["step"], saved["model"]
    if saved["data"] is not None:
        of.load_state_dict(saved["data"])
    log = RunLog(task.log, resumed_at=step)
    if task.dies == "fetch":
        _die_in(task.after)
    for batch in of:
        ids = _checked(batch)
        model += sum(ids)
        step += 1
        log.step(step, ids)
        if task.dies == "step" and step - saved["step"] >= task.after:
            _die()
        if task.dies == "save" and step - saved["step"] >= 3:
            _die_in(task.after)
        checkpoint.save(task.checkpoint, {"step": step, "model": model, "data": of.state_dict()})
    of.close()
    checkpoint.save(task.checkpoint, {"step": step, "model": model, "data": of.state_dict()})
    log.close()


def _checked(batch: Mapping[str, Any]) -> list[int]:
    rows = zip(batch["id"].tolist(), batch["text"], batch["part"], strict=True)
    return [i if (text, part) == (f"row {i}", part_of(i)) else WRONG for i, text, part in rows]


def _die_in(seconds: float) -> None:
    threading.Timer(seconds, _die).start()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

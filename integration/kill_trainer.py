"""The trainer that the kill tests kill: it logs what it trained, and can die at chosen moments."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from forebay import Loader, Pipeline, checkpoint, decode
from forebay.columns import Columns, as_numpy, take
from forebay.runlog import RunLog
from forebay_kafka import KafkaSource

Moment = Literal["any", "fetch", "decode", "step", "save"]
ROWS_OF = 3
"""A record with id i gives i % 3 rows, numbered ``10 * i`` and on, unless it is filtered out."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run of the trainer."""

    bootstrap: str
    topic: str
    folder: Path
    dies: Moment | None = None
    """When to die by its own hand; ``any`` leaves it to somebody else. None: it runs to the end
    of the topic and returns."""
    after: float = 0.0
    """How long after that moment, or how many decoded slices, batches or saves before it."""
    batch: int = 16
    shuffle: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log(self) -> Path:
        return self.folder / "log"


def wanted(i: int) -> bool:
    """Whether the record with this id passes the filter."""
    return i % 7 != 0


def rows_of(i: int) -> list[int]:
    """The rows that a record with this id is trained as."""
    return [10 * i + n for n in range(i % ROWS_OF)] if wanted(i) else []


def loader(task: Task) -> Loader:
    """Decode, filter, expand, shuffle, batch."""
    source = KafkaSource(
        task.topic,
        {"bootstrap.servers": task.bootstrap},
        until="latest" if task.dies is None else None,
        slice_rows=50,
        columns=["value"],
    )
    pipeline = (
        Pipeline(source)
        .decode(decode.json("value", schema={"id": "int64", "pad": "string"}))
        .filter(lambda c: as_numpy(c["id"]) % 7 != 0, name="wanted")
        .expand(_expand)
        .map(_deadly(task), name="work")
        .batch(task.batch)
    )
    if task.shuffle:
        pipeline = pipeline.shuffle(task.shuffle, seed=11)
    options = {"workers": 3, "prefetch": 3, **task.options}
    return pipeline.loader(**options)


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
        ids = batch["row"].tolist()
        model += sum(ids)
        step += 1
        log.step(step, ids)
        if task.dies == "step" and step - saved["step"] >= task.after:
            _die()
        if task.dies == "save" and step - saved["step"] >= 3:
            _die_in(task.after)
        data = of.state_dict()
        checkpoint.save(task.checkpoint, {"step": step, "model": model, "data": data})
    of.close()
    data = of.state_dict()
    checkpoint.save(task.checkpoint, {"step": step, "model": model, "data": data})
    log.close()


def _expand(columns: Columns) -> tuple[Columns, Any]:
    ids = as_numpy(columns["id"])
    parents = np.repeat(np.arange(len(ids)), ids % ROWS_OF)
    rows = take(columns, parents)
    first = np.r_[True, parents[1:] != parents[:-1]] if len(parents) else np.zeros(0, bool)
    ordinal = np.arange(len(parents)) - np.maximum.accumulate(
        np.where(first, np.arange(len(parents)), 0)
    )
    return {**rows, "row": as_numpy(rows["id"]) * 10 + ordinal}, parents


def _deadly(task: Task) -> Callable[[Columns], Columns]:
    """A stage that takes a moment, and one day does not return."""
    calls = [0]

    def work(columns: Columns) -> Columns:
        calls[0] += 1
        if task.dies == "decode" and calls[0] > task.after:
            _die()
        time.sleep(0.001)
        return columns

    return work


def _die_in(seconds: float) -> None:
    threading.Timer(seconds, _die).start()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

"""A training loop that the kill tests kill: logs what it trained, can die at chosen moments."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forebay import Loader, checkpoint
from forebay.runlog import RunLog

Moment = Literal["any", "fetch", "decode", "step", "save"]


@dataclass(frozen=True, kw_only=True)
class Life:
    """Where a trainer keeps what it must not forget, and when it dies."""

    folder: Path
    dies: Moment | None = None
    """When to die by its own hand; ``any`` leaves it to somebody else. None: it runs to the end
    of the data as it is then, and returns."""
    after: float = 0.0
    """How long after that moment, or how many decoded slices or batches before it."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log(self) -> Path:
        return self.folder / "log"


def train(of: Loader, life: Life, rows_of: Callable[[Any], list[int]]) -> None:
    """Train from the checkpoint on, log every step, save model and data position together.

    The model is the sum of the numbers that ``rows_of`` tells of each batch.
    """
    saved = checkpoint.load(life.checkpoint) or {"step": 0, "model": 0, "data": None}
    step, model = saved["step"], saved["model"]
    if saved["data"] is not None:
        of.load_state_dict(saved["data"])
    log = RunLog(life.log, resumed_at=step)
    if life.dies == "fetch":
        die_in(life.after)
    for batch in of:
        rows = rows_of(batch)
        model += sum(rows)
        step += 1
        log.step(step, rows)
        if life.dies == "step" and step - saved["step"] >= life.after:
            die()
        if life.dies == "save" and step - saved["step"] >= 3:
            die_in(life.after)
        checkpoint.save(life.checkpoint, {"step": step, "model": model, "data": of.state_dict()})
    of.close()
    checkpoint.save(life.checkpoint, {"step": step, "model": model, "data": of.state_dict()})
    log.close()


def die_in(seconds: float) -> None:
    """SIGKILL to this process, in a while; at once if that is 0."""
    if seconds:
        threading.Timer(seconds, die).start()
    else:
        die()


def die() -> None:
    """SIGKILL to this process: no handler, no flush, no good-bye."""
    os.kill(os.getpid(), signal.SIGKILL)

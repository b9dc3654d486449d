"""A trainer's runs: begun, killed at random moments, resumed, and what they said of themselves.

What was trained is counted from the trainer's own log of ids, never from offsets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from forebay.demo.child import Child
from forebay.demo.task import Task
from forebay.runlog import kept_ids

_LIFETIME_SECONDS = (2.0, 5.0)


@dataclass(slots=True, kw_only=True)
class Scene:
    """What is known at a moment, for the display; None is unknown."""

    act: str
    trained: int = 0
    """Different ids in the trainer's log."""
    kills: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    """What the trainer said last, see ``forebay.demo.trainer``; empty before it did."""


class Runs:
    """The runs of one trainer, one after the other; keeps the scene up to date.

    Args:
        module: the trainer's, as after ``python -m``.
        seed: decides the moments of the kills.
    """

    def __init__(self, module: str, scene: Scene, seed: int) -> None:
        self._module, self._scene = module, scene
        self._random = random.Random(seed)
        self._waits: list[tuple[float, float, int]] = []

    def run_and_kill(
        self, stack: ExitStack, task: Task, meanwhile: Callable[[], None]
    ) -> Iterator[None]:
        """Start or resume the trainer, and kill it a few seconds after it is ready."""
        resumed = "resuming" if self._scene.kills else "training"
        self._scene.act = f"{resumed}, to be killed at a random moment"
        trainer = stack.enter_context(Child(self._module, task))
        lifetime = self._random.uniform(*_LIFETIME_SECONDS)
        dies_at: float | None = None
        while dies_at is None or time.monotonic() < dies_at:
            report = trainer.line(0.1)
            if report is not None:
                self._reported(report, task)
                dies_at = dies_at or time.monotonic() + lifetime
            trainer.check()
            meanwhile()
            yield None
        trainer.kill()
        self._scene.kills += 1
        self._scene.act = f"killed the trainer (SIGKILL) after step {self._scene.report['step']}"
        self._scene.report = {}  # what this run said of itself says nothing of the next
        yield None

    def run_to_the_end(self, stack: ExitStack, task: Task) -> Iterator[None]:
        """Resume the trainer a last time, and let it end by itself."""
        trainer = stack.enter_context(Child(self._module, task))
        while (report := trainer.line(0.5)) is not None or trainer.running:
            if report is not None:
                self._reported(report, task)
            yield None
        trainer.check()

    @property
    def rows_per_second(self) -> float | None:
        """Rows trained a second while there were some; None where the runs were too short."""
        spent = sum(seconds for _, seconds, _ in self._waits)
        return round(sum(rows for _, _, rows in self._waits) / spent, 1) if spent else None

    @property
    def starvation(self) -> float | None:
        """Share of that time in which the model waited; None where the runs were too short."""
        spent = sum(seconds for _, seconds, _ in self._waits)
        return round(sum(wait for wait, _, _ in self._waits) / spent, 3) if spent else None

    def _reported(self, report: dict[str, Any], task: Task) -> None:
        before = self._scene.report
        # Waiting for records that nobody wrote yet is no starvation.
        fed = before.get("lag") != 0 and report["lag"] != 0
        if before.get("rows", report["rows"]) < report["rows"] and fed:
            self._waits.append(
                (
                    report["wait_seconds"] - before["wait_seconds"],
                    report["seconds"] - before["seconds"],
                    report["rows"] - before["rows"],
                )
            )
        self._scene.report = report
        self._scene.trained = len(set(kept_ids(task.log)))

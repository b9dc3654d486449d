"""Runs the demo: a table, its writer, and a trainer that is killed again and again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from forebay.demo.child import Child
from forebay.demo.runs import Runs, Scene
from forebay.runlog import kept_ids
from forebay_delta.demo.task import Order, Task, journalled
from forebay_delta.log import DeltaLog
from forebay_delta.store import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the demo is to go."""

    rows: int
    kills: int
    per_second: float
    seed: int
    folder: Path

    @property
    def history(self) -> int:
        """Rows that are in the table before the training begins."""
        return self.rows // 2

    @property
    def table(self) -> str:
        return str(self.folder / "pictures")

    @property
    def journal(self) -> Path:
        return self.folder / "written.jsonl"


@dataclass(slots=True, kw_only=True)
class DeltaScene(Scene):
    act: str = "writing a table"
    written: Counter[str] = field(default_factory=Counter)
    """Rows, updates, commits and compactions so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The closing count, of versions of rows: an updated row is trained again."""

    rows: int
    updates: int
    trained: int
    lost: int
    repeated: int
    """Trained again, or never written."""
    commits: int
    compactions: int
    kills: int
    seconds: float
    rows_per_second: float | None
    """None where the runs were too short to tell."""
    starvation: float | None
    """Share of the time in which the model waited although rows were there."""
    accuracy: float

    @property
    def exact(self) -> bool:
        """Whether every version of every row was trained once."""
        return self.lost == 0 and self.repeated == 0


class Director:
    """Plays the script; ``scene`` may be read at any time."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.scene = DeltaScene()
        self._runs = Runs("forebay_delta.demo.trainer", self.scene, script.seed)

    def play(self) -> Iterator[Ending | None]:
        """Run the demo; gives None at every change worth showing, and the ending at last.

        Raises:
            DemoFailed: a process ended that should not have; says what it printed last.
        """
        began, script = time.monotonic(), self._script
        with ExitStack() as stack:
            history = self._writer(stack, first=0, rows=script.history, per_second=None)
            yield from self._await(history)
            snapshot = DeltaLog(open_store(script.table, None)).latest_version()
            writer = self._writer(
                stack,
                first=script.history,
                rows=script.rows - script.history,
                per_second=script.per_second,
            )
            for _ in range(script.kills):
                task = self._task(snapshot, until_end=False)
                yield from self._runs.run_and_kill(stack, task, writer.follow)
            self.scene.act = "waiting for the writer to finish"
            yield from self._await(writer)
            self.scene.act = "resuming, to the end of the table"
            yield from self._runs.run_to_the_end(stack, self._task(snapshot, until_end=True))
            yield self._ending(time.monotonic() - began)

    def _await(self, writer: _Writing) -> Iterator[None]:
        while writer.running:
            writer.follow(1.0)
            yield None
        writer.follow()

    def _writer(
        self, stack: ExitStack, *, first: int, rows: int, per_second: float | None
    ) -> _Writing:
        order = Order(
            table=self._script.table,
            journal=str(self._script.journal),
            first=first,
            rows=rows,
            per_second=per_second,
            seed=self._script.seed,
        )
        return _Writing(stack.enter_context(Child("forebay_delta.demo.writer", order)), self.scene)

    def _task(self, snapshot: int, *, until_end: bool) -> Task:
        script = self._script
        return Task(
            table=script.table,
            snapshot=snapshot,
            folder=str(script.folder),
            until_end=until_end,
            seed=script.seed,
        )

    def _ending(self, seconds: float) -> Ending:
        written = journalled(self._script.journal)
        trained = kept_ids(self._task(0, until_end=True).log)
        once = set(written) & set(trained)
        counts = self.scene.written
        return Ending(
            rows=counts["rows"],
            updates=counts["updates"],
            trained=len(once),
            lost=len(written) - len(once),
            repeated=len(trained) - len(once),
            commits=counts["commits"],
            compactions=counts["compactions"],
            kills=self.scene.kills,
            seconds=round(seconds, 1),
            rows_per_second=self._runs.rows_per_second,
            starvation=self._runs.starvation,
            accuracy=round(self.scene.report["accuracy"], 3),
        )


class _Writing:
    """A writer at work; what it says is added to what was written before."""

    def __init__(self, child: Child, scene: DeltaScene) -> None:
        self._child, self._scene = child, scene
        self._before = Counter(scene.written)

    @property
    def running(self) -> bool:
        return self._child.running

    def follow(self, timeout: float = 0.0) -> None:
        """Take in what it said; waits up to ``timeout`` s for the first line.

        Raises:
            DemoFailed: it ended with an error.
        """
        while (said := self._child.line(timeout)) is not None:
            timeout = 0.0
            self._scene.written = self._before + Counter(said)
        self._child.check()

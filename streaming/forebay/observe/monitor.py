"""Watches a loader: a snapshot a second, kept for a while and handed to whoever writes or shows.

    with Monitor(loader, outputs=[StateFile("run.jsonl")]):
        for batch in loader: ...

Nothing of it runs on the trainer's thread.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Protocol

from forebay.autoscale import Taken
from forebay.autoscale.gil import LockProbe
from forebay.cpus import cpu_share
from forebay.engine import Engine, PoolStats
from forebay.nvml import GpuWatch
from forebay.observe.lag import LagWatch
from forebay.observe.memory import PssWatch
from forebay.observe.process import process_seen
from forebay.observe.snapshot import (
    BufferSeen,
    JobSeen,
    LetterSeen,
    LettersSeen,
    RankSeen,
    Snapshot,
)
from forebay.options import LoaderOptions, LoaderStats, SplitStats
from forebay.stepclock import StepClock
from forebay.threads import ThreadEngine

_log = logging.getLogger("forebay.observe")
KEPT_SECONDS = 900.0
"""How far back the history of a monitor goes."""
_NAPS = 10
_JOIN_SECONDS = 5.0


class Watched(Protocol):
    """What a monitor asks of a loader. Any thread may."""

    @property
    def options(self) -> LoaderOptions:
        """How it runs."""

    def stats(self) -> LoaderStats:
        """What happened so far."""

    def splits(self) -> Mapping[str, SplitStats]:
        """How far each split is."""

    def pools(self) -> Mapping[str, PoolStats]:
        """The pools of workers."""

    def decisions(self) -> list[Taken]:
        """What the autoscaler decided."""

    def reader_counts(self) -> Mapping[str, float]:
        """What the source's reader counts of itself, by name."""

    @property
    def step_clock(self) -> StepClock:
        """What measures where the trainer's time goes."""


class Output(Protocol):
    """Something that is given each snapshot: a file, a collector, a server."""

    def write(self, snapshot: Snapshot) -> None:
        """Take it. Called on the monitor's thread; must not wait for long."""

    def close(self) -> None:
        """Nothing more comes."""


class Exchange(Protocol):
    """Tells the other ranks of this one, and this one of them."""

    def exchange(self, snapshot: Snapshot) -> tuple[RankSeen, ...]:
        """Publish this rank's shares; what all ranks told last, this one included. Never waits for
        a rank."""


class Monitor:
    """Takes a snapshot every ``interval`` seconds on a thread of its own, until ``stop``.

    Args:
        loader: what is watched.
        job: whose process this is; None: by what is known of the program.
        outputs: what gets each snapshot. An output that raises is left out from then on, with a
            word in the log: training never ends for it.
        interval: seconds between two snapshots.
        ranks: how the other ranks are asked.
        gpus: whether NVML is asked.
        clock: wall-clock seconds.
    """

    def __init__(
        self,
        loader: Watched,
        job: JobSeen | None = None,
        *,
        outputs: Sequence[Output] = (),
        interval: float = 1.0,
        ranks: Exchange | None = None,
        gpus: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._loader, self._job = loader, job or job_of_program(loader.options)
        self._outputs, self._interval, self._ranks = list(outputs), interval, ranks
        self._clock = clock
        self._gpus = GpuWatch(interval) if gpus else None
        self._lag = LagWatch()
        self._probe = LockProbe()
        self._pss = PssWatch()
        self._history: deque[Snapshot] = deque(maxlen=max(2, int(KEPT_SECONDS / interval)))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-observe", daemon=True)

    def start(self) -> None:
        """Begin to watch; the first snapshot is there when it returns."""
        if self._gpus is not None:
            self._gpus.start()
        self._tick()
        self._thread.start()

    def stop(self, ended: str | None = None) -> None:
        """Take a last snapshot, which says how the run ended, and close the outputs."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        if self._gpus is not None:
            self._gpus.stop()
            self._gpus.join()
        self._tick(ended)
        for output in list(self._outputs):
            self._guarded(output, output.close)

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop("done" if kind is None else "failed")

    def add(self, output: Output) -> None:
        """Hand each snapshot to one more output from now on. Any thread."""
        self._outputs = [*self._outputs, output]

    def history(self) -> Sequence[Snapshot]:
        """The snapshots of the last quarter of an hour, oldest first. Any thread."""
        return list(self._history)

    def snapshot(self, ended: str | None = None) -> Snapshot:
        """What is known now. Called on one thread at a time."""
        loader, options, stats = self._loader, self._loader.options, self._loader.stats()
        now = self._clock()
        letters = [
            LetterSeen(
                at=x.time,
                split=x.split,
                offset=x.failure.offset,
                stage=x.failure.stage,
                reason=x.failure.reason,
            )
            for x in stats.last_letters
        ]
        return Snapshot(
            at=now,
            job=self._job,
            batches=stats.batches,
            rows=stats.rows,
            steps=stats.steps,
            step_seconds=stats.step_durations,
            wait_seconds=stats.wait_durations,
            freshness=stats.freshness,
            passes=stats.passes,
            splits=self._lag.look(now, loader.splits(), stats.batches, stats.wait_seconds),
            stages=stats.stages,
            pools=loader.pools(),
            buffer=BufferSeen(
                bytes_in_flight=stats.bytes_in_flight,
                max_bytes=options.max_bytes,
                ready_batches=stats.ready_batches,
                prefetch=options.prefetch,
                source_wait_seconds=stats.source_wait_seconds,
                room_wait_seconds=stats.room_wait_seconds,
            ),
            letters=LettersSeen(
                total=stats.dead_letters,
                by_reason={f"{stage}/{kind}": n for (stage, kind), n in stats.letters.items()},
                last=tuple(letters),
            ),
            decisions=tuple(loader.decisions()),
            decided={f"{pool}/{action}": n for (pool, action), n in stats.decided.items()},
            reader=loader.reader_counts(),
            process=process_seen(cpu_share(), self._probe.share(), self._pss.look()),
            gpus=tuple(self._gpus.seen().values()) if self._gpus is not None else (),
            ended=ended,
        )

    def _run(self) -> None:
        while self._wait():
            self._tick()

    def _wait(self) -> bool:
        """Wait for the next snapshot, looking at the interpreter's lock and at the device; False
        to stop. At random moments: regular ones may meet the trainer in one place of each step."""
        for _ in range(_NAPS):
            if self._stopped.wait(self._interval / _NAPS * random.uniform(0.5, 1.5)):
                return False
            self._probe.nap()
            self._loader.step_clock.look()
        return True

    def _tick(self, ended: str | None = None) -> None:
        try:
            snapshot = self.snapshot(ended)
        except Exception:  # a source's or an engine's: training goes on unwatched
            _log.exception("no snapshot could be taken")
            return
        if self._ranks is not None:
            snapshot = self._with_ranks(snapshot, self._ranks)
        self._history.append(snapshot)
        for output in list(self._outputs):
            self._guarded(output, lambda o=output: o.write(snapshot))  # type: ignore[misc]

    def _with_ranks(self, snapshot: Snapshot, ranks: Exchange) -> Snapshot:
        try:
            return snapshot.with_ranks(ranks.exchange(snapshot))
        except Exception:  # a store that is gone, as at the end of a job
            _log.warning("the ranks do not hear of each other any more", exc_info=True)
            self._ranks = None
            return snapshot

    def _guarded(self, output: Output, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            _log.exception("%s failed and is given nothing more", type(output).__name__)
            self._outputs = [o for o in self._outputs if o is not output]


def engine_name(engine: Engine | str) -> str:
    """An engine by the name that topologies use."""
    if isinstance(engine, str):
        return engine
    kind = type(engine).__name__
    return "threads" if isinstance(engine, ThreadEngine) else kind.removesuffix("Engine").lower()


def job_of_program(options: LoaderOptions, name: str | None = None) -> JobSeen:
    """What is known of this process without being told: its script, and its rank."""
    rank, world_size = options.rank, options.world_size
    return JobSeen(
        name=name or Path(sys.argv[0]).stem or "python",
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=int(os.environ.get("RANK", 0)) if rank is None else rank,
        world_size=int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size,
        engine=engine_name(options.engine),
        version=version("forebay"),
        began=time.time(),
    )

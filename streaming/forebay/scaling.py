"""The autoscaler of a running loader: what it looks at, and when it begins and ends."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Protocol

from forebay.autoscale import (
    AutoscaleLoop,
    Autoscaling,
    Decision,
    DecisionLog,
    Sample,
    TraceFile,
)
from forebay.autoscale.gil import LockProbe
from forebay.engine import Feed, Limited, PoolStats
from forebay.nvml import GpuWatch
from forebay.options import LoaderOptions
from forebay.prefetch import Prefetcher
from forebay.state import Position
from forebay.stepclock import StepClock
from forebay.threads import ThreadFeed


class Counted(Protocol):
    """What a loader counts."""

    batches: int
    rows: int
    splits: Mapping[str, Position]
    """What was delivered of each split."""
    clock: StepClock


class Scaling:
    """Watches one session of a loader, and sizes its pools. Knows nothing of the loader itself.

    Args:
        gpu: the trainer's device, by its UUID, where NVML is to say whether it is busy.

    Raises:
        ConfigError: the trace cannot be written.
    """

    def __init__(
        self,
        feed: Feed,
        prefetcher: Prefetcher,
        counted: Counted,
        options: LoaderOptions,
        settings: Autoscaling,
        log: DecisionLog,
        gpu: str | None = None,
    ) -> None:
        self._gpu, self._gpus = gpu, None if gpu is None else GpuWatch()
        self._feed, self._prefetcher, self._counted = feed, prefetcher, counted
        self._prefetch = options.prefetch
        # Workers in other processes have interpreters of their own.
        self._probe = LockProbe() if isinstance(feed, ThreadFeed) else None
        trace = None if options.record_trace is None else TraceFile(options.record_trace)
        self._loop = AutoscaleLoop(feed, self.sample, settings, log, probe=self._probe, trace=trace)
        if settings.policy != "fixed" and not settings.dry_run:
            self._begin_small(log)
        if self._gpus is not None:
            self._gpus.start()
        self._loop.start()

    def stop(self) -> None:
        """Ask the loop to end."""
        self._loop.stop()
        if self._gpus is not None:
            self._gpus.stop()

    def join(self) -> None:
        """Wait for its end after ``stop``."""
        self._loop.join()
        if self._gpus is not None:
            self._gpus.join()

    def _begin_small(self, log: DecisionLog) -> None:
        """Begin with few workers: what more of them are good for shows soon."""
        for name, pool in self._feed.pools().items():
            size, (few, reason) = pool.workers + pool.starting, self._few(pool)
            if few < size:
                self._feed.resize(name, few)
                log.add(time.time(), size, Decision(name, few, reason), applied=True)

    def _few(self, pool: PoolStats) -> tuple[int, str]:
        """Workers to begin with: a thread a CPU; of a cluster, which others use too, the least."""
        if not isinstance(self._feed, ThreadFeed):
            return pool.least, f"begins with the least of {pool.least} to {pool.most}"
        cpus = self._feed.cpus()
        return max(pool.least, math.ceil(cpus)), f"begins with a worker for each of {cpus:.1f} CPUs"

    def sample(self) -> Sample:
        """The counts of now. Any thread."""
        feed, counted, at = self._feed, self._counted, self._counted.splits
        ends = {k: end for k, end in feed.ends().items() if k in at}
        return Sample(
            at=time.monotonic(),
            ends=ends,
            behind={k: behind(end, at[k]) for k, end in ends.items()},
            pools=feed.pools(),
            batches=counted.batches,
            rows=counted.rows,
            starved_seconds=counted.clock.starved_seconds(),
            ready=self._prefetcher.batches / self._prefetch,
            device_busy=self._device_busy(),
            cpus=feed.cpus() if isinstance(feed, Limited) else None,
            gil=None if self._probe is None else self._probe.share(),
        )

    def _device_busy(self) -> float | None:
        if self._gpus is None or self._gpu is None:
            return None
        seen = self._gpus.seen().get(self._gpu)
        return None if seen is None else seen.busy


def behind(end: int, p: Position) -> int:
    """Rows up to ``end`` that were not delivered."""
    pending = sum(r.stop - r.start for r in p.pending)
    return max(0, end - p.offset) + pending

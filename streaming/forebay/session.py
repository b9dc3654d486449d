"""Everything of a loader that runs: the feed, the batches that are made ahead, the autoscaler."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from forebay.autoscale import Autoscaling, DecisionLog
from forebay.batcher import Batching, Group, Origins, groups
from forebay.columns import Columns, as_numpy, joined, map_columns
from forebay.counts import Counts
from forebay.cudaclock import cuda_uuid
from forebay.deadletter import BudgetMeter, ErrorBudget
from forebay.engine import Feed, Plan
from forebay.errors import ErrorBudgetExceeded, ProcessError
from forebay.intake import Intake, Slices
from forebay.merge import Merge
from forebay.mixing import Mix, mix_in
from forebay.options import LoaderOptions
from forebay.prefetch import Prefetcher, Ready
from forebay.rng import RowRandom
from forebay.scaling import Scaling
from forebay.shuffle import Shuffle, supplies
from forebay.slice import Slice
from forebay.stage import BatchFn
from forebay.state import Position, State
from forebay.stepclock import HostClock
from forebay.supply import Ledger, Supply
from forebay.tensors import Batch, to_batch


class Session:
    """Everything that runs between a start and a stop. Knows nothing of the loader, so that a
    forgotten loader is collected and its session closed."""

    def __init__(
        self,
        options: LoaderOptions,
        plan: Plan,
        state: State,
        batching: Batching,
        shuffle: Shuffle | None,
        batch_fns: Sequence[BatchFn],
        budget: ErrorBudget,
    ) -> None:
        self._options, self._plan, self._state = options, plan, state
        self._batching, self._shuffle, self._batch_fns = batching, shuffle, batch_fns
        self._budget = budget
        self._pid = os.getpid()
        self._pin = is_cuda(options.device)
        self.feed: Feed = options.chosen_engine().start(plan)
        self._intake: Intake | None = None
        self.prefetcher = Prefetcher(self._produce, options.prefetch)
        self._scaling: Scaling | None = None

    def scale(self, counts: Counts, log: DecisionLog) -> None:
        """Begin to size the pools, or at least to record what would be seen, if asked to."""
        options, settings = self._options, self._options.autoscaling()
        if settings is None and options.record_trace is not None:
            settings = Autoscaling(policy="fixed", dry_run=True)
        if settings is not None:
            # Where the device itself tells what it starves NVML can only know less.
            gpu = cuda_uuid() if isinstance(counts.clock, HostClock) else None
            self._scaling = Scaling(self.feed, self.prefetcher, counts, options, settings, log, gpu)

    def source_wait_seconds(self) -> float:
        """Time in which making batches waited for finished slices. Any thread."""
        return 0.0 if self._intake is None else self._intake.waited_seconds

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process: a forked child has none of its threads, and locks that
        nobody will open."""
        return os.getpid() == self._pid

    def get(self) -> Ready | None:
        """The next ready batch or progress; None at the end."""
        if not self.is_here:
            raise ProcessError(
                "this loader was started in another process: its threads and clients do not "
                "survive a fork. Start it in the process that trains, and let processes be made "
                "with the 'spawn' method."
            )
        return self.prefetcher.get()

    def close(self) -> None:
        """Stop threads and clients; in a forked child there are none."""
        if not self.is_here:
            return
        if threading.current_thread().name.startswith("forebay-"):
            # The garbage collector runs in any thread: one of ours cannot wait for its own end.
            threading.Thread(target=self._close, name="close-forebay").start()
        else:
            self._close()

    def _close(self) -> None:
        self.prefetcher.stop()
        if self._scaling is not None:
            self._scaling.stop()
        self.feed.close()
        self.prefetcher.join()
        if self._scaling is not None:
            self._scaling.join()

    def _produce(self, prefetcher: Prefetcher) -> Iterator[Ready]:
        positions = self.feed.positions
        meter = BudgetMeter(self._budget)
        intake = Intake(self.feed, positions, meter, prefetcher.stopping, prefetcher.empty)
        self._intake = intake
        ledger = Ledger(
            {k: based(p) for k, p in positions.items()},
            self._state.windows,
            self._state.open_windows,
            self._state.mixture,
        )
        rows = self._rows(intake, ledger)
        try:
            # map keeps no group while the trainer works on it, as a loop variable would
            yield from map(self._ready, groups(rows, ledger, self._batching))
        except ErrorBudgetExceeded:
            if (s := intake.last) is not None:
                failures = tuple((s.split, f) for f in s.failures)
                yield Ready(batch=None, progress=None, release=_nothing, failures=failures)
            raise

    def _rows(self, intake: Intake, ledger: Ledger) -> Iterator[Supply]:
        """The rows of the intake's slices, in the order that the options ask for."""
        deterministic = self._options.order == "deterministic"
        source = mix_in(self._plan.source)
        slices: Slices = Merge(intake, ledger.splits) if deterministic else intake
        mix = None
        if source is not None:
            mixture = ledger.mixture
            slices = mix = Mix(intake, source, ledger.splits, mixture, deterministic=deterministic)
        rows = supplies(
            slices,
            ledger,
            shuffle=self._shuffle,
            pass_index=self._plan.run.pass_index,
            max_bytes=self._options.max_bytes,
            strict=deterministic,
            reread=None if mix is None else mix.unmixed(),
        )
        return rows if mix is None else mix.counted(rows, ledger)

    def _ready(self, group: Group) -> Ready:
        times = group.event_times() if group.rows else None
        return Ready(
            batch=self._batch(group) if group.rows else None,
            progress=group.progress,
            release=partial(_release, self.feed, group.finished),
            failures=group.failures,
            event_times=None if times is None else np.sort(times) / 1e3,
            newest={k: t / 1e3 for k, t in group.newest().items()} if group.rows else {},
        )

    def _batch(self, group: Group) -> Batch:
        origins, parts = group.origins(), group.columns
        if self._batch_fns:
            parts = [self._transformed(parts, origins)]
        batch = to_batch(parts, group.rows, origins, self._options.ragged)
        return batch.pin_memory() if self._pin else batch

    def _transformed(self, parts: Sequence[Columns], origins: Origins) -> Columns:
        columns: Columns = map_columns(joined(parts), as_numpy)
        splits = np.array([zlib.crc32(name.encode()) for name in origins.splits], np.int64)
        keys = origins.offsets + (splits[origins.split_index] << 31)
        for i, fn in enumerate(self._batch_fns):
            columns = fn(columns, RowRandom(self._plan.run, f"batch/{i}", "", keys))
        return columns


def based(p: Position) -> Position:
    """The position, which knows where its split was first read."""
    return p if p.base is not None else replace(p, base=p.low)


def is_cuda(device: Any) -> bool:
    """Whether tensors go to a CUDA device."""
    return device is not None and torch.device(device).type == "cuda"


def _release(feed: Feed, slices: Sequence[Slice]) -> None:
    for s in slices:
        feed.release(s)


def _nothing() -> None:
    """No room to give back."""

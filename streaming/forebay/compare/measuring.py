"""One measured run of a topology, in this process: how fast, at what cost, and which rows.

Nothing is written by it: no checkpoint, no dead letters, no recording, no metrics.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from forebay import topology
from forebay.compare.digest import IdSum, Rows
from forebay.compare.extract import Scouted, extract, started, stops_of
from forebay.compare.orders import Inputs, Order, Run
from forebay.errors import ConfigError
from forebay.loader import Loader
from forebay.observe.memory import family, memory_of_all
from forebay.options import LoaderStats
from forebay.source import Source
from forebay.state import State
from forebay.stepclock import StepTimes
from forebay.topology import Topology, changes_of
from forebay.training import Stopper, TrainingLoader

_LEAST_STEPS = 3
_TICKS = os.sysconf("SC_CLK_TCK")


def scout(order: Order, batches: int) -> Inputs:
    """Read so many batches of a topology, and say which records they were made of.

    Raises:
        ConfigError: there are none.
    """
    loaded = _loaded(order)
    source = Scouted(loaded.pipeline.source)
    # In this process, whatever the engine: the source notes here where reading began.
    with _loader(loaded, source, None, engine="threads", steps_per_epoch=None) as loader:
        rows = sum(batch.rows for batch in islice(loader, batches))
        state = State.from_json(loader.state_dict())
    if not rows:
        raise ConfigError(f"{order.topology}: its source gives nothing to compare on")
    return Inputs(rows=rows, start=started(source.began).to_json(), stops=stops_of(state))


def measure(order: Order) -> Run:
    """Run a topology once, timed.

    Raises:
        ConfigError: too little came to be timed, or its source has other splits.
        ForebayError: as the topology raises it.
        Exception: whatever its training function raises.
    """
    loaded = _loaded(order)
    run = _timed(loaded, order)
    if order.rows_file is not None:
        rows, source = Rows(order.id_column), _source(loaded, order)
        with _loader(loaded, source, order.inputs, steps_per_epoch=None) as loader:
            for batch in loader:
                rows.add(batch)
        rows.save(Path(order.rows_file))
    return run


def _timed(loaded: Topology, order: Order) -> Run:
    stopper, trains = Stopper(), order.mode == "train"
    meter = _Meter(order, stopper)
    epochs = {} if trains else {"steps_per_epoch": None}
    loader = TrainingLoader(
        _loader(loaded, _source(loaded, order), order.inputs, state_of="committed", **epochs),
        stopper,
        commits=trains and loaded.loader_options.get("state_of") == "committed",
        after_step=lambda _: meter.step(loader.stats()),
    )
    try:
        meter.begin()
        if trains:
            _train(loaded, loader)
        else:
            for batch in loader:
                meter.ids.add(batch.origins)
        return meter.run()
    finally:
        loader.close()


def _train(loaded: Topology, loader: TrainingLoader) -> None:
    train = loaded.train
    if train is None:
        raise ConfigError(f"{loaded.file} has no training function to time")
    options = dict(train.options)
    if train.wants_checkpoint:
        options["checkpoint"] = loaded.checkpoint and _NoCheckpoint(loaded.checkpoint.path)
    train.function(loader, **options)


class _NoCheckpoint:
    """What a training function is given in place of its checkpoint: nothing is read or written."""

    due = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> None:
        """There is none: the run begins anew."""

    def save(self, payload: Any) -> None:
        """Is not kept: a comparison leaves nothing behind."""


class _Meter:
    """Times the steps of one run; used by the trainer's thread."""

    def __init__(self, order: Order, stopper: Stopper) -> None:
        self.ids = IdSum()
        self._order, self._stopper = order, stopper
        self._began = 0.0
        self._first: LoaderStats | None = None
        self._first_seconds = 0.0
        self._from: LoaderStats | None = None
        self._from_cpu = 0.0
        self._last: LoaderStats | None = None
        self._times: list[float] = []

    def begin(self) -> None:
        """The source is about to be opened."""
        self._began = time.monotonic()

    def step(self, stats: LoaderStats) -> None:
        """A step has ended; with the last row of the warm-up the clock starts."""
        now = time.monotonic()
        self._last = stats
        if self._first is None:
            self._first, self._first_seconds = stats, now - self._began
        if self._from is None:
            if not self._is_warm(stats, now):
                return
            self._from, self._from_cpu = stats, _cpu_seconds()
            now = time.monotonic()
        self._times.append(now)
        seconds = self._order.seconds
        enough = len(self._times) > _LEAST_STEPS
        if seconds is not None and enough and now - self._times[0] >= seconds:
            self._stopper.signal = signal.SIGTERM  # as if one had come: nothing more is given

    def _is_warm(self, stats: LoaderStats, now: float) -> bool:
        order = self._order
        since_first = now - self._began - self._first_seconds
        return stats.rows >= order.warmup_rows and since_first >= order.warmup_seconds

    def run(self) -> Run:
        """What was measured; call it when the last step has ended.

        Raises:
            ConfigError: no time passed between the warm-up and the end.
        """
        cpu, memory = _cpu_seconds() - self._from_cpu, memory_of_all(family(os.getpid()))
        before, after, first = self._from, self._last, self._first
        if before is None or after is None or first is None or len(self._times) < 2:
            rows = 0 if after is None else after.rows
            raise ConfigError(
                f"{self._order.topology}: {rows} rows are too few to time beyond a warm-up of "
                f"{self._order.warmup_rows}: let a run have more batches, or less warm-up"
            )
        rows, seconds = after.rows - before.rows, self._times[-1] - self._times[0]
        drains = self._order.mode == "drain"
        return Run(
            mode=self._order.mode,
            rows=after.rows,
            seconds=seconds,
            rows_per_second=rows / seconds,
            cpu_seconds_per_row=cpu / rows,
            first_batch_seconds=self._first_seconds if drains else None,
            staged_bytes=first.bytes_in_flight if drains else None,
            starved=None if drains else _starved(before.steps, after.steps),
            step_p95_seconds=float(np.quantile(np.diff(self._times), 0.95)),
            dead_letters=after.dead_letters,
            ids=self.ids.hex if drains else "",
            pss_bytes=None if memory is None else memory.pss,
        )


def _starved(before: StepTimes, after: StepTimes) -> float | None:
    seconds = after.seconds - before.seconds
    if before.starved is None or after.starved is None or seconds <= 0:
        return None
    return min((after.starved - before.starved) / seconds, 1.0)


def _loaded(order: Order) -> Topology:
    return topology.load(order.topology, changes=changes_of(order.changes))


def _source(loaded: Topology, order: Order) -> Source:
    """The topology's source, less what is not among the inputs."""
    source = loaded.pipeline.source
    if order.inputs is None:
        return source
    if order.inputs.stops is None:
        return source
    known = {s.id for s in source.splits()}
    if missing := sorted(order.inputs.stops.keys() - known):
        if order.id_column is None:
            raise ConfigError(
                f"its source has no split {missing[0]}, as the baseline has: other splits can "
                "only be compared by a column that identifies rows: give the matrix 'ids: COLUMN'"
            )
        return source
    return extract(source, order.inputs.stops)


def _loader(loaded: Topology, source: Source, inputs: Inputs | None, **options: Any) -> Loader:
    """The loader of a topology on a source, with everything left out that writes."""
    pipeline = replace(loaded.pipeline, source=source, recorder=None, sink=None)
    ours = {"record_trace": None, "rank": 0, "world_size": 1}
    if inputs is not None:
        ours["passes"] = 1
    loader = pipeline.loader(**{**loaded.loader_options, **ours, **options})
    if inputs is not None and inputs.start["splits"].keys() <= {s.id for s in source.splits()}:
        loader.load_state_dict(inputs.start)
    return loader


def _cpu_seconds() -> float:
    """CPU time of this process and all that it started, those that have ended included."""
    ticks = 0
    for pid in family(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile; its parent counts it
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS

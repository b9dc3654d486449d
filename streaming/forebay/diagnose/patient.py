"""A topology as it is run under the doctor, and the records that the experiments are made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from forebay.cudaclock import CudaTimeline
from forebay.deadletter import ErrorBudget
from forebay.diagnose.cached import CachedSource, finished, sample
from forebay.diagnose.phases import Kind
from forebay.diagnose.supplies import FromLoader, Supply
from forebay.engine import Plan
from forebay.errors import ForebayError
from forebay.loader import Loader
from forebay.pipeline import Pipeline
from forebay.rng import Run
from forebay.slice import Slice
from forebay.source import Split
from forebay.stepclock import DeviceClock, DeviceTimeline, HostClock, StepClock
from forebay.topology import Topology

_SAMPLE_BATCHES, _SAMPLE_ROWS, _SAMPLE_BYTES = 8, 256, 64 << 20
_SAMPLE_SECONDS = 3.0
_STORE_BATCHES, _SLICE_BYTES = 16, 2048
_LIVE_BATCHES = 64
_FORGIVING = ErrorBudget(share=1.0, all_of=1 << 62)
"""Rows that fail are few, and given again and again: they would spend any budget."""


class NothingMeasured(ForebayError):
    """The doctor could not do its experiments; says why."""


@dataclass(frozen=True, slots=True)
class Patient:
    """A topology as it is run under the doctor."""

    topology: Topology
    pipeline: Pipeline
    options: Mapping[str, Any]
    clock: StepClock
    timeline: DeviceTimeline | None
    patience: float
    """Seconds that the first record may take to come, and to pass the stages."""
    notes: tuple[str, ...]

    @classmethod
    def of(cls, topology: Topology, timeline: DeviceTimeline | None, patience: float) -> Patient:
        given = dict(topology.loader_options)
        if timeline is None:
            timeline = _timeline_of(given.get("device"))
        clock = HostClock() if timeline is None else DeviceClock(timeline)
        pipeline = replace(topology.pipeline, sink=None, recorder=None)
        fixed, notes = _fixed_workers(given, pipeline)
        options = {
            **given,
            **fixed,
            "state_of": "yielded",
            "passes": None,
            "steps_per_epoch": None,
            "record_trace": None,
            "step_clock": lambda: clock,
        }
        return cls(topology, pipeline, options, clock, timeline, patience, notes)

    @property
    def source(self) -> str:
        """The name of its kind of source."""
        return type(self.pipeline.source).__name__

    def loader(self, pipeline: Pipeline, **options: Any) -> Loader:
        """A loader of the pipeline, or of a part of it, at the topology's position."""
        return pipeline.loader(**{**self.options, **options})

    def sample(self) -> list[Slice]:
        """Records of the source to do experiments with."""
        return sample(
            self.pipeline.source,
            {},
            _every,
            rows=max(_SAMPLE_BATCHES * self._batch_size, _SAMPLE_ROWS),
            max_bytes=_SAMPLE_BYTES,
            seconds=_SAMPLE_SECONDS,
            patience=self.patience,
        )

    def finished(self, raw: Sequence[Slice]) -> list[Slice]:
        """What the stages make of them.

        Raises:
            NothingMeasured: nothing.
        """
        if not self.pipeline.stages:
            return list(raw)
        options = self.loader(self.pipeline, rank=0, world_size=1).options
        plan = Plan(
            source=CachedSource(raw),
            stages=self.pipeline.stages,
            positions={},
            owns=_every,
            run=Run(options.seed, 0),
            order=options.order,
            max_bytes=options.max_bytes,
            workers=options.worker_bounds(),
            batch_rows=None if self.pipeline.shuffling else self._batch_size,
        )
        done = finished(
            options.chosen_engine(),
            plan,
            rows=max(_SAMPLE_BATCHES * self._batch_size, _SAMPLE_ROWS),
            seconds=_SAMPLE_SECONDS,
            patience=self.patience,
        )
        if not done:
            raise NothingMeasured(
                "none of the first records passes the stages, so that there is nothing to do "
                "experiments with: look at the dead letters (forebay dlq), and at the filters"
            )
        return done

    def live(self, raw: Sequence[Slice], done: Sequence[Slice]) -> Loader:
        """The loader of the whole pipeline."""
        return self.loader(self.pipeline, max_bytes=self._room([raw, done], _LIVE_BATCHES))

    def supplies(self, raw: Sequence[Slice], done: Sequence[Slice]) -> dict[Kind, Supply]:
        """Where batches come from without the source, and without the stages, too."""
        cached = replace(self.pipeline, source=CachedSource(raw), budget=_FORGIVING)
        plain = replace(cached, source=CachedSource(done), stages=())
        room = self._room([raw, done], _STORE_BATCHES)
        alone = {"rank": 0, "world_size": 1, "max_bytes": room}
        return {
            "no source": FromLoader(self.loader(cached, **alone)),
            "no stages": FromLoader(self.loader(plain, **alone, engine="threads")),
        }

    def _room(self, samples: Sequence[Sequence[Slice]], batches: int) -> int:
        """Bytes in flight for so many batches, and no more than a run may have: filling a room of
        hundreds of MiB takes CPU time that a phase of a second cannot make good."""
        shuffling = self.pipeline.shuffling
        rows = max(batches * self._batch_size, 3 * shuffling.rows if shuffling else 0)
        given = self.loader(self.pipeline).options.max_bytes
        return min(given, rows * max(map(_row_bytes, samples)))

    @property
    def _batch_size(self) -> int:
        assert self.pipeline.batching is not None
        return self.pipeline.batching.size


def _timeline_of(device: Any) -> DeviceTimeline | None:
    if device is None or torch.device(device).type != "cuda":
        return None
    return CudaTimeline(device)


def _fixed_workers(
    given: Mapping[str, Any], pipeline: Pipeline
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The most workers of a range, from the start: a phase is too short to scale in."""
    workers = given.get("workers", pipeline.workers)
    if not isinstance(workers, (tuple, list)) or workers[0] == workers[1]:
        return {"autoscale": None}, ()
    note = f"the autoscaler is off: {workers[1]} workers, the most of {workers[0]} to {workers[1]}"
    return {"workers": workers[1], "autoscale": None}, (note,)


def _row_bytes(slices: Sequence[Slice]) -> int:
    """Bytes that a row takes in flight, with its part of what a slice takes beside its rows."""
    taken = sum(s.nbytes + _SLICE_BYTES for s in slices)
    return max(taken // max(sum(map(len, slices)), 1), 1)


def _every(split: Split) -> bool:
    return True

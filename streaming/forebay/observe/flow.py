"""The flow of a run at one moment: sources, stages on their workers, batches, the trainer.

Rates are a second, of the time between two snapshots; what is not known is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.observe.points import quantiles, rate
from forebay.observe.snapshot import Snapshot, SplitSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """Where rows come from: a topic, a table."""

    name: str
    splits: int
    lag_records: int | None
    lag_seconds: float | None
    states: Mapping[str, int]
    """How many splits are in each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """One stage; rates a second."""

    name: str
    rows_in: float | None
    rows_out: float | None
    failed: int
    """Rows that became dead letters, since the start."""
    busy: float | None
    """Workers that it kept busy, on average."""
    share: float | None
    """That part of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """The workers on which stages run."""

    name: str
    workers: int
    starting: int
    least: int
    most: int | None
    queued: int
    """Slices that wait for a worker."""
    busy: float | None
    """Share of the workers' time."""
    replaced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNode:
    """Batches that wait for the trainer, and what waits for what."""

    ready: int
    prefetch: int
    bytes_in_flight: int
    max_bytes: int
    per_second: float | None
    waits_for_rows: float | None
    """Share of the time in which the making of batches waited for finished rows."""
    waits_for_room: float | None
    """Share in which it waited for the trainer: a full queue, as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerNode:
    """Who takes the batches."""

    there: bool
    """False: a loop that only drains."""
    steps_per_second: float | None
    step_p50: float | None
    step_p95: float | None
    wait_p95: float | None
    on_device: bool
    """Whether its shares are the device's, else the host's."""


def sources_of(splits: Mapping[str, SplitSeen]) -> tuple[SourceNode, ...]:
    """The sources, in the order in which their splits are known."""
    of: dict[str, list[SplitSeen]] = {}
    for s in splits.values():
        of.setdefault(s.source, []).append(s)
    return tuple(_source(name, found) for name, found in of.items())


def _source(name: str, splits: Sequence[SplitSeen]) -> SourceNode:
    lags = [s.lag_records for s in splits if s.lag_records is not None]
    return SourceNode(
        name=name,
        splits=len(splits),
        lag_records=sum(lags) if lags else None,
        lag_seconds=max((s.lag_seconds for s in splits if s.lag_seconds is not None), default=None),
        states=Counter(s.state for s in splits if s.state is not None),
    )


def stages_of(then: Snapshot, now: Snapshot) -> tuple[StageNode, ...]:
    """The stages, in the order in which rows pass them."""
    workers = sum(p.workers for p in now.pools.values())
    made: list[StageNode] = []
    for name, s in now.stages.items():
        old = then.stages.get(name, s)
        seconds = now.at - then.at if name in then.stages else 0.0
        busy = rate(old.busy_seconds, s.busy_seconds, seconds)
        made.append(
            StageNode(
                name=name,
                rows_in=rate(old.rows_in, s.rows_in, seconds),
                rows_out=rate(old.rows_out, s.rows_out, seconds),
                failed=s.failed,
                busy=busy,
                share=min(1.0, busy / workers) if busy is not None and workers else None,
            )
        )
    return tuple(made)


def pools_of(then: Snapshot, now: Snapshot) -> tuple[PoolNode, ...]:
    """The pools of workers."""
    made: list[PoolNode] = []
    for name, p in now.pools.items():
        old = then.pools.get(name, p)
        seconds = now.at - then.at if name in then.pools else 0.0
        busy = rate(old.busy_seconds, p.busy_seconds, seconds)
        made.append(
            PoolNode(
                name=name,
                workers=p.workers,
                starting=p.starting,
                least=p.least,
                most=p.most,
                queued=p.queued_slices,
                busy=min(1.0, busy / p.workers) if busy is not None and p.workers else None,
                replaced=p.replaced,
            )
        )
    return tuple(made)


def batch_of(then: Snapshot, now: Snapshot) -> BatchNode:
    """What waits between them and the trainer."""
    seconds, b, old = now.at - then.at, now.buffer, then.buffer
    return BatchNode(
        ready=b.ready_batches,
        prefetch=b.prefetch,
        bytes_in_flight=b.bytes_in_flight,
        max_bytes=b.max_bytes,
        per_second=rate(then.batches, now.batches, seconds),
        waits_for_rows=_share(rate(old.source_wait_seconds, b.source_wait_seconds, seconds)),
        waits_for_room=_share(rate(old.room_wait_seconds, b.room_wait_seconds, seconds)),
    )


def _share(grown: float | None) -> float | None:
    return None if grown is None else min(grown, 1.0)


def trainer_of(then: Snapshot, now: Snapshot) -> TrainerNode:
    """The trainer."""
    p50, p95 = quantiles(then.step_seconds, now.step_seconds, 0.5, 0.95)
    (wait,) = quantiles(then.wait_seconds, now.wait_seconds, 0.95)
    return TrainerNode(
        there=now.job.has_trainer,
        steps_per_second=rate(then.steps.steps, now.steps.steps, now.at - then.at),
        step_p50=p50,
        step_p95=p95,
        wait_p95=wait,
        on_device=now.steps.on_device,
    )

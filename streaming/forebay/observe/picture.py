"""The picture that dashboard and ``forebay top`` draw: one moment of all ranks, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.autoscale import Taken
from forebay.nvml import GpuSeen
from forebay.observe.board import TargetSeen
from forebay.observe.points import (
    WINDOW_SECONDS,
    Point,
    before,
    point,
    quantiles,
    rate,
)
from forebay.observe.snapshot import (
    JobSeen,
    LagState,
    LettersSeen,
    ProcessSeen,
    RankSeen,
    Snapshot,
    SplitSeen,
)
from forebay.observe.verdict import Verdict, judge

MOST_DECISIONS = 100
MOST_SPLITS = 2000
"""So many are shown one by one, those furthest behind; all are counted."""
_RANKED: Mapping[LagState | None, int] = {"STALLED": 0, "STOPPED": 1, "BEHIND": 2, "OK": 3, None: 4}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPicture:
    """One rank."""

    key: str
    """Names it among the ranks of this picture, and in the next one."""
    job: JobSeen
    age: float
    """Seconds since its snapshot was taken."""
    now: Point
    verdict: Verdict
    rows: int
    batches: int
    passes: int
    sources: tuple[SourceNode, ...]
    stages: tuple[StageNode, ...]
    pools: tuple[PoolNode, ...]
    batch: BatchNode
    trainer: TrainerNode
    letters: LettersSeen
    decisions: tuple[Taken, ...]
    process: ProcessSeen
    cpu: float | None
    """CPUs that the process kept busy."""
    gpus: tuple[GpuSeen, ...]
    reader: Mapping[str, float]
    ranks: tuple[RankSeen, ...]
    ended: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One split of one rank."""

    name: str
    rank: str
    """The key of its rank."""
    position: int
    end: int | None
    lag_records: int | None
    lag_seconds: float | None
    unsaved: int | None
    """Records that a crash now would give again: behind the end of what was saved."""
    state: LagState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is shown of one moment."""

    at: float
    """Wall-clock seconds of who looks."""
    ranks: tuple[RankPicture, ...]
    worst: str | None
    """The key of the rank to look at first."""
    splits: tuple[SplitRow, ...]
    split_count: int
    split_states: Mapping[str, int]
    targets: tuple[TargetSeen, ...]


def picture(
    histories: Sequence[Sequence[Snapshot]], at: float, targets: Sequence[TargetSeen] = ()
) -> Picture:
    """What a board tells at the wall-clock time ``at``; each history has a snapshot at least."""
    keyed = list(zip(keys([h[-1].job for h in histories]), histories, strict=True))
    ranks = tuple(_rank(key, history, at) for key, history in keyed)
    rows = sorted((row for key, h in keyed for row in _rows(key, h[-1])), key=_worst_first)
    return Picture(
        at=at,
        ranks=ranks,
        worst=_worst(ranks),
        splits=tuple(rows[:MOST_SPLITS]),
        split_count=len(rows),
        split_states=Counter(r.state for r in rows if r.state is not None),
        targets=tuple(targets),
    )


def keys(jobs: Sequence[JobSeen]) -> list[str]:
    """A name for each rank that stays the same when its job is started again, if it can."""
    plain = [f"{j.name}/{j.rank}" for j in jobs]
    many = Counter(plain)
    return [
        k if many[k] == 1 else f"{k}@{j.host}:{j.pid}" for k, j in zip(plain, jobs, strict=True)
    ]


def _rank(key: str, history: Sequence[Snapshot], at: float) -> RankPicture:
    now = history[-1]
    then = before(history, now, WINDOW_SECONDS) or now
    return RankPicture(
        key=key,
        job=now.job,
        age=max(0.0, at - now.at),
        now=point(history, now),
        verdict=judge(history),
        rows=now.rows,
        batches=now.batches,
        passes=now.passes,
        sources=_sources(now.splits),
        stages=_stages(then, now),
        pools=_pools(then, now),
        batch=_batch(then, now),
        trainer=_trainer(then, now),
        letters=now.letters,
        decisions=now.decisions[-MOST_DECISIONS:],
        process=now.process,
        cpu=rate(then.process.cpu_seconds, now.process.cpu_seconds, now.at - then.at),
        gpus=now.gpus,
        reader=now.reader,
        ranks=now.ranks,
        ended=now.ended,
    )


def _sources(splits: Mapping[str, SplitSeen]) -> tuple[SourceNode, ...]:
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


def _stages(then: Snapshot, now: Snapshot) -> tuple[StageNode, ...]:
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


def _pools(then: Snapshot, now: Snapshot) -> tuple[PoolNode, ...]:
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


def _batch(then: Snapshot, now: Snapshot) -> BatchNode:
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


def _trainer(then: Snapshot, now: Snapshot) -> TrainerNode:
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


def _rows(key: str, now: Snapshot) -> list[SplitRow]:
    return [
        SplitRow(
            name=name,
            rank=key,
            position=s.position,
            # The end was asked for some seconds ago; what was read since is there as well.
            end=None if s.end is None else max(s.end, s.position),
            lag_records=s.lag_records,
            lag_seconds=s.lag_seconds,
            unsaved=_unsaved(s),
            state=s.state,
        )
        for name, s in now.splits.items()
    ]


def _unsaved(s: SplitSeen) -> int | None:
    if s.lag_checkpointed is None or s.lag_records is None:
        return None
    return max(0, s.lag_checkpointed - s.lag_records)


def _worst_first(row: SplitRow) -> tuple[int, float, str]:
    return _RANKED[row.state], -(row.lag_records or 0), row.name


def _worst(ranks: Sequence[RankPicture]) -> str | None:
    """A rank that starves before one that waits for it, and one that runs before one that ended."""
    if not ranks:
        return None
    worst = max(ranks, key=lambda r: (r.ended is None, r.verdict.starved, r.now.starved or 0.0))
    return worst.key

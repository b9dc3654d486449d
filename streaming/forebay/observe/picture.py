"""The picture that dashboard and ``forebay top`` draw: one moment of all ranks, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.autoscale import Taken
from forebay.nvml import GpuSeen
from forebay.observe.board import TargetSeen
from forebay.observe.flow import (
    BatchNode,
    PoolNode,
    SourceNode,
    StageNode,
    TrainerNode,
    batch_of,
    pools_of,
    sources_of,
    stages_of,
    trainer_of,
)
from forebay.observe.points import (
    WINDOW_SECONDS,
    Point,
    before,
    point,
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
        sources=sources_of(now.splits),
        stages=stages_of(then, now),
        pools=pools_of(then, now),
        batch=batch_of(then, now),
        trainer=trainer_of(then, now),
        letters=now.letters,
        decisions=now.decisions[-MOST_DECISIONS:],
        process=now.process,
        cpu=rate(then.process.cpu_seconds, now.process.cpu_seconds, now.at - then.at),
        gpus=now.gpus,
        reader=now.reader,
        ranks=now.ranks,
        ended=now.ended,
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

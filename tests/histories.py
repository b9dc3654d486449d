"""Histories of ranks that never ran, for tests of what is made of histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forebay.autoscale import Taken
from forebay.engine import PoolStats, StageStats
from forebay.histogram import FRESHNESS_BOUNDS, STEP_BOUNDS, Durations, Histogram
from forebay.observe.snapshot import (
    BufferSeen,
    JobSeen,
    LagState,
    LetterSeen,
    LettersSeen,
    ProcessSeen,
    RankSeen,
    Snapshot,
    SplitSeen,
)
from forebay.stepclock import StepTimes

BEGAN = 1_700_000_000.0
JOB = JobSeen(name="clicks", host="gpu-1", pid=17, engine="threads", version="0.1.0", began=BEGAN)
_STATES: Sequence[LagState] = ("OK", "OK", "OK", "BEHIND", "STALLED", "STOPPED")


def durations(bounds: Sequence[float], each: float, many: int) -> Histogram:
    """So many durations of one length."""
    one = Durations(bounds)
    one.add(each)
    counts = tuple(n * many for n in one.taken().counts)
    return Histogram(bounds=tuple(map(float, bounds)), counts=counts, sum=each * many)


def snapshot(
    second: int,
    *,
    rank: int = 0,
    world: int = 1,
    began: float = BEGAN,
    starved: float = 0.3,
    splits: int = 3,
    **more: Any,
) -> Snapshot:
    """A rank ``second`` seconds after its job began, which eats 1,000 rows a second."""
    job = replace(JOB, rank=rank, world_size=world, pid=17 + rank, began=began)
    made = Snapshot(
        at=began + second,
        job=job,
        batches=10 * second,
        rows=1000 * second,
        steps=StepTimes(
            steps=10 * second,
            seconds=float(second),
            wait=starved * second,
            starved=starved * second,
            copy=0.05 * second,
            compute=(0.9 - starved) * second,
            communication=0.05 * second if world > 1 else None,
            other=0.0 if world > 1 else 0.05 * second,
        ),
        step_seconds=durations(STEP_BOUNDS, 0.1, second),
        wait_seconds=durations(STEP_BOUNDS, 0.03, second),
        freshness=durations(FRESHNESS_BOUNDS, 2.0, second),
        splits={f"kafka:clicks/{i}": _split(i, second) for i in range(splits)},
        stages={
            "decode": _stage(1000 * second, 1000 * second, 1.4 * second),
            "augment": _stage(1000 * second, 990 * second, 0.4 * second),
        },
        pools={
            "stages": PoolStats(
                workers=2 + (second > 60),
                busy_seconds=1.8 * second,
                queued_slices=3,
                rows=1000 * second,
                least=1,
                most=8,
            )
        },
        buffer=BufferSeen(
            bytes_in_flight=40 << 20,
            max_bytes=256 << 20,
            ready_batches=1,
            prefetch=2,
            source_wait_seconds=0.6 * second,
            room_wait_seconds=0.1 * second,
        ),
        process=ProcessSeen(
            rss_bytes=(900 << 20) + (second << 18),
            cpu_seconds=2.5 * second,
            threads=14,
            cpus=4.0,
            gil=0.22,
        ),
    )
    return replace(made, **more)


def history(seconds: int, **more: Any) -> list[Snapshot]:
    """A snapshot a second."""
    return [snapshot(second, **more) for second in range(1, seconds + 1)]


def letter(reason: str, second: int = 0, **more: Any) -> LetterSeen:
    """A dead letter with that reason."""
    made = LetterSeen(
        at=BEGAN + second, split="kafka:clicks/1", offset=4711, stage="decode", reason=reason
    )
    return replace(made, **more)


def letters(*reasons: str) -> LettersSeen:
    """Dead letters with these reasons."""
    last = tuple(letter(reason, i) for i, reason in enumerate(reasons))
    return LettersSeen(total=len(last), by_reason={"decode/ValueError": len(last)}, last=last)


def decision(second: int, before: int, workers: int, reason: str) -> Taken:
    """What an autoscaler did."""
    return Taken(
        at=BEGAN + second,
        since=BEGAN + second,
        times=1,
        pool="stages",
        before=before,
        workers=workers,
        reason=reason,
        applied=True,
    )


def told(rank: int, starved: float) -> RankSeen:
    """What a rank told the others."""
    return RankSeen(
        rank=rank,
        starved=starved,
        copy=0.05,
        compute=0.9 - starved,
        communication=0.05,
        other=None,
        at=BEGAN,
    )


def _split(number: int, second: int) -> SplitSeen:
    lag = (number * 37) % 5000
    return SplitSeen(
        source="kafka:clicks",
        position=100 * second,
        end=100 * second + lag,
        lag_records=lag,
        lag_fetched=lag // 2,
        lag_checkpointed=lag + 50,
        lag_seconds=lag / 100.0,
        state=_STATES[number % len(_STATES)],
    )


def _stage(rows_in: int, rows_out: int, busy: float) -> StageStats:
    return StageStats(
        slices=rows_in // 100,
        rows_in=rows_in,
        rows_out=rows_out,
        failed=rows_in - rows_out,
        busy_seconds=busy,
    )

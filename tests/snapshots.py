"""Snapshots for tests: an idle job, and a busy one in which everything is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forebay.autoscale import Taken
from forebay.engine import PoolStats, StageStats
from forebay.histogram import FRESHNESS_BOUNDS, STEP_BOUNDS, Durations
from forebay.nvml import GpuSeen
from forebay.observe.snapshot import (
    BufferSeen,
    JobSeen,
    LetterSeen,
    LettersSeen,
    ProcessSeen,
    RankSeen,
    Snapshot,
    SplitSeen,
)
from forebay.stepclock import StepTimes

BEGAN = 1_700_000_000.0
JOB = JobSeen(name="clicks", host="node-1", pid=7, engine="threads", version="1.0", began=BEGAN)
GPU = GpuSeen(
    uuid="GPU-a",
    busy=0.9,
    sm_active=0.5,
    memory_used=2 << 30,
    memory_total=8 << 30,
    memory_mine=1 << 30,
    watts=300.0,
    watts_limit=700.0,
    celsius=60.0,
    throttled=("thermal",),
)
NO_STEPS = Durations(STEP_BOUNDS).taken()


def idle(seconds: float = 0.0, **changes: Any) -> Snapshot:
    """A job that has begun, and of which nothing is known yet, after so many seconds."""
    nothing = Snapshot(
        at=BEGAN + seconds,
        job=JOB,
        batches=0,
        rows=0,
        steps=StepTimes(steps=0, seconds=0.0, wait=0.0),
        step_seconds=NO_STEPS,
        wait_seconds=NO_STEPS,
        freshness=Durations(FRESHNESS_BOUNDS).taken(),
        buffer=BufferSeen(
            bytes_in_flight=0,
            max_bytes=256 << 20,
            ready_batches=0,
            prefetch=2,
            source_wait_seconds=0.0,
            room_wait_seconds=0.0,
        ),
    )
    return replace(nothing, **changes)


def busy(seconds: float = 10.0, **changes: Any) -> Snapshot:
    """A job that was at it for so many seconds, ten batches a second, a tenth of it starved."""
    full = idle(
        seconds,
        batches=int(10 * seconds),
        rows=int(2560 * seconds),
        steps=StepTimes(
            steps=int(10 * seconds),
            seconds=seconds,
            wait=0.2 * seconds,
            starved=0.1 * seconds,
            copy=0.05 * seconds,
            compute=0.7 * seconds,
            communication=0.1 * seconds,
            other=0.05 * seconds,
            pauses={"checkpoint": 0.01 * seconds},
        ),
        step_seconds=durations(STEP_BOUNDS, 0.08, int(10 * seconds)),
        wait_seconds=durations(STEP_BOUNDS, 0.02, int(10 * seconds)),
        freshness=durations(FRESHNESS_BOUNDS, 1.5, int(2560 * seconds)),
        splits={f"kafka:clicks/{i}": split(int(640 * seconds), lag=100 * i) for i in range(2)},
        stages={"decode": stage(int(2560 * seconds), 1.5 * seconds)},
        pools={"decode": pool(int(2560 * seconds), 1.5 * seconds)},
        buffer=BufferSeen(
            bytes_in_flight=3 << 20,
            max_bytes=256 << 20,
            ready_batches=1,
            prefetch=2,
            source_wait_seconds=0.5 * seconds,
            room_wait_seconds=0.1 * seconds,
        ),
        letters=LettersSeen(
            total=3,
            by_reason={"decode/ValueError": 2, "decode/other": 1},
            last=(
                LetterSeen(
                    at=BEGAN,
                    split="kafka:clicks/0",
                    offset=5,
                    stage="decode",
                    reason="ValueError: no JPEG",
                ),
            ),
        ),
        decisions=(decision(BEGAN + seconds),),
        decided={"decode/up": 1, "decode/hold": 5},
        reader={"records": 2560.0 * seconds, "client_errors": 1.0},
        process=ProcessSeen(
            rss_bytes=1 << 30,
            pss_bytes=1 << 29,
            cpu_seconds=seconds,
            threads=12,
            cpus=2.0,
            gil=0.3,
            cpu_wait_seconds=0.5 * seconds,
        ),
        gpus=(GPU,),
        ranks=(rank(0, 0.1), rank(1, 0.6)),
    )
    return replace(full, **changes)


def durations(bounds: tuple[float, ...], each: float, number: int) -> Any:
    """So many durations of one length."""
    counted = Durations(bounds)
    for _ in range(number):
        counted.add(each)
    return counted.taken()


def split(position: int, lag: int = 0, **changes: Any) -> SplitSeen:
    """A split that is behind by so many records."""
    seen = SplitSeen(
        source="kafka:clicks",
        position=position,
        end=position + lag,
        lag_records=lag,
        lag_fetched=max(0, lag - 10),
        lag_checkpointed=lag + 10,
        lag_seconds=lag / 100,
        state="OK",
    )
    return replace(seen, **changes)


def stage(rows: int, busy_seconds: float) -> StageStats:
    """A stage that did so many rows."""
    return StageStats(
        slices=rows // 10, rows_in=rows, rows_out=rows - 3, failed=3, busy_seconds=busy_seconds
    )


def pool(rows: int, busy_seconds: float, **changes: Any) -> PoolStats:
    """A pool of two workers."""
    seen = PoolStats(
        workers=2,
        busy_seconds=busy_seconds,
        cpu_seconds=busy_seconds / 2,
        queued_slices=4,
        rows=rows,
        starting=1,
        most=8,
    )
    return replace(seen, **changes)


def decision(at: float, **changes: Any) -> Taken:
    """The autoscaler's, for a third worker."""
    taken = Taken(
        at=at,
        since=at,
        times=1,
        pool="decode",
        before=2,
        workers=3,
        reason="starved 10%, data waits",
        applied=True,
    )
    return replace(taken, **changes)


def rank(number: int, starved: float) -> RankSeen:
    """What a rank told."""
    return RankSeen(
        rank=number,
        starved=starved,
        copy=0.0,
        compute=1 - starved,
        communication=0.0,
        other=0.0,
        at=BEGAN,
    )

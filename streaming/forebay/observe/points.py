"""The figures of one rank over time, for charts: each from snapshots some seconds apart."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from forebay.histogram import Histogram
from forebay.observe.snapshot import Snapshot, SplitSeen
from forebay.stepclock import StepTimes

WINDOW_SECONDS = 5.0
"""Rates and shares are of so long a time: a step may last longer than from snapshot to snapshot."""
PARTS = ("starved", "copy", "compute", "communication", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One moment of a rank; None: not known."""

    at: float
    rows: float | None
    """Rows a second, given to the trainer."""
    starved: float | None
    """Share of the trainer's time, 0 to 1, as the next four."""
    copy: float | None
    compute: float | None
    communication: float | None
    other: float | None
    fresh_p50: float | None
    """Seconds from event to step, of the rows of the window."""
    fresh_p95: float | None
    lag_records: int | None
    """Of all splits whose end is known."""
    lag_seconds: float | None
    """Of the split that is furthest behind."""
    workers: int | None
    letters: float | None
    """Dead letters a second."""
    rss: int | None
    """Bytes of the training process."""


COLUMNS = tuple(f.name for f in fields(Point))


def before(history: Sequence[Snapshot], now: Snapshot, seconds: float) -> Snapshot | None:
    """The newest snapshot of the same run that is ``seconds`` older than ``now``; else its oldest,
    or None if there is no older one."""
    last = bisect_right(history, now.at - seconds, key=_at) - 1
    for found in history[max(last, 0) :]:
        if found.at >= now.at:
            return None
        if same_run(found, now):
            return found
    return None


def same_run(a: Snapshot, b: Snapshot) -> bool:
    """Whether counts of the two may be subtracted: they are of one process."""
    return (a.job.host, a.job.pid, a.job.began) == (b.job.host, b.job.pid, b.job.began)


def rate(earlier: float | None, later: float | None, seconds: float) -> float | None:
    """How fast a count grew, a second; None if that is not known, or it did not only grow."""
    if earlier is None or later is None or seconds <= 0 or later < earlier:
        return None
    return (later - earlier) / seconds


def shares(earlier: StepTimes, later: StepTimes) -> dict[str, float]:
    """What the trainer's time between the two went to, for the parts that are known."""
    seconds = later.seconds - earlier.seconds
    known: dict[str, float] = {}
    for part in PARTS:
        grown = rate(getattr(earlier, part), getattr(later, part), seconds)
        if grown is not None:
            known[part] = min(grown, 1.0)
    return known


def quantiles(earlier: Histogram, later: Histogram, *qs: float) -> list[float | None]:
    """Of what was counted between the two."""
    if earlier.bounds != later.bounds:
        return [None] * len(qs)
    between = later.since(earlier)
    return [between.quantile(q) for q in qs]


def point(history: Sequence[Snapshot], now: Snapshot) -> Point:
    """The figures at one snapshot of a history."""
    then = before(history, now, WINDOW_SECONDS)
    seconds = 0.0 if then is None else now.at - then.at
    base = now if then is None else then
    parts = shares(base.steps, now.steps) if now.job.has_trainer else {}
    p50, p95 = quantiles(base.freshness, now.freshness, 0.5, 0.95)
    return Point(
        at=now.at,
        rows=rate(base.rows, now.rows, seconds),
        starved=parts.get("starved"),
        copy=parts.get("copy"),
        compute=parts.get("compute"),
        communication=parts.get("communication"),
        other=parts.get("other"),
        fresh_p50=p50,
        fresh_p95=p95,
        lag_records=lag_records(now),
        lag_seconds=lag_seconds(now),
        workers=sum(p.workers for p in now.pools.values()) if now.pools else None,
        letters=rate(base.letters.total, now.letters.total, seconds),
        rss=now.process.rss_bytes,
    )


def lag_records(now: Snapshot) -> int | None:
    """Records behind, of all splits whose end is known."""
    return records_behind(now.splits.values())


def lag_seconds(now: Snapshot) -> float | None:
    """How far the split behind most is behind."""
    return seconds_behind(now.splits.values())


def records_behind(splits: Iterable[SplitSeen]) -> int | None:
    """Of the splits that are known: a split too few is no lag of 0, it is one that is missing."""
    known = [s.lag_records for s in splits if s.lag_records is not None]
    return sum(known) if known else None


def seconds_behind(splits: Iterable[SplitSeen]) -> float | None:
    """Of the split that is furthest behind, of those that are known."""
    return max((s.lag_seconds for s in splits if s.lag_seconds is not None), default=None)


def _at(snapshot: Snapshot) -> float:
    return snapshot.at

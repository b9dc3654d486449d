"""How metrics are read from the snapshots of one rank, where that takes more than a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from forebay.histogram import Histogram
from forebay.nvml.seen import THROTTLES
from forebay.observe.snapshot import RankSeen, Snapshot, SplitSeen

RATIO_SECONDS = 60.0
"""Ratios are of the last so many seconds, or of as many as a job has run."""
PARTS = ("starved", "copy", "compute", "communication", "other")
STATES = ("OK", "BEHIND", "STALLED", "STOPPED")
MOST_PAUSES = 20
"""Names of pauses are the training function's: beyond so many they count together as ``other``."""

History: TypeAlias = Sequence[Snapshot]
"""Snapshots of one rank, oldest first, at least one. The last is what is told; those before it are
what a ratio is a difference to."""
Value: TypeAlias = "float | Histogram | None"
Reading: TypeAlias = "tuple[tuple[str, ...], Value]"
"""The values of a metric's own labels, and what was read."""


def by_source(s: Snapshot, of: Callable[[list[SplitSeen]], float | None]) -> Iterator[Reading]:
    """Something of the splits of each source together."""
    sources: dict[str, list[SplitSeen]] = {}
    for seen in s.splits.values():
        sources.setdefault(seen.source, []).append(seen)
    return (((source,), of(seen)) for source, seen in sources.items())


def splits_in_state(s: Snapshot) -> Iterator[Reading]:
    """How many splits of a source are in each state; of those whose state is known."""
    sources = {x.source: dict.fromkeys(STATES, 0) for x in s.splits.values() if x.state}
    for seen in s.splits.values():
        if seen.state is not None:
            sources[seen.source][seen.state] += 1
    for source, counts in sources.items():
        for state, number in counts.items():
            yield (source, state), number


def split_states(history: History) -> Iterator[Reading]:
    """Of each split 1 for its state, and 0 for the others."""
    for name, seen in history[-1].splits.items():
        for state in STATES if seen.state is not None else ():
            yield (seen.source, name, state), float(seen.state == state)


def starvation(history: History) -> Iterator[Reading]:
    """Of the newest seconds. Nothing of a job that does not train, and before its first step."""
    now, before = history[-1], _recent(history)[0]
    starved, earlier = now.steps.starved, before.steps.starved
    seconds = now.steps.seconds - before.steps.seconds
    if now.job.has_trainer and starved is not None and earlier is not None and seconds > 0:
        yield (), min(max((starved - earlier) / seconds, 0.0), 1.0)


def without_cpu(history: History) -> Iterator[Reading]:
    """Threads without a CPU, on average over the newest seconds."""
    now, before = history[-1], _recent(history)[0]
    waited, earlier = now.process.cpu_wait_seconds, before.process.cpu_wait_seconds
    if waited is not None and earlier is not None and now.at > before.at:
        # Threads that ended take their part with them.
        yield (), max(waited - earlier, 0.0) / (now.at - before.at)


def step_time(history: History) -> Iterator[Reading]:
    """Never less than it was: what a device did is known late, and moves from part to part."""
    steps = [s.steps for s in _of_run(history)]
    for part in PARTS:
        if getattr(steps[-1], part) is not None:
            yield (part,), max(v for s in steps if (v := getattr(s, part)) is not None)


def _recent(history: History) -> list[Snapshot]:
    return [s for s in _of_run(history) if s.at >= history[-1].at - RATIO_SECONDS]


def _of_run(history: History) -> list[Snapshot]:
    job = history[-1].job
    return [s for s in history if (s.job.began, s.job.pid) == (job.began, job.pid)]


def pauses(s: Snapshot) -> Iterator[Reading]:
    """Seconds by name of the pause."""
    named: dict[str, float] = {}
    for name, seconds in s.steps.pauses.items():
        known = name if name in named or len(named) < MOST_PAUSES else "other"
        named[known] = named.get(known, 0.0) + seconds
    return (((name,), seconds) for name, seconds in named.items())


def workers(s: Snapshot) -> Iterator[Reading]:
    """Of each pool those that run and those that start."""
    for name, pool in s.pools.items():
        yield (name, "running"), pool.workers
        yield (name, "starting"), pool.starting


def limits(s: Snapshot) -> Iterator[Reading]:
    """Of each pool the fewest and the most that it may have."""
    for name, pool in s.pools.items():
        yield (name, "least"), pool.least
        yield (name, "most"), pool.most


def letters(s: Snapshot) -> Iterator[Reading]:
    """By stage and kind."""
    for reason, number in s.letters.by_reason.items():
        stage, _, kind = reason.rpartition("/")
        yield (stage, kind), number


def decided(s: Snapshot) -> Iterator[Reading]:
    """By pool and action."""
    for decision, number in s.decided.items():
        pool, _, action = decision.rpartition("/")
        yield (pool, action), number


def wanted(s: Snapshot) -> Iterator[Reading]:
    """Workers that the last decision on each pool was for."""
    return (((pool,), n) for pool, n in {d.pool: d.workers for d in s.decisions}.items())


def throttled(s: Snapshot) -> Iterator[Reading]:
    """Of each GPU of which it is known, by reason."""
    for gpu in s.gpus:
        for reason in THROTTLES.values() if gpu.throttled is not None else ():
            yield (gpu.uuid, reason), float(reason in (gpu.throttled or ()))


def ranks(s: Snapshot) -> Iterator[Reading]:
    """From rank 0 alone: were each to tell of all, their number would be squared."""
    heard: Iterable[RankSeen] = s.ranks if s.job.rank == 0 else ()
    for r in heard:
        for part in PARTS:
            yield (str(r.rank), part), getattr(r, part)

"""The last seconds of a rank, summed up: shares and rates, as differences of its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

from forebay.observe.points import same_run
from forebay.observe.snapshot import Snapshot

WINDOW_SECONDS = 30.0
_PIECE_SECONDS = 5.0
_SAME, _CHANGED = 0.15, 0.25
"""Of a share of the trainer's time: pieces that differ by less are alike, by more are not."""
_HEARD_SECONDS = 12.0
"""Ends are asked for every 5 seconds: what did not move for so long stands still."""
LEAST_SECONDS, LEAST_STEPS = 2.0, 3
WARM_STEPS, WARM_SECONDS = 2, 10.0
_PARTS = ("starved", "copy", "compute", "communication", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIn:
    """A pool of workers in the window."""

    workers: float
    busy: float
    """Share of the workers' time, 0 to 1."""
    queued: float
    """Slices that waited for a worker most of the time: the median, as a moment's rush is none."""
    cpu: float | None
    """Of the busy time, what was CPU time: 0 to 1; None if it is not known."""
    most: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A rank in the last seconds. Shares are of the window's time; unknown is None."""

    first: Snapshot
    last: Snapshot
    seconds: float
    steps: int
    shares: Mapping[str, float]
    """Of the trainer's time, by what it went to; adds up to 1."""
    starved: float | None
    """As in ``shares``; None where the device did not tell."""
    wait: float
    """Of the trainer's thread, in ``next()``: more than ``starved`` where it runs ahead."""
    pauses: Mapping[str, float]
    rows: float
    """A second."""
    source_wait: float
    """Of the thread that makes batches: it waited for finished slices."""
    room_wait: float
    """Of the same: it waited for the trainer to take a batch."""
    pools: Mapping[str, PoolIn]
    stages: Mapping[str, float]
    """Workers that each stage kept busy, on average."""
    stages_cpu: Mapping[str, float]
    """CPUs' worth of time that each stage used, of finished work; without those of which it is not
    known."""
    ready: float
    """How full the queue of ready batches was, 0 to 1."""
    full: float
    """How full the bound on bytes in flight was."""
    unread: float | None
    """Offsets up to the ends that were not read yet, of all splits; the median."""
    behind: int | None
    """Offsets up to the ends that were not delivered, now."""
    arrived: float | None
    """New offsets a second; None until the ends were heard anew often enough to tell."""
    taken: float | None
    """Offsets a second that were delivered."""
    gil: float | None
    cpu: float | None
    """CPUs' worth of time that the process used."""
    cpu_wait: float | None
    """Threads that were ready to run and had no CPU, on average."""
    gpu_busy: float | None
    """Of the busiest device, by NVML."""

    @property
    def making(self) -> float:
        """Share in which the thread that makes batches made them."""
        return max(0.0, 1.0 - self.source_wait - self.room_wait)


def window(history: Sequence[Snapshot]) -> Window | None:
    """The last ``WINDOW_SECONDS`` of a rank without its warm-up; None if that is too little.

    If something changed meanwhile, what came after the change.
    """
    seen = _of_one_process(history)
    warm = [s for s in seen if s.batches > WARM_STEPS or s.steps.seconds >= WARM_SECONDS]
    recent = [s for s in warm if s.at >= warm[-1].at - WINDOW_SECONDS]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    seconds, steps = last.at - first.at, last.batches - first.batches
    if seconds < LEAST_SECONDS or (steps < LEAST_STEPS and seconds < WARM_SECONDS):
        return None
    return between(_since_change(recent))


def _since_change(recent: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """The end of the window that is alike, if all that was before it is clearly different.

    What comes and goes, such as a checkpoint or a source in bursts, was like that before as well,
    and is no change. One piece between the two may be neither.
    """
    pieces = list(_pieces(recent))
    shares = [_shares(p[0], p[-1]) for p in pieces]
    alike = 0
    while alike < len(pieces) and _distance(shares[alike], shares[0]) < _SAME:
        alike += 1
    before = shares[alike + 1 :]
    if alike < 2 or not before or any(_distance(s, shares[0]) < _CHANGED for s in before):
        return recent
    return [s for s in recent if s.at >= pieces[alike - 1][0].at]


def _pieces(recent: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    """Pieces of a window, the last one first; what is left at its beginning is none."""
    end = recent[-1].at
    while end - _PIECE_SECONDS >= recent[0].at:
        piece = [s for s in recent if end - _PIECE_SECONDS <= s.at <= end]
        if len(piece) < 2:
            return
        yield piece
        end = piece[0].at


def _distance(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    return max((abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in {*a, *b}), default=0.0)


def together(windows: Sequence[Window]) -> Window:
    """Several stretches of one run as one: what is short and noisy in each is less so in all."""
    longest, weights = max(windows, key=lambda w: w.seconds), [w.seconds for w in windows]

    def mean(of: Callable[[Window], float]) -> float:
        return sum(of(w) * n for w, n in zip(windows, weights, strict=True)) / sum(weights)

    def pool(name: str, now: PoolIn) -> PoolIn:
        busy = mean(lambda w: w.pools[name].busy if name in w.pools else now.busy)
        queued = median(w.pools[name].queued for w in windows if name in w.pools)
        return replace(now, busy=busy, queued=queued)

    def stage(name: str) -> float:
        return mean(lambda w: w.stages.get(name, 0.0))

    def stage_cpu(name: str) -> float:
        return mean(lambda w: w.stages_cpu.get(name, 0.0))

    locked = [w.gil for w in windows if w.gil is not None]
    return replace(
        longest,
        source_wait=mean(lambda w: w.source_wait),
        room_wait=mean(lambda w: w.room_wait),
        rows=mean(lambda w: w.rows),
        ready=mean(lambda w: w.ready),
        full=mean(lambda w: w.full),
        pools={name: pool(name, now) for name, now in longest.pools.items()},
        stages={name: stage(name) for name in longest.stages},
        stages_cpu={k: stage_cpu(k) for k in longest.stages_cpu},
        gil=median(locked) if locked else None,
    )


def whole(history: Sequence[Snapshot]) -> Mapping[str, float]:
    """The shares of all of the run up to the last snapshot; empty if it did not begin."""
    return _shares(None, history[-1])


def _of_one_process(history: Sequence[Snapshot]) -> list[Snapshot]:
    """The snapshots of the process that told last: another one began its counts at 0."""
    if not history:
        return []
    return [s for s in history if same_run(s, history[-1])]


def between(all_: Sequence[Snapshot]) -> Window:
    """What happened from the first to the last of two or more snapshots of one process."""
    first, last = all_[0], all_[-1]
    span = max(last.at - first.at, 1e-6)
    a, b = first.buffer, last.buffer
    shares = _shares(first, last)
    return Window(
        first=first,
        last=last,
        seconds=span,
        steps=last.batches - first.batches,
        shares=shares,
        starved=None if last.steps.starved is None else shares.get("starved"),
        wait=_share(last.steps.wait - first.steps.wait, span),
        pauses={
            k: _share(v - first.steps.pauses.get(k, 0.0), span)
            for k, v in last.steps.pauses.items()
        },
        rows=max(0, last.rows - first.rows) / span,
        source_wait=_share(b.source_wait_seconds - a.source_wait_seconds, span),
        room_wait=_share(b.room_wait_seconds - a.room_wait_seconds, span),
        pools=_pools(first, last, all_),
        stages={
            k: max(0.0, s.busy_seconds - (first.stages[k].busy_seconds if k in first.stages else 0))
            / span
            for k, s in last.stages.items()
        },
        stages_cpu=_stages_cpu(first, last, span),
        ready=fmean(s.buffer.ready_batches / max(s.buffer.prefetch, 1) for s in all_),
        full=fmean(s.buffer.bytes_in_flight / max(s.buffer.max_bytes, 1) for s in all_),
        unread=_median([_sum([x.lag_fetched for x in s.splits.values()]) for s in all_]),
        behind=_sum([x.lag_records for x in last.splits.values()]),
        arrived=arrived(all_),
        taken=_taken(first, last, span),
        gil=_mean(all_, lambda s: s.process.gil),
        cpu=_rate(first.process.cpu_seconds, last.process.cpu_seconds, span),
        cpu_wait=_rate(first.process.cpu_wait_seconds, last.process.cpu_wait_seconds, span),
        gpu_busy=_mean(
            all_, lambda s: max((g.busy for g in s.gpus if g.busy is not None), default=None)
        ),
    )


def _shares(first: Snapshot | None, last: Snapshot) -> dict[str, float]:
    """What the trainer's time went to. Parts that are unknown are part of ``compute``."""
    before, now = (first.steps if first else None), last.steps
    seconds = now.seconds - (before.seconds if before else 0.0)
    if seconds <= 0:
        return {}
    parts: dict[str, float] = {}
    for name in _PARTS:
        value = getattr(now, name)
        if value is not None and name != "compute":
            since = getattr(before, name) if before else None
            parts[name] = max(0.0, value - (since or 0.0)) / seconds
    used = sum(parts.values())
    if used > 1.0:  # told late: the parts are counted when the device came past them
        parts = {name: value / used for name, value in parts.items()}
    parts["compute"] = max(0.0, 1.0 - sum(parts.values()))
    return {name: parts[name] for name in _PARTS if name in parts}


def _pools(first: Snapshot, last: Snapshot, all_: Sequence[Snapshot]) -> dict[str, PoolIn]:
    # Between two sessions there are none: then those that were seen last are meant.
    last = next((s for s in reversed(all_) if s.pools), last)
    span, pools = max(last.at - first.at, 1e-9), {}
    for name, pool in last.pools.items():
        before = first.pools.get(name)
        if before is not None and before.busy_seconds > pool.busy_seconds:
            before = None  # of a session that ended
        seen = [s.pools[name] for s in all_ if name in s.pools]
        workers = fmean(p.workers for p in seen)
        busy = pool.busy_seconds - (before.busy_seconds if before else 0.0)
        cpu = None
        if pool.cpu_seconds is not None and busy > 0:
            cpu = _share(pool.cpu_seconds - ((before and before.cpu_seconds) or 0.0), busy)
        pools[name] = PoolIn(
            workers=workers,
            busy=_share(busy, span * max(workers, 1.0)),
            queued=median(p.queued_slices for p in seen),
            cpu=cpu,
            most=pool.most,
        )
    return pools


def _stages_cpu(first: Snapshot, last: Snapshot, span: float) -> dict[str, float]:
    used = {}
    for name, stage in last.stages.items():
        before = first.stages.get(name)
        since = before.cpu_seconds if before else 0.0
        if stage.cpu_seconds is not None and since is not None:
            used[name] = max(0.0, stage.cpu_seconds - since) / span
    return used


def arrived(all_: Sequence[Snapshot]) -> float | None:
    """New offsets a second, from the first to the last time that ends were heard to have grown.

    None if that was not twice: between two answers of the source ends stand still, whatever comes.
    """
    ends: dict[str, list[tuple[float, int]]] = {}
    for s in all_:
        for name, split in s.splits.items():
            if split.end is not None:
                ends.setdefault(name, []).append((s.at, split.end))
    moves = [[b for a, b in pairwise(heard) if b[1] > a[1]] for heard in ends.values()]
    if any(len(m) >= 2 for m in moves) and not any(len(m) == 1 for m in moves):
        return sum(_speed(m) for m in moves)
    if not ends or all_[-1].at - all_[0].at < _HEARD_SECONDS:
        return None
    pairs = zip(moves, ends.values(), strict=True)
    return sum(_speed(m if len(m) >= 2 else heard) for m, heard in pairs)


def _speed(heard: Sequence[tuple[float, int]]) -> float:
    """From the first to the last of moments, each with an end."""
    if len(heard) < 2 or heard[-1][0] <= heard[0][0]:
        return 0.0
    return max(0, heard[-1][1] - heard[0][1]) / (heard[-1][0] - heard[0][0])


def _taken(first: Snapshot, last: Snapshot, span: float) -> float | None:
    """Offsets a second that were delivered, of the splits that are there at both moments."""
    both = [
        s.position - first.splits[k].position for k, s in last.splits.items() if k in first.splits
    ]
    return max(0, sum(both)) / span if both else None


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _rate(before: float | None, now: float | None, span: float) -> float | None:
    return None if before is None or now is None else max(0.0, now - before) / span


def _sum(values: Sequence[int | None]) -> int | None:
    """None if there are none, or one of them is not known."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(all_: Sequence[Snapshot], of: Callable[[Snapshot], float | None]) -> float | None:
    known = [v for s in all_ if (v := of(s)) is not None]
    return fmean(known) if known else None


def _median(values: Sequence[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None

"""What keeps the next batch from being there in time: the source, the stages, or the hand-over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.observe.lock import SHARED, holders
from forebay.observe.snapshot import SplitSeen
from forebay.observe.window import PoolIn, Window

Cause: TypeAlias = Literal[
    "unknown",  # too little was seen yet
    "compute",  # healthy: the trainer is the limit
    "source",  # no data there, or reading it is the limit
    "stages",  # decoding and augmenting is the limit: too few workers, or no CPUs for them
    "gil",  # stages hold the interpreter's lock
    "handover",  # batches are put together and handed over too slowly
    "copy",  # host to device
    "host",  # the trainer's own Python: launches, logging
    "pause",  # checkpoints, evaluation
    "communication",  # of the ranks, by itself
    "peer",  # another rank starves, this one waits for it
    "draining",  # nobody trains
    "ended",
]

_BUSY = 0.7
"""Of a pool's time: from here on it is what the others wait for."""
_FULL = 0.9
_UNEVEN = 0.25
"""Room for batches was left unused so long, and yet there was none when one was wanted."""
_IN_LINE = 0.5
"""Threads that were ready to run and had no CPU, from here on."""
_CPU_BOUND = 0.6
_SOME = 0.05
"""Workers that a stage keeps busy: of less it is not worth saying how."""
_CPUS_USED = 0.85
_TOP_SPLIT, _MANY = 0.8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the trainer waits for, and how that is known."""

    cause: Cause
    because: str
    """The half of a sentence behind 'waits for data 38 % of the time'."""
    evidence: tuple[str, ...] = ()
    guess: tuple[str, ...] = ()
    advice: str = ""


def limit_of_data(w: Window) -> Limit:
    """Why batches come too slowly, in a window in which they do."""
    if w.making > w.source_wait:
        return of_handover(w)
    pool = _busiest(w)
    if pool is None:
        return of_source(w)
    if pool.busy >= _BUSY or pool.queued >= pool.workers or w.full >= _FULL:
        return of_stages(w)
    return of_source(w)


def all_workers_busy(w: Window) -> bool:
    """Whether a pool has hardly an idle worker: those are not waiting for a source."""
    pool = _busiest(w)
    return pool is not None and pool.busy >= _FULL


def percent(share: float) -> str:
    """A share for people: ``38 %``."""
    return f"{100 * share:.0f} %"


def of_handover(w: Window) -> Limit:
    """The thread that makes batches is the limit, or how few of them it may keep ready."""
    if w.room_wait >= _UNEVEN:
        return _of_ready_batches(w)
    return Limit(
        cause="handover",
        because="putting batches together is the limit: one thread does that, and it is busy "
        f"{percent(w.making)} of the time",
        evidence=(f"it waited for finished slices only {percent(w.source_wait)} of the time",),
        guess=(
            "functions on whole batches (batch.map), or rows that are large and copied once "
            "more to be joined",
        ),
        advice="move work from functions on whole batches into stages, which run on all workers",
    )


def _of_ready_batches(w: Window) -> Limit:
    prefetch = w.last.buffer.prefetch
    return Limit(
        cause="handover",
        because=f"batches come unevenly, and only {prefetch} are kept ready",
        evidence=(
            f"making batches had to wait for room {percent(w.room_wait)} of the time, and yet none "
            "was there when one was wanted",
        ),
        guess=("some batches take much longer to make than most",),
        advice=f"keep more batches ready: loader.prefetch: {4 * prefetch}",
    )


def of_stages(w: Window) -> Limit:
    """The stages are the limit, or what they may hold."""
    name, pool = max(w.pools.items(), key=lambda item: item[1].busy)
    if w.full >= _FULL and pool.busy < _BUSY and pool.queued < pool.workers:
        return _blocked(w, pool)
    # Stages count work that is finished, the pool what is under way as well.
    done = sum(w.stages.values())
    busy = {k: pool.busy * pool.workers * n / done if done else 0.0 for k, n in w.stages.items()}
    stage = max(busy, key=lambda k: busy[k])
    evidence = [
        f"the {pool.workers:.0f} workers of pool {name!r} are busy {percent(pool.busy)} of the "
        f"time, and {pool.queued:.0f} slices wait for one",
        *(f"stage {k!r} keeps {n:.1f} of them busy{_on_cpu(w, k)}" for k, n in busy.items()),
        *_of_workers(w, pool),
    ]
    if name == "stages" and (locking := holders(w, pool)) is not None:
        return Limit(
            cause="gil",
            because=f"{locking.said()}, so that workers wait for each other",
            evidence=tuple(evidence),
            guess=("it is Python code row by row, or a library that does not release the lock",),
            advice="use functions on columns (per: batch) that work in NumPy or Arrow, or run the "
            "stages in processes of their own: forebay run --engine ray",
        )
    guess, advice = _more_workers(w, pool)
    return Limit(
        cause="stages",
        because=f"{_work(stage)} the limit: stage {stage!r} keeps {_of(busy[stage], pool)} busy",
        evidence=tuple(evidence),
        guess=guess,
        advice=advice,
    )


def _work(stage: str) -> str:
    return "decoding is" if "decode" in stage.lower() else "the stages are"


def _of(busy: float, pool: PoolIn) -> str:
    """How many of a pool's workers a stage keeps busy, in words."""
    if busy >= _FULL * pool.workers:
        return "its worker" if pool.workers <= 1 else f"all {pool.workers:.0f} workers"
    return f"{busy:.1f} of {pool.workers:.0f} workers"


def _on_cpu(w: Window, stage: str) -> str:
    """How much of a stage's time was CPU time, if that is known and it matters which stage's."""
    if len(w.stages) < 2 or stage not in w.stages_cpu or w.stages[stage] < _SOME:
        return ""
    return f", {percent(min(w.stages_cpu[stage] / w.stages[stage], 1.0))} of it with CPU time"


def _of_workers(w: Window, pool: PoolIn) -> list[str]:
    """What is known of locks and CPUs."""
    said = []
    if pool.cpu is not None:
        said.append(f"{percent(pool.cpu)} of the workers' time was CPU time")
    if w.gil is not None:
        said.append(f"the interpreter's lock was taken {percent(w.gil)} of the time")
    if w.cpu is not None and w.last.process.cpus:
        said.append(f"the process used {w.cpu:.1f} of {w.last.process.cpus:.1f} CPUs")
    if w.cpu_wait is not None and w.cpu_wait >= _IN_LINE:
        said.append(f"{w.cpu_wait:.1f} threads at a time were ready to run and had no CPU")
    return said


def _more_workers(w: Window, pool: PoolIn) -> tuple[tuple[str, ...], str]:
    """A guess and an advice: whether more workers could help."""
    cpus, used = w.last.process.cpus, w.cpu
    more = max(int(2 * pool.workers), 2)
    waits = w.cpu_wait is not None and w.cpu_wait >= _IN_LINE
    if _idles(w, pool):
        return _waiting(w, more)
    if cpus and used is not None and used >= _CPUS_USED * cpus:
        return ("more workers would only share the same CPUs",), (
            "give the process more CPUs, make the stage cheaper, or run the stages on other "
            "machines: forebay run --engine ray"
        )
    if waits and cpus and used is not None:
        return ("other processes use the CPUs that this one lacks", *_lock_as_well(w, pool)), (
            "look for what else runs on this machine (top), and give the process CPUs of its own"
        )
    return (), f"try more workers: loader.workers: {more}"


def _lock_as_well(w: Window, pool: PoolIn) -> tuple[str, ...]:
    """Who has no CPU keeps the lock that others wait for: the two come together."""
    if w.gil is None or w.gil < SHARED or pool.cpu is None or pool.cpu >= _CPU_BOUND:
        return ()
    return (f"or the stages wait for the interpreter's lock, taken {percent(w.gil)} of the time",)


def _idles(w: Window, pool: PoolIn) -> bool:
    """Whether busy workers use no CPU, and most of that is not for want of one."""
    if pool.cpu is None or pool.cpu >= _CPU_BOUND:
        return False
    off = (1 - pool.cpu) * pool.busy * pool.workers
    cpus = w.last.process.cpus
    if w.cpu_wait is None:  # it may be for want of one
        return not cpus or w.cpu is None or w.cpu < _CPUS_USED * cpus
    return w.cpu_wait < off / 2


def _waiting(w: Window, more: int) -> tuple[tuple[str, ...], str]:
    """What workers may wait for that are neither on a CPU nor in line for one."""
    if w.gil is None or w.gil < SHARED:
        return (
            "the stage waits for something, such as a disk or a service",
        ), f"try more workers: loader.workers: {more}"
    lock = f"the stages wait for the interpreter's lock, taken {percent(w.gil)} of the time"
    return (lock, "or they wait for something else, such as a disk or a service"), (
        f"try more workers: loader.workers: {more}; if that does not help, it is the lock: use "
        "functions on columns (per: batch), or forebay run --engine ray"
    )


def _blocked(w: Window, pool: PoolIn) -> Limit:
    """The window is full, and yet workers have nothing to do: something holds up the rest."""
    order = "one slow slice holds up those behind it, which are finished"
    return Limit(
        cause="stages",
        because=f"the {w.last.buffer.max_bytes >> 20} MiB in flight are used up while the workers "
        f"are idle {percent(1 - pool.busy)} of the time",
        evidence=(f"max_bytes was full to {percent(w.full)}",),
        guess=(order, "or a shuffle window, or the slowest of several sources, needs more room"),
        advice="let slow rows be overtaken (loader.order: arrival), or raise loader.max_bytes",
    )


def of_source(w: Window, *, grows: bool = True) -> Limit:
    """The source is the limit: reading it, or if it ``grows``, that there is no more yet."""
    idle = (
        [
            f"the workers of pool {k!r} are idle {percent(1 - p.busy)} of the time"
            for k, p in w.pools.items()
        ]
        if w.stages
        else []
    )
    if grows and _nothing_left(w):
        rate = "" if w.arrived is None else f", {w.arrived:,.0f} new records a second come"
        return Limit(
            cause="source",
            because=f"all that the source holds was read{rate}: the producer is the limit",
            evidence=(f"records that were not read yet: {w.unread or 0:,.0f}", *idle),
            advice="nothing is to be done here: more data must come, or fewer GPUs do",
        )
    behind = "" if w.behind is None else f", though {w.behind:,} records wait there"
    return Limit(
        cause="source",
        because=f"reading the source is the limit{behind}",
        evidence=(*idle, *_of_splits(w)),
        guess=("the network, the broker or the store is slow, or one reader is not enough",),
        advice="look at the source's own figures; for Kafka, larger fetches "
        "(fetch.max.bytes, fetch.min.bytes), for a store, more read-ahead",
    )


def _nothing_left(w: Window) -> bool:
    """Whether the source was read to its end all the time, but for what just came."""
    if w.last.passes != w.first.passes:
        return False  # it has an end, and is read again and again
    batch = w.last.rows / w.last.batches if w.last.batches else 1.0
    if w.unread is not None:
        return w.unread <= max(batch, w.arrived or 0.0)
    return w.behind is not None and w.behind <= 2 * batch


def _of_splits(w: Window) -> list[str]:
    splits: Mapping[str, SplitSeen] = w.last.splits
    stalled = [k for k, s in splits.items() if s.state == "STALLED"]
    said = [f"split {k} stands still, though there is more" for k in stalled[:_MANY]]
    lags = {k: s.lag_records for k, s in splits.items() if s.lag_records}
    if len(splits) >= _MANY and lags:
        top = max(lags, key=lambda k: lags[k] or 0)
        share = (lags[top] or 0) / sum(v or 0 for v in lags.values())
        if share >= _TOP_SPLIT:
            said.append(f"split {top} has {percent(share)} of the lag")
    return said


def _busiest(w: Window) -> PoolIn | None:
    """The pool with the least idle workers; None if there is nothing for workers to do."""
    if not w.stages:
        return None
    return max(w.pools.values(), key=lambda pool: pool.busy, default=None)

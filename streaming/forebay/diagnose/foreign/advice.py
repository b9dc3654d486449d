"""The sentences: what limits a loader, what to do, and what Forebay does about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from forebay.diagnose.environment import size
from forebay.diagnose.foreign.child import Failure
from forebay.diagnose.foreign.findings import Cause
from forebay.diagnose.foreign.memory import Growth
from forebay.diagnose.foreign.seen import Seen
from forebay.diagnose.foreign.setting import Setting, arguments
from forebay.diagnose.foreign.window import Window
from forebay.diagnose.foreign.words import rate, span
from forebay.observe.limits import percent

_LARGE_BATCH = 4 << 20

FREES: Mapping[str, Cause] = {
    "persistent_workers": "restart",
    "prefetch_factor": "prefetch",
    "in_order": "order",
    "multiprocessing_context": "start_method",
    "pin_memory": "pinning",
}
"""What was the limit, where changing this argument is what helps."""
_THREADS = (
    "Forebay decodes on threads of the training process: there are no workers to start, to fork or "
    "to hand batches over from, and forebay tune finds how many threads."
)
FOREBAY: Mapping[Cause, str] = {
    "hang": "Forebay ends a stage that hangs by its time limit, and names the record it was at.",
    "died": _THREADS,
    "error": "Forebay puts a record that a stage cannot process aside, with its address and the "
    "reason, and goes on within the error budget that the topology sets.",
    "duplicates": "In Forebay a split belongs to one rank and one worker, and each record is "
    "trained on exactly once.",
    "workers": _THREADS,
    "handover": _THREADS,
    "restart": _THREADS,
    "start_method": _THREADS,
    "order": 'Forebay\'s order="arrival" lets slices that are ready overtake a slow one.',
    "fetching": _THREADS,
    "irregular": 'Forebay\'s order="arrival" lets slices that are ready overtake a slow one.',
    "prefetch": 'Forebay\'s order="arrival" lets slices that are ready overtake a slow one; what '
    "lies ready is bounded in bytes, not in batches.",
    "threads": "Forebay's workers share one pool, sized by the CPUs that the process may use.",
    "cpu": "Forebay's threads spend no CPU time on handing batches over; with the engine ray the "
    "stages run on other machines.",
    "memory": "Forebay's threads share the memory of the process; what is in flight is bounded in "
    "bytes, and forebay doctor watches the rest.",
}


def _healthy(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return "The loader keeps up.", ""


def _no_better(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    tried = "no setting that was tried is shown to be faster" if seen.looks else "nothing was tried"
    return (
        f"The loader gives {rate(base.rate)}, {tried}: it feeds every training step that takes "
        f"{span(base.per_batch)} or more.",
        "Return (loader, step) from the factory, and the share of the time in which the step waits "
        "is measured.",
    )


def _unfinished(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"It was interrupted before it was known what limits the loader, which gives "
        f"{rate(base.rate)}.",
        "Let it run to its end; --steps and --rounds make it shorter.",
    )


def _workers(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"Too few workers; {_gains(facts)}.",
        f"Set {facts['said']}{_enough(base, facts, seen)}.",
    )


def _handover(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    if base.bytes >= _LARGE_BATCH:
        why = f"batches of {size(base.bytes)} are copied between processes"
        then = "hand over less (uint8 pixels, normalised on the GPU), or"
    else:
        why = (
            f"a batch of {base.rows} rows and {size(base.bytes)} is less work than handing it over"
        )
        then = "make batches larger (whole batches from the dataset, batch_size=None), or"
    return (
        f"Workers cost more than they give, as {why}; {_gains(facts)}.",
        f"{then[0].upper()}{then[1:]} set {facts['said']}.",
    )


def _restart(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    each = f"takes {span(base.restart_seconds / base.epochs)}" if base.epochs else "takes long"
    return (
        f"Workers are started anew with each epoch, which {each}; {_gains(facts)}.",
        f"Set {facts['said']}; state that a dataset keeps then lives on from epoch to epoch.",
    )


def _order(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"Slow batches hold up those that are ready behind them; {_gains(facts)}.",
        f"Set {facts['said']} if the order of batches need not be the same in each run.",
    )


def _prefetch(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"Workers stop before a slow batch is over, for want of room; {_gains(facts)}.",
        f"Set {facts['said']}; it takes so many times the shared memory.",
    )


def _start_method(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return f"Workers started another way are faster; {_gains(facts)}.", f"Set {facts['said']}."


def _pinning(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"Batches are copied to the GPU from memory that is not pinned; {_gains(facts)}.",
        "Set pin_memory=True, and copy with non_blocking=True.",
    )


def _threads(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"Workers take the CPUs from each other, as each computes on several; {_gains(facts)}.",
        "Set OMP_NUM_THREADS=1 in the environment (also MKL_ and OPENBLAS_NUM_THREADS, and "
        "cv2.setNumThreads(0) in worker_init_fn).",
    )


def _cpu(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"The CPUs are the limit: the loader keeps {percent(facts['busy'])} of {seen.cpus:g} CPUs "
        "busy, and no setting makes it faster.",
        "Make an item cheaper (a faster decoder, smaller images, work moved to the GPU), or use "
        "more CPUs.",
    )


def _dataset(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    return (
        f"The dataset waits for something that more workers do not make faster, at "
        f"{percent(facts['busy'])} of {seen.cpus:g} CPUs: a disk or the network at its limit, a "
        "lock, or work in the main process.",
        "Measure the reads by themselves; store the data in larger files, nearer.",
    )


def _fetching(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    usual = median(w.usual_wait for w in seen.stepped)
    return (
        f"The loader could give {rate(base.rate)}, but each takes the main process {span(usual)} "
        f"to fetch ({base.rows} rows, {size(base.bytes)}), and no setting "
        "makes it less.",
        "Hand over less: fewer and larger batches, uint8 pixels, one tensor instead of many.",
    )


def _irregular(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    longest = max(w.longest_wait for w in seen.stepped)
    usual = median(w.usual_wait for w in seen.stepped)
    return (
        f"The loader gives {rate(base.rate)}, which is enough on average, but some take long: the "
        f"longest wait was {span(longest)}, the usual one {span(usual)}.",
        "Find what makes these items slow (size, a cold cache); spread them out, or cut them down.",
    )


def _memory(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    growth: Growth = facts["growth"]
    much = f"{size(int(growth.per_batch.value * 1000))} per 1,000 batches"
    epoch = "" if growth.per_epoch is None else f", {size(int(growth.per_epoch))} in an epoch"
    if growth.of_copies:
        return (
            f"The workers' memory grows by {much} as they copy what they share with the main "
            "process.",
            "Keep the dataset's index in NumPy or Arrow arrays, not in lists of Python objects: "
            "looking at an object writes to its page.",
        )
    return (
        f"The memory of the loader's processes grows by {much}{epoch} if it goes on like this.",
        "Look for what the dataset keeps of each item (caches, lists, open files); with "
        "persistent_workers=False it is given back at the end of an epoch.",
    )


def _duplicates(base: Window, facts: Mapping[str, Any], seen: Seen) -> tuple[str, str]:
    n = facts["workers"]
    return (
        f"Each of the {n} workers gives all of the data: an epoch holds every record {n} times.",
        "Let the IterableDataset take its share in __iter__: every n-th item by "
        "torch.utils.data.get_worker_info().id and .num_workers; or use num_workers=1.",
    )


SENTENCES: Mapping[Cause, Callable[[Window, Mapping[str, Any], Seen], tuple[str, str]]] = {
    "healthy": _healthy,
    "no_better": _no_better,
    "unfinished": _unfinished,
    "workers": _workers,
    "handover": _handover,
    "restart": _restart,
    "order": _order,
    "prefetch": _prefetch,
    "start_method": _start_method,
    "pinning": _pinning,
    "threads": _threads,
    "cpu": _cpu,
    "dataset": _dataset,
    "fetching": _fetching,
    "irregular": _irregular,
    "memory": _memory,
    "duplicates": _duplicates,
}
"""For a loader that runs: what is the matter, and what to do."""


def _gains(facts: Mapping[str, Any]) -> str:
    return f"with {facts['said']} it gives {facts['gain']} times the batches per second"


def _enough(base: Window, facts: Mapping[str, Any], seen: Seen) -> str:
    """Whether the step will be fed then."""
    if seen.ceiling is None:
        return ""
    fed = facts["gain"].value * base.rate * seen.ceiling
    if fed >= 1:
        return ", which feeds the step"
    return f", which feeds {percent(fed)} of the step's speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What is said of a loader that gives no batches as it is."""

    cause: Cause
    sentence: str
    advice: str
    evidence: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)


def broken(seen: Seen) -> Broken:
    """Why it gives none, as far as it shows."""
    failure = seen.base
    assert isinstance(failure, Failure)
    evidence = [*failure.details, *_ways(seen)]
    works = [s for s, w in seen.ways_out.items() if isinstance(w, Window)]
    if failure.kind == "hang":
        return _hang(failure, seen, works, evidence)
    if failure.kind == "empty":
        return Broken(
            cause="empty",
            sentence="The loader gives no batch at all.",
            advice="See whether the dataset is empty, or smaller than a batch with drop_last=True.",
            evidence=tuple(evidence),
        )
    if "Bus error" in failure.what or "shared memory" in failure.what:
        return Broken(
            cause="died",
            sentence=f"A worker was killed for want of shared memory: {failure.what}",
            advice="Make /dev/shm larger (docker run --shm-size=8g), or lower num_workers, "
            "prefetch_factor or batch_size.",
            evidence=tuple(evidence),
        )
    changes, advice = _way_out(seen, works)
    return Broken(
        cause="died" if failure.kind == "died" else "error",
        sentence=f"The loader fails: {failure.what}",
        advice=advice
        or ("It fails without workers, too: the dataset is the place." if seen.fails_alone else ""),
        evidence=tuple(evidence),
        arguments=changes,
    )


def _hang(failure: Failure, seen: Seen, works: list[Setting], evidence: list[str]) -> Broken:
    place = next((line for line in failure.details if "nothing to do" not in line), "")
    place = place or "no process told where it is"
    changes, advice = _way_out(seen, works)
    alone = "It hangs without workers, too: look" if seen.fails_alone else "Look"
    return Broken(
        cause="hang",
        sentence=f"The loader hangs: {failure.what}; {place}.",
        advice=advice or f"{alone} at the place that is named.",
        evidence=tuple(evidence),
        arguments=changes,
    )


def _way_out(seen: Seen, works: list[Setting]) -> tuple[dict[str, Any], str]:
    """The arguments with which it works, and a sentence; the way that keeps the workers first."""
    if not works or seen.description is None:
        return {}, ""
    present = seen.description.setting
    best = max(works, key=lambda s: s.num_workers)
    changes = best.changes(present)
    why = "the workers' process is the reason: what it inherits, or may not use"
    if "multiprocessing_context" in changes:
        why = "the fork is the reason: a lock or a library that does not survive it"
    return changes, f"With {arguments(changes)} it works: {why}."


def _ways(seen: Seen) -> list[str]:
    if seen.description is None:
        return []
    present = seen.description.setting
    return [
        f"With {setting.said(present)} "
        + (f"it fails as well: {window.what}" if isinstance(window, Failure) else "it works.")
        for setting, window in seen.ways_out.items()
    ]

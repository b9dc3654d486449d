"""What is told of a loader beside the verdict: what was seen, and what may go wrong some day."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from forebay.diagnose.environment import size
from forebay.diagnose.foreign.child import Failure
from forebay.diagnose.foreign.memory import Growth
from forebay.diagnose.foreign.seen import Seen
from forebay.diagnose.foreign.setting import Setting
from forebay.diagnose.foreign.window import Window
from forebay.diagnose.foreign.words import rate, span
from forebay.diagnose.machine import disk_seen
from forebay.observe.limits import percent

_SHM_SHARE = 0.5
_RESTART_SHARE = 0.1


def evidence_of(seen: Seen, growth: Growth | None) -> Iterator[str]:
    """What was seen, with numbers."""
    base, described = seen.base, seen.description
    if not isinstance(base, Window) or described is None:
        return
    yield (
        f"As it is ({present(described.setting)}): {rate(base.rate)} of {base.rows} rows "
        f"and {size(base.bytes)}; the first one after {span(base.first_seconds)}."
    )
    yield (
        f"It used {base.cpu_seconds / base.seconds:.2g} of {seen.cpus:g} CPUs, "
        f"{span(base.cpu_seconds / base.batches)} a batch."
    )
    if seen.stepped and seen.ceiling is not None:
        per_batch = median(w.per_batch for w in seen.stepped)
        waited = median(w.wait_seconds / w.seconds for w in seen.stepped)
        yield (
            f"A training step takes {span(seen.ceiling)} with its batch at hand, and "
            f"{span(per_batch)} from batch to batch with the loader; {percent(waited)} of that in "
            "the loader."
        )
    yield from _of_restarts(seen, base)
    if growth is not None:
        yield grown(growth)
    for setting, window in seen.looks.items():
        if isinstance(window, Failure):
            yield f"It does not work with {setting.said(described.setting)}: {window.what}"
    if seen.same_in_workers is False:
        yield "Its workers share the data out among them: no two gave the same first batch."
    if described.rebuilds:
        yield f"Other settings were not tried: {described.rebuilds}."


def guesses_of(seen: Seen) -> Iterator[str]:
    """What may go wrong, and did not here."""
    described = seen.description
    if described is None:
        return
    setting = described.setting
    forks = setting.num_workers > 0 and setting.multiprocessing_context == "fork"
    if forks and described.threads:
        yield (
            f"Workers are forked while other threads run ({', '.join(described.threads)}): a lock "
            "that one of them holds in that moment stays locked in the worker for ever. "
            "multiprocessing_context='forkserver' is safe from that."
        )
    if forks and described.cuda_started:
        yield (
            "CUDA was used before the workers are forked: a dataset that touches it fails there. "
            "Start it later, or use multiprocessing_context='forkserver'."
        )
    if setting.pin_memory and not described.cuda:
        yield "pin_memory=True does nothing on a machine without a GPU."
    if described.iterable and seen.same_in_workers and setting.num_workers <= 1:
        yield (
            "With two workers each would give all of the data: the dataset does not ask "
            "get_worker_info() for its share. So more workers were not tried."
        )
    yield from _shared_memory(seen)


def present(setting: Setting) -> str:
    """The present setting in short."""
    if setting.num_workers == 0:
        return "num_workers=0"
    return (
        f"num_workers={setting.num_workers}, prefetch_factor={setting.prefetch_factor}, "
        f"{'' if setting.persistent_workers else 'not '}persistent, "
        f"{setting.multiprocessing_context}"
    )


def grown(growth: Growth) -> str:
    """How much memory was taken, in words."""
    way = (
        "while their size stayed: pages that they shared with the main process were copied"
        if growth.of_copies
        else "and their size with it"
    )
    return (
        f"What the workers have of memory for themselves grew by "
        f"{size(int(growth.per_batch.value * 1000))} per 1,000 batches "
        f"({size(int(growth.per_batch.low * 1000))} to {size(int(growth.per_batch.high * 1000))}), "
        f"over {growth.batches} batches, {way}."
    )


def _of_restarts(seen: Seen, base: Window) -> Iterator[str]:
    """What beginning an epoch costs: measured, or by the length of one."""
    described = seen.description
    if base.epochs:
        yield (
            f"Beginning an epoch took {span(base.restart_seconds / base.epochs)}, "
            f"{percent(base.restart_seconds / base.seconds)} of the time."
        )
    elif described is not None and described.length:
        share = base.first_seconds / (base.first_seconds + described.length * base.per_batch)
        if share > _RESTART_SHARE and not base.setting.persistent_workers:
            yield (
                f"Starting takes {span(base.first_seconds)}, {percent(share)} of an epoch of "
                f"{described.length} batches; persistent_workers=True does it once."
            )


def _shared_memory(seen: Seen) -> Iterator[str]:
    base, disk = seen.base, disk_seen("/dev/shm")
    if not isinstance(base, Window) or disk is None:
        return
    ahead = base.setting.num_workers * (base.setting.prefetch_factor + 1)
    if ahead * base.bytes > _SHM_SHARE * disk.free:
        yield (
            f"Batches that lie ready may take {size(ahead * base.bytes)} of shared memory, and "
            f"{size(disk.free)} of /dev/shm are free: a worker that finds none is killed (bus "
            "error). Make it larger (docker run --shm-size), or lower prefetch_factor."
        )

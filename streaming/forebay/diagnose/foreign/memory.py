"""Whether the memory of a loader's workers grows, and in which of two ways."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.diagnose.foreign.window import Window
from forebay.diagnose.memory import grows, slope
from forebay.statistics import Estimate

_LEAST_COPIED = 1 << 20
_LEAST_GROWN = 8 << 20
"""For each process. An allocator takes some MiB in the first hundreds of batches, and no more."""
_WARM_UP = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that is the workers' alone, over the batches that they gave."""

    per_batch: Estimate
    """Bytes."""
    batches: int
    """In which it was seen."""
    of_copies: bool
    """Their size stays as it is, and less of it is shared with the process that they were forked
    from: looking at a Python object writes to it (its reference count), and the page is copied."""
    per_epoch: float | None
    """Bytes, if it went on like this; None if the length of an epoch is not known."""


def growth_of(window: Window | None, epoch: int | None) -> Growth | None:
    """None if it was not seen to grow, or by so little that it may well end.

    Args:
        epoch: its length in batches, if that is known.
    """
    if window is None:
        return None
    points = window.memory[int(len(window.memory) * _WARM_UP) :]
    private = [(float(p.batches), float(p.private)) for p in points]
    sloped = slope(private)
    if sloped is None or not grows(private):
        return None
    grown = points[-1].private - points[0].private
    copies = _of_copies(window, points[-1].rss - points[0].rss, grown)
    processes = max(window.setting.num_workers, 1)
    if grown < (_LEAST_COPIED if copies else _LEAST_GROWN * processes):
        return None
    return Growth(
        per_batch=sloped,
        batches=points[-1].batches - points[0].batches,
        of_copies=copies,
        per_epoch=None if epoch is None else sloped.value * epoch,
    )


def _of_copies(window: Window, rss: int, private: int) -> bool:
    forked = window.setting.num_workers > 0 and window.setting.multiprocessing_context == "fork"
    return forked and rss < private / 2

"""Whether the memory of a loader's workers grows, and in which of two ways."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.diagnose.foreign.experiments import Seen
from forebay.diagnose.foreign.window import Window
from forebay.diagnose.memory import grows, slope
from forebay.statistics import Estimate

_LEAST_BYTES = 1 << 20
_LEAST_SHARE = 0.01
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


def growth_of(seen: Seen) -> Growth | None:
    """None if it was not seen to grow, or by so little that it may well end."""
    window, description = seen.memory, seen.description
    if window is None or description is None:
        return None
    points = window.memory[int(len(window.memory) * _WARM_UP) :]
    private = [(float(p.batches), float(p.private)) for p in points]
    sloped = slope(private)
    if sloped is None or not grows(private):
        return None
    grown = points[-1].private - points[0].private
    if grown < max(_LEAST_BYTES, _LEAST_SHARE * points[0].private):
        return None
    return Growth(
        per_batch=sloped,
        batches=points[-1].batches - points[0].batches,
        of_copies=_of_copies(window, points[-1].rss - points[0].rss, grown),
        per_epoch=None if description.length is None else sloped.value * description.length,
    )


def _of_copies(window: Window, rss: int, private: int) -> bool:
    forked = window.setting.num_workers > 0 and window.setting.multiprocessing_context == "fork"
    return forked and rss < private / 2

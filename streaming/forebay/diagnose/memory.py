"""Memory over a run: its peak, by kind, and whether it grows.

with MemoryWatch() as watch:
    train()
print(watch.peak(), watch.growth())
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from forebay.observe.memory import Memory, family, memory_of_all
from forebay.statistics import Estimate

_EVERY_SECONDS = 1.0
_MOST_OF_THE_TIME = 0.1
_MOST_SAMPLES = 2000
_FEWEST_POINTS = 6
_WARM_UP = 1 / 3
_PER_MINUTE = 60.0
_SIGMAS_95 = 1.96
_LOW = 0.1
_LEAST_BYTES, _LEAST_SHARE = 16 << 20, 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes had at one moment."""

    at: float
    """Seconds since the watch began."""
    memory: Memory


class MemoryWatch:
    """Looks at processes' memory on a thread, from ``with`` to its end.

    Args:
        pids: whom to look at, asked anew each time; None: this process and its children.
        every: seconds between two looks; more where a look takes so long that it would be more
            than a tenth of the time.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]] | None = None, every: float = _EVERY_SECONDS
    ) -> None:
        self._pids, self._every = pids or (lambda: family(os.getpid())), every
        self._began = time.monotonic()
        self._samples: list[Sample] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._look()

    def samples(self) -> Sequence[Sample]:
        """What was seen so far, oldest first; of a long run every second look, or fourth, …"""
        return list(self._samples)

    def peak(self) -> Memory | None:
        """The memory when ``pss`` was the highest; None where the kernel does not tell."""
        return max((s.memory for s in self._samples), key=lambda m: m.pss, default=None)

    def growth(self, of: Callable[[Memory], int] = lambda m: m.pss) -> Estimate | None:
        """Bytes per minute, without the first third of the run; None if it was too short."""
        return slope([(s.at / _PER_MINUTE, of(s.memory)) for s in settled(self._samples)])

    def grows(self) -> bool:
        """Whether ``pss`` was shown to grow all the time, not once, and by more than allocators
        take as they warm up."""
        pss = [(s.at, s.memory.pss) for s in settled(self._samples)]
        if not grows(pss):
            return False
        return pss[-1][1] - pss[0][1] >= max(_LEAST_BYTES, _LEAST_SHARE * pss[0][1])

    def _run(self) -> None:
        pause, every = 0.0, self._every
        while not self._stopped.wait(pause):
            began = time.monotonic()
            self._look()
            if len(self._samples) >= _MOST_SAMPLES:
                self._samples, every = self._samples[::2], every * 2
            took = time.monotonic() - began
            pause = max(every, took / _MOST_OF_THE_TIME) - took

    def _look(self) -> None:
        at, seen = time.monotonic() - self._began, memory_of_all(self._pids())
        if seen is not None:
            self._samples.append(Sample(at, seen))


def settled(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Without the first third of the time: starting takes memory, and that is no growth."""
    if not samples:
        return samples
    since = samples[0].at + (samples[-1].at - samples[0].at) * _WARM_UP
    return [s for s in samples if s.at >= since]


def slope(points: Sequence[tuple[float, float]]) -> Estimate | None:
    """How much y grows with each unit of x, with a 95 % interval; None for fewer than 6 points.

    The median of the slopes between all pairs of points, after Theil and Sen: a jump or a peak
    among steady values does not move it.
    """
    array = np.asarray(points, np.float64)[:: max(len(points) // 500, 1)]
    n = len(array)
    if n < _FEWEST_POINTS:
        return None
    first, second = np.triu_indices(n, k=1)
    run, rise = (array[second] - array[first]).T
    slopes = np.sort(rise[run > 0] / run[run > 0])
    if not len(slopes):
        return None
    # Sen's interval: how far Kendall's count of rising less falling pairs strays by chance.
    stray = _SIGMAS_95 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = int(max((len(slopes) - stray) // 2, 0))
    high = int(min((len(slopes) + stray) // 2 + 1, len(slopes) - 1))
    return Estimate(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), n)


def grows(points: Sequence[tuple[float, float]]) -> bool:
    """Whether y rises with x all the time, in each half of the points and from third to third.

    What filled up once does not rise in both halves; what rises and falls again and again, as
    memory that is given back at the end of an epoch, ends no higher than it began.
    """
    middle, third = len(points) // 2, len(points) // 3
    halves = [slope(points[:middle]), slope(points[middle:])]
    if not all(half is not None and half.low > 0 for half in halves):
        return False
    first, last = ([y for _, y in part] for part in (points[:third], points[-third:]))
    return float(np.quantile(last, _LOW)) > float(np.quantile(first, 1 - _LOW))

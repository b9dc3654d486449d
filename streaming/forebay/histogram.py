"""Counts of durations by size, cheap to add to and cheap to hand to another thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Durations counted by size; immutable."""

    bounds: tuple[float, ...]
    """Upper bounds in seconds, rising; each belongs to its own bucket (``<=``)."""
    counts: tuple[int, ...]
    """Durations of each bucket alone, and in a last one those above all bounds."""
    sum: float
    """Seconds of all together."""

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

    def since(self, before: Histogram) -> Histogram:
        """What came after ``before`` was taken of the same counter."""
        counts = tuple(b - a for a, b in zip(before.counts, self.counts, strict=True))
        return Histogram(bounds=self.bounds, counts=counts, sum=self.sum - before.sum)

    def quantile(self, q: float) -> float | None:
        """The duration that a share ``q`` does not exceed, between two bounds by straight line.

        None if there are none. Above the last bound it is that bound: more is not known.
        """
        wanted, passed, lower = q * self.count, 0.0, 0.0
        if not self.count:
            return None
        for upper, n in zip(self.bounds, self.counts, strict=False):
            if n and passed + n >= wanted:
                return lower + (upper - lower) * max(wanted - passed, 0.0) / n
            passed, lower = passed + n, upper
        return self.bounds[-1]


class Durations:
    """Counts durations into buckets. One thread adds; any may take what there is."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._array = np.asarray(bounds, np.float64)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def add_since(self, times: ArrayLike, now: float) -> None:
        """Count ``now - t`` for every moment ``t`` of ``times``, which rise. Shape ``[n]``.

        Moments after ``now``, by a clock that is ahead, count as now.
        """
        rising = np.asarray(times, np.float64)
        if not len(rising):
            return
        oldest, youngest = now - float(rising[0]), now - float(rising[-1])
        bucket = bisect_left(self._bounds, oldest)
        if youngest >= 0.0 and bucket == bisect_left(self._bounds, youngest):
            # Most batches: a quarter of the time that it takes to sort the rows into buckets.
            self._counts[bucket] += len(rising)
            self._sum += now * len(rising) - float(np.add.reduce(rising))
        else:
            self._sort_in(rising, now)

    def _sort_in(self, rising: NDArray[np.float64], now: float) -> None:
        # Few bounds are looked up in many moments, not the other way round.
        older = rising.searchsorted(now - self._array, "left").tolist()
        upto = len(rising)
        for i, first in enumerate([*older, 0]):
            self._counts[i] += upto - first
            upto = first
        past = rising[: rising.searchsorted(now, "right")]
        self._sum += float(now * len(past) - past.sum())

    def taken(self) -> Histogram:
        """What was counted so far. Any thread: at worst the last duration is not in it yet."""
        return Histogram(bounds=self._bounds, counts=tuple(self._counts), sum=self._sum)


STEP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""For training steps and waits, seconds."""
FRESHNESS_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86400)
"""For the time from an event to the step that trained on it, seconds."""

"""When the end of each split passed an offset: what tells how long a record has been there.

Kept for all splits together in a few arrays: a thousand queues of samples would cost the time of
a thousand loops in every look.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

KEPT = 128
"""Rises of the end that are kept for each split."""
_LEFT = KEPT * 3 // 4
# Rises are joined, when room is short, as long as one then took no more than this share of its age:
# by so much can a time be wrong.
_SHARE = 0.2
_BEFORE = np.nan


class EndTimes:
    """Remembers when ends rose. Splits are rows, numbers from 0 up; times are seconds of one clock
    that never goes back. One thread."""

    def __init__(self) -> None:
        self._count: Ints = np.zeros(0, np.int64)
        self._looked: Floats = np.zeros(0)
        self._first: Floats = np.zeros(0)
        # Rise k: between ``since`` and ``until`` the end came from that of rise k - 1 to ``end``.
        # Of the first one nobody knows when it began.
        self._since: Floats = np.zeros((0, KEPT))
        self._until: Floats = np.zeros((0, KEPT))
        self._end: Ints = np.zeros((0, KEPT), np.int64)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        kept = (self._count, self._looked, self._first, self._since, self._until, self._end)
        return sum(a.nbytes for a in kept)

    def grow(self, rows: int) -> None:
        """Make room for so many splits."""
        self._count, self._looked = grown(self._count, rows, 0), grown(self._looked, rows, 0.0)
        self._first = grown(self._first, rows, 0.0)
        self._since = grown(self._since, rows, _BEFORE)
        self._until = grown(self._until, rows, 0.0)
        self._end = grown(self._end, rows, -1)

    def see(self, rows: Ints, ends: Ints, now: float) -> None:
        """The ends of these splits, as known now; below 0 where it is not known."""
        rows, ends = rows[ends >= 0], ends[ends >= 0]
        self._count[rows[ends < self._newest(rows)]] = 0  # another log, or one that was cut
        newest = self._newest(rows)
        self._first[rows[newest < 0]] = now
        rose = ends > newest
        self._rise(rows[rose], ends[rose], now)
        self._looked[rows] = now

    def ages(self, rows: Ints, offsets: Ints, now: float) -> Floats:
        """How long ago the end of each split passed an offset; nan where it had before the first
        look, or has not yet."""
        passed = self._end[rows] > offsets[:, None]
        k = passed.argmax(axis=1)
        known = passed[np.arange(len(rows)), k] & (k > 0)
        out: Floats = np.full(len(rows), np.nan)
        rows, k, offsets = rows[known], k[known], offsets[known]
        low, high = self._end[rows, k - 1], self._end[rows, k]
        since, until = self._since[rows, k], self._until[rows, k]
        out[known] = now - (since + (until - since) * (offsets + 1 - low) / (high - low))
        return out

    def watched(self, rows: Ints, now: float) -> Floats:
        """How long ago the ends of these splits were seen first."""
        watched: Floats = now - self._first[rows]
        return watched

    def _newest(self, rows: Ints) -> Ints:
        count = self._count[rows]
        newest: Ints = np.where(count > 0, self._end[rows, count - 1], -1)
        return newest

    def _rise(self, rows: Ints, ends: Ints, now: float) -> None:
        full = rows[self._count[rows] == KEPT]
        if len(full):
            self._thin(full, now)
        at = self._count[rows]
        self._end[rows, at], self._until[rows, at] = ends, now
        self._since[rows, at] = np.where(at > 0, self._looked[rows], _BEFORE)
        self._count[rows] = at + 1
        first = rows[at == 0]
        self._end[first, 1:] = -1

    def _worth_keeping(self, ages: Floats) -> Flags:
        """The rises that cannot be joined to the next one, the oldest and the newest included.

        Asked from the oldest on: were the newest of each age kept, it would swallow one older
        neighbour after the other as all grow older.
        """
        kept = np.ones(ages.shape, bool)
        oldest = ages[:, 0]
        for k in range(1, KEPT - 1):
            kept[:, k] = oldest - ages[:, k + 1] > _SHARE * ages[:, k + 1]
            oldest = np.where(kept[:, k], ages[:, k], oldest)
        return kept

    def _thin(self, rows: Ints, now: float) -> None:
        """Join rises; of the oldest that do not fit even then, only the end is kept."""
        kept = self._worth_keeping(now - self._until[rows])
        places = np.arange(_LEFT)
        dropped = np.maximum(kept.sum(axis=1) - _LEFT, 0)
        # The places that are kept, in order, then others; the first ones are left out.
        order = np.argsort(~kept, axis=1, kind="stable")
        order = np.take_along_axis(order, dropped[:, None] + places, 1)
        began = np.minimum(np.concatenate([order[:, :1], order[:, :-1] + 1], 1), KEPT - 1)
        self._count[rows] = kept.sum(axis=1) - dropped
        used = places < self._count[rows][:, None]
        end = np.where(used, np.take_along_axis(self._end[rows], order, 1), -1)
        self._since[rows, :_LEFT] = np.take_along_axis(self._since[rows], began, 1)
        self._until[rows, :_LEFT] = np.take_along_axis(self._until[rows], order, 1)
        self._end[rows, :_LEFT], self._end[rows, _LEFT:] = end, -1


def grown(array: NDArray[Any], rows: int, fill: float) -> NDArray[Any]:
    """The array with room for so many rows, the new ones filled."""
    missing = rows - len(array)
    if missing <= 0:
        return array
    more = np.full((missing, *array.shape[1:]), fill, array.dtype)
    return np.concatenate([array, more])

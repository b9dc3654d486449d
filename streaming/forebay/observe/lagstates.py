"""Whether each split keeps up, by how it moved lately: no thresholds on lag, as in Burrow.

What is a long time is learnt from the job itself: a trainer that takes a batch a minute, a shuffle
window that moves all positions at once, a turn that comes round seldom among a thousand splits
make splits stand still, and are no stall.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forebay.observe.endtimes import Flags, Floats, Ints, grown
from forebay.observe.snapshot import LagState

SAMPLES = 10
"""Lags that are compared."""
_LEAST_SECONDS = 10.0
"""Less than this is never long."""
_TIMES_USUAL = 3.0
"""So many times what was usual is."""
# Where the end stands still, a sample all the same: the lag shrinks then.
_SAMPLE_SECONDS = 5.0
_LONG_AGO = -np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """How far splits are now, all in one order."""

    rows: Ints
    """Which splits: numbers from 0 up."""
    given: Ints
    """Offsets that were given to the trainer; fewer than before where a split began anew."""
    end: Ints
    """Below 0: not known; so, too, in what follows."""
    lag: Ints
    fetched: Ints
    unread: Ints
    """Offsets up to the end that were not read from the source."""


class LagStates:
    """Tells the state of each split from look to look. Splits are rows, numbers from 0 up; times
    are seconds of one clock that never goes back. One thread."""

    def __init__(self) -> None:
        self._trainer, self._samples = _Trainer(), _Samples()
        self._given: Ints = np.zeros(0, np.int64)
        self._fetched: Ints = np.zeros(0, np.int64)
        # Since when it stands: since its last move, or since there was no more to move to.
        self._stands: Floats = np.zeros(0)
        self._reads_nothing: Floats = np.zeros(0)
        # How long it stood before its last move.
        self._stood: Floats = np.zeros(0)
        self._last_move = _LONG_AGO

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        kept = (self._given, self._fetched, self._stands, self._reads_nothing, self._stood)
        return sum(a.nbytes for a in kept) + self._samples.nbytes

    def grow(self, rows: int) -> None:
        """Make room for so many splits."""
        self._given, self._fetched = grown(self._given, rows, -1), grown(self._fetched, rows, -1)
        self._stands = grown(self._stands, rows, _LONG_AGO)
        self._reads_nothing = grown(self._reads_nothing, rows, _LONG_AGO)
        self._stood = grown(self._stood, rows, 0.0)
        self._samples.grow(rows)

    def look(self, now: float, moves: Moves, batches: int, waited: float) -> list[LagState | None]:
        """The state of each split, None where its end is not known, or nothing was given yet.

        Args:
            batches: that the trainer took so far.
            waited: seconds that it spent in ``next()`` so far.
        """
        self._trainer.look(now, batches, waited)
        self._note(now, moves)
        behind = moves.lag > 0
        late: LagState = "STOPPED" if self._trainer.stopped(now) else "STALLED"
        is_late = behind if late == "STOPPED" else behind & self._stalled(now, moves)
        falls_behind = behind & self._samples.grow_or_stay(moves.rows)
        unknown = (moves.lag < 0) | (behind & (batches == 0))
        told: list[tuple[Flags, LagState | None]]
        told = [(falls_behind, "BEHIND"), (is_late, late), (unknown, None)]
        out: list[LagState | None] = ["OK"] * len(moves.rows)
        for places, state in told:
            for i in np.flatnonzero(places):
                out[i] = state
        return out

    def _note(self, now: float, moves: Moves) -> None:
        rows, before = moves.rows, self._given[moves.rows]
        anew = (before < 0) | (moves.given < before)
        moved = (moves.given > before) & ~anew
        nothing_left = moves.lag <= 0  # or nobody knows
        self._stood[rows[moved]] = now - self._stands[rows[moved]]
        self._stood[rows[anew | (nothing_left & ~moved)]] = 0.0
        self._stands[rows[anew | moved | nothing_left]] = now
        self._given[rows] = moves.given
        reads = (moves.fetched != self._fetched[rows]) | (moves.unread <= 0)
        self._reads_nothing[rows[reads]] = now
        self._fetched[rows] = moves.fetched
        if moved.any():
            self._last_move = now
        self._samples.forget(rows[anew | (moves.lag == 0)])
        self._samples.take(now, moves, moved)

    def _stalled(self, now: float, moves: Moves) -> Flags:
        rows = moves.rows
        if self._trainer.hungry(now):  # then a split stands for want of rows, unless it has more
            return now - self._reads_nothing[rows] >= _LEAST_SECONDS
        usual = float(self._stood[rows].max(initial=0.0))
        long = max(_LEAST_SECONDS, _TIMES_USUAL * usual)
        stalled: Flags = (now - self._stands[rows] >= long) & (self._last_move > self._stands[rows])
        return stalled


class _Trainer:
    """Whether the trainer takes batches, and how long it takes for one."""

    def __init__(self) -> None:
        self._batches, self._waited = -1, 0.0
        self._looked = self._batch_at = self._asked_at = 0.0
        self._between = self._busy = 0.0

    def look(self, now: float, batches: int, waited: float) -> None:
        """What it did so far."""
        waits = waited - self._waited > (now - self._looked) / 2
        if batches != self._batches:
            if self._batches > 0:
                self._between, self._busy = now - self._batch_at, now - self._asked_at
            self._batch_at = now
        if waits or batches != self._batches:
            self._asked_at = now
        self._batches, self._waited, self._looked = batches, waited, now

    def stopped(self, now: float) -> bool:
        """Whether it has neither taken nor asked for a batch for long."""
        return now - self._asked_at >= max(_LEAST_SECONDS, _TIMES_USUAL * self._busy)

    def hungry(self, now: float) -> bool:
        """Whether it has got no batch for long."""
        return now - self._batch_at >= max(_LEAST_SECONDS, _TIMES_USUAL * self._between)


class _Samples:
    """The last lags of each split, each of a moment in which both its ends had moved.

    The end is heard of every few seconds only; in between a lag shrinks, whoever is faster.
    """

    def __init__(self) -> None:
        self._count: Ints = np.zeros(0, np.int64)
        self._moved: Flags = np.zeros(0, bool)
        self._end: Ints = np.zeros(0, np.int64)
        self._read_all: Floats = np.zeros(0)
        self._at: Floats = np.zeros((0, SAMPLES))
        self._lag: Ints = np.zeros((0, SAMPLES), np.int64)

    @property
    def nbytes(self) -> int:
        kept = (self._count, self._moved, self._end, self._read_all, self._at, self._lag)
        return sum(a.nbytes for a in kept)

    def grow(self, rows: int) -> None:
        self._count, self._moved = grown(self._count, rows, 0), grown(self._moved, rows, False)
        self._end, self._read_all = grown(self._end, rows, -1), grown(self._read_all, rows, 0.0)
        self._at, self._lag = grown(self._at, rows, 0.0), grown(self._lag, rows, 0)

    def forget(self, rows: Ints) -> None:
        self._count[rows] = 0

    def take(self, now: float, moves: Moves, moved: Flags) -> None:
        rows = moves.rows
        self._moved[rows] |= moved
        self._read_all[rows[moves.unread == 0]] = now
        newest = self._at[rows, (self._count[rows] - 1) % SAMPLES]
        heard = (moves.end != self._end[rows]) | (now - newest >= _SAMPLE_SECONDS)
        due = self._moved[rows] & heard & (moves.lag > 0)
        rows, lag, end = rows[due], moves.lag[due], moves.end[due]
        place = self._count[rows] % SAMPLES
        self._at[rows, place], self._lag[rows, place] = now, lag
        self._count[rows] += 1
        self._moved[rows], self._end[rows] = False, end

    def grow_or_stay(self, rows: Ints) -> Flags:
        """Whether the lag was, in the later half of the samples, never below the earlier half.

        A lag that just stays does not count if all was read meanwhile: these rows are in our hands.
        """
        count = self._count[rows]
        order = (count[:, None] + np.arange(SAMPLES)) % SAMPLES
        lag = np.take_along_axis(self._lag[rows], order, 1)
        earlier = lag[:, : SAMPLES // 2].max(axis=1)
        later = lag[:, SAMPLES // 2 :].min(axis=1)
        oldest = np.take_along_axis(self._at[rows], order[:, :1], 1)[:, 0]
        stays = (later == earlier) & (self._read_all[rows] < oldest)
        grows_or_stays: Flags = (count >= SAMPLES) & ((later > earlier) | stays)
        return grows_or_stays

"""How far each split is behind, in records and in seconds, and whether it keeps up.

docs/lag.md has the picture, and says what the numbers mean where offsets are not records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from forebay.observe.endtimes import EndTimes, Ints
from forebay.observe.lagstates import LagStates, Moves
from forebay.observe.snapshot import LagState, SplitSeen
from forebay.options import SplitStats

_UNKNOWN = -1  # as anything below 0


class LagWatch:
    """Looks at the splits now and then, and tells what that means. One thread."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._ends, self._states = EndTimes(), LagStates()
        self._at: float | None = None
        self._now = 0.0

    @property
    def nbytes(self) -> int:
        """Memory of what is remembered of the splits."""
        return self._ends.nbytes + self._states.nbytes

    def look(
        self, at: float, splits: Mapping[str, SplitStats], batches: int, waited: float
    ) -> dict[str, SplitSeen]:
        """The splits as seen at the wall-clock time ``at``.

        Args:
            batches: that the trainer took so far.
            waited: seconds that it spent in ``next()`` so far, a wait that goes on included.
        """
        self._pass_time(at)
        stats = list(splits.values())
        moves = self._moves(list(splits), stats)
        self._ends.see(moves.rows, moves.end, self._now)
        states = self._states.look(self._now, moves, batches, waited)
        seconds = self._seconds(at, stats, moves)
        return {
            name: _seen(name, s, lag, age, state)
            for (name, s), lag, age, state in zip(
                splits.items(), moves.lag.tolist(), seconds, states, strict=True
            )
        }

    def _pass_time(self, at: float) -> None:
        """Wall clocks are set, also back; nothing of what is remembered may become younger."""
        if self._at is not None:
            self._now += max(0.0, at - self._at)
        self._at = at

    def _moves(self, names: list[str], stats: list[SplitStats]) -> Moves:
        for name in names:
            if name not in self._rows:
                self._rows[name] = len(self._rows)
        room = 1 << max(len(self._rows) - 1, 0).bit_length()  # splits that come one by one
        self._ends.grow(room)
        self._states.grow(room)
        delivered, pending = _ints(s.delivered for s in stats), _ints(s.pending for s in stats)
        end, fetched = _ints(_known(s.end) for s in stats), _ints(_known(s.fetched) for s in stats)
        unread = np.where(fetched < 0, _UNKNOWN, np.maximum(end - fetched, 0))
        return Moves(
            rows=_ints(self._rows[name] for name in names),
            given=delivered - pending,
            end=end,
            lag=np.where(end < 0, _UNKNOWN, np.maximum(end - delivered, 0) + pending),
            fetched=fetched,
            unread=np.where(end < 0, _UNKNOWN, unread),
        )

    def _seconds(self, at: float, stats: list[SplitStats], moves: Moves) -> list[float | None]:
        """How long the oldest record that was not delivered has been there.

        Where it was there before the first look, at most as long as the last one that was
        delivered is old, by its event time; and at least since that look.
        """
        oldest = _ints(s.delivered if s.low is None else s.low for s in stats)
        ages = self._ends.ages(moves.rows, oldest, self._now).tolist()
        watched = self._ends.watched(moves.rows, self._now).tolist()
        out: list[float | None] = []
        for s, lag, age, least in zip(stats, moves.lag.tolist(), ages, watched, strict=True):
            if lag <= 0:
                out.append(None if lag < 0 else 0.0)
            elif age == age:
                out.append(age)
            elif s.event_time is not None and s.event_time > 0:
                out.append(max(at - s.event_time, least))
            else:
                out.append(None)
        return out


def _seen(
    name: str, s: SplitStats, lag: int, seconds: float | None, state: LagState | None
) -> SplitSeen:
    end = None if s.end is None or s.end < 0 else s.end
    return SplitSeen(
        source=name.rpartition("/")[0] or name,
        position=s.delivered if s.low is None else s.low,
        end=end,
        lag_records=None if lag < 0 else lag,
        lag_fetched=_behind(end, s.fetched, 0),
        lag_checkpointed=_behind(end, s.saved, s.saved_pending),
        lag_seconds=seconds,
        state=state,
    )


def _behind(end: int | None, at: int | None, pending: int) -> int | None:
    return None if end is None or at is None else max(0, end - at) + pending


def _known(number: int | None) -> int:
    return _UNKNOWN if number is None else number


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)

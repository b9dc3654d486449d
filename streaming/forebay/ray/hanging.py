"""Notices workers that stand still while their peers go on: from what went out and what came back.

Ray does not tell which worker has which parcel. A parcel that is out for long while parcels put
after it come back shows that some worker hangs; it is one of those that gave nothing for as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# A parcel is overdue if it took this many times as long as its rows should, beside the patience,
# and its peers finished this many later ones each: a slow row among slow rows is no hanging worker.
_TIMES, _PEER_PARCELS = 50, 2
# A parcel whose worker was replaced gets this many times the patience from then on.
_MORE_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class Hang:
    """Some worker hangs: it has had work for ``seconds``, and gave nothing."""

    seconds: float
    alive: frozenset[str]
    """The workers that gave something since."""


@dataclass(slots=True)
class _Out:
    """A parcel that has not come back."""

    since: float
    rows: int
    patience: float
    overtaken: int = 0
    """How many came back that were put after it."""


class HangWatch:
    """Told of parcels that go and come. Not thread-safe: the feed's lock guards it.

    Args:
        seconds: how long a parcel may be out, if its peers come back meanwhile.
        most_of_one: how many parcels one worker may have at a time.
    """

    def __init__(
        self, seconds: float, most_of_one: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._most_of_one, self._clock = seconds, most_of_one, clock
        self._out: dict[int, _Out] = {}
        self._heard: dict[str, float] = {}

    def put(self, number: int, rows: int) -> None:
        """A parcel went out. Numbers grow."""
        self._out[number] = _Out(self._clock(), rows, self._seconds)

    def back(self, number: int, worker: str) -> None:
        """A parcel came back."""
        self._heard[worker] = self._clock()
        self._out.pop(number, None)
        for other, out in self._out.items():
            out.overtaken += other < number

    def clear(self) -> None:
        """Nothing is out any more, and the workers are others."""
        self._out.clear()
        self._heard.clear()

    def look(self, workers: int, row_seconds: float | None) -> Hang | None:
        """Whether a worker hangs; each look says so again until ``replaced`` is called."""
        now = self._clock()
        late = [o for o in self._out.values() if self._is_late(o, now, workers, row_seconds)]
        if not late:
            return None
        seconds = min(_patience(o, row_seconds) for o in late)
        recent = (worker for worker, at in self._heard.items() if now - at < seconds)
        return Hang(seconds, frozenset(recent))

    def replaced(self, workers: int, row_seconds: float | None) -> None:
        """A worker was replaced: what was late is run once more, and given more time."""
        now = self._clock()
        for out in self._out.values():
            if self._is_late(out, now, workers, row_seconds):
                out.patience = self._seconds * _MORE_PATIENCE
                out.since, out.overtaken = now, 0

    def _is_late(self, out: _Out, now: float, workers: int, row_seconds: float | None) -> bool:
        peers = workers - 1
        if peers < 1 or now - out.since <= _patience(out, row_seconds):
            return False
        went_on = out.overtaken >= _PEER_PARCELS * peers
        return went_on or len(self._out) <= self._most_of_one


def _patience(out: _Out, row_seconds: float | None) -> float:
    return max(out.patience, _TIMES * (row_seconds or 0.0) * out.rows)

"""Notices silence: a split that has records waiting and gives none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

# Between two polls this far apart, nobody wanted records: that time is no silence of the source.
_UNWANTED = 1.0


class Watchdog:
    """Measures for how long each split was asked and gave nothing. Reading thread only."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._asking_since = self._asked = clock()

    def asked(self) -> None:
        """The source was asked for records."""
        now = self._clock()
        if now - self._asked > _UNWANTED:
            self._asking_since = now
        self._asked = now

    def heard(self, split: str) -> None:
        """A split gave records or its end, or is wanted again after a pause."""
        self._heard[split] = self._clock()

    def silent(self, split: str) -> float:
        """Seconds for which a split was asked and gave nothing."""
        return self._clock() - max(self._heard.get(split, self._asking_since), self._asking_since)

    def overdue(self, splits: Collection[str]) -> list[str]:
        """Those of ``splits`` that have been silent for too long."""
        return [s for s in splits if self.silent(s) >= self.seconds]

"""What a loader counts, from its first batch on, over all of its sessions."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence

from forebay.deadletter import Letter, kind_of
from forebay.engine import Feed, PoolStats, StageStats
from forebay.histogram import FRESHNESS_BOUNDS, STEP_BOUNDS, Durations
from forebay.prefetch import Ready
from forebay.source import added
from forebay.state import Position
from forebay.stepclock import StepClock
from forebay.tensors import Batch

_log = logging.getLogger("forebay")
_LAST_LETTERS, _MOST_KINDS = 20, 50


class Past:
    """What sessions that ended counted: what goes on counting must not begin at zero again."""

    def __init__(self) -> None:
        self.source_wait_seconds = self.room_wait_seconds = 0.0
        self.stages: Mapping[str, StageStats] = {}
        self.pools: Mapping[str, PoolStats] = {}
        self.reader_counts: Mapping[str, float] = {}
        self.ends: Mapping[str, int] = {}
        self.fetched: Mapping[str, int] = {}

    def keep(self, feed: Feed, *, source_wait_seconds: float, room_wait_seconds: float) -> None:
        """Add what a session counted; its feed is about to be closed."""
        self.stages = self.stages_with(feed.stages())
        self.pools = self.pools_with(feed.pools())
        self.fetched = feed.fetched()
        try:
            self.ends = feed.ends()
            self.reader_counts = added(self.reader_counts, feed.reader_counts())
        except Exception as e:  # a source that fails must not keep the loader from closing
            self.ends = {}
            _log.debug("the source tells nothing of itself any more: %s", e)
        self.source_wait_seconds += source_wait_seconds
        self.room_wait_seconds += room_wait_seconds

    def stages_with(self, now: Mapping[str, StageStats]) -> dict[str, StageStats]:
        """The stages of all sessions, ``now`` being those of the one that runs."""
        both = {k: self.stages[k].and_then(s) if k in self.stages else s for k, s in now.items()}
        return {**self.stages, **both}

    def pools_with(self, now: Mapping[str, PoolStats]) -> dict[str, PoolStats]:
        """The pools of ``now``, which count on from those of all sessions."""
        return {k: self.pools[k].and_then(p) if k in self.pools else p for k, p in now.items()}


class Counts:
    """What a loader counted; written by the trainer's thread, read by any."""

    def __init__(self, clock: StepClock) -> None:
        self.batches = self.rows = self.dead_letters = 0
        self.clock = clock
        self.past = Past()
        self.splits: Mapping[str, Position] = {}
        self.saved: Mapping[str, Position] = {}
        self.newest: dict[str, float] = {}
        self.freshness_seconds: float | None = None
        self.freshness = Durations(FRESHNESS_BOUNDS)
        self.step_durations, self.wait_durations = Durations(STEP_BOUNDS), Durations(STEP_BOUNDS)
        self.letters = self.letters_to_flush = False
        self.letters_of: dict[tuple[str, str], int] = {}
        self.last_letters: deque[Letter] = deque(maxlen=_LAST_LETTERS)
        self._began: float | None = None
        self._asked = 0.0
        self._given: float | None = None

    def start(self, now: float) -> None:
        """The trainer asks for a batch, by the monotonic clock."""
        self._asked = now
        if self._began is None:
            self._began = now

    def seconds(self) -> float:
        """Since the first batch was asked for. Any thread."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def count(self, batch: Batch, ready: Ready) -> None:
        """The trainer is given a batch."""
        now, times = time.monotonic(), ready.event_times
        self.batches += 1
        self.rows += batch.rows
        self.wait_durations.add(now - self._asked)
        if self._given is not None:
            self.step_durations.add(now - self._given)
        self._given = now
        self.freshness_seconds = None
        if times is not None and len(times):
            seen = time.time()
            self.freshness.add_since(times, seen)
            self.freshness_seconds = seen - float(times[len(times) // 2])
            self.newest.update(ready.newest)

    def bury(self, letters: Sequence[Letter]) -> None:
        """Count dead letters."""
        self.dead_letters += len(letters)
        for letter in letters:
            key = (letter.failure.stage, kind_of(letter.failure.reason))
            if key not in self.letters_of and len(self.letters_of) >= _MOST_KINDS:
                key = (letter.failure.stage, "other")
            self.letters_of[key] = self.letters_of.get(key, 0) + 1
        self.last_letters.extend(letters)

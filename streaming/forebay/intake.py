"""The taker's end of a feed: finished slices, less the rows that were delivered before."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from forebay.deadletter import BudgetMeter
from forebay.engine import Feed
from forebay.slice import Slice
from forebay.state import Position

_WAIT_SECONDS = 0.1
_log = logging.getLogger("forebay")


class Stopped(Exception):
    """Raised out of a wait when the loader is being closed."""


class Slices(Protocol):
    """Something slices can be taken from, one after the other."""

    def next(self, want: Collection[str] = ()) -> Slice | None:
        """The next slice; blocks.

        None at the end of a bounded source, or, with ``want``, when nothing more comes of any
        of those splits.
        """


class Intake:
    """Takes slices from a feed; the one place that drops rows which were delivered before.

    Args:
        stopping: whether the loader is being closed.
        starving: whether nothing waits for the trainer: no room is given back before the batch
            that is being put together is ready.
    """

    def __init__(
        self,
        feed: Feed,
        positions: Mapping[str, Position],
        meter: BudgetMeter,
        stopping: Callable[[], bool],
        starving: Callable[[], bool],
    ) -> None:
        self._feed, self._meter = feed, meter
        self._stopping, self._starving = stopping, starving
        self._splits = set(positions)
        self._went_beyond = False
        self._delivered = dict(positions)
        self._parts: deque[Slice] = deque()
        self._waited = 0.0
        self._since: float | None = None
        self.last: Slice | None = None
        """The slice that was taken last: the one that spent the error budget, if it was."""

    @property
    def waited_seconds(self) -> float:
        """Time in which it waited for slices, a wait that goes on included. Any thread."""
        waited, since = self._waited, self._since
        return waited if since is None else waited + time.monotonic() - since

    def next(self, want: Collection[str] = ()) -> Slice | None:
        while not self._parts:
            s = self._take(want)
            if s is None:
                return None
            self._drop_delivered(s)
        return self._parts.popleft()

    def _take(self, want: Collection[str]) -> Slice | None:
        self._since = began = time.monotonic()
        self._feed.want(want)
        try:
            while not self._stopping():
                beyond = not want and self._starving() and self._feed.full
                if beyond:
                    self._go_beyond()
                exhausted = self._feed.exhausted() if want else ()
                s = self._feed.take(_WAIT_SECONDS)
                if s is not None:
                    self.last = s
                    self._splits.add(s.split)
                    if beyond:
                        self._feed.want(())  # until the next call nothing more
                    self._meter.count(s)
                    return s
                if self._feed.done or (want and set(want) <= set(exhausted)):
                    return None
            raise Stopped
        finally:
            # In this order a reader on another thread misses the wait for a moment, and never
            # counts it twice.
            self._since = None
            self._waited += time.monotonic() - began

    def _go_beyond(self) -> None:
        """Read on though the window is full: the batch that is to empty it is not complete."""
        if not self._went_beyond:
            self._went_beyond = True
            _log.warning(
                "the rows that one batch waits for do not fit into max_bytes: reading beyond it, "
                "with %d bytes in flight. Raise max_bytes, or make batches or shuffle windows "
                "smaller.",
                self._feed.bytes_in_flight(),
            )
        self._feed.want(self._splits)

    def _drop_delivered(self, s: Slice) -> None:
        if s.resets:
            self._delivered.pop(s.split, None)
        position = self._delivered.get(s.split)
        parts = [s] if position is None else position.remaining(s)
        self._parts.extend(parts)
        if not parts:
            self._feed.release(s)

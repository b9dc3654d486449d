"""What a trainer's time goes to: waiting for the next batch, or working on the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

# A device that is so many steps behind did not idle in the wait that ends: nothing need be kept.
_MOST_PENDING = 64


class StepClock(Protocol):
    """Told by the loader when a wait begins and ends; says how long the trainer starved.

    The first two are called on the trainer's thread, a wait at a time; the others on any.
    """

    def wait_begins(self) -> None:
        """The trainer asks for a batch."""

    def wait_ends(self) -> None:
        """It got one, or there is none."""

    def waited_seconds(self) -> float:
        """Time in which the trainer's thread waited, a wait that goes on included."""

    def starved_seconds(self) -> float | None:
        """Time in which the device idled for want of a batch; None if that is not known."""


class HostClock:
    """Takes the host's time for the device's: right where a step ends when its call returns.

    A trainer that launches kernels ahead of the device waits in ``next()`` while the device still
    works: there this is an upper bound, and a clock on the device's timeline tells the truth.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = 0.0
        self._since: float | None = None

    def wait_begins(self) -> None:
        self._since = self._clock()

    def wait_ends(self) -> None:
        if self._since is not None:
            waited, self._since = self._clock() - self._since, None
            self._waited += waited

    def waited_seconds(self) -> float:
        # Without a lock: between the two lines above a reader misses the last wait for a moment,
        # and never counts it twice.
        waited, since = self._waited, self._since
        return waited if since is None else waited + self._clock() - since

    def starved_seconds(self) -> float | None:
        return self.waited_seconds()


class DeviceTimeline(Protocol):
    """What a device does, in order: marks that are reached once all work given before is done."""

    def mark(self) -> Any | None:
        """Put a mark behind all work given so far; None if the device cannot. Never waits."""

    def reached(self, mark: Any) -> bool:
        """Whether the device came past it. Never waits. Any thread."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """The device's time between two marks that were reached. Any thread."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A wait that goes on."""

    since: float
    mark: Any
    idle_since: float | None = None
    """Since when the device was seen to have nothing to do."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """A wait that ended; what the device did in it may not be known yet."""

    earlier: Any
    later: Any
    waited: float


@dataclass(frozen=True, slots=True)
class _Counts:
    """Handed from thread to thread whole, so that nobody sees half of a change."""

    starved: float | None = 0.0
    """Of the waits that are no longer pending; None once one of them is not known."""
    pending: tuple[_Gap, ...] = ()
    wait: _Wait | None = None


class DeviceClock:
    """Starved is what the device idled while the trainer waited, by the device's own time.

    For each wait a mark is put on the device's timeline as it begins, behind the step's work, and
    one as it ends. The time between them is the device's, and it starved for as much of it as the
    trainer waited: the rest is the host's own doing. Marks are looked at later, and never waited
    for. A wait that the device could not mark makes the sum unknown, for good.
    """

    def __init__(
        self, timeline: DeviceTimeline, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeline, self._clock = timeline, clock
        self._host = HostClock(clock)
        self._counts = _Counts()
        self._told = 0.0

    def wait_begins(self) -> None:
        wait = _Wait(self._clock(), self._timeline.mark())
        self._counts = replace(self._counts, wait=wait)
        self._host.wait_begins()

    def wait_ends(self) -> None:
        self._host.wait_ends()
        wait = self._counts.wait
        if wait is None:
            return
        gap = _Gap(wait.mark, self._timeline.mark(), self._clock() - wait.since)
        starved, pending = self._resolved(self._counts)
        if gap.earlier is None or gap.later is None:
            starved = None
        elif len(pending) < _MOST_PENDING:
            pending = (*pending, gap)
        self._counts = _Counts(starved, pending)

    def waited_seconds(self) -> float:
        return self._host.waited_seconds()

    def starved_seconds(self) -> float | None:
        counts = self._counts
        starved, _ = self._resolved(counts)
        if starved is None:
            return None
        self._told = max(self._told, starved + self._of_now(counts.wait))
        return self._told

    def _resolved(self, counts: _Counts) -> tuple[float | None, tuple[_Gap, ...]]:
        """The counts with the gaps that the device has come past; it passes them in order."""
        starved, known = counts.starved, 0
        for gap in counts.pending:
            if not self._timeline.reached(gap.later):
                break
            known += 1
            if starved is not None:
                on_device = self._timeline.seconds(gap.earlier, gap.later)
                starved += min(max(on_device, 0.0), gap.waited)
        return starved, counts.pending[known:]

    def _of_now(self, wait: _Wait | None) -> float:
        """What is starved at least in a wait that goes on: since the device was seen idle."""
        if wait is None or wait.mark is None or not self._timeline.reached(wait.mark):
            return 0.0
        if wait.idle_since is None:
            wait.idle_since = self._clock()
        return self._clock() - wait.idle_since


class FakeStepClock(HostClock):
    """A clock for tests: the host's waits, and a device that starves as the test says."""

    def __init__(self, starved: float | None = 0.0) -> None:
        super().__init__()
        self.starved = starved

    def starved_seconds(self) -> float | None:
        return self.starved

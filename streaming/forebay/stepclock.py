"""What a trainer's time goes to: waiting for the next batch, or working on the last one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


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


class FakeStepClock(HostClock):
    """A clock for tests: the host's waits, and a device that starves as the test says."""

    def __init__(self, starved: float | None = 0.0) -> None:
        super().__init__()
        self.starved = starved

    def starved_seconds(self) -> float | None:
        return self.starved

"""What a trainer's time goes to: waiting for the next batch, or working on the last one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

# A device that is so many steps behind did not idle in the wait that ends: nothing need be kept.
_MOST_PENDING = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Where a trainer's time went since it first asked for a batch, in seconds; None: not known.

    ``starved``, ``copy``, ``compute``, ``communication`` and ``other`` share ``seconds`` among
    them, as far as they are known: one that is unknown is part of ``compute``.
    """

    steps: int
    """Steps that ended: the next batch was asked for."""
    seconds: float
    wait: float
    """Of the trainer's thread, in ``next()``; the copy to the device is not in it."""
    starved: float | None = None
    """The device idled for want of a batch."""
    copy: float | None = None
    """Batches from the host's memory to the device's."""
    compute: float | None = None
    """The training step itself."""
    communication: float | None = None
    """Waiting for the other ranks' gradients, what it did not overlap with; None without the hook
    for it."""
    other: float | None = None
    """Named pauses (checkpoint, evaluation), and the host's own doing while the device idled."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """The named part of ``other``."""
    on_device: bool = False
    """Whether these are the device's times; else the host's, as if each call ended its work."""


class StepClock(Protocol):
    """Told by the loader when a wait begins and ends; says how long the trainer starved.

    ``*_begins`` and ``*_ends`` are called on the trainer's thread, a wait at a time; the others
    on any.
    """

    def wait_begins(self) -> None:
        """The trainer asks for a batch."""

    def wait_ends(self) -> None:
        """It got one, or there is none."""

    def copy_begins(self) -> None:
        """The batch begins to be copied to the device."""

    def copy_ends(self) -> None:
        """The copy was ordered; the device may still be at it."""

    def pause_begins(self, name: str) -> None:
        """The trainer does something else than training: saves a checkpoint, evaluates."""

    def pause_ends(self) -> None:
        """It trains on."""

    def add_communication(self, seconds: float) -> None:
        """The step waited so long for the other ranks' gradients. Any thread."""

    def times(self) -> StepTimes:
        """Where the time went so far."""

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
        self._began: float | None = None
        self._copied, self._communicated, self._steps = 0.0, 0.0, 0
        self._communicates = False
        self._copying: float | None = None
        self._pauses: dict[str, float] = {}
        self._pausing: tuple[str, float] | None = None

    def wait_begins(self) -> None:
        self._since = self._clock()
        if self._began is None:
            self._began = self._since
        else:
            self._steps += 1

    def wait_ends(self) -> None:
        if self._since is not None:
            waited, self._since = self._clock() - self._since, None
            self._waited += waited

    def copy_begins(self) -> None:
        self._copying = self._clock()

    def copy_ends(self) -> None:
        if self._copying is not None:
            self._copied += self._clock() - self._copying
            self._copying = None

    def pause_begins(self, name: str) -> None:
        self._pausing = (name, self._clock())

    def pause_ends(self) -> None:
        if self._pausing is not None:
            name, since = self._pausing
            self._pauses[name] = self._pauses.get(name, 0.0) + self._clock() - since
            self._pausing = None

    def add_communication(self, seconds: float) -> None:
        self._communicates = True
        self._communicated += seconds

    def times(self) -> StepTimes:
        """Each call of the trainer counts as long as it took: right without a device."""
        seconds = 0.0 if self._began is None else self._clock() - self._began
        waited, pauses = self.waited_seconds(), dict(self._pauses)
        other = sum(pauses.values())
        known = waited + self._copied + self._communicated + other
        return StepTimes(
            steps=self._steps,
            seconds=seconds,
            wait=waited,
            starved=waited,
            copy=self._copied,
            compute=max(seconds - known, 0.0),
            communication=self._communicated if self._communicates else None,
            other=other,
            pauses=pauses,
        )

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

    def copy_begins(self) -> None:
        self._host.copy_begins()

    def copy_ends(self) -> None:
        self._host.copy_ends()

    def pause_begins(self, name: str) -> None:
        self._host.pause_begins(name)

    def pause_ends(self) -> None:
        self._host.pause_ends()

    def add_communication(self, seconds: float) -> None:
        self._host.add_communication(seconds)

    def times(self) -> StepTimes:
        return replace(self._host.times(), starved=self.starved_seconds())

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

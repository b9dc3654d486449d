"""What a trainer's time goes to: waiting for the next batch, or working on the last one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from forebay.timeline import COPY, PAUSE, STEP, WAIT, Cut, Ledger
from forebay.timeline import DeviceTimeline as DeviceTimeline

_RECENT = 512
_LONGEST_LOOK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Where a trainer's time went since it first asked for a batch, in seconds; None: not known.

    ``starved``, ``copy``, ``compute``, ``communication`` and ``other`` add up to ``seconds``. What
    is None though ``starved`` is known is part of ``compute``. None of them ever falls.
    """

    steps: int
    """Steps that ended: the next batch was asked for."""
    seconds: float
    """On a device's timeline it ends where the device is known to be: a little behind the host."""
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
    """Named pauses (checkpoint, evaluation), and the host's own doing while the device idled; the
    latter is 0 where nobody looks (``StepClock.look``), and then part of ``compute``."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """The named part of ``other``."""
    on_device: bool = False
    """Whether these are the device's times; else the host's, as if each call ended its work."""


class Step(NamedTuple):
    """One step, from asking for its batch to asking for the next, in seconds."""

    starved: float
    copy: float
    compute: float
    """Communication included."""
    other: float
    """Named pauses."""


class StepClock(Protocol):
    """Told by the loader when a wait begins and ends; says how long the trainer starved.

    ``*_begins`` and ``*_ends`` are called on the trainer's thread, and the trainer does one thing
    at a time: a wait or a copy interrupts a pause, a pause in a pause interrupts that. The others
    are called on any thread.
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
        """The step waited so long for the other ranks' gradients. One thread at a time."""

    def look(self) -> None:
        """See whether the device idles in a step. Now and then, on one thread; never waits."""

    def times(self) -> StepTimes:
        """Where the time went so far."""

    def recent(self) -> Sequence[Step]:
        """The last steps that are known, oldest first; a few hundred at most."""

    def waited_seconds(self) -> float:
        """Time in which the trainer's thread waited, a wait that goes on included."""

    def starved_seconds(self) -> float | None:
        """Time in which the device idled for want of a batch; None if that is not known."""


class _Switched:
    """Makes of the calls of a ``StepClock`` what the trainer is at from now on."""

    def __init__(self) -> None:
        self._pauses: list[str] = []

    def switch(self, to: str) -> None:
        """From now on the trainer is at something else."""
        raise NotImplementedError

    def wait_begins(self) -> None:
        self.switch(WAIT)

    def wait_ends(self) -> None:
        self.switch(self._between())

    def copy_begins(self) -> None:
        self.switch(COPY)

    def copy_ends(self) -> None:
        self.switch(self._between())

    def pause_begins(self, name: str) -> None:
        self._pauses.append(PAUSE + name)
        self.switch(self._between())

    def pause_ends(self) -> None:
        if self._pauses:
            self._pauses.pop()
            self.switch(self._between())

    def _between(self) -> str:
        return self._pauses[-1] if self._pauses else STEP


class _Spent(NamedTuple):
    """Handed from thread to thread whole, so that nobody sees half of a change."""

    sums: Mapping[str, float] = {}
    steps: int = 0
    at: str | None = None
    """What goes on; None before the first wait."""
    since: float = 0.0

    def until(self, now: float) -> Mapping[str, float]:
        """The sums with what goes on."""
        return self.sums if self.at is None else _with(self.sums, self.at, now - self.since)


class HostClock(_Switched):
    """Takes the host's time for the device's: right where a step ends when its call returns.

    A trainer that launches kernels ahead of the device waits in ``next()`` while the device still
    works: there this is an upper bound, and a clock on the device's timeline tells the truth.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._spent = _Spent()
        self._communicated: float | None = None
        self._told: Mapping[str, float] = {}
        self._recent = _Recent()

    def switch(self, to: str) -> None:
        now, spent = self._clock(), self._spent
        if spent.at is None and to != WAIT:
            return  # what comes before the first wait is no part of training
        sums, steps = spent.until(now), spent.steps
        if to == WAIT:
            steps += spent.at is not None
            self._recent.step_ends(sums)
        self._spent = _Spent(sums, steps, to, now)

    def add_communication(self, seconds: float) -> None:
        self._communicated = (self._communicated or 0.0) + seconds

    def look(self) -> None:
        """There is no device to look at."""

    def times(self) -> StepTimes:
        """Each call of the trainer counts as long as it took: right without a device."""
        spent, communication = self._spent, self._communicated
        sums = spent.until(self._clock())
        self._told = told = _risen(self._told, _parts(sums, communication))
        return _times(
            told, spent.steps, sums.get(WAIT, 0.0), communicates=communication is not None
        )

    def recent(self) -> Sequence[Step]:
        return self._recent.steps()

    def waited_seconds(self) -> float:
        return self._spent.until(self._clock()).get(WAIT, 0.0)

    def starved_seconds(self) -> float | None:
        return self.waited_seconds()


class DeviceClock(_Switched):
    """Where the time of a device goes, by its own time: it starves for what it idles in a wait.

    Each call of the trainer puts a mark on the device's timeline, behind the work given before.
    The time between two marks is what the device took for what the trainer ordered between them,
    and for what it idled: in a wait it idles for want of a batch, in a pause for the pause. Whether
    it idles within a step marks cannot tell, only ``look`` can.

    Marks are looked at later and never waited for; by other threads only while the trainer is in
    ``next()``, since a CUDA graph that is being captured breaks on a question of any thread. A mark
    that the device could not put makes its times unknown, for good.
    """

    def __init__(
        self, timeline: DeviceTimeline, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._timeline, self._clock = timeline, clock
        self._host = HostClock(clock)
        self._ledger: Ledger | None = Ledger()
        self._idle: tuple[Cut, float] | None = None
        self._idled, self._looked = 0.0, clock()
        self._told: Mapping[str, float] = {}
        self._recent = _Recent()

    def switch(self, to: str) -> None:
        ledger = self._ledger
        if ledger is not None and (ledger.cuts or to == WAIT):
            cut = Cut(self._timeline.mark(), to, self._clock())
            if cut.mark is None:
                self._ledger = None
            else:
                self._ledger = ledger.resolved(self._timeline, self._recent.step_ends).and_then(cut)
        self._host.switch(to)

    def add_communication(self, seconds: float) -> None:
        self._host.add_communication(seconds)

    def look(self) -> None:
        """What it sees stands for the time since it looked last: an estimate, good after some
        hundreds of looks."""
        now, ledger = self._clock(), self._ledger
        since, self._looked = now - self._looked, now
        if ledger is None or not ledger.cuts or ledger.cuts[-1].to != STEP:
            return
        if self._timeline.idle() and ledger is self._ledger:
            self._idled += min(since, _LONGEST_LOOK)

    def times(self) -> StepTimes:
        host, told = self._host.times(), self._tell()
        if told is None:
            return replace(host, starved=None, copy=None, compute=None)
        communicates = host.communication is not None
        return replace(
            _times(told, host.steps, host.wait, communicates=communicates), on_device=True
        )

    def recent(self) -> Sequence[Step]:
        return self._recent.steps() if self._ledger is not None else ()

    def waited_seconds(self) -> float:
        return self._host.waited_seconds()

    def starved_seconds(self) -> float | None:
        told = self._tell()
        return None if told is None else told.get("starved", 0.0)

    def _tell(self) -> Mapping[str, float] | None:
        ledger = self._ledger
        if ledger is None:
            return None
        sums = self._until_now(ledger)
        self._told = _risen(self._told, _parts(sums, self._host._communicated, self._idled))
        return self._told

    def _until_now(self, ledger: Ledger) -> Mapping[str, float]:
        """The sums with what goes on. Of a wait only what the device was seen to idle."""
        if not ledger.cuts:
            return ledger.sums
        last, now = ledger.cuts[-1], self._clock()
        if last.to != WAIT:
            return _with(ledger.sums, last.to, now - last.at)
        ledger = ledger.resolved(self._timeline)
        if len(ledger.cuts) > 1 or not self._timeline.reached(last.mark):
            return ledger.sums
        if self._idle is None or self._idle[0] is not last:
            self._idle = (last, now)
        return _with(ledger.sums, WAIT, now - self._idle[1])


class FakeStepClock(HostClock):
    """A clock for tests: the host's waits, and a device that starves as the test says."""

    def __init__(self, starved: float | None = 0.0) -> None:
        super().__init__()
        self.starved = starved

    def starved_seconds(self) -> float | None:
        return self.starved


class _Recent:
    """The last steps: differences of the sums as they ended."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=_RECENT)
        self._before: Mapping[str, float] = {}

    def step_ends(self, sums: Mapping[str, float]) -> None:
        """A step ended, unless none began yet."""
        before, self._before = self._before, sums
        if not sums:
            return
        new = {k: v - before.get(k, 0.0) for k, v in sums.items()}
        wait, copy, step = (new.pop(k, 0.0) for k in (WAIT, COPY, STEP))
        self._steps.append(Step(wait, copy, step, sum(new.values(), 0.0)))

    def steps(self) -> Sequence[Step]:
        """Any thread."""
        return tuple(self._steps.copy())


def _with(sums: Mapping[str, float], key: str, seconds: float) -> Mapping[str, float]:
    return {**sums, key: sums.get(key, 0.0) + seconds}


def _parts(
    sums: Mapping[str, float], communication: float | None, idled: float = 0.0
) -> dict[str, float]:
    """The sums as the parts of ``StepTimes``: what is known of a step apart is no compute."""
    step = sums.get(STEP, 0.0)
    communicated = min(communication or 0.0, step)
    idled = min(idled, step - communicated)
    return {
        **{k: v for k, v in sums.items() if k.startswith(PAUSE)},
        "starved": sums.get(WAIT, 0.0),
        "copy": sums.get(COPY, 0.0),
        "communication": communicated,
        "host": idled,
        "compute": step - communicated - idled,
    }


def _risen(told: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
    """The parts, none of them less than was told before: a count that falls is a restart to those
    who read it. What was told too early they catch up with."""
    return {k: max(v, told.get(k, 0.0)) for k, v in parts.items()}


def _times(told: Mapping[str, float], steps: int, wait: float, *, communicates: bool) -> StepTimes:
    pauses = {k.removeprefix(PAUSE): v for k, v in told.items() if k.startswith(PAUSE)}
    return StepTimes(
        steps=steps,
        seconds=sum(told.values()),
        wait=wait,
        starved=told["starved"],
        copy=told["copy"],
        compute=told["compute"],
        communication=told["communication"] if communicates else None,
        other=told["host"] + sum(pauses.values()),
        pauses=pauses,
    )

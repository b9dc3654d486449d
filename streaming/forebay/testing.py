"""Sources, clocks and a device for tests: in memory, exact, and able to fail on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forebay.errors import SourceError, StateError
from forebay.slice import Slice
from forebay.source import Owns, Split
from forebay.stage import from_rows
from forebay.state import Position


@dataclass(frozen=True, slots=True)
class Fail:
    """In a split's data: reading here raises a ``SourceError``. Takes no offset."""

    reason: str = "the test said so"


@dataclass(frozen=True, slots=True)
class Stall:
    """In a split's data: nothing more comes of the split until ``until`` is set."""

    until: threading.Event | FileEvent


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A ``threading.Event`` that processes share: it is set once its file exists."""

    path: Path

    def set(self) -> None:
        """Let everyone who waits go on."""
        self.path.touch()

    def is_set(self) -> bool:
        """Whether it was set, by whatever process."""
        return self.path.exists()

    def wait(self, timeout: float) -> bool:
        """Wait until it is set; False if it was not within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_set() and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.is_set()


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Splits given as lists of rows; offsets are places in the list, events left out.

    A row is a dict, or any other value, which becomes the column ``value``. ``Fail`` and
    ``Stall`` may stand between rows. Splits are polled in turn, ``slice_rows`` rows at a time.
    """

    data: Mapping[str, Sequence[Any]]
    slice_rows: int = 7
    bounded: bool = True
    start: Mapping[str, int] | int = 0
    """The first offset of each split, or of all."""

    def splits(self) -> Sequence[Split]:
        return [Split(id=k, group="memory", number=i) for i, k in enumerate(self.data)]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> MemoryReader:
        for name in positions:
            if name not in self.data:
                known = ", ".join(self.data)
                raise StateError(f"the state knows split {name!r}, the source has only {known}")
        owned = [s.id for s in self.splits() if owns(s)]
        first = {k: self.start if isinstance(self.start, int) else self.start[k] for k in owned}
        return MemoryReader(
            self, {k: positions.get(k, Position(first[k], base=first[k])) for k in owned}
        )


class MemoryReader:
    """Reads the lists of a ``MemorySource``, its splits in turn."""

    def __init__(self, source: MemorySource, positions: dict[str, Position]) -> None:
        self._source, self._positions = source, positions
        self._rows = {k: [v for v in source.data[k] if not _event(v)] for k in positions}
        self._events = {k: _events_by_offset(source.data[k]) for k in positions}
        self._next = {k: p.low for k, p in positions.items()}
        self._turn = list(positions)
        self._paused: frozenset[str] = frozenset()
        self.closed = False

    def positions(self) -> Mapping[str, Position]:
        return self._positions

    def poll(self, timeout: float) -> Slice | None:
        for split in list(self._turn):
            if split not in self._paused and (s := self._slice(split)) is not None:
                self._turn.remove(split)
                self._turn.append(split)
                return s
        threading.Event().wait(min(timeout, 0.001))
        return None

    def pause(self, splits: Collection[str]) -> None:
        self._paused = frozenset(splits)

    def finished_splits(self) -> Collection[str]:
        if not self._source.bounded:
            return ()
        return [
            k
            for k, rows in self._rows.items()
            if self._next[k] >= len(rows) and not self._blocked(k)
        ]

    def ends(self) -> Mapping[str, int]:
        return {k: len(rows) for k, rows in self._rows.items()}

    def close(self) -> None:
        self.closed = True

    def _blocked(self, split: str) -> bool:
        event = self._events[split].get(self._next[split])
        return isinstance(event, Fail) or (isinstance(event, Stall) and not event.until.is_set())

    def _slice(self, split: str) -> Slice | None:
        start = self._next[split]
        stop = min(start + self._source.slice_rows, len(self._rows[split]))
        for at in range(start, stop + 1):
            event = self._events[split].get(at)
            if isinstance(event, Stall) and event.until.is_set():
                continue
            if event is not None and at == start:
                if isinstance(event, Fail):
                    raise SourceError(f"{split}@{at}: {event.reason}")
                return None
            if event is not None:
                stop = at
                break
        if start >= stop:
            return None
        self._next[split] = stop
        offsets = np.arange(start, stop, dtype=np.int64)
        rows = [v if isinstance(v, dict) else {"value": v} for v in self._rows[split][start:stop]]
        return Slice(
            split=split, columns=from_rows(rows), offsets=offsets, start=start, next_offset=stop
        )


class TurnableClock:
    """A monotonic clock that moves only when told: seconds, like ``time.monotonic``."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def turn(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds


class FakeDevice:
    """A device that does its work in order, some time after it was given: an accelerator's stream.

    It has no thread: what it was given and the clock say what it has done. With a
    ``TurnableClock`` the host's time moves as the test turns it, and ``synchronize`` turns it, too.

        device = FakeDevice()
        loader = pipeline.loader(step_clock=lambda: DeviceClock(device.timeline))
        for batch in loader:
            device.launch(0.020)        # returns at once, as launching kernels does
            device.synchronize()        # what ``loss.item()`` does

    Any thread may use it. A device of real time is as punctual as the host's clock, and
    ``synchronize`` as late as its sleep.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.busy_seconds = 0.0
        """Work that it was given so far, copies included."""
        self.timeline = FakeTimeline(self)
        self._free_at = clock()
        self._lock = threading.Lock()

    def launch(self, seconds: float) -> None:
        """Give it work, without waiting for it."""
        with self._lock:
            self._free_at = max(self._free_at, self.clock()) + seconds
            self.busy_seconds += seconds

    def copy(self, seconds: float) -> None:
        """Give it a copy from pinned memory: work like other, in the same order."""
        self.launch(seconds)

    def free_at(self) -> float:
        """When it will have done, or has, all that it was given: a moment of its clock."""
        with self._lock:
            return self._free_at

    def synchronize(self) -> None:
        """Wait until it has done all that it was given."""
        while (left := self.free_at() - self.clock()) > 0:
            if isinstance(self.clock, TurnableClock):
                self.clock.turn(left)
            else:
                time.sleep(left)


@dataclass(frozen=True, slots=True)
class FakeMark:
    """When a device comes past it."""

    at: float


class FakeTimeline:
    """The ``DeviceTimeline`` of a fake device; ``fails_at`` numbers a mark it cannot put."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self._marks = 0
        self.fails_at: int | None = None

    def mark(self) -> FakeMark | None:
        self._marks += 1
        if self._marks - 1 == self.fails_at:
            return None
        return FakeMark(max(self.device.free_at(), self.device.clock()))

    def reached(self, mark: FakeMark) -> bool:
        return mark.at <= self.device.clock()

    def seconds(self, earlier: FakeMark, later: FakeMark) -> float:
        if not self.reached(later):
            raise RuntimeError("the time of a mark that was not reached is not known")
        return later.at - earlier.at

    def idle(self) -> bool:
        return self.device.free_at() <= self.device.clock()


def _event(value: Any) -> bool:
    return isinstance(value, (Fail, Stall))


def _events_by_offset(data: Sequence[Any]) -> dict[int, Fail | Stall]:
    events: dict[int, Fail | Stall] = {}
    offset = 0
    for value in data:
        if isinstance(value, (Fail, Stall)):
            events[offset] = value
        else:
            offset += 1
    return events

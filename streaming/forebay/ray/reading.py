"""Reading a source into parcels: in an actor of its own, or in the trainer's process.

The reader's place is known to the one who asks, not to the reader: after a death the feed opens a
new one at the positions that it has got, and asks again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import ray
from ray import cloudpickle

from forebay.ray.carried import Carried, unloadable
from forebay.ray.parcels import packed, to_table
from forebay.ray.store import raise_if_full
from forebay.slice import Slice, Token
from forebay.source import Owns, Reader, Source, added, counts_of
from forebay.state import Position

# What a slice takes beside its rows, as measured for the threads engine.
_SLICE_BYTES, _COLUMN_BYTES = 600, 480
_CLOSE_SECONDS = 1.0
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_log = logging.getLogger("forebay")


def weight(s: Slice) -> int:
    """Bytes that a slice takes."""
    return s.nbytes + _SLICE_BYTES + _COLUMN_BYTES * len(s.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the next parcel should be."""

    number: int
    paused: frozenset[str]
    max_slices: int
    max_bytes: int
    """A parcel is full once it has as many, or more by its last slice."""
    max_rows: int
    cut_bytes: int
    """A slice of more is cut."""
    wait: float
    """Seconds to wait for the first slice."""
    linger: float
    """Seconds to wait for more once there is a first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A slice of a parcel, for the books: everything but its rows."""

    bare: Slice
    rows: int
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a read gave, beside the parcel itself."""

    notes: tuple[Note, ...] = ()
    finished: frozenset[str] = frozenset()
    ends: Mapping[str, int]
    counts: Mapping[str, float] = field(default_factory=dict)
    """What the reader counted since it was opened."""
    error: Carried | None = None


class ReaderCounts:
    """What the readers of a run counted, one after the other: never less than before.

    What one did between its last report and its death is not counted.
    """

    def __init__(self) -> None:
        self._both: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})

    def told(self, counts: Mapping[str, float]) -> None:
        """The reader of now says what it counted."""
        self._both = (self._both[0], counts)

    def begin_anew(self) -> None:
        """Another reader takes its place, and counts from nothing."""
        self._both = (self.all(), {})

    def all(self) -> dict[str, float]:
        """All of them together. Any thread."""
        return added(*self._both)


class Reading:
    """A reader that gives parcels. One thread, or the one of its actor, uses it.

    Args:
        packed_source: ``(source, owns)``, pickled: they may come from the trainer's script.
    """

    def __init__(self, packed_source: bytes | tuple[Source, Owns]) -> None:
        self._given = packed_source
        self._reader: Reader | None = None
        self._got: dict[str, Position] = {}
        self._rest: deque[Slice] = deque()
        self._phase = 0
        self._error: Carried | None = None

    def open(
        self, positions: Mapping[str, Position], got: Mapping[str, Position]
    ) -> dict[str, Position] | Carried:
        """Open the source; where reading begins, or why it cannot.

        Args:
            got: rows before these positions are read over, not given.
        """
        self._got = dict(got)
        try:
            source, owns = self._loaded()
            self._reader = source.open(positions, owns)
            return dict(self._reader.positions())
        except Exception as e:  # a source can raise anything: it is raised where it is handled
            return Carried.of(e)

    def read(self, wish: Wish) -> tuple[Report, pa.Table | None]:
        """The next parcel and its notes; no parcel if nothing came in time."""
        slices: list[Slice] = []
        if self._error is None:
            try:
                for s in self._gathered(wish):  # what came before an error is kept
                    slices.append(s)  # noqa: PERF402
            except Exception as e:  # told once everything before it was given
                self._error = Carried.of(e)
        return self._report(slices), self._parcel(wish.number, slices)

    def ends(self) -> Mapping[str, int]:
        """The end of each split, as last heard."""
        return dict(self._opened().ends())

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()

    def _loaded(self) -> tuple[Source, Owns]:
        if not isinstance(self._given, bytes):
            return self._given
        try:
            loaded: tuple[Source, Owns] = cloudpickle.loads(self._given)
        except Exception as e:  # a module that is not installed here can raise anything
            raise unloadable("the actor that reads", "the source", e) from e
        return loaded

    def _parcel(self, number: int, slices: list[Slice]) -> pa.Table | None:
        return to_table(number, [packed(s) for s in slices]) if slices else None

    def _report(self, slices: list[Slice]) -> Report:
        notes = tuple(Note(bare=s.bare(), rows=len(s), weight=weight(s)) for s in slices)
        waiting = {s.split for s in self._rest}
        reader = self._opened()
        return Report(
            notes=notes,
            finished=frozenset(reader.finished_splits()) - waiting,
            ends=dict(reader.ends()),
            counts=counts_of(reader),
            error=None if notes else self._error,
        )

    def _gathered(self, wish: Wish) -> Iterator[Slice]:
        """Slices until the parcel is full, or nothing more comes in time; of one phase."""
        self._opened().pause(wish.paused)
        room, rows, until = wish.max_bytes, wish.max_rows, time.monotonic() + wish.wait
        for i in range(wish.max_slices):
            timeout = max(0.0, until - time.monotonic())
            if (s := self._next(wish.paused, timeout)) is None or not self._fits(s, first=i == 0):
                return
            s = self._cut(s, rows, wish.cut_bytes)
            yield s
            room, rows = room - weight(s), rows - len(s)
            if room <= 0 or rows <= 0:
                return
            if i == 0:
                until = time.monotonic() + wish.linger

    def _fits(self, s: Slice, *, first: bool) -> bool:
        """Whether it may go into this parcel: one phase waits for all of the one before."""
        if first or (s.phase == self._phase and not s.resets):
            self._phase = s.phase
            return True
        self._rest.appendleft(s)
        return False

    def _next(self, paused: frozenset[str], timeout: float) -> Slice | None:
        for i, rest in enumerate(self._rest):
            if rest.split not in paused:
                del self._rest[i]
                return rest
        parts: list[Slice] = []
        while not parts:
            if (s := self._opened().poll(timeout)) is None:
                return None
            parts = self._not_got(s)
        self._rest.extend(parts[1:])
        return parts[0]

    def _not_got(self, s: Slice) -> list[Slice]:
        """The parts of a slice that are to be given."""
        if s.resets:
            self._got.pop(s.split, None)
        return self._got[s.split].remaining(s) if s.split in self._got else [s]

    def _cut(self, s: Slice, rows: int, cut_bytes: int) -> Slice:
        """No more of a slice than is wished for; the rest is kept for the next parcel.

        Cut between records: a new reader begins with a whole one.
        """
        fitting = min(rows, max(1, len(s) * cut_bytes // max(s.nbytes, 1)))
        if fitting >= len(s):
            return s
        fitting = int(np.searchsorted(s.offsets, s.offsets[fitting], "left"))
        fitting = fitting or int(np.searchsorted(s.offsets, s.offsets[0], "right"))
        if fitting >= len(s):
            return s
        self._rest.appendleft(s.tail(fitting))
        return s.head(fitting)

    def _opened(self) -> Reader:
        if self._reader is None:
            raise RuntimeError("the reader was not opened")
        return self._reader


class SourceReading(Protocol):
    """A place where the source is read: ``LocalReading`` or ``ActorReading``."""

    def open(
        self, positions: Mapping[str, Position], got: Mapping[str, Position]
    ) -> dict[str, Position] | Carried:
        """As ``Reading.open``."""

    def read(self, wish: Wish) -> tuple[Report, Any]:
        """As ``Reading.read``, with a reference in place of the parcel."""

    def ends(self) -> Mapping[str, int]:
        """As ``Reading.ends``."""

    def stop(self) -> None:
        """Let a read that is under way end soon. Any thread."""

    def close(self) -> None:
        """Close the reader; may be called twice."""


class SourceLost(Exception):
    """The process that read is gone, or nobody knows what it did last."""


class LocalReading:
    """Reads in this process: for sources that keep something of the run in it."""

    def __init__(self, source: Source, owns: Owns) -> None:
        self._make: Callable[[], Reading] = lambda: Reading((source, owns))
        self._reading = self._make()

    def open(
        self, positions: Mapping[str, Position], got: Mapping[str, Position]
    ) -> dict[str, Position] | Carried:
        """As ``Reading.open``."""
        self._reading.close()
        self._reading = self._make()
        return self._reading.open(positions, got)

    def read(self, wish: Wish) -> tuple[Report, Any]:
        """As ``Reading.read``, with a reference to the parcel."""
        report, table = self._reading.read(wish)
        return report, None if table is None else ray.put(table)

    def ends(self) -> Mapping[str, int]:
        """As ``Reading.ends``."""
        return self._reading.ends()

    def stop(self) -> None:
        """Nothing to do: a read returns within its timeout."""

    def close(self) -> None:
        """Close the reader."""
        self._reading.close()


class ActorReading:
    """Reads in an actor of its own. A parcel stays where it was read, in the object store.

    Args:
        options: how the actor is placed, as ``ActorClass.options`` takes it.
    """

    def __init__(self, source: Source, owns: Owns, options: Mapping[str, Any]) -> None:
        self._packed = cloudpickle.dumps((source, owns))
        self._options = {"max_restarts": 0, "max_task_retries": 0, **options}
        self._actor: Any = None
        self._stopped = False

    def open(
        self, positions: Mapping[str, Position], got: Mapping[str, Position]
    ) -> dict[str, Position] | Carried:
        """As ``Reading.open``, in a new actor.

        Raises:
            SourceLost: the actor died in it.
        """
        self._kill()
        if self._stopped:
            raise SourceLost("reading was stopped")
        self._actor = ray.remote(Reading).options(**self._options).remote(self._packed)
        ref = self._living().open.remote(dict(positions), dict(got))
        opened: dict[str, Position] | Carried = self._got(ref)
        return opened

    def read(self, wish: Wish) -> tuple[Report, Any]:
        """As ``Reading.read``, with a reference to the parcel.

        Raises:
            SourceLost: the actor died in it.
        """
        report, parcel = self._living().read.options(num_returns=2).remote(wish)
        got: Report = self._got(report)
        return got, parcel if got.notes else None

    def ends(self) -> Mapping[str, int]:
        ends: Mapping[str, int] = self._got(self._living().ends.remote())
        return ends

    def stop(self) -> None:
        """Close the reader, and end the actor, whatever it is doing. Any thread."""
        self._stopped = True
        if (actor := self._actor) is not None:
            ray.wait([actor.close.remote()], timeout=_CLOSE_SECONDS)
        self._kill()

    def close(self) -> None:
        """As ``stop``."""
        self.stop()

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def _living(self) -> Any:
        if (actor := self._actor) is None:
            raise SourceLost("reading was stopped")
        return actor

    def _got(self, ref: Any) -> Any:
        try:
            self._wait(ref)
            return ray.get(ref)
        except ray.exceptions.RayTaskError as e:  # not a death, but a fault of ours
            raise_if_full(e)
            raise
        except ray.exceptions.RayError as e:
            raise SourceLost(_first_line(e)) from e

    def _wait(self, ref: Any) -> None:
        """Wait for an answer; without a head an actor never starts, and never is said to be dead.

        Raises:
            SourceLost: reading was stopped meanwhile.
        """
        asked = time.monotonic()
        while not ray.wait([ref], timeout=_LOOK_SECONDS)[0]:
            if self._stopped:
                raise SourceLost("reading was stopped")
            if time.monotonic() - asked > _PATIENCE_SECONDS:
                asked = time.monotonic()
                _log.warning(
                    "the actor that reads does not answer: it may wait for room on the cluster "
                    "(%s), or for the source",
                    self._options,
                )


def _first_line(error: BaseException) -> str:
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}"


def frontier(p: Position | None, s: Slice) -> Position:
    """Where reading goes on once ``s`` was read: a position of the reader, not of the trainer."""
    token: Token | None = s.token or (None if p is None or s.resets else p.token)
    base = s.start if p is None or s.resets else p.base
    return Position(s.next_offset, token=token, base=base)

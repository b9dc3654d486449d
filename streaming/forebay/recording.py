"""Recording: what a source gives is stored as well, as it came, so that it can be read again.

    Pipeline(source).record(DeltaRecorder("s3://bucket/clicks"))

A recording holds every row that a saved state covers, and perhaps more: rows are recorded when
they are read, whether or not they are trained later. It is written by a thread of its own; where
it cannot keep up, reading waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from forebay.columns import Column, map_columns
from forebay.errors import ConfigError, SourceError
from forebay.slice import Slice, Token
from forebay.source import Owns, Reader, Source, Split, counts_of
from forebay.state import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """How much is gathered for one write: whichever of the three is reached first."""

    rows: int
    nbytes: int
    seconds: float
    """Age of the oldest row that was not written yet."""

    def __post_init__(self) -> None:
        for name in ("rows", "nbytes", "seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"recording: {name} must be positive, not {getattr(self, name)!r}"
                )


class Recording(Protocol):
    """An open recording. Called from one thread only, the recording thread."""

    def write(self, slices: Sequence[Slice]) -> None:
        """Store the rows, and return once they are durable.

        The slices of a split come in order. Rows that are recorded already, by whichever
        process, are left out: what is recorded is told apart by ``Place``.

        Raises:
            SourceError: they could not be stored. None of them is, or all are.
        """

    def close(self) -> None:
        """Leave nothing open."""


@runtime_checkable
class Recorder(Protocol):
    """Where a recording goes. Holds configuration only: it can be pickled, and opens nothing."""

    @property
    def portion(self) -> Portion:
        """How much is gathered for one write."""

    def open(self) -> Recording:
        """Open the recording, for as long as one reader reads."""


class Place(NamedTuple):
    """How far a log was recorded: ordered, also where a log was cut and written on.

    The rows that replace those that were cut off have lower offsets, but a later epoch.
    """

    epoch: int
    """-1 where the source knows none."""
    offset: int
    """The first offset that is not recorded."""

    def remaining(self, s: Slice) -> Slice:
        """The rows of ``s`` that are not recorded yet."""
        epoch = epoch_of(s.token)
        if epoch > self.epoch:
            return s
        return s.tail(len(s) if epoch < self.epoch else int(s.offsets.searchsorted(self.offset)))


def place_after(s: Slice) -> Place:
    """How far the log of a slice is recorded once the slice is."""
    return Place(epoch_of(s.token), s.next_offset)


def log_of(token: Token | None) -> str:
    """Which log of its name a split is: a topic that was created anew is another one.

    Sources say so in their tokens, under ``id``, ``table`` or ``at``; one whose offsets count
    from where a run began says where that was under ``origin``. Empty where nothing is said.
    """
    known = token or {}
    name = next((str(known[k]) for k in ("id", "table", "at") if known.get(k)), "")
    return f"{name}+{known['origin']}" if "origin" in known else name


def epoch_of(token: Token | None) -> int:
    """The epoch of the records, -1 if there is none: it grows whenever a log is cut."""
    epoch = (token or {}).get("epoch")
    return -1 if epoch is None else int(epoch)


class RecordedSource:
    """A source whose rows are recorded as they are read. Splits and positions are the source's.

    Arrays are shared with the recording, so they are given read-only: a batch gets a copy.
    """

    def __init__(self, source: Source, recorder: Recorder) -> None:
        self.source, self.recorder = source, recorder
        self._tapes: list[Tape] = []

    def __repr__(self) -> str:
        return f"RecordedSource({self.source!r}, {self.recorder!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "recorder": self.recorder, "_tapes": []}

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    def splits(self) -> Sequence[Split]:
        return self.source.splits()

    def open(self, positions: Mapping[str, Position], owns: Owns) -> RecordedReader:
        reader = self.source.open(positions, owns)
        ended = [t for t in self._tapes if t.ended]
        # What an earlier reader could not record was perhaps trained, and is not read again.
        tape = Tape(self.recorder.open(), self.recorder.portion, [s for t in ended for s in t.left])
        self._tapes = [*(t for t in self._tapes if not t.ended), tape]
        return RecordedReader(reader, tape, {k: log_of(p.token) for k, p in positions.items()})

    def flush(self) -> None:
        """Return once everything is recorded that was read so far, in this process. Any thread.

        Raises:
            SourceError: it could not be recorded; no state may be saved that covers it.
        """
        for tape in self._tapes:
            tape.flush()


class RecordedReader:
    """A ``Reader`` that hands every slice to the recording, too."""

    def __init__(self, reader: Reader, tape: Tape, logs: Mapping[str, str]) -> None:
        self._reader, self._tape = reader, tape
        self._logs = dict(logs)
        self._began_anew: set[str] = set()

    def positions(self) -> Mapping[str, Position]:
        return self._reader.positions()

    def poll(self, timeout: float) -> Slice | None:
        """As ``Reader.poll``; None, too, while the recording has no room.

        Raises:
            SourceError: the source cannot be read, or the recording cannot be written.
        """
        deadline = time.monotonic() + timeout
        if not self._tape.wait_for_room(timeout):
            return None
        s = self._reader.poll(max(deadline - time.monotonic(), 0.0))
        if s is None:
            return None
        self._check_log(s)
        s = _read_only(s)
        self._tape.put(s)
        return s

    def pause(self, splits: Collection[str]) -> None:
        self._reader.pause(splits)

    def finished_splits(self) -> Collection[str]:
        return self._reader.finished_splits()

    def ends(self) -> Mapping[str, int]:
        return self._reader.ends()

    def counts(self) -> Mapping[str, float]:
        return counts_of(self._reader)

    def close(self) -> None:
        """Close the source, then record all that was read from it.

        Raises:
            SourceError: it could not be recorded, and no ``poll`` or ``flush`` has said so.
        """
        try:
            self._reader.close()
        finally:
            self._tape.close()

    def _check_log(self, s: Slice) -> None:
        """Refuse rows of a new log that cannot be told from those of the old one."""
        if s.resets:
            self._began_anew.add(s.split)
        if not len(s):
            return
        log = log_of(s.token)
        same = self._logs.get(s.split, log) == log and epoch_of(s.token) < 0
        if s.split in self._began_anew and same:
            raise SourceError(
                f"{s.split} began anew at offset {s.start}, and its source does not say in the "
                "token which log that is: the rows cannot be told from those that are recorded. "
                "Record the new log elsewhere: another table, or another app_id."
            )
        self._began_anew.discard(s.split)
        self._logs[s.split] = log


class _Waiting(NamedTuple):
    """A slice that is not written yet."""

    s: Slice
    nbytes: int
    since: float


class Tape:
    """Slices on their way into a recording, and the thread that writes them.

    Holds up to twice a portion, and one slice more: one part is gathered while the other is
    written. ``wait_for_room``, ``put`` and ``close`` are for the reading thread, ``flush`` for any.
    """

    def __init__(self, recording: Recording, portion: Portion, left: Iterable[Slice] = ()) -> None:
        self._recording, self._portion = recording, portion
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._rows = self._bytes = 0
        self._put = self._written = self._wanted = 0
        self._closing = self._told = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        for s in left:
            self.put(s)

    @property
    def ended(self) -> bool:
        """Whether it was closed. ``left`` is then all that it could not write."""
        return self._closing and self._thread is None

    @property
    def left(self) -> Sequence[Slice]:
        """The slices that are not written."""
        with self._changed:
            return [w.s for w in self._waiting]

    def wait_for_room(self, timeout: float) -> bool:
        """Whether there is room, or will be within ``timeout`` seconds.

        Raises:
            SourceError: the recording has failed.
        """
        with self._changed:
            self._changed.wait_for(self._has_room, timeout)
            self._raise_failure()
            return self._has_room()

    def put(self, s: Slice) -> None:
        """Take a slice to be written; one without rows only counts as read."""
        if not len(s):
            return
        waiting = _Waiting(s, s.nbytes, time.monotonic())
        with self._changed:
            self._waiting.append(waiting)
            self._rows += len(s)
            self._bytes += waiting.nbytes
            self._put += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="forebay-record", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Return once all that was put before is written.

        Raises:
            SourceError: it could not be.
        """
        with self._changed:
            target = self._wanted = self._put
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure or self._written >= target)
            if self._written < target:
                self._raise_failure()

    def close(self) -> None:
        """Write all, and end the thread. May be called twice.

        Raises:
            SourceError: it could not be written, and that was not raised before.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._recording.close()
        if not self._told:
            self._raise_failure()

    def _has_room(self) -> bool:
        return self._failure is not None or self._bytes < 2 * self._portion.nbytes

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._told = True
            raise self._failure

    def _run(self) -> None:
        try:
            while slices := self._next_portion():
                self._recording.write(slices)
                self._leave(len(slices))
        except BaseException as e:  # raised again where the reader, or the state, would go on
            with self._changed:
                self._failure = e
                self._changed.notify_all()

    def _next_portion(self) -> Sequence[Slice]:
        """The next slices to write; they stay here until they are. Empty: it is closed."""
        with self._changed:
            while not self._is_due():
                if self._closing:
                    return ()
                self._changed.wait(self._seconds_left())
            slices, rows, nbytes = list[Slice](), 0, 0
            for w in self._waiting:
                if rows >= self._portion.rows or nbytes >= self._portion.nbytes:
                    break
                slices.append(w.s)
                rows, nbytes = rows + len(w.s), nbytes + w.nbytes
            return slices

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        full = self._rows >= self._portion.rows or self._bytes >= self._portion.nbytes
        wanted = self._closing or self._wanted > self._written
        return full or wanted or (self._seconds_left() or 0.0) <= 0.0

    def _seconds_left(self) -> float | None:
        """Until the oldest slice must be written; None: there is none."""
        if not self._waiting:
            return None
        return self._waiting[0].since + self._portion.seconds - time.monotonic()

    def _leave(self, written: int) -> None:
        with self._changed:
            for _ in range(written):
                w = self._waiting.popleft()
                self._rows -= len(w.s)
                self._bytes -= w.nbytes
            self._written += written
            self._changed.notify_all()


def _read_only(s: Slice) -> Slice:
    return replace(s, columns=map_columns(s.columns, _view)) if len(s) else s


def _view(c: Column) -> Column:
    if isinstance(c, np.ndarray) and c.flags.writeable:
        c = c.view()
        c.flags.writeable = False
    return c

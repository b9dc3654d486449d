"""A source whose rows are made from their offsets when they are read: any size, any position."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.columns import Columns
from forebay.slice import Slice, Token
from forebay.source import Owns, Split
from forebay.state import Position

Make = Callable[[int, NDArray[np.int64]], Columns]
"""From the number of a split and the offsets of some of its rows to their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSource:
    """``splits`` of ``rows`` rows each (None: without end), polled in turn, ``slice_rows`` a time.

    Stands for a broker that never lets anybody wait, so that what is measured is not the broker.
    """

    make: Make
    rows: int | None = None
    partitions: int = 1
    slice_rows: int = 500
    token: Token | None = None
    start: int = 0
    name: str = "kafka:clickstream"
    """Split ids are ``name/number``: their length counts in the size of a state."""

    @property
    def bounded(self) -> bool:
        """Whether reading ends by itself."""
        return self.rows is not None

    def splits(self) -> Sequence[Split]:
        return [
            Split(id=f"{self.name}/{i}", group=self.name, number=i) for i in range(self.partitions)
        ]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> MadeReader:
        first = Position(self.start, token=self.token, base=self.start)
        return MadeReader(self, {s.id: positions.get(s.id, first) for s in self.splits()})


class MadeReader:
    """Reads a ``MadeSource``."""

    def __init__(self, source: MadeSource, positions: Mapping[str, Position]) -> None:
        self._source, self._positions = source, dict(positions)
        self._next = {name: p.low for name, p in positions.items()}
        self._paused: Collection[str] = ()

    def positions(self) -> Mapping[str, Position]:
        return self._positions

    def poll(self, timeout: float) -> Slice | None:
        time.sleep(0)  # gives the GIL up, as a call into any client does
        for name in list(self._next):
            if name not in self._paused and (s := self._slice(name)) is not None:
                self._next[name] = self._next.pop(name)  # to the end of the turn
                return s
        threading.Event().wait(min(timeout, 0.001))
        return None

    def pause(self, splits: Collection[str]) -> None:
        self._paused = splits

    def finished_splits(self) -> Collection[str]:
        end = self._source.rows
        return () if end is None else [k for k, at in self._next.items() if at >= end]

    def ends(self) -> Mapping[str, int]:
        end = self._source.rows
        return {} if end is None else dict.fromkeys(self._next, end)

    def close(self) -> None:
        self._paused = tuple(self._next)

    def _slice(self, name: str) -> Slice | None:
        source, start = self._source, self._next[name]
        stop = start + source.slice_rows
        if source.rows is not None:
            stop = min(stop, source.rows)
        if start >= stop:
            return None
        self._next[name] = stop
        number = int(name.rpartition("/")[2])
        offsets = np.arange(start, stop, dtype=np.int64)
        return Slice(
            split=name,
            columns=source.make(number, offsets),
            offsets=offsets,
            start=start,
            next_offset=stop,
            token=source.token,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedSource(MadeSource):
    """A source of ``rate`` rows a second, in slices of ``slice_rows``."""

    rate: float

    def open(self, positions: Mapping[str, Position], owns: Owns) -> PacedReader:
        return PacedReader(self, MadeSource.open(self, positions, owns).positions())


class PacedReader(MadeReader):
    """Reads a ``PacedSource``; it does not make up for a slow start, or for being held up."""

    _source: PacedSource
    _due = 0.0

    def poll(self, timeout: float) -> Slice | None:
        now = time.monotonic()
        self._due = self._due or now
        time.sleep(max(0.0, min(timeout, self._due - now)))
        if time.monotonic() < self._due:
            return None
        period = self._source.slice_rows / self._source.rate
        self._due = max(self._due, now - period) + period
        return super().poll(timeout)

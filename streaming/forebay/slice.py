"""A slice: consecutive rows of one split, each with its offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.columns import Columns, cut, nbytes, row_count

_NO_ROWS = np.zeros(0, np.int64)

Token: TypeAlias = Mapping[str, Any]
"""What a reader needs beside an offset to find a row again, as plain JSON: a topic id, an epoch."""


Edition: TypeAlias = tuple[str, int]
"""What has a schema (a table), and a number that differs where its schema does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row that a stage could not process: a dead letter to be."""

    offset: int
    stage: str
    reason: str
    original: Mapping[str, Any]
    """The row as it came from the source, by column: bytes, numbers, header pairs."""

    @property
    def nbytes(self) -> int:
        """Bytes of the original's texts and payloads."""
        return sum(len(v) for v in self.original.values() if isinstance(v, (bytes, str)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """Rows of one split together with their place in it.

    A slice answers for the offsets ``start`` to ``next_offset``, whether or not a row came of
    each: records that were filtered out, compacted away or dead-lettered are covered too. One
    record may give several rows (expand); they stand together and share its offset.
    """

    split: str
    columns: Columns
    """Writable arrays are given away: a trainer may write into them. A source that keeps an array
    marks it read-only, and batches get copies."""
    offsets: NDArray[np.int64]
    """Offset of the source record of each row, shape ``[rows]``; never decreases."""
    start: int
    """First offset this slice answers for."""
    next_offset: int
    """Where reading goes on: one past the last offset this slice answers for."""
    lead: int = 0
    """Rows of the first record that were delivered before this slice."""
    skip: int = 0
    """Rows of the record at ``next_offset`` that belong to this slice or to earlier ones."""
    token: Token | None = None
    """Valid at every offset of this slice and at ``next_offset``."""
    event_times: NDArray[np.int64] | None = None
    """Event time of each row, milliseconds since the epoch."""
    resets: bool = False
    """The split began anew (topic re-created, log truncated): its earlier position is void."""
    failures: tuple[Failure, ...] = field(default=())
    phase: int = 0
    """Comes after every slice of an earlier phase, in any order and whatever was read when: a
    shuffle window holds slices of one phase only."""
    edition: Edition | None = None
    """Rows of two editions of one thing have different columns, for its schema changed between: a
    batch, and a shuffle window, holds rows of one of them only."""
    source_rows: int | None = None
    """Rows that the stages were given for it; None before."""
    ticket: int = 0
    """The engine's number for the room this slice takes; 0 on all but the last part of a cut one,
    so that the room is given back when the last part was delivered."""

    def __post_init__(self) -> None:
        rows = row_count(self.columns) if self.columns else 0
        if rows != len(self.offsets):
            raise ValueError(f"{self.split}: {rows} rows but {len(self.offsets)} offsets")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes held by the rows, and by the originals of those that failed."""
        failed = sum(f.nbytes for f in self.failures)
        return nbytes(self.columns) + self.offsets.nbytes + failed

    def bare(self) -> Slice:
        """The slice without its rows: enough for an engine to take its room back."""
        return replace(self, columns={}, offsets=_NO_ROWS, event_times=None, failures=())

    def head(self, n: int) -> Slice:
        """The first ``n`` rows; answers for all offsets before the first row left out."""
        if n >= len(self):
            return self
        at = int(self.offsets[n])
        return replace(
            self,
            **self._rows(0, n),
            next_offset=at,
            skip=self._rows_before(n),
            failures=tuple(f for f in self.failures if f.offset < at) if self.failures else (),
            ticket=0,
        )

    def tail(self, n: int) -> Slice:
        """All but the first ``n`` rows: exactly what ``head(n)`` left out."""
        if n <= 0:
            return self
        if n >= len(self):
            return replace(
                self,
                **self._rows(n, n),
                start=self.next_offset,
                lead=self.skip,
                resets=False,
                failures=(),
            )
        at = int(self.offsets[n])
        return replace(
            self,
            **self._rows(n, len(self)),
            start=at,
            lead=self._rows_before(n),
            resets=False,
            failures=tuple(f for f in self.failures if f.offset >= at) if self.failures else (),
        )

    def between(self, start: int, stop: int, skip: int = 0) -> Slice:
        """The part at offsets ``start`` to ``stop``, less the first ``skip`` rows of ``start``."""
        a, b = (int(i) for i in np.searchsorted(self.offsets, [start, stop]))
        of_record = int(np.searchsorted(self.offsets, start, "right")) - a
        done_before = self.lead if start <= self.start else 0
        a = min(a + min(max(skip - done_before, 0), of_record), b)
        return replace(
            self,
            **self._rows(a, b),
            start=max(start, self.start),
            resets=self.resets and start <= self.start,
            next_offset=min(stop, self.next_offset),
            lead=max(skip if start >= self.start else 0, done_before),
            skip=self.skip if stop >= self.next_offset else 0,
            failures=tuple(f for f in self.failures if start <= f.offset < stop),
        )

    def _rows(self, a: int, b: int) -> dict[str, Any]:
        times = self.event_times
        return {
            "columns": cut(self.columns, a, b),
            "offsets": self.offsets[a:b],
            "event_times": None if times is None else times[a:b],
        }

    def _rows_before(self, n: int) -> int:
        """Rows of record ``offsets[n]`` that lie before row ``n``, delivered ones included."""
        if n and self.offsets[n - 1] < self.offsets[n]:
            return 0
        first = int(self.offsets.searchsorted(self.offsets[n]))
        return n - first + (self.lead if first == 0 else 0)

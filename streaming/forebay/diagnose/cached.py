"""A source that gives the same few slices from memory, again and again: it costs next to nothing.

What a run loses to its source, and what to its stages, shows when it is run without them: on
records that were read before, or on slices that were finished before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forebay.columns import Columns
from forebay.engine import Engine, Plan
from forebay.slice import Slice
from forebay.source import Owns, Source, Split
from forebay.state import Position

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class CachedSource:
    """Gives ``slices``, each split's in order and again from the first; never ends."""

    slices: Sequence[Slice]

    @property
    def bounded(self) -> bool:
        return False

    def splits(self) -> Sequence[Split]:
        names = dict.fromkeys(s.split for s in self.slices)
        return [Split(id=k, group="cached", number=i) for i, k in enumerate(names)]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> CachedReader:
        return CachedReader(self, positions)


class CachedReader:
    """Reads a ``CachedSource``: offsets go on rising, as if there were more and more."""

    def __init__(self, source: CachedSource, positions: Mapping[str, Position]) -> None:
        self._slices, self._turn = list(source.slices), 0
        self._paused: frozenset[str] = frozenset()
        first = {s.id: 0 for s in source.splits()}
        self._next = {k: positions[k].low if k in positions else 0 for k in first}

    def positions(self) -> Mapping[str, Position]:
        return {k: Position(at, base=0) for k, at in self._next.items()}

    def poll(self, timeout: float) -> Slice | None:
        for _ in self._slices:
            s = self._slices[self._turn]
            self._turn = (self._turn + 1) % len(self._slices)
            if s.split not in self._paused:
                return self._moved(s)
        time.sleep(min(timeout, 0.001))
        return None

    def pause(self, splits: Collection[str]) -> None:
        self._paused = frozenset(splits)

    def finished_splits(self) -> Collection[str]:
        return ()

    def ends(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is open."""

    def _moved(self, s: Slice) -> Slice:
        """The slice behind those that were given of its split. A trainer may write into what it
        is given, so each time it is a copy."""
        start = self._next[s.split]
        self._next[s.split] = start + s.next_offset - s.start
        return replace(
            s,
            columns=_copied(s.columns),
            offsets=s.offsets + (start - s.start),
            start=start,
            next_offset=self._next[s.split],
        )


def sample(
    source: Source,
    positions: Mapping[str, Position],
    owns: Owns,
    *,
    rows: int,
    max_bytes: int,
    seconds: float,
    patience: float,
) -> list[Slice]:
    """Read some records, with a reader of its own that is closed again.

    Ends after ``rows`` rows or ``max_bytes``; after ``seconds`` if there are some, and after
    ``patience`` if there are none.

    Raises:
        SourceError, StateError, DataLossError: as ``Source.open`` and ``Reader.poll``.
    """
    reader, began = source.open(positions, owns), time.monotonic()
    read: list[Slice] = []
    try:
        while time.monotonic() - began < (seconds if read else patience):
            s = reader.poll(_POLL_SECONDS)
            if s is not None and len(s):
                read.append(_alone(s))
            at_end = source.bounded and set(reader.finished_splits()) >= set(reader.positions())
            if _enough(read, rows, max_bytes) or (s is None and at_end):
                break
    finally:
        reader.close()
    return read


def finished(
    engine: Engine, plan: Plan, *, rows: int, seconds: float, patience: float
) -> list[Slice]:
    """What an engine makes of the slices of a plan that never ends; rows that fail are left out.

    Ends after ``rows`` rows, after half of the plan's bytes, after ``seconds`` if there are some,
    and after ``patience`` if there are none. The first slices are not kept: an engine cuts them
    smaller, to learn what a row costs.
    """
    feed, began = engine.start(plan), time.monotonic()
    made: list[Slice] = []
    try:
        while time.monotonic() - began < (seconds if made else patience):
            if (s := feed.take(_POLL_SECONDS)) is not None:
                feed.release(s)
                if len(s):
                    made.append(replace(_alone(s), source_rows=None, ticket=0))
            if _enough(made, rows, plan.max_bytes // 2):
                break
    finally:
        feed.close()
    return made[len(made) // 3 :]


def _alone(s: Slice) -> Slice:
    """The slice without what ties it to its place in the source."""
    return replace(s, token=None, resets=False, failures=(), phase=0)


def _enough(read: Sequence[Slice], rows: int, max_bytes: int) -> bool:
    return sum(map(len, read)) >= rows or sum(s.nbytes for s in read) >= max_bytes


def _copied(columns: Columns) -> Columns:
    return {k: c.copy() if isinstance(c, np.ndarray) else c for k, c in columns.items()}

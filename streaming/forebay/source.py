"""What a connector implements: a source made of splits, and a reader on them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from forebay.slice import Slice
from forebay.state import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One ordered, possibly growing log of rows: a topic-partition, a shard file."""

    id: str
    """Unique and stable, for people to read: ``kafka:clicks/3``."""
    group: str
    """What the split is a part of: the topic, the table."""
    number: int
    """Its number in the group: the partition."""

    def owner(self, world_size: int) -> int:
        """The rank that reads this split; new splits of a group never move old ones."""
        return (zlib.crc32(self.group.encode()) + self.number) % world_size


Owns: TypeAlias = Callable[[Split], bool]


class Reader(Protocol):
    """Reads the splits it was opened on, each in offset order.

    Every method but ``ends`` is called from one thread only, the engine's reading thread.
    """

    def positions(self) -> Mapping[str, Position]:
        """Where the reading of every owned split began, as resolved when it was opened.

        A saved position comes back as it was given, unless a gap policy moved it. Splits that
        start by the source's rule are here with the offset that rule gave, so that a state
        saved before their first row remembers it.
        """

    def poll(self, timeout: float) -> Slice | None:
        """The next slice of any split that is not paused, or None if none came in time.

        Returns within ``timeout`` seconds. The slices of a split follow each other without a
        hole: each starts at the ``next_offset`` of the one before, and a slice without rows
        moves the position past records that give none. Splits found while running simply
        appear.

        Raises:
            SourceError: the source cannot be read any more; what was polled stays valid.
        """

    def pause(self, splits: Collection[str]) -> None:
        """Give nothing of these splits, and again of all others, until the next call."""

    def finished_splits(self) -> Collection[str]:
        """The splits of a bounded source that were read to their end, empty ones included."""

    def ends(self) -> Mapping[str, int]:
        """The end offset of each split, as last heard from the source itself. Any thread.

        A split whose end is unknown is absent, never 0.
        """

    def close(self) -> None:
        """Leave no thread, connection or file behind. May be called twice."""


@runtime_checkable
class Counting(Protocol):
    """A reader that counts what it does."""

    def counts(self) -> Mapping[str, float]:
        """Counts since it was opened, by name in ``snake_case`` with the unit at its end; few
        names, that are always the same. Any thread."""


def counts_of(*readers: Reader) -> dict[str, float]:
    """The counts of readers that read as one, added up; of those that do not count, none."""
    return added(*(r.counts() for r in readers if isinstance(r, Counting)))


def added(*counts: Mapping[str, float]) -> dict[str, float]:
    """Counts added up by name."""
    out: dict[str, float] = {}
    for each in counts:
        for name, n in each.items():
            out[name] = out.get(name, 0) + n
    return out


@runtime_checkable
class Source(Protocol):
    """Finds splits and opens readers. Holds configuration only: it can be pickled."""

    @property
    def bounded(self) -> bool:
        """Whether reading ends by itself."""

    def splits(self) -> Sequence[Split]:
        """List the splits that exist now.

        Raises:
            SourceError: the source cannot be reached, or does not exist.
        """

    def open(self, positions: Mapping[str, Position], owns: Owns) -> Reader:
        """Open a reader on every split for which ``owns`` is true, now or later.

        A split in ``positions`` goes on at ``Position.low``. A split that is not there starts by
        the source's own rule if the group is new, and at its very first record if other splits
        of its group have positions (it was added after the checkpoint).

        Raises:
            StateError: ``positions`` names an owned split of this source that does not exist.
            DataLossError: a position lies before what the source still holds.
            SourceError: the source cannot be reached.
        """

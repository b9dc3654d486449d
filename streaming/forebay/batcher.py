"""Cuts supplies of rows into batches of a fixed number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.columns import Columns
from forebay.errors import ConfigError
from forebay.slice import Edition, Slice
from forebay.supply import Failures, Ledger, Portion, Progress, Supply, fit_together


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How rows become batches."""

    size: int
    drop_last: bool = False
    """Leave out the rows at the end that do not fill a batch; they stay undelivered."""

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise ConfigError(f"the batch size must be a positive integer, not {self.size!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Where the rows of a batch come from: iterates over ``(split, offset)``, one for each row."""

    splits: tuple[str, ...]
    """Names of the splits, counted by ``split_index``."""
    split_index: NDArray[np.int32]
    """Shape ``[rows]``."""
    offsets: NDArray[np.int64]
    """Offset of each row's source record, shape ``[rows]``."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        names = self.splits
        pairs = zip(self.split_index.tolist(), self.offsets.tolist(), strict=True)
        return ((names[i], offset) for i, offset in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one batch before they are put together; without rows, only progress."""

    portions: Sequence[Portion]
    rows: int
    progress: Progress | None
    """None while rows that were taken before are held back for a batch."""

    @property
    def columns(self) -> list[Columns]:
        """The columns of each portion that has rows."""
        return [p.columns for p in self.portions if len(p)]

    @property
    def finished(self) -> list[Slice]:
        """Slices whose room can be given back once the batch was delivered."""
        return [s for p in self.portions for s in p.finished]

    @property
    def failures(self) -> Failures:
        """Rows that failed on the way to this batch."""
        return tuple(f for p in self.portions for f in p.failures)

    def origins(self) -> Origins:
        """The split and offset of each row."""
        if len(self.portions) == 1:  # as most are: nothing to join
            (p,) = self.portions
            return Origins(splits=tuple(p.splits), split_index=p.split_index, offsets=p.offsets)
        names = list(dict.fromkeys(name for p in self.portions for name in p.splits))
        place = {name: i for i, name in enumerate(names)}
        index = [
            np.array([place[n] for n in p.splits], np.int32)[p.split_index] for p in self.portions
        ]
        return Origins(
            splits=tuple(names),
            split_index=np.concatenate(index),
            offsets=np.concatenate([p.offsets for p in self.portions]),
        )

    def event_times(self) -> NDArray[np.int64] | None:
        """Event time of each row that has one, milliseconds since the epoch."""
        times = [p.event_times for p in self.portions if p.event_times is not None]
        return np.concatenate(times) if times else None

    def newest(self) -> dict[str, int]:
        """The last event time of each split that has one, milliseconds since the epoch."""
        out: dict[str, int] = {}
        for p in self.portions:
            if p.event_times is None or not len(p):
                continue
            for i in range(len(p.splits)):
                times = p.event_times if len(p.splits) == 1 else p.event_times[p.split_index == i]
                if len(times):
                    name = p.splits[i]
                    out[name] = max(int(times.max()), out.get(name, int(times[0])))
        return out


def groups(supplies: Iterable[Supply], ledger: Ledger, batching: Batching) -> Iterator[Group]:
    """Group rows into batches of ``batching.size``; the last may be smaller, or is left out.

    A batch before another edition may be smaller, too: the columns of its rows would not fit to
    those that follow. Portions without rows are given at once: they may be many, and hold dead
    letters.
    """
    held: list[Portion] = []
    room, editions = batching.size, frozenset[Edition]()
    for supply in supplies:
        supply_editions = supply.editions
        if held and not fit_together(editions, supply_editions):
            yield Group(portions=held, rows=batching.size - room, progress=ledger.progress())
            held, room = [], batching.size
        editions = editions | supply_editions if held else supply_editions
        while True:
            portion = supply.take(min(room, supply.left))
            if held and not len(portion):
                yield Group(portions=[portion], rows=0, progress=None)
                break
            held.append(portion)
            room -= len(portion)
            if room == 0 or room == batching.size:
                yield Group(portions=held, rows=batching.size - room, progress=ledger.progress())
                held, room, editions = [], batching.size, supply_editions
            if not supply.left:
                break
    if held and not batching.drop_last:
        yield Group(portions=held, rows=batching.size - room, progress=ledger.progress())

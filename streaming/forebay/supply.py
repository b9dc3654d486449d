"""Where batches take their rows from: a slice as it came, or a shuffle window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forebay.columns import Columns, Indices, joined, take
from forebay.errors import StateError
from forebay.rng import permutation
from forebay.slice import Edition, Failure, Slice
from forebay.state import Mixture, Position, Window, advanced

Failures = tuple[tuple[str, Failure], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What changes in the state when rows are delivered."""

    splits: Mapping[str, Position]
    """The splits whose positions moved."""
    windows: int
    open_windows: tuple[Window, ...]
    mixture: Mixture | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Rows taken from a supply."""

    columns: Columns
    splits: Sequence[str]
    """Names that ``split_index`` counts."""
    split_index: NDArray[np.int32]
    offsets: NDArray[np.int64]
    event_times: NDArray[np.int64] | None
    finished: tuple[Slice, ...] = ()
    """Slices of which these are the last rows: their room can be given back on delivery."""
    failures: Failures = ()

    def __len__(self) -> int:
        return len(self.offsets)


class Ledger:
    """What will have been delivered once everything that was taken is."""

    def __init__(
        self,
        splits: Mapping[str, Position],
        windows: int,
        open_windows: tuple[Window, ...],
        mixture: Mixture | None = None,
    ) -> None:
        self.splits = dict(splits)
        self.windows, self.open_windows = windows, open_windows
        self.mixture = mixture
        self._changed: set[str] = set()

    def deliver(self, s: Slice) -> None:
        """Count a slice as delivered."""
        known = {s.split: self.splits[s.split]} if s.split in self.splits else {}
        self.move(advanced(known, [s]))

    def move(self, splits: Mapping[str, Position]) -> None:
        """Set the positions of these splits."""
        self.splits.update(splits)
        self._changed.update(splits)

    def progress(self) -> Progress:
        """What changed since the last call."""
        changed = {k: self.splits[k] for k in self._changed}
        self._changed.clear()
        return Progress(
            splits=changed,
            windows=self.windows,
            open_windows=self.open_windows,
            mixture=self.mixture,
        )


class Supply(Protocol):
    """Rows to take in order. Taking moves the ledger."""

    @property
    def left(self) -> int:
        """Rows not taken yet."""

    @property
    def editions(self) -> frozenset[Edition]:
        """The editions of its rows, none of which exclude each other (see ``Slice.edition``)."""

    def take(self, n: int) -> Portion:
        """The next ``n`` rows, at most ``left``; with the last row comes all that follows it."""


class SliceSupply:
    """The rows of one slice, in their order."""

    def __init__(self, s: Slice, ledger: Ledger) -> None:
        self._s, self._ledger = s, ledger

    @property
    def left(self) -> int:
        return len(self._s)

    @property
    def editions(self) -> frozenset[Edition]:
        return editions_of([self._s])

    def take(self, n: int) -> Portion:
        s, self._s = self._s.head(n), self._s.tail(n)
        self._ledger.deliver(s)
        return Portion(
            columns=s.columns,
            splits=(s.split,),
            split_index=np.zeros(len(s), np.int32),
            offsets=s.offsets,
            event_times=s.event_times,
            finished=(s.bare(),) if s.ticket else (),
            failures=tuple((s.split, f) for f in s.failures),
        )


class WindowSupply:
    """The rows of a shuffle window, in the order of its permutation.

    Args:
        slices: all rows of the window that this rank owns.
        window: its description, with the number of rows already delivered.
        after: the positions once the window is delivered.
        ledger: is moved, and lists the window as open until then.

    Raises:
        StateError: the slices have other rows than the window had when the state was saved.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        window: Window,
        pass_index: int,
        after: Mapping[str, Position],
        ledger: Ledger,
    ) -> None:
        self._window, self._ledger, self._after = window, ledger, after
        self._finished = tuple(s.bare() for s in slices if s.ticket)
        ordered = sorted(slices, key=lambda s: (s.split, s.start, s.lead))
        _check_rows(ordered, window)
        filled = [s for s in ordered if len(s)]
        self._names = sorted(window.after)
        self._columns = joined([s.columns for s in filled]) if filled else {}
        self._offsets = _joined([s.offsets for s in filled])
        place = {name: i for i, name in enumerate(self._names)}
        self._split_index = np.repeat(
            np.array([place[s.split] for s in filled], np.int32),
            [len(s) for s in filled],
        )
        times = [s.event_times for s in filled if s.event_times is not None]
        self._times = _joined(times) if times and len(times) == len(filled) else None
        self._failures = tuple((s.split, f) for s in ordered for f in s.failures)
        self._rows, self._places = _order(window, self._names, pass_index)
        self._taken = 0
        self.editions = editions_of(filled)

    @property
    def left(self) -> int:
        return len(self._rows) - self._taken

    def take(self, n: int) -> Portion:
        rows = self._rows[self._taken : self._taken + n]
        self._taken += len(rows)
        failures, self._failures = self._failures, ()
        last = not self.left
        self._count(last)
        return Portion(
            columns=take(self._columns, rows),
            splits=self._names,
            split_index=self._split_index[rows],
            offsets=self._offsets[rows],
            event_times=None if self._times is None else self._times[rows],
            finished=self._finished if last else (),
            failures=failures,
        )

    def _count(self, last: bool) -> None:
        others = tuple(w for w in self._ledger.open_windows if w is not self._window)
        if last:
            self._ledger.open_windows = others
            self._ledger.move(self._after)
        else:
            delivered = int(self._places[self._taken - 1]) + 1
            self._window = replace(self._window, delivered=delivered)
            self._ledger.open_windows = (self._window, *others)


def _order(window: Window, owned: Sequence[str], pass_index: int) -> tuple[Indices, Indices]:
    """The rows still to deliver, as places among the owned rows, and their places in the order.

    The rows of all splits are numbered in the order of their names; only the owned ones exist
    here, so their numbers are brought down to places in the columns.
    """
    names = sorted(window.rows)
    counts = [window.rows[k] for k in names]
    local = np.full(sum(counts), -1, np.int64)
    kept = set(owned)
    mine = np.repeat([k in kept for k in names], counts)
    local[mine] = np.arange(int(mine.sum()))
    order = local[
        permutation(len(local), seed=window.seed, pass_index=pass_index, index=window.index)
    ]
    places = np.flatnonzero(order >= 0)
    places = places[places >= window.delivered]
    return order[places], places


def _check_rows(slices: Sequence[Slice], window: Window) -> None:
    given = rows_by_split(slices)
    for split in window.after:
        rows = given.get(split, 0)
        if rows != window.rows.get(split, 0):
            raise StateError(
                f"the state was saved inside a shuffle window with {window.rows.get(split, 0)} "
                f"rows of {split}; the same records now give {rows}. The stages changed since: "
                "resume with the stages of then, and change them after a window's end."
            )


def rows_by_split(slices: Iterable[Slice]) -> dict[str, int]:
    """How many rows the slices have of each split, by its name, in the order of the names."""
    rows: dict[str, int] = {}
    for s in slices:
        rows[s.split] = rows.get(s.split, 0) + len(s)
    return dict(sorted(rows.items()))


def editions_of(slices: Iterable[Slice]) -> frozenset[Edition]:
    """The editions of the rows of these slices."""
    return frozenset(s.edition for s in slices if s.edition is not None and len(s))


def fit_together(some: frozenset[Edition], others: frozenset[Edition]) -> bool:
    """Whether their rows may stand together: of nothing there are two editions."""
    both = some | others
    return len({name for name, _ in both}) == len(both)


def _joined(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)

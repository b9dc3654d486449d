"""Which physical rows of a data file are wanted, by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Only:
    """These rows and no others."""

    rows: NDArray[np.int64]
    """Sorted, without repeats."""


@dataclass(frozen=True, slots=True, eq=False)
class AllBut:
    """All rows except these: what a deletion vector says."""

    rows: NDArray[np.int64]
    """Sorted, without repeats."""


Selection: TypeAlias = "Only | AllBut | None"
"""None: all rows."""


def mask_of(selection: Selection, start: int, stop: int) -> NDArray[np.bool_] | None:
    """Which of the rows `start` to `stop` are wanted; None for all of them."""
    if selection is None:
        return None
    listed = _between(selection.rows, start, stop)
    if isinstance(selection, AllBut) and not len(listed):
        return None
    mask = np.full(stop - start, isinstance(selection, AllBut))
    mask[listed - start] = isinstance(selection, Only)
    return mask


def wants(selection: Selection, start: int, stop: int) -> bool:
    """Whether any of the rows `start` to `stop` is wanted."""
    if selection is None:
        return stop > start
    listed = len(_between(selection.rows, start, stop))
    return listed > 0 if isinstance(selection, Only) else listed < stop - start


def _between(rows: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    a, b = np.searchsorted(rows, [start, stop])
    return rows[a:b]

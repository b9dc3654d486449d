"""Counter-based random numbers: the same for a row whatever thread, order or restart.

Each number is a hash (SplitMix64's finaliser, Steele, Lea and Flood 2014) of
(seed, pass, stage, split, offset, ordinal in the record, draw, lane), so nothing is stored and
nothing depends on which rows were handled before.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Run:
    """What keys the random numbers of a whole run."""

    seed: int = 0
    pass_index: int = 0


class RowRandom:
    """Random numbers for the rows of one slice; successive calls give fresh ones.

    Every method returns an array whose first axis is the row, float64 unless said. A stage
    must make the same calls in the same order for every slice.
    """

    def __init__(self, run: Run, stage: str, split: str, offsets: NDArray[np.int64]) -> None:
        self._run, self._stage, self._split, self._offsets = run, stage, split, offsets
        self._keys: NDArray[np.uint64] | None = None
        self._draws = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def bits(self, lanes: int = 1) -> NDArray[np.uint64]:
        """Uniform 64-bit words, shape ``[rows, lanes]``."""
        if self._keys is None:
            self._keys = self._row_keys()
        self._draws += 1
        counter = np.arange(lanes, dtype=np.uint64) + np.uint64(self._draws << 32)
        with np.errstate(over="ignore"):
            return _mix(self._keys[:, None] + counter[None, :] * _GOLDEN)

    def uniform(
        self, low: float = 0.0, high: float = 1.0, size: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Uniform in ``[low, high)``, shape ``[rows, *size]``."""
        lanes = int(np.prod(size, dtype=np.int64))
        unit = (self.bits(lanes) >> np.uint64(11)).astype(np.float64) * _TO_UNIT
        return (low + unit * (high - low)).reshape(len(self), *size)

    def integers(self, low: int, high: int, size: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """Uniform integers in ``[low, high)``, int64, shape ``[rows, *size]``.

        Raises:
            ValueError: ``high <= low``.
        """
        if high <= low:
            raise ValueError(f"integers({low}, {high}) is an empty range")
        drawn = np.floor(self.uniform(0, high - low, size)).astype(np.int64)
        return np.minimum(drawn, high - low - 1) + low

    def normal(
        self, mean: float = 0.0, std: float = 1.0, size: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Normal deviates by the Box-Muller transform, shape ``[rows, *size]``."""
        u, v = 1.0 - self.uniform(size=size), self.uniform(size=size)
        return mean + std * np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)

    def chance(self, p: float) -> NDArray[np.bool_]:
        """True with probability ``p``, shape ``[rows]``, bool."""
        return self.uniform() < p

    def _row_keys(self) -> NDArray[np.uint64]:
        return _mix(
            _mix(_mix(_base(self._run, self._stage, self._split)) + self._offsets.astype(np.uint64))
            + _ordinals(self._offsets)
        )


def permutation(n: int, *, seed: int, pass_index: int, index: int) -> NDArray[np.int64]:
    """The order in which the ``n`` rows of shuffle window ``index`` are delivered."""
    key = _mix(_mix(_base(Run(seed, pass_index), "shuffle", "")) + np.uint64(index))
    with np.errstate(over="ignore"):
        words = _mix(key + np.arange(n, dtype=np.uint64) * _GOLDEN)
    order: NDArray[np.int64] = np.argsort(words, kind="stable")
    return order


def _base(run: Run, stage: str, split: str) -> NDArray[np.uint64]:
    words = (run.seed, run.pass_index, zlib.crc32(stage.encode()), zlib.crc32(split.encode()))
    key = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            key = _mix(key * _GOLDEN + np.uint64(word & 0xFFFFFFFFFFFFFFFF))
    return key


def _ordinals(offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The place of each row among the rows of its record: 0, 1, 2 …"""
    if len(offsets) == 0:
        return np.zeros(0, dtype=np.uint64)
    first = np.r_[True, offsets[1:] != offsets[:-1]]
    starts = np.flatnonzero(first)
    places: NDArray[np.int64] = np.arange(len(offsets)) - starts[np.cumsum(first) - 1]
    return places.astype(np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX1
        x = (x ^ (x >> np.uint64(27))) * _MIX2
        return x ^ (x >> np.uint64(31))

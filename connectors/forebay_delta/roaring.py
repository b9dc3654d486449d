"""Decodes roaring bitmaps, as deletion vectors hold them, with NumPy.

The format: https://github.com/RoaringBitmap/RoaringFormatSpec ("extension for 64-bit
implementations": a count, then for each a 32-bit key and a 32-bit bitmap).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_WITHOUT_RUNS = 12346
_WITH_RUNS = 12347
_ARRAY_LIMIT = 4096
_BITMAP_BYTES = 8192
# From this number of containers on, a bitmap with runs has offsets to them too.
_OFFSETS_FROM = 4


class _Bytes:
    """Reads numbers from a buffer, one after the other; raises ValueError at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def array(self, kind: str, count: int) -> NDArray[Any]:
        dtype = np.dtype(kind)
        stop = self._at + dtype.itemsize * count
        if stop > len(self._data):
            raise ValueError(f"it ends within its data: {len(self._data)} bytes are too few")
        found = np.frombuffer(self._data, dtype, count, self._at)
        self._at = stop
        return found

    def number(self, kind: str) -> int:
        return int(self.array(kind, 1)[0])


def decode_roaring64(data: bytes) -> NDArray[np.int64]:
    """The numbers of a 64-bit bitmap, ascending.

    Raises:
        ValueError: the bytes are no such bitmap, or hold a number of 2**63 or more.
    """
    reader = _Bytes(data)
    parts = [_bitmap32(reader) for _ in range(_count(reader))]
    numbers = np.concatenate(parts) if parts else np.empty(0, np.int64)
    if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
        raise ValueError("its numbers are not ascending")
    return numbers


def _count(reader: _Bytes) -> int:
    count = reader.number("<u8")
    if count > 1 << 32:
        raise ValueError(f"it claims to have {count} bitmaps")
    return count


def _bitmap32(reader: _Bytes) -> NDArray[np.int64]:
    high = reader.number("<u4")
    if high >= 1 << 31:
        raise ValueError(f"a key of {high} is beyond any row number")
    cookie = reader.number("<u4")
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = np.unpackbits(reader.array("u1", (count + 7) // 8), bitorder="little")
        return _containers(reader, high, flags[:count], count >= _OFFSETS_FROM)
    if cookie == _WITHOUT_RUNS:
        count = reader.number("<u4")
        if count > 1 << 16:
            raise ValueError(f"it claims to have {count} containers")
        return _containers(reader, high, np.zeros(count, np.uint8), True)
    raise ValueError(f"unknown cookie {cookie}")


def _containers(
    reader: _Bytes, high: int, run_flags: NDArray[np.uint8], has_offsets: bool
) -> NDArray[np.int64]:
    """All containers of one 32-bit bitmap; each holds the numbers that share 48 upper bits."""
    count = len(run_flags)
    headers = reader.array("<u2", 2 * count).reshape(count, 2).astype(np.int64)
    if has_offsets:
        reader.array("<u4", count)
    parts = [
        _container(reader, is_run=bool(flag), cardinality=int(less_one) + 1) + (key << 16)
        for flag, (key, less_one) in zip(run_flags, headers, strict=True)
    ]
    numbers = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return numbers + (np.int64(high) << np.int64(32))


def _container(reader: _Bytes, *, is_run: bool, cardinality: int) -> NDArray[np.int64]:
    """The lower 16 bits of a container's numbers."""
    if is_run:
        runs = reader.array("<u2", 2 * reader.number("<u2")).reshape(-1, 2).astype(np.int64)
        _check_cardinality(cardinality, int((runs[:, 1] + 1).sum()))
        return _ranges(runs[:, 0], runs[:, 1] + 1)
    if cardinality <= _ARRAY_LIMIT:
        few: NDArray[np.int64] = reader.array("<u2", cardinality).astype(np.int64)
        return few
    bits = np.unpackbits(reader.array("u1", _BITMAP_BYTES), bitorder="little")
    numbers: NDArray[np.int64] = np.flatnonzero(bits).astype(np.int64)
    _check_cardinality(cardinality, len(numbers))
    return numbers


def _check_cardinality(stated: int, found: int) -> None:
    if stated != found:
        raise ValueError(f"a container states {stated} numbers and has {found}")


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """``start, start + 1, …`` of every run, without a loop over the runs."""
    begins = np.cumsum(lengths) - lengths
    numbers: NDArray[np.int64] = np.repeat(starts - begins, lengths)
    return numbers + np.arange(len(numbers), dtype=np.int64)

"""Raw: payloads that are the bytes of an array, all of one type and shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.columns import Columns
from forebay.decode.payloads import (
    BadPayload,
    Nulls,
    Payload,
    check_nulls,
    decode_each,
    outcome,
    payloads,
)
from forebay.errors import ConfigError
from forebay.rng import RowRandom
from forebay.stage import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RawDecoder:
    """The stage that ``raw`` describes."""

    name: str
    column: str
    dtype: str
    shape: tuple[int, ...]
    nulls: Nulls
    into: str

    def __post_init__(self) -> None:
        check_nulls(self.nulls, may_keep=False, why=": the elements of an array have no null")
        if any(n < 1 for n in self.shape):
            raise ConfigError(f"{self.name}: a shape of {self.shape} holds nothing")
        if np.dtype(self.dtype).kind not in "biuf":
            raise ConfigError(f"{self.name}: {self.dtype} is no type of numbers")

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        found = payloads(columns, self.column)
        whole: list[Payload] = []
        done = decode_each(found, self.nulls, lambda data, i: whole.append(self._checked(data)))
        made = {self.into: self._array(whole)}
        return outcome(columns, self.column, made, done.kept, done.failed)

    def _checked(self, data: Payload) -> Payload:
        size = np.dtype(self.dtype).itemsize * math.prod(self.shape)
        if len(data) != size:
            shape = "x".join(map(str, self.shape)) or "a single value"
            kind = np.dtype(self.dtype).name
            raise BadPayload(f"{len(data)} bytes, but {shape} of {kind} takes {size}")
        return data

    def _array(self, whole: Sequence[Payload]) -> NDArray[Any]:
        """One array of all payloads, in the machine's byte order."""
        # A bytearray, so that the array is writable and tensors may share its memory.
        flat = np.frombuffer(bytearray().join(whole), np.dtype(self.dtype))
        return flat.astype(flat.dtype.newbyteorder("="), copy=False).reshape(-1, *self.shape)


def raw(
    column: str,
    dtype: str,
    shape: Sequence[int] = (),
    *,
    nulls: Nulls = "dead_letter",
    into: str | None = None,
    name: str | None = None,
) -> RawDecoder:
    """Decode a column of arrays, sent as their bytes in C order, to one array ``[rows, *shape]``.

    Args:
        column: the column of payloads.
        dtype: the elements as NumPy names them, with the byte order of the sender where it may
            differ: "float32", ">i2".
        shape: the shape of one payload; () is a single value.
        nulls: rows without a payload fail ("dead_letter") or are left out ("skip").
        into: the name of the column that takes the place of ``column``; its own if None.
        name: the stage's name, by which its dead letters know it.

    Raises:
        ConfigError: ``dtype`` is no type of numbers, or ``shape`` is empty.
    """
    name = name or f"decode.raw({column})"
    try:
        dtype = np.dtype(dtype).str
    except TypeError as e:
        raise ConfigError(f"{name}: {dtype!r} is not a NumPy dtype") from e
    return RawDecoder(
        name=name,
        column=column,
        dtype=dtype,
        shape=tuple(shape),
        nulls=nulls,
        into=into or column,
    )

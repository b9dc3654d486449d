"""Columns: the rows of a slice, by name, as Arrow or NumPy arrays of one length.

A column is one of
* a ``pyarrow.Array`` (variable-length and nested values),
* a ``numpy.ndarray`` whose first axis is the row (numbers, images, tensors),
* a ``numpy.ndarray`` of dtype ``object`` holding ``bytes`` or ``None``: payloads that stay
  where the client put them until a decoder reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.errors import ConfigError

Column: TypeAlias = "pa.Array[Any] | NDArray[Any]"
Columns: TypeAlias = Mapping[str, Column]
Indices: TypeAlias = "NDArray[np.int64]"

# Arrow's 32-bit offsets end at 2 GiB; joined binary columns change to 64-bit ones well before.
_LARGE_FROM = 1 << 30


def row_count(columns: Columns) -> int:
    """The number of rows; 0 for no columns.

    Raises:
        ValueError: columns differ in length; the message names two of them.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {n}" for name, n in lengths.items())
        raise ValueError(f"columns differ in length ({listed})")
    return next(iter(lengths.values()), 0)


def cut(columns: Columns, start: int, stop: int) -> dict[str, Column]:
    """Rows ``start`` to ``stop``, without copying."""
    return {name: c[start:stop] for name, c in columns.items()}


def take(columns: Columns, indices: Indices) -> dict[str, Column]:
    """The rows at ``indices``, in that order (a copy)."""
    return {
        name: c[indices] if isinstance(c, np.ndarray) else c.take(indices)
        for name, c in columns.items()
    }


def nbytes(columns: Columns) -> int:
    """Bytes of the rows, payloads of object columns included."""
    return sum(_column_bytes(c) for c in columns.values())


def concat(parts: Sequence[Columns]) -> dict[str, Column]:
    """Join rows of several parts that have the same columns.

    Arrow columns whose types differ only in their physical form (dictionary or plain, 32 or
    64-bit offsets) are joined in the wider one.

    Raises:
        ValueError: parts differ in their columns, or a column in its shape or type.
    """
    if len(parts) == 1:
        return dict(parts[0])
    names = list(parts[0])
    for part in parts:
        if part.keys() != parts[0].keys():
            raise ValueError(f"parts have different columns: {sorted(names)} and {sorted(part)}")
    return {name: _concat_column(name, [part[name] for part in parts]) for name in names}


def joined(parts: Sequence[Columns]) -> dict[str, Column]:
    """``concat`` for rows that different slices gave.

    Raises:
        ConfigError: the parts do not fit together; names the column and the way out.
    """
    try:
        return concat(parts)
    except ValueError as e:
        raise ConfigError(
            f"the rows of a batch do not fit together: {e}. Let the stages give every row the same "
            "columns and types, for row functions with schema=."
        ) from e


def as_numpy(column: Column) -> NDArray[Any]:
    """The column as a NumPy array: numbers with their own dtype, all else as objects.

    Binary and text become object arrays of ``bytes`` and ``str``: NumPy's fixed-width types
    drop trailing zero bytes. A column of integers that holds nulls becomes an object array of
    ``int`` and ``None``: as floats, integers beyond 2**53 would change.
    """
    if isinstance(column, np.ndarray):
        return column
    if isinstance(column, pa.FixedShapeTensorArray):
        return column.to_numpy_ndarray()
    if pa.types.is_primitive(column.type) and column.null_count == 0:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    out = np.empty(len(column), dtype=object)
    out[:] = column.to_pylist()
    return out


def as_arrow(column: Column) -> pa.Array[Any]:
    """The column as an Arrow array; N-dimensional ones as fixed-shape tensors, not copied."""
    if isinstance(column, pa.Array):
        return column
    if column.dtype == object or column.ndim == 1:
        return pa.array(column)
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column))


def map_columns(columns: Columns, convert: Callable[[Column], Column]) -> dict[str, Column]:
    """Apply ``convert`` to each column."""
    return {name: convert(c) for name, c in columns.items()}


def _column_bytes(c: Column) -> int:
    if isinstance(c, np.ndarray) and c.dtype == object:
        return sum(map(_value_bytes, c)) + c.nbytes
    return c.nbytes


def _value_bytes(value: Any) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _concat_column(name: str, parts: Sequence[Column]) -> Column:
    try:
        if all(isinstance(p, np.ndarray) for p in parts):
            return np.concatenate(parts)
        return _concat_arrow([as_arrow(p) for p in parts])
    except (ValueError, pa.ArrowException) as e:
        shapes = sorted({_describe(p) for p in parts})
        raise ValueError(f"column {name!r} cannot be joined across rows: {shapes}") from e


def _concat_arrow(parts: Sequence[pa.Array[Any]]) -> pa.Array[Any]:
    plain = [p.dictionary_decode() if isinstance(p, pa.DictionaryArray) else p for p in parts]
    types = {p.type for p in plain if not pa.types.is_null(p.type)}
    large = sum(p.nbytes for p in plain) > _LARGE_FROM or any(map(_is_large, types))
    wanted = {_enlarged(t) if large else t for t in types}
    if len(wanted) == 1:
        target = wanted.pop()
        plain = [p if p.type == target else p.cast(target) for p in plain]
    return pa.concat_arrays(plain)


def _is_large(t: pa.DataType) -> bool:
    return pa.types.is_large_binary(t) or pa.types.is_large_string(t)


def _enlarged(t: pa.DataType) -> pa.DataType:
    if pa.types.is_binary(t):
        return pa.large_binary()
    if pa.types.is_string(t):
        return pa.large_string()
    return t


def _describe(c: Column) -> str:
    return f"{c.dtype}{list(c.shape[1:])}" if isinstance(c, np.ndarray) else str(c.type)

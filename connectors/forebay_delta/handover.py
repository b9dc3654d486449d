"""Columns as they are handed over: numbers without nulls as NumPy, in place, the rest as Arrow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.columns import Column
from forebay_delta.convert import Array, TypesDiffer, nulls, repeated

_DTYPES = {"bool": "bool", "halffloat": "float16", "float": "float32", "double": "float64"}


def handover(arrow: pa.DataType) -> Callable[[Array], Column]:
    """How arrays of a type become columns of a slice.

    Numbers without nulls become NumPy arrays over the same memory. It can be written to if Arrow
    decoded the values into memory of their own, as it does with Parquet.
    """
    if pa.types.is_boolean(arrow):
        return _as_bools
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return partial(_as_numbers, _dtype(arrow))
    return _as_it_is


def as_matrix(lists: Array, length: int) -> Column:
    """Lists of numbers of one length as ``[rows, length]``, over the same memory.

    Raises:
        TypesDiffer: a list is null, holds a null or has another length.
    """
    if lists.null_count or not _all_are(length, pc.list_value_length(lists)):
        raise TypesDiffer(f"not all lists are {length} long")
    values = lists.flatten()
    if values.null_count:
        raise TypesDiffer("a list holds nulls")
    dtype = _dtype(values.type)
    return _over(values, dtype).reshape(len(lists), length)


def constant(value: pa.Scalar[Any], rows: int) -> Column:
    """A column of one value."""
    column: Column
    if not value.is_valid:
        column = nulls(rows, value.type)
    elif pa.types.is_boolean(value.type) or _is_number(value.type):
        column = np.full(rows, value.as_py(), _dtype(value.type))
    else:
        column = repeated(value, rows)
    return column


def _all_are(length: int, lengths: Array) -> bool:
    return bool((lengths.to_numpy() == length).all())


def _dtype(arrow: pa.DataType) -> np.dtype[Any]:
    """Arrow's own way asks for pandas in older versions."""
    return np.dtype(_DTYPES.get(str(arrow), str(arrow)))


def _as_it_is(array: Array) -> Column:
    column: Column = array
    return column


def _as_bools(array: Array) -> Column:
    column: Column = array if array.null_count else array.to_numpy(zero_copy_only=False)
    return column


def _as_numbers(dtype: np.dtype[Any], array: Array) -> Column:
    column: Column = array
    return column if array.null_count else _over(array, dtype)


def _over(array: Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values in place. ``to_numpy`` would do, but marks them read-only: trainers would copy."""
    values = array.buffers()[1]
    if values is None:
        return np.zeros(0, dtype)
    return np.frombuffer(values, dtype, len(array), array.offset * dtype.itemsize)


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t)

"""Columns as they are handed over: numbers without nulls as NumPy, in place, the rest as Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.columns import Column
from forebay_delta.convert import Array, TypesDiffer, nulls, repeated


def as_column(array: Array) -> Column:
    """An array as a column of a slice.

    Numbers become NumPy arrays over the same memory, and writable: the memory must be the
    caller's alone. It is for decoded Parquet, of which nothing is shared.
    """
    column: Column = array
    if array.null_count == 0 and pa.types.is_boolean(array.type):
        column = array.to_numpy(zero_copy_only=False)
    elif array.null_count == 0 and _is_number(array.type):
        column = _over(array)
    return column


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
    return _over(values).reshape(len(lists), length)


def constant(value: pa.Scalar[Any], rows: int) -> Column:
    """A column of one value."""
    column: Column
    if not value.is_valid:
        column = nulls(rows, value.type)
    elif pa.types.is_boolean(value.type) or _is_number(value.type):
        column = np.full(rows, value.as_py(), value.type.to_pandas_dtype())
    else:
        column = repeated(value, rows)
    return column


def _all_are(length: int, lengths: Array) -> bool:
    return bool((lengths.to_numpy() == length).all())


def _over(array: Array) -> NDArray[Any]:
    return np.asarray(_Memory(array))


class _Memory:
    """The values of an Arrow array as NumPy sees them, writable, kept alive by it."""

    def __init__(self, array: Array) -> None:
        dtype = np.dtype(array.type.to_pandas_dtype())
        self._values = array.buffers()[1]
        address = self._values.address + array.offset * dtype.itemsize if self._values else 0
        self.__array_interface__ = {
            "version": 3,
            "shape": (len(array),),
            "typestr": dtype.str,
            "data": (address, False),
        }


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t)

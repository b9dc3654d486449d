"""JSON columns: parsed payloads, turned into one array for each field of the schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.columns import Column
from forebay.decode.json_types import numpy_type
from forebay.decode.payloads import BadPayload

Arrow: TypeAlias = "pa.Array[Any]"


def columns_of(rows: Sequence[Any], schema: pa.Schema) -> dict[str, Column]:
    """The columns of rows of ``row_type(schema)``, in the schema's order.

    Numbers and booleans that are never null come as NumPy, all else as Arrow: which of them
    depends on the schema alone.

    Raises:
        BadPayload: a value does not fit its type; names the field.
    """
    return {
        field.name: _column(list(map(attrgetter(f"f{i}"), rows)), field)
        for i, field in enumerate(schema)
    }


def _column(values: list[Any], field: pa.Field[Any]) -> Column:
    try:
        return _array(values, field)
    except (pa.ArrowException, OverflowError, ValueError) as e:
        raise BadPayload(f"field {field.name!r}: {e}") from e


def _array(values: list[Any], field: pa.Field[Any]) -> Column:
    t: Any = field.type
    numeric = pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_boolean(t)
    if numeric and not field.nullable:
        return np.fromiter(values, numpy_type(t), len(values))
    return _arrow(values, t)


def _arrow(values: list[Any], t: Any) -> Arrow:
    """The values as Arrow; nulls inside nested values are allowed, whatever the type says.

    What must not be null was checked while parsing, and a null object has no fields to give.
    """
    array: Arrow = _maker(t)(values, t)
    return array


def _maker(t: Any) -> Callable[[list[Any], Any], Arrow]:
    if pa.types.is_timestamp(t) or pa.types.is_date32(t):
        return _temporal
    if pa.types.is_struct(t):
        return _structs
    if pa.types.is_map(t):
        return _maps
    if pa.types.is_fixed_size_list(t):
        return _fixed_lists
    if pa.types.is_list(t) or pa.types.is_large_list(t):
        return _lists
    return pa.array


def _temporal(values: list[Any], t: Any) -> Arrow:
    """ISO 8601 text, read to the last digit; or integers, counted in the type's unit."""
    texts = [v if isinstance(v, str) else None for v in values]
    read: Arrow = pa.array(texts, pa.string()).cast(t)
    if not any(isinstance(v, int) for v in values):
        return read
    counted: Arrow = pa.array([v if isinstance(v, int) else None for v in values], t)
    return pc.coalesce(read, counted)


def _structs(values: list[Any], t: Any) -> Arrow:
    fields = [t.field(i) for i in range(t.num_fields)]
    made = [
        _arrow([None if v is None else getattr(v, f"f{i}") for v in values], field.type)
        for i, field in enumerate(fields)
    ]
    absent = pa.array([v is None for v in values], pa.bool_())
    return pa.StructArray.from_arrays(made, names=[f.name for f in fields], mask=absent)


def _lists(values: list[Any], t: Any) -> Arrow:
    kind: Any = pa.LargeListArray if pa.types.is_large_list(t) else pa.ListArray
    return _of_items(kind, values, _arrow(_flat(values), t.value_type))


def _fixed_lists(values: list[Any], t: Any) -> Arrow:
    size: int = t.list_size
    items = _arrow(_flat([[None] * size if v is None else v for v in values]), t.value_type)
    return pa.FixedSizeListArray.from_arrays(items, size, mask=_mask(values))


def _maps(values: list[Any], t: Any) -> Arrow:
    kind: Any = pa.MapArray
    items = _flat([None if v is None else v.values() for v in values])
    return _of_items(kind, values, pa.array(_flat(values), t.key_type), _arrow(items, t.item_type))


def _of_items(kind: Any, values: list[Any], *items: Arrow) -> Arrow:
    """An array of lists or maps, each as long as its value."""
    offsets = np.zeros(len(values) + 1, np.int64)
    offsets[1:] = np.cumsum([0 if v is None else len(v) for v in values])
    width = pa.int64() if kind is pa.LargeListArray else pa.int32()
    array: Arrow = kind.from_arrays(pa.array(offsets, width), *items, mask=_mask(values))
    return array


def _flat(values: list[Any]) -> list[Any]:
    return list(chain.from_iterable(v for v in values if v is not None))


def _mask(values: list[Any]) -> Any:
    return pa.array([v is None for v in values], pa.bool_()) if None in values else None

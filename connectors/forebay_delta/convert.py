"""From the physical type that a file has a column in to the logical type that the table declares.

What to do is decided once per file, by type; ``None`` in place of a conversion means that the
array is already as it should be, and is passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_delta.errors import UnsupportedTable
from forebay_delta.types import DeltaType, Field, List, Map, Struct, Variant

Array: TypeAlias = Any  # a pa.Array: the stubs type what a kind of array has by its values
Convert: TypeAlias = "Callable[[Array], Array]"
Mode: TypeAlias = Literal["none", "name", "id"]


class TypesDiffer(Exception):
    """A file's type has no way to the declared one, or a value of it has none."""


def find(fields: Sequence[pa.Field[Any]], wanted: Field, mode: Mode) -> int | None:
    """Where among the fields of a file the wanted one is; None if the file lacks it.

    By id where the mode says so, then by physical name, as the last resort whatever its case:
    files of mode ``id`` made by older writers carry names only.
    """
    if mode == "id" and wanted.id is not None:
        for i, field in enumerate(fields):
            if _field_id(field) == wanted.id:
                return i
    names = [f.name for f in fields]
    if wanted.physical in names:
        return names.index(wanted.physical)
    lower = [n.lower() for n in names]
    return lower.index(wanted.physical.lower()) if wanted.physical.lower() in lower else None


def conversion(source: pa.DataType, target: DeltaType, mode: Mode) -> Convert | None:
    """How arrays of the type `source` become arrays of the declared type.

    The function given raises pa.ArrowException or TypesDiffer on a value that would change.

    Raises:
        TypesDiffer: there is no way.
        UnsupportedTable: a shredded variant.
    """
    if isinstance(source, pa.BaseExtensionType):
        return _then(_stored, conversion(source.storage_type, target, mode))
    if isinstance(source, pa.DictionaryType):
        return _then(_decoded, conversion(source.value_type, target, mode))
    if isinstance(target, Variant):
        return _variant(source)
    if isinstance(target, Struct):
        return _struct(source, target, mode)
    if isinstance(target, List):
        return _list(source, target, mode)
    if isinstance(target, Map):
        return _map(source, target, mode)
    return _primitive(source, target.arrow)


def nulls(rows: int, arrow: pa.DataType) -> Array:
    """As many nulls of that type."""
    return pa.nulls(rows, arrow)  # type: ignore[call-overload]


def repeated(value: pa.Scalar[Any], rows: int) -> Array:
    """The same value in all rows."""
    return pa.repeat(value, rows)  # type: ignore[call-overload]


def _field_id(field: pa.Field[Any]) -> int | None:
    number = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if number is None else int(number)


def _then(first: Convert, second: Convert | None) -> Convert:
    return first if second is None else lambda array: second(first(array))


def _stored(array: Array) -> Array:
    return array.storage


def _decoded(array: Array) -> Array:
    return array.dictionary_decode()


# Primitive types.


def _primitive(source: pa.DataType, target: pa.DataType) -> Convert | None:
    if source == target:
        return None
    if pa.types.is_null(target) or pa.types.is_null(source):
        return lambda array: nulls(len(array), target)
    for applies, how in _CASTS:
        if applies(source, target):
            return partial(how, target)
    raise TypesDiffer


def _cast(target: pa.DataType, array: Array) -> Array:
    return array.cast(target)


def _through_integer(target: pa.DataType, array: Array) -> Array:
    """Arrow wants room for 19 digits before it looks at the values."""
    return array.cast(pa.decimal128(38, 0)).cast(target)


def _narrow_float(target: pa.DataType, array: Array) -> Array:
    narrow = array.cast(target)
    back = narrow.cast(array.type)
    same = pc.or_(pc.equal(back, array), pc.is_nan(array))
    if pc.all(same).as_py() is False:
        raise TypesDiffer
    return narrow


def _instant(target: pa.DataType, array: Array) -> Array:
    """Without a zone it is UTC; what is finer than a microsecond is cut off, as Spark does."""
    unit = array.type.unit
    utc = array.cast(pa.timestamp(unit, "UTC"))
    return utc.cast(pa.timestamp("us", "UTC"), safe=unit != "ns").cast(target)


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t)


def _is_bytes(t: pa.DataType) -> bool:
    return (
        pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_binary_view(t)
        or pa.types.is_fixed_size_binary(t)
    )


def _is_text(t: pa.DataType) -> bool:
    return pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)


_is = pa.types
_CASTS: Sequence[
    tuple[Callable[[pa.DataType, pa.DataType], bool], Callable[[pa.DataType, Array], Array]]
] = (
    (lambda s, t: _is.is_float64(s) and _is.is_float32(t), _narrow_float),
    (lambda s, t: _is_number(s) and _is_number(t) and not _float_to_int(s, t), _cast),
    (lambda s, t: _is.is_integer(s) and _is.is_decimal(t), _through_integer),
    (lambda s, t: _is.is_decimal(s) and _is.is_decimal(t), _cast),
    (lambda s, t: _is_text(s) and (_is_text(t) or _is_bytes(t)), _cast),
    (lambda s, t: _is_bytes(s) and (_is_text(t) or _is_bytes(t)), _cast),
    (lambda s, t: _is.is_timestamp(s) and _is.is_timestamp(t), _instant),
    (lambda s, t: _is.is_date(s) and (_is.is_timestamp(t) or _is.is_date(t)), _cast),
)


def _float_to_int(source: pa.DataType, target: pa.DataType) -> bool:
    return pa.types.is_floating(source) and pa.types.is_integer(target)


# Types with parts. `flatten` and `list_value_length` know every physical form of a list and honour
# slices and nulls, which a cast of a sliced list view does not (seen with pyarrow 26).


def _variant(source: pa.DataType) -> Convert | None:
    if not isinstance(source, pa.StructType):
        raise TypesDiffer
    names = [source.field(i).name for i in range(source.num_fields)]
    if "typed_value" in names:
        raise UnsupportedTable("a variant is shredded, which cannot be read here")
    if sorted(names) != ["metadata", "value"]:
        raise TypesDiffer
    arrow = Variant().arrow
    return None if source == arrow else lambda array: _as_variant(array, arrow)


def _as_variant(array: Array, arrow: pa.DataType) -> Array:
    parts = [pc.struct_field(array, name).cast(pa.binary()) for name in ("metadata", "value")]
    return _structs(array, parts, arrow)


def _struct(source: pa.DataType, target: Struct, mode: Mode) -> Convert | None:
    if not isinstance(source, pa.StructType):
        raise TypesDiffer
    fields = [source.field(i) for i in range(source.num_fields)]
    places = [find(fields, f, mode) for f in target.fields]
    converts = [
        None if at is None else conversion(fields[at].type, f.type, mode)
        for at, f in zip(places, target.fields, strict=True)
    ]
    unchanged = places == list(range(len(fields))) and not any(converts)
    if unchanged and source == target.arrow:
        return None

    def convert(array: Array) -> Array:
        given = array.flatten()
        parts = [
            nulls(len(array), f.type.arrow) if at is None else _apply(how, given[at])
            for at, how, f in zip(places, converts, target.fields, strict=True)
        ]
        return _structs(array, parts, target.arrow)

    return convert


def _structs(like: Array, parts: list[Array], arrow: pa.DataType) -> Array:
    """Structs of `parts` that are null where `like` is."""
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    if not parts:
        return pa.array([{} if v else None for v in like.is_valid().to_pylist()], arrow)
    missing = like.is_null() if like.null_count else None
    return pa.StructArray.from_arrays(parts, fields=fields, mask=missing)


def _list(source: Any, target: List, mode: Mode) -> Convert | None:
    if not _is_list(source):
        raise TypesDiffer
    element = conversion(source.value_type, target.element, mode)
    if element is None and pa.types.is_list(source):
        return None

    def convert(array: Array) -> Array:
        values = _apply(element, array.flatten())
        missing = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(_offsets(array), values, type=target.arrow, mask=missing)

    return convert


def _is_list(t: pa.DataType) -> bool:
    return (
        pa.types.is_list(t)
        or pa.types.is_large_list(t)
        or pa.types.is_fixed_size_list(t)
        or pa.types.is_list_view(t)
        or pa.types.is_large_list_view(t)
    )


def _offsets(lists: Array) -> Array:
    """Where each list begins among the flattened values, and the end of the last one."""
    lengths = pc.list_value_length(lists).fill_null(0)
    ends = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths.to_numpy(), out=ends[1:])
    return pa.array(ends).cast(pa.int32())


def _map(source: pa.DataType, target: Map, mode: Mode) -> Convert | None:
    arrow: Any = target.arrow
    if not isinstance(source, pa.MapType):
        raise TypesDiffer
    key = conversion(source.key_type, target.key, mode)
    value = conversion(source.item_type, target.value, mode)
    if key is None and value is None:
        return None

    def convert(array: Array) -> Array:
        entries = array.cast(pa.list_(pa.struct([source.key_field, source.item_field])))
        keys, values = entries.flatten().flatten()
        pairs = pa.StructArray.from_arrays(
            [_apply(key, keys), _apply(value, values)],
            fields=[arrow.key_field, arrow.item_field],
        )
        return pa.Array.from_buffers(
            target.arrow,
            len(array),
            [_valid(array), _offsets(entries).buffers()[1]],
            children=[pairs],
        )

    return convert


def _valid(array: Array) -> pa.Buffer | None:
    """The bitmap of the values that are not null, from bit 0 on."""
    if array.null_count == 0:
        return None
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _apply(convert: Convert | None, array: Array) -> Array:
    return array if convert is None else convert(array)

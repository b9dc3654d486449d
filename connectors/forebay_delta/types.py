"""The types of a Delta schema, and the Arrow types that their values are given in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from forebay_delta.errors import BrokenTable, UnsupportedTable

_PRIMITIVE: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_VARIANT = pa.struct([pa.field("metadata", pa.binary()), pa.field("value", pa.binary())])
_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?")
_TEXT = re.compile(r"(?:var)?char\(\d+\)")


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts."""

    name: str
    """As the schema has it: ``long``, ``decimal(10,2)``."""
    arrow: pa.DataType


@dataclass(frozen=True, slots=True)
class Variant:
    """Semi-structured values, given as the two binaries they are stored as."""

    arrow: pa.DataType = _VARIANT


@dataclass(frozen=True, slots=True)
class Struct:
    """Named parts."""

    fields: tuple[Field, ...]
    arrow: pa.DataType


@dataclass(frozen=True, slots=True)
class List:
    """An ``array``."""

    element: DeltaType
    arrow: pa.DataType


@dataclass(frozen=True, slots=True)
class Map:
    """Keys and values."""

    key: DeltaType
    value: DeltaType
    arrow: pa.DataType


DeltaType: TypeAlias = "Primitive | Variant | Struct | List | Map"


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a part of a struct, and how files name it."""

    name: str
    """What users see."""
    physical: str
    """Its name in files, statistics and partition values; the same as ``name`` without mapping."""
    id: int | None
    """Its Parquet field id under column mapping."""
    type: DeltaType


def fields_of(schema: Mapping[str, Any], *, mapped: bool) -> tuple[Field, ...]:
    """The fields of a table's schema or of a struct type.

    Raises:
        UnsupportedTable: a type is not known here; names it and its column.
        BrokenTable: it is no schema.
    """
    return _fields(schema, mapped, ())


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """The schema of rows with these columns; any may hold nulls, since older files lack columns."""
    return pa.schema([pa.field(f.name, f.type.arrow) for f in fields])


def _fields(struct: Mapping[str, Any], mapped: bool, path: tuple[str, ...]) -> tuple[Field, ...]:
    try:
        return tuple(_field(f, mapped, path) for f in struct["fields"])
    except (KeyError, TypeError) as e:
        raise BrokenTable(f"{_named(path)} is no struct: {str(dict(struct))[:200]}") from e


def _field(field: Mapping[str, Any], mapped: bool, path: tuple[str, ...]) -> Field:
    name, metadata = field["name"], field.get("metadata") or {}
    physical = metadata.get("delta.columnMapping.physicalName", name) if mapped else name
    number = metadata.get("delta.columnMapping.id") if mapped else None
    return Field(name, physical, number, _type(field["type"], mapped, (*path, name)))


def _type(described: Any, mapped: bool, path: tuple[str, ...]) -> DeltaType:
    if isinstance(described, str):
        return _simple(described, path)
    kind = described.get("type")
    if kind == "struct":
        fields = _fields(described, mapped, path)
        return Struct(fields, pa.struct(list(arrow_schema(fields))))
    if kind == "array":
        element = _type(described["elementType"], mapped, (*path, "element"))
        return List(element, pa.list_(pa.field("element", element.arrow)))
    if kind == "map":
        key = _type(described["keyType"], mapped, (*path, "key"))
        value = _type(described["valueType"], mapped, (*path, "value"))
        return Map(key, value, pa.map_(key.arrow, value.arrow))
    if kind == "udt":  # a class of Spark's over a type of the protocol
        return _type(described["sqlType"], mapped, path)
    raise UnsupportedTable(f"{_named(path)} has the type {kind!r}, which is not known here")


def _simple(name: str, path: tuple[str, ...]) -> DeltaType:
    if name == "variant":
        return Variant()
    if name in _PRIMITIVE:
        return Primitive(name, _PRIMITIVE[name])
    if _TEXT.fullmatch(name):
        return Primitive("string", pa.string())
    if found := _DECIMAL.fullmatch(name):
        return Primitive(name, pa.decimal128(int(found[1] or 10), int(found[2] or 0)))
    raise UnsupportedTable(f"{_named(path)} has the type {name!r}, which is not known here")


def _named(path: tuple[str, ...]) -> str:
    return f"column {'.'.join(path)!r}" if path else "the table's schema"

"""Schemas: the fields a payload must have, as ``pyarrow.Schema`` or in a short form.

The short form is a dict from field to type: ``{"id": "int64", "label": "int32?", "tags":
["string"], "user": {"name": "string"}}``. A type is the name of an Arrow type, a list of one type
(a list of such values), a dict (an object), an Arrow type, or an Arrow field. A value must be
there and not null, unless the type's name ends in ``?`` or the field says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.errors import ConfigError

Schema: TypeAlias = "pa.Schema | Mapping[str, Any]"


def arrow_schema(schema: Schema, where: str) -> pa.Schema:
    """The schema in full; a ``pyarrow.Schema`` as it is.

    Raises:
        ConfigError: a type is not known, or there are no fields; names the field and ``where``.
    """
    if not isinstance(schema, pa.Schema):
        schema = pa.schema([_field(name, t, where) for name, t in schema.items()])
    if not len(schema):
        raise ConfigError(f"{where}: the schema has no fields")
    if len(set(schema.names)) < len(schema):
        raise ConfigError(f"{where}: the schema has two fields of one name ({schema.names})")
    return schema


def _field(name: str, t: Any, where: str) -> pa.Field[Any]:
    if isinstance(t, pa.Field):
        return t.with_name(name)
    if isinstance(t, pa.DataType):
        return pa.field(name, t, nullable=False)
    if isinstance(t, str):
        return pa.field(name, _named(t.removesuffix("?"), name, where), nullable=t.endswith("?"))
    if isinstance(t, list) and len(t) == 1:
        return pa.field(name, pa.list_(_field("item", t[0], f"{where}.{name}")), nullable=False)
    if isinstance(t, Mapping):
        inner = [_field(n, v, f"{where}.{name}") for n, v in t.items()]
        return pa.field(name, pa.struct(inner), nullable=False)
    raise ConfigError(
        f"{where}: field {name!r} needs the name of a type, a list of one type, a dict, or an "
        f"Arrow type, not {t!r}"
    )


def _named(alias: Any, name: str, where: str) -> pa.DataType:
    try:
        known: pa.DataType = pa.type_for_alias(alias)
    except ValueError as e:
        raise ConfigError(
            f"{where}: field {name!r} has the unknown type {alias!r}; use an Arrow name such as "
            "int64, float32, bool, string, binary, timestamp[us] or date32"
        ) from e
    return known

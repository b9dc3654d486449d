"""JSON types: what msgspec must find in a payload for a schema to hold.

Values are checked while they are parsed, so a wrong one costs its row alone and is named by
its path (``$.user.id``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from forebay.errors import ConfigError

Type: TypeAlias = Any
"""A type in the sense of msgspec, built while the program runs."""

_INT64_MAX = np.iinfo(np.int64).max
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_LEAVES: dict[Type, tuple[Callable[[Any], bool], ...]] = {
    bool: (pa.types.is_boolean,),
    float: (pa.types.is_float32, pa.types.is_float64),
    str: (pa.types.is_string, pa.types.is_large_string),
    bytes: (pa.types.is_binary, pa.types.is_large_binary),  # msgspec reads base64
    str | int: (pa.types.is_timestamp, pa.types.is_date32),
    Decimal: (pa.types.is_decimal,),
}


@lru_cache(maxsize=256)
def row_type(schema: pa.Schema, forbid_extra: bool, allow_nan: bool) -> type[msgspec.Struct]:
    """A struct for one payload; its attribute ``f0`` is the schema's first field, and so on.

    Raises:
        ConfigError: a field has a type that JSON cannot give; names the field.
    """
    return _Types(forbid_extra, allow_nan).struct("row", schema, "$")


def numpy_type(t: pa.DataType) -> np.dtype[Any]:
    """The NumPy type of a type of numbers; Arrow's own answer to that may need pandas."""
    return np.dtype(pa.array([], t).to_numpy(zero_copy_only=False).dtype)


class _Types:
    """Arrow types to msgspec types, under the options of one decoder."""

    def __init__(self, forbid_extra: bool, allow_nan: bool) -> None:
        self._forbid_extra, self._allow_nan = forbid_extra, allow_nan

    def struct(self, name: str, fields: Iterable[pa.Field[Any]], at: str) -> type[msgspec.Struct]:
        listed = list(fields)
        members = [self._member(i, field, f"{at}.{field.name}") for i, field in enumerate(listed)]
        return msgspec.defstruct(
            name,
            members,
            rename={f"f{i}": field.name for i, field in enumerate(listed)},
            forbid_unknown_fields=self._forbid_extra,
            kw_only=True,
            gc=False,  # what JSON gives has no cycles
        )

    def _member(self, i: int, field: pa.Field[Any], at: str) -> Any:
        t = self._nullable(field, at)
        return (f"f{i}", t, None) if field.nullable else (f"f{i}", t)

    def _nullable(self, field: pa.Field[Any], at: str) -> Type:
        t = self._of(field.type, at)
        return t | None if field.nullable else t

    def _of(self, t: Any, at: str) -> Type:
        if pa.types.is_struct(t):
            return self.struct("object", t, at)
        if pa.types.is_map(t):
            return self._map(t, at)
        if any(is_kind(t) for is_kind in _LISTS):
            return self._list(t, at)
        if pa.types.is_integer(t):
            return _integer(t)
        if pa.types.is_float32(t) and not self._allow_nan:
            return Annotated[float, msgspec.Meta(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)]
        for leaf, is_kinds in _LEAVES.items():
            if any(is_kind(t) for is_kind in is_kinds):
                return leaf
        raise ConfigError(f"{at}: JSON has no way to give an Arrow {t}")

    def _list(self, t: Any, at: str) -> Type:
        of_items: Type = list.__class_getitem__(self._nullable(t.value_field, f"{at}[...]"))
        if pa.types.is_fixed_size_list(t):
            size = t.list_size
            return Annotated[of_items, msgspec.Meta(min_length=size, max_length=size)]
        return of_items

    def _map(self, t: Any, at: str) -> Type:
        if not pa.types.is_string(t.key_type):
            raise ConfigError(f"{at}: keys of a JSON object are strings, not {t.key_type}")
        return dict.__class_getitem__((str, self._nullable(t.item_field, f"{at}[...]")))


def _integer(t: Any) -> Type:
    bounds = np.iinfo(numpy_type(t))
    # msgspec has no bound beyond int64; for uint64 the array's own check comes after it.
    most = int(bounds.max) if bounds.max <= _INT64_MAX else None
    return Annotated[int, msgspec.Meta(ge=int(bounds.min), le=most)]

"""What is read of a table: which columns, under which names and types, and which rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import pyarrow as pa

from forebay.errors import ConfigError
from forebay_delta.actions import Metadata
from forebay_delta.convert import Mode
from forebay_delta.filters import Filter
from forebay_delta.types import Field, List, Primitive, arrow_schema, fields_of

CHANGE_TYPE = Field("_change_type", "_change_type", None, Primitive("string", pa.string()))
"""The column that files of the change feed have beside those of the table."""


class Projection:
    """What to read of a table. Immutable; may be shared by threads.

    Args:
        metadata: the version whose schema the rows are read with.
        columns: names of the columns to give, in that order; None for all.
        filter: which rows to give. The columns it needs are read even if they are not given.
        change_type: also give ``_change_type``, which only files of the change feed have.
        lengths: columns of number lists that all have this length and no nulls; they are given as
            NumPy arrays ``[rows, length]``. Other lists are given as Arrow lists whatever their
            lengths and their form in the file, so that a column never changes its form.

    Raises:
        ConfigError: a column is not in the table, or cannot have a length.
        UnsupportedTable: a column of the table has a type that is not known.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        change_type: bool = False,
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        self.mode: Mode = metadata.mapping_mode
        known = {f.name: f for f in fields_of(metadata.schema, mapped=self.mode != "none")}
        chosen = list(known) if columns is None else list(columns)
        fields = [_field(known, name) for name in chosen]
        if len(known_twice := {n for n in chosen if chosen.count(n) > 1}):
            raise ConfigError(f"columns named more than once: {', '.join(sorted(known_twice))}")
        self.fields: tuple[Field, ...] = (*fields, CHANGE_TYPE) if change_type else (*fields,)
        self.filter = filter
        self.filter_fields = tuple(_field(known, n) for n in filter.columns) if filter else ()
        self.partitions = frozenset(metadata.partition_columns)
        self.lengths = dict(lengths or {})
        for name in self.lengths:
            if name in known and name not in chosen:
                raise ConfigError(f"lengths names {name!r}, which columns= leaves out")
            _check_length(_field(known, name))
        self.schema: pa.Schema = arrow_schema(self.fields)

    @property
    def read_fields(self) -> tuple[Field, ...]:
        """The columns to give and those that the filter looks at, each once."""
        return tuple({f.name: f for f in (*self.fields, *self.filter_fields)}.values())


def _field(known: Mapping[str, Field], name: str) -> Field:
    if name in known:
        return known[name]
    raise ConfigError(f"the table has no column {name!r}{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    lower = {n.lower(): n for n in names}
    near = [lower[n] for n in get_close_matches(name.lower(), lower, 2)]
    asked = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"{asked} Its columns are: {', '.join(names)}"


def _check_length(field: Field) -> None:
    if not isinstance(field.type, List) or not _is_number(field.type.element.arrow):
        raise ConfigError(
            f"column {field.name!r} is {field.type.arrow}: only lists of numbers have a length"
        )


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t)

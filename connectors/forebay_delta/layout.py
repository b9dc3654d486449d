"""Where the columns of a projection are in one file, and what must be done to their arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.columns import Column
from forebay_delta.actions import DataFile
from forebay_delta.convert import Array, Convert, TypesDiffer, conversion, find
from forebay_delta.errors import BrokenTable, SchemaChanged, UnsupportedTable
from forebay_delta.filters import Filter
from forebay_delta.handover import as_matrix, constant, handover
from forebay_delta.partition import partition_scalar
from forebay_delta.projection import CHANGE_TYPE, Projection
from forebay_delta.types import Field

HandOver: TypeAlias = "Callable[[Array], Column]"


@dataclass(frozen=True, slots=True)
class Stored:
    """A column that the file holds."""

    field: Field
    place: int
    """Its number among the file's columns."""
    physical: pa.Field[Any]
    convert: Convert | None
    """None if it is stored as the table declares it."""


class Layout:
    """The columns of a projection in one file.

    Raises:
        SchemaChanged: a column's type does not fit the schema it is to be read with.
        UnsupportedTable: a column is a shredded variant.
        BrokenTable: a partition value is none, or a file of changes says nothing of changes.
    """

    def __init__(self, file: DataFile, projection: Projection, schema: pa.Schema) -> None:
        self._path, self._projection = file.path, projection
        self._constants: dict[str, pa.Scalar[Any]] = {}
        self._stored: dict[str, Stored] = {}
        for field in projection.read_fields:
            self._locate(field, file, list(schema))
        self.filter = _remaining(projection.filter, self._constants)
        """What of the filter depends on the row; None if all rows are wanted."""
        self.read = self._to_read()
        """The columns to read from the file, each once."""
        self._hand_over = {f.name: self._hand_over_of(f) for f in projection.fields}

    @property
    def places(self) -> list[int]:
        """Numbers of the columns to read."""
        return [s.place for s in self.read]

    def unchanged(self, names: Sequence[str]) -> list[Stored]:
        """Those of the columns that the file stores as the table declares them."""
        stored = [self._stored[n] for n in names if n in self._stored]
        return [s for s in stored if s.convert is None]

    def arrays(self, batch: pa.RecordBatch | None) -> dict[str, Array]:
        """The columns read, in their declared types, by logical name.

        Raises:
            SchemaChanged: a value does not fit.
        """
        if batch is None:
            return {}
        place = {name: i for i, name in enumerate(batch.schema.names)}
        return {
            s.field.name: self._converted(s, batch.column(place[s.physical.name]))
            for s in self.read
        }

    def columns(self, arrays: Mapping[str, Array], rows: int) -> dict[str, Column]:
        """All columns of the projection in its order, of so many rows.

        Raises:
            SchemaChanged: lists differ from the length that was stated for them.
        """
        return {
            name: constant(self._constants[name], rows) if hand is None else hand(arrays[name])
            for name, hand in self._hand_over.items()
        }

    def _locate(self, field: Field, file: DataFile, columns: list[pa.Field[Any]]) -> None:
        if field.name in self._projection.partitions:
            self._constants[field.name] = partition_scalar(file.partition_values, field, file.path)
            return
        place = find(columns, field, self._projection.mode)
        if place is not None:
            how = self._conversion(field, columns[place])
            self._stored[field.name] = Stored(field, place, columns[place], how)
        elif field is CHANGE_TYPE:
            raise BrokenTable(f"{file.path}: a file of changes has no column {field.name!r}")
        else:
            self._constants[field.name] = pa.scalar(None, field.type.arrow)

    def _conversion(self, field: Field, physical: pa.Field[Any]) -> Convert | None:
        try:
            return conversion(physical.type, field.type, self._projection.mode)
        except TypesDiffer as e:
            raise self._schema_changed(field, physical, e) from e
        except UnsupportedTable as e:
            raise UnsupportedTable(f"{self._path}: column {field.name!r}: {e}") from e

    def _to_read(self) -> list[Stored]:
        names = [f.name for f in self._projection.fields]
        names += self.filter.columns if self.filter else ()
        return [self._stored[n] for n in dict.fromkeys(names) if n in self._stored]

    def _hand_over_of(self, field: Field) -> HandOver | None:
        """None for a column of one value."""
        if field.name in self._constants:
            return None
        length = self._projection.lengths.get(field.name)
        if length is None:
            return handover(field.type.arrow)
        return lambda lists: self._matrix(self._stored[field.name], lists, length)

    def _converted(self, stored: Stored, array: Array) -> Array:
        if stored.convert is None:
            return array
        try:
            return stored.convert(array)
        except (TypesDiffer, pa.ArrowException) as e:
            raise self._schema_changed(stored.field, stored.physical, e) from e

    def _matrix(self, stored: Stored, lists: Array, length: int) -> Column:
        try:
            return as_matrix(lists, length)
        except TypesDiffer as e:
            name = stored.field.name
            raise SchemaChanged(
                f"{self._path}: lengths={{{name!r}: {length}}}, but {e}. Without the column in "
                "lengths its rows come as lists, each of its own length."
            ) from e

    def _schema_changed(
        self, field: Field, physical: pa.Field[Any], cause: Exception
    ) -> SchemaChanged:
        why = f": {cause}" if str(cause) else ""
        return SchemaChanged(
            f"{self._path}: column {field.name!r} is {physical.type} in the file, which does not "
            f"fit {field.type.arrow} of the schema it is read with{why}"
        )


def _remaining(filter: Filter | None, constants: Mapping[str, pa.Scalar[Any]]) -> Filter | None:
    if filter is None:
        return None
    left = filter.given(constants)
    return None if left.wants_all else left

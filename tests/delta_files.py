"""Data files of Delta tables, written with Arrow, and the rows that a scan gives of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.columns import as_arrow
from forebay_delta.actions import DataFile, Metadata
from forebay_delta.datafile import FileScan, Piece
from forebay_delta.projection import Projection
from forebay_delta.store import open_store


def field(name: str, of: Any, **metadata: Any) -> dict[str, Any]:
    """A field of a Delta schema."""
    return {"name": name, "type": of, "nullable": True, "metadata": metadata}


def mapped(name: str, of: Any, number: int, physical: str) -> dict[str, Any]:
    """A field under column mapping."""
    keys = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return field(name, of, **keys)


def struct(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """A struct type, and a schema."""
    return {"type": "struct", "fields": list(fields)}


def array_of(element: Any) -> dict[str, Any]:
    """An array type."""
    return {"type": "array", "elementType": element, "containsNull": True}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    """A map type."""
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def metadata(*fields: Mapping[str, Any], by: Sequence[str] = (), mode: str = "none") -> Metadata:
    """A table's metadata; partitioned `by` columns, with column mapping `mode`."""
    configuration = {} if mode == "none" else {"delta.columnMapping.mode": mode}
    return Metadata(
        id="t",
        schema=struct(*fields),
        partition_columns=tuple(by),
        configuration=configuration,
    )


def write(folder: Path, table: pa.Table, name: str = "a.parquet", **options: Any) -> DataFile:
    """The table as a Parquet file."""
    values = options.pop("partition_values", {})
    pq.write_table(table, folder / name, **options)
    size = (folder / name).stat().st_size
    return DataFile(path=name, partition_values=values, size=size)


def pieces(folder: Path, file: DataFile, projection: Projection, **options: Any) -> list[Piece]:
    """What a scan gives; checked for that it answers for every row once, in order."""
    with FileScan(open_store(folder), file, projection, **options) as scan:
        found, reached = list(scan), options.get("start_row", 0)
        for piece in found:
            assert piece.first == reached < piece.stop
            assert np.all((reached <= piece.rows) & (piece.rows < piece.stop))
            assert np.all(np.diff(piece.rows) > 0)
            assert {len(piece.rows)} >= {len(c) for c in piece.columns.values()}
            reached = piece.stop
        assert reached == max(scan.num_rows, options.get("start_row", 0))
    return found


def rows(folder: Path, file: DataFile, projection: Projection, **options: Any) -> pa.Table:
    """The rows that a scan gives, in the types that the projection promises."""
    found = pieces(folder, file, projection, **options)
    return (
        pa.concat_tables([_table(p, projection.schema) for p in found])
        if found
        else (projection.schema.empty_table())
    )


def column(folder: Path, file: DataFile, about: Metadata, **options: Any) -> list[Any]:
    """The values of the only column of a table."""
    return rows(folder, file, Projection(about), **options).column(0).to_pylist()


def _table(piece: Piece, schema: pa.Schema) -> pa.Table:
    arrays = [as_arrow(c) for c in piece.columns.values()]
    for array, wanted in zip(arrays, schema, strict=True):
        array.validate(full=True)
        assert array.type == wanted.type, wanted
    return pa.Table.from_arrays(arrays, schema=schema)


_POOLS: list[pa.MemoryPool] = []
"""Kept for as long as there may be memory of theirs."""


@contextmanager
def arrow_peak() -> Iterator[Any]:
    """Gives the most bytes that Arrow held at a time since."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    _POOLS.append(counted)
    pa.set_memory_pool(counted)
    try:
        yield counted.max_memory
    finally:
        pa.set_memory_pool(usual)

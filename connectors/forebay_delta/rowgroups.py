"""What a Parquet footer says of a file's row groups: where they begin, how wide their rows are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forebay_delta.bounds import UNKNOWN, Bounds

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_LONG_TEXT = 1024
"""Bytes a value from which on texts are taken to be stored one by one."""
_COMPARABLE = (bool, int, float, str, date, datetime)


class RowGroups:
    """The row groups of one file."""

    def __init__(self, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        self._metadata = metadata
        self.rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self.starts = [0]
        for n in self.rows:
            self.starts.append(self.starts[-1] + n)
        self._types = schema.types
        self._leaves = _leaves_of(schema)

    def __len__(self) -> int:
        return len(self.rows)

    def span(self, group: int) -> tuple[int, int]:
        """First physical row of a group, and one past its last."""
        return self.starts[group], self.starts[group + 1]

    def row_bytes(self, group: int, fields: Sequence[int]) -> float:
        """Bytes of a row's values in memory; texts in dictionaries count as they are stored."""
        chunks = self._chunks(group, fields)
        return sum(map(_decoded_bytes, chunks)) / max(self.rows[group], 1)

    def stored_bytes(self, group: int, fields: Sequence[int]) -> int:
        """Bytes of the file to read for these columns."""
        return sum(c.total_compressed_size for c in self._chunks(group, fields))

    def may_repeat(self, group: int, field: int) -> bool:
        """Whether a column's texts may be stored once and used often: then they look small."""
        return any(
            c.has_dictionary_page
            and c.physical_type == "BYTE_ARRAY"
            and c.total_uncompressed_size < _LONG_TEXT * c.num_values
            for c in self._chunks(group, [field])
        )

    def bounds(self, group: int, field: int) -> Bounds:
        """What the statistics say of a column's values, as the file has them.

        Not for columns of nanoseconds: there is no Python value for them.
        """
        if pa.types.is_nested(self._types[field]):  # its statistics are those of its parts
            return UNKNOWN
        statistics: Any = self._chunks(group, [field])[0].statistics
        if statistics is None:
            return UNKNOWN
        nulls = statistics.null_count if statistics.has_null_count else None
        low, high = _extremes(statistics)
        return Bounds(
            low=low,
            high=high,
            may_be_null=nulls != 0,
            may_be_value=nulls is None or nulls < self.rows[group],
        )

    def _chunks(self, group: int, fields: Sequence[int]) -> list[pq.ColumnChunkMetaData]:
        row_group = self._metadata.row_group(group)
        return [row_group.column(leaf) for field in fields for leaf in self._leaves[field]]


def _decoded_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    width = _WIDTHS.get(chunk.physical_type)
    return chunk.num_values * width if width else chunk.total_uncompressed_size


def _extremes(statistics: Any) -> tuple[Any, Any]:
    """Least and greatest value; None where they are not known or not of a kind that compares."""
    if not statistics.has_min_max:
        return None, None
    low, high = statistics.min, statistics.max
    known = type(low) is type(high) and isinstance(low, _COMPARABLE) and low <= high  # no NaN
    return (low, high) if known else (None, None)


def _leaves_of(schema: pa.Schema) -> list[range]:
    """The Parquet columns that each field of the Arrow schema is stored in."""
    out, at = [], 0
    for field in schema:
        n = _leaf_count(field.type)
        out.append(range(at, at + n))
        at += n
    return out


def _leaf_count(t: Any) -> int:
    if isinstance(t, pa.BaseExtensionType):
        return _leaf_count(t.storage_type)
    if isinstance(t, pa.StructType):
        return sum(_leaf_count(t.field(i).type) for i in range(t.num_fields))
    if isinstance(t, pa.MapType):
        return _leaf_count(t.key_type) + _leaf_count(t.item_type)
    if pa.types.is_nested(t) and hasattr(t, "value_type"):
        return _leaf_count(t.value_type)
    return 1

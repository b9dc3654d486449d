"""The state of a table at one version: its files, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, overload

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay_delta.actions import Commit, DataFile, Metadata, Protocol
from forebay_delta.checkpoints import PARSED, Checkpoint, joined
from forebay_delta.commits import deletion_vector_of

# Rows of a checkpoint that are made into objects together: calls of Arrow cost more than rows.
_BLOCK = 256


class SnapshotFiles(Sequence[DataFile]):
    """The files of a snapshot, ordered by (modified_ms, path), as Spark orders them.

    The order depends only on the version: not on whether a checkpoint or commits told of a file.
    Files of a checkpoint stay columns, and are made into objects, some at a time, as they are
    asked for. ``data_change`` is True for all: each is a part of the table. Immutable, so it may
    be shared by threads.
    """

    def __init__(self, table: pa.Table | None, files: Sequence[DataFile]) -> None:
        """`table` is that of a checkpoint; `files` are those that commits added to it."""
        self._table = table
        self._rows = 0 if table is None else table.num_rows
        self._files = [f if f.data_change else replace(f, data_change=True) for f in files]
        self._order = _order(table, self._files)
        self._made: tuple[int, list[DataFile]] = (-1, [])

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> DataFile: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataFile]: ...
    def __getitem__(self, index: int | slice) -> DataFile | list[DataFile]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self._block(at // _BLOCK)[at % _BLOCK]

    def __iter__(self) -> Iterator[DataFile]:
        for number in range(-(-len(self) // _BLOCK)):
            yield from self._block(number)

    def _block(self, number: int) -> list[DataFile]:
        """Files ``number * _BLOCK`` and following; the last block made is kept."""
        known, made = self._made
        if known != number:
            made = self._make(self._order[number * _BLOCK : (number + 1) * _BLOCK])
            self._made = number, made
        return made

    def _make(self, places: NDArray[np.int64]) -> list[DataFile]:
        in_table = places[places < self._rows]
        if self._table is None or not len(in_table):
            return [self._files[place - self._rows] for place in places]
        rows = _rows(self._table.take(pa.array(in_table, pa.int64())))
        return [
            _data_file(next(rows)) if place < self._rows else self._files[place - self._rows]
            for place in places
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table at one version."""

    version: int
    protocol: Protocol
    metadata: Metadata
    files: SnapshotFiles
    transactions: Mapping[str, int]
    """Last version of each application, by its id."""


class Replay:
    """Applies commits, oldest first, on top of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        start = checkpoint or Checkpoint(-1)
        self.protocol, self.metadata = start.protocol, start.metadata
        self.transactions = dict(start.transactions)
        self._table = joined(start.tables)
        self._touched: dict[tuple[str, str], DataFile | None] = {f.key: f for f in start.files}

    def apply(self, commit: Commit) -> None:
        """The last action on a file, identified by path and deletion vector, decides."""
        for action in commit.files:
            if action.kind == "add":
                self._touched[action.file.key] = action.file
            elif action.kind == "remove":
                self._touched[action.file.key] = None
        self.protocol = commit.protocol or self.protocol
        self.metadata = commit.metadata or self.metadata
        self.transactions.update(commit.transactions)

    def files(self) -> SnapshotFiles:
        """The files that are left."""
        added = [file for file in self._touched.values() if file is not None]
        return SnapshotFiles(_without(self._table, list(self._touched)), added)


def _without(table: pa.Table | None, keys: Sequence[tuple[str, str]]) -> pa.Table | None:
    """Drops the rows of the files in `keys`: commits after the checkpoint have spoken of them."""
    if table is None or not keys:
        return table
    gone = pa.array(["\0".join(key) for key in keys], pa.string())
    here = _joined([table.column("path"), _vector_ids(table)], "\0")
    return table.filter(pc.invert(pc.is_in(here, gone)))


def _vector_ids(table: pa.Table) -> Any:
    """``DeletionVector.id`` of every row, empty without one."""
    vector = table.column("deletionVector")
    storage, place, offset = (
        pc.struct_field(vector, name) for name in ("storageType", "pathOrInlineDv", "offset")
    )
    at = pc.fill_null(_joined(["@", offset.cast(pa.string())]), "")
    return pc.fill_null(_joined([storage, place, at]), "")


def _joined(texts: list[Any], separator: str = "") -> Any:
    """Row by row; null where one of them is."""
    join: Any = pc.binary_join_element_wise
    return join(*texts, separator)


def _order(table: pa.Table | None, files: Sequence[DataFile]) -> NDArray[np.int64]:
    """Places in (rows of the table, then files), by modification time and path."""
    keys = pa.table(
        {
            "modificationTime": pa.array([f.modified_ms for f in files], pa.int64()),
            "path": pa.array([f.path for f in files], pa.string()),
        }
    )
    if table is not None:
        keys = pa.concat_tables([table.select(keys.column_names), keys])
    times: Any = keys.column("modificationTime")
    keys = keys.set_column(0, "modificationTime", pc.fill_null(times, 0))
    order = pc.sort_indices(
        keys, sort_keys=[("modificationTime", "ascending"), ("path", "ascending")]
    )
    return order.to_numpy().astype(np.int64)


def _rows(table: pa.Table) -> Iterator[Mapping[str, Any]]:
    """The rows as mappings; column by column, which is several times faster than row by row."""
    columns = [_values(table.column(name)) for name in table.column_names]
    for row in zip(*columns, strict=True):
        yield dict(zip(table.column_names, row, strict=True))


def _values(column: pa.ChunkedArray[Any]) -> Sequence[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    if not pa.types.is_map(column.type):
        return column.to_pylist(maps_as_pydicts="lossy")
    maps: Any = column.combine_chunks()
    keys, items, ends = maps.keys.to_pylist(), maps.items.to_pylist(), maps.offsets.to_pylist()
    present = maps.is_valid().to_pylist()
    return [
        dict(zip(keys[start:stop], items[start:stop], strict=True)) if there else None
        for start, stop, there in zip(ends[:-1], ends[1:], present, strict=True)
    ]


def _data_file(row: Mapping[str, Any]) -> DataFile:
    values, stats = row["partitionValues"], row["stats"]
    if values is None:
        values = _partition_texts(row.get(PARSED["partitionValues"]) or {})
    if stats is None and row.get(PARSED["stats"]):
        stats = orjson.dumps(row[PARSED["stats"]], default=_plain, option=orjson.OPT_UTC_Z).decode()
    return DataFile(
        path=row["path"],
        partition_values=values,
        size=row["size"] or 0,
        modified_ms=row["modificationTime"] or 0,
        deletion_vector=deletion_vector_of(row["deletionVector"]),
        stats=stats,
    )


def _plain(value: object) -> Any:
    """What orjson does not write: a decimal is a number in statistics, with all its digits."""
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    return None


def _partition_texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Typed partition values in the text form that the protocol gives them."""
    return {name: None if v is None else _partition_text(v) for name, v in values.items()}


def _partition_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        naive = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return naive.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return value.decode() if isinstance(value, bytes) else str(value)

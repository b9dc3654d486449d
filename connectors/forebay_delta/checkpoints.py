"""Reads checkpoints: the state of a table at one version, in one of four layouts.

Classic (one Parquet file), multi-part, and version 2 with its files' actions inline or in
sidecars, in JSON or Parquet. The files stay Arrow columns: a table may have a million of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forebay_delta.actions import DataFile, Metadata, Protocol
from forebay_delta.commits import data_file_of, metadata_of, parse_lines, protocol_of
from forebay_delta.errors import BrokenTable
from forebay_delta.storage import Entry, Store

LOG = "_delta_log"

_NAME = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet"
    r"|\.(?P<uuid>[0-9a-fA-F-]{36})\.(?:parquet|json)"
    r"|\.parquet)"
)

_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD_FIELDS: dict[str, Any] = {
    "path": pa.string(),
    "partitionValues": pa.map_(pa.string(), pa.string()),
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "deletionVector": _VECTOR,
    "stats": pa.string(),
}
# What some writers store instead of a text; typed by the table's columns.
PARSED = {"partitionValues": "partitionValues_parsed", "stats": "stats_parsed"}


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files that make one whole checkpoint."""

    version: int
    names: tuple[str, ...]


@dataclass(slots=True)
class Checkpoint:
    """What a checkpoint says, its files as columns (Parquet) or one by one (JSON)."""

    version: int
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    tables: list[pa.Table] = field(default_factory=list)
    """Columns ``_ADD_FIELDS``, and those of ``PARSED`` that are needed."""
    files: list[DataFile] = field(default_factory=list)


def whole_checkpoints(entries: Iterable[Entry]) -> list[CheckpointFiles]:
    """Every checkpoint of a listing that has all its parts, the newest first.

    Several of one version hold the same; all are kept, as one of them may be broken. The hint
    ``_last_checkpoint`` is not asked: it may be old or broken, and a listing is needed anyway.
    """
    found: list[CheckpointFiles] = []
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for entry in entries:
        name = _NAME.fullmatch(entry.name)
        if name is None or entry.size == 0:
            continue
        version = int(name["version"])
        if name["part"] is None:
            found.append(CheckpointFiles(version, (entry.name,)))
        else:
            parts.setdefault((version, int(name["parts"])), {})[int(name["part"])] = entry.name
    for (version, count), names in parts.items():
        if sorted(names) == list(range(1, count + 1)):
            found.append(CheckpointFiles(version, tuple(names[n] for n in sorted(names))))
    return sorted(found, key=lambda each: (each.version, each.names), reverse=True)


def read_checkpoint(store: Store, files: CheckpointFiles) -> Checkpoint:
    """All of a checkpoint that a reader needs.

    Raises:
        BrokenTable: a file of it cannot be read or is gone; names the file.
    """
    checkpoint = Checkpoint(files.version)
    for name in files.names:
        for sidecar in _read_one(store, name, checkpoint):
            _read_one(store, f"_sidecars/{sidecar}", checkpoint)
    return checkpoint


def read_checkpoint_head(store: Store, files: CheckpointFiles) -> Checkpoint:
    """Only protocol and metadata: of a Parquet file, their columns alone are read."""
    checkpoint = Checkpoint(files.version)
    for name in files.names:
        _read_one(store, name, checkpoint, head=True)
    return checkpoint


def _read_one(store: Store, name: str, into: Checkpoint, *, head: bool = False) -> list[str]:
    """Adds what one file says; returns the names of the sidecars that it refers to."""
    path = f"{LOG}/{name}"
    where = f"{store.uri}/{path}"
    try:
        if name.endswith(".json"):
            return _read_json(store.get(path), where, into)
        with pq.ParquetFile(store.open(path)) as file:
            return _read_parquet(file, into, head=head)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise BrokenTable(f"{where} cannot be read: {error}") from error


def _read_json(data: bytes, where: str, into: Checkpoint) -> list[str]:
    sidecars = []
    for _, action in parse_lines(data, where):
        if "add" in action:
            into.files.append(data_file_of(action["add"]))
        elif "sidecar" in action:
            sidecars.append(_sidecar_name(action["sidecar"]["path"]))
        else:
            _take_head(action, into)
    return sidecars


def _take_head(action: Mapping[str, Any], into: Checkpoint) -> None:
    if "metaData" in action:
        into.metadata = metadata_of(action["metaData"])
    elif "protocol" in action:
        into.protocol = protocol_of(action["protocol"])
    elif "txn" in action:
        into.transactions[action["txn"]["appId"]] = int(action["txn"]["version"])


def _read_parquet(file: pq.ParquetFile, into: Checkpoint, *, head: bool) -> list[str]:
    schema = file.schema_arrow
    names = ["metaData", "protocol"] if head else ["metaData", "protocol", "txn", "sidecar"]
    small = file.read(columns=[name for name in names if name in schema.names])
    sidecars = []
    for name in small.column_names:
        for body in _rows_of(small.column(name)):
            if name == "sidecar":
                sidecars.append(_sidecar_name(body["path"]))
            else:
                _take_head({name: body}, into)
    if not head and "add" in schema.names:
        into.tables.append(_read_adds(file, schema.field("add").type))
    return sidecars


def _rows_of(column: pa.ChunkedArray[Any]) -> Iterator[Mapping[str, Any]]:
    """The rows that are there: a checkpoint has one action in each row, and nulls beside it."""
    present: list[Any] = column.filter(pc.is_valid(column)).to_pylist(maps_as_pydicts="strict")
    for body in present:
        if any(value is not None for value in body.values()):
            yield body


def _sidecar_name(path: str) -> str:
    """Sidecars lie in the table's own ``_sidecars``, also if a writer gave a whole address."""
    return unquote(path).rpartition("/")[2]


def _read_adds(file: pq.ParquetFile, add: pa.StructType) -> pa.Table:
    """The columns of the ``add`` actions: only those that are needed leave the file."""
    has = {add.field(i).name for i in range(add.num_fields)}
    if "path" not in has:
        raise KeyError("add.path")
    found = _add_columns(file, [name for name in _ADD_FIELDS if name in has])
    rows = len(found["path"])
    columns = {name: _typed(found.get(name), name, rows) for name in _ADD_FIELDS}
    missing = [PARSED[text] for text in PARSED if columns[text].null_count]
    if parsed := [name for name in missing if name in has]:
        columns |= _add_columns(file, parsed)
    return pa.table(columns)


def _add_columns(file: pq.ParquetFile, names: Sequence[str]) -> dict[str, Any]:
    """Fields of ``add``, without the rows of other actions."""
    column = file.read(columns=[f"add.{name}" for name in ("path", *names)]).column("add")
    column = column.filter(pc.is_valid(pc.struct_field(column, "path")))
    return {name: pc.struct_field(column, name) for name in names}


def _typed(column: Any, name: str, rows: int) -> Any:
    """A field of ``add`` in its type; nulls if the writer left it out."""
    if column is None:
        return pa.nulls(rows, _ADD_FIELDS[name])
    return _vectors(column) if name == "deletionVector" else column.cast(_ADD_FIELDS[name])


def _vectors(column: pa.ChunkedArray[Any]) -> pa.StructArray:
    """Deletion vectors with our fields: some writers have more, or another order."""
    chunk = column.combine_chunks()
    has = {chunk.type.field(i).name for i in range(chunk.type.num_fields)}
    parts = [
        pc.struct_field(chunk, each.name).cast(each.type)
        if each.name in has
        else pa.nulls(len(chunk), each.type)
        for each in _VECTOR
    ]
    return pa.StructArray.from_arrays(parts, fields=list(_VECTOR))


def joined(tables: Sequence[pa.Table]) -> pa.Table | None:
    """The parts as one table; None if there are no rows."""
    filled = [table for table in tables if table.num_rows]
    if not filled:
        return None
    return pa.concat_tables(filled, promote_options="permissive").combine_chunks()

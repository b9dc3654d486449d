"""Delta tables written by hand, action by action: what deltalake does not write."""

from __future__ import annotations

import json
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring

from forebay_delta.log import commit_path

Action = Mapping[str, Any]
File = Mapping[str, Any]
"""The body of an ``add``."""

_MAGIC = struct.pack("<I", 1681511377)
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
ID_TEXT = {"id": "long", "text": "string"}


def create(
    table: Path,
    columns: Mapping[str, Any] = ID_TEXT,
    *files: File,
    features: Sequence[str] = ("deletionVectors",),
    **metadata: Any,
) -> None:
    """Version 0: protocol, metadata and files."""
    (table / "_delta_log").mkdir(parents=True)
    commit(table, protocol(*features), metadata_of(columns, **metadata), *map(add, files))


def protocol(*features: str) -> Action:
    """A ``protocol`` of reader version 3."""
    listed = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **listed}}


def metadata_of(
    columns: Mapping[str, Any],
    *,
    table_id: str = "written-by-hand",
    by: Sequence[str] = (),
    physical: Mapping[str, str] | None = None,
    configuration: Mapping[str, str] | None = None,
) -> Action:
    """A ``metaData`` action.

    Args:
        columns: types by name.
        physical: physical names under column mapping; turns it on.
    """
    settings = dict(configuration or {})
    if physical:
        settings["delta.columnMapping.mode"] = "name"
    fields = [
        {"name": n, "type": t, "nullable": True, "metadata": _mapping(i, n, physical)}
        for i, (n, t) in enumerate(columns.items(), start=1)
    ]
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(by),
            "configuration": settings,
        }
    }


def _mapping(number: int, name: str, physical: Mapping[str, str] | None) -> dict[str, Any]:
    if not physical:
        return {}
    keys = ("delta.columnMapping.id", "delta.columnMapping.physicalName")
    return dict(zip(keys, (number, physical[name]), strict=True))


def commit(
    table: Path,
    *actions: Action,
    operation: str = "WRITE",
    version: int | None = None,
    **info: Any,
) -> int:
    """Write a version, by default the next; returns its number.

    Args:
        info: more of ``commitInfo``: ``operationMetrics``, ``operationParameters``.
    """
    log = table / "_delta_log"
    if version is None:
        version = max((int(p.stem) + 1 for p in log.glob("0*.json")), default=0)
    about = {"timestamp": int(time.time() * 1000), "operation": operation, **info}
    lines = [json.dumps(a) for a in ({"commitInfo": about}, *actions)]
    (table / commit_path(version)).write_text("\n".join(lines))
    return version


def file_of(table: Path, ids: Iterable[int], text: str = "row", **options: Any) -> File:
    """A data file with these ids."""
    rows = list(ids)
    columns = {"id": pa.array(rows, pa.int64()), "text": [f"{text} {i}" for i in rows]}
    return file_with(table, pa.table(columns), **options)


def file_with(table: Path, rows: pa.Table, folder: Path | None = None, **options: Any) -> File:
    """A data file with these rows; in another folder it is named by its absolute path."""
    name = f"{uuid.uuid4()}.parquet"
    path = (folder or table) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **options)
    return {
        "path": name if folder is None else path.as_uri(),
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": path.stat().st_mtime_ns // 1_000_000,
        "stats": json.dumps({"numRecords": rows.num_rows}),
    }


def add(file: File, hidden: Action | None = None, data_change: bool = True) -> Action:
    """An ``add``; `hidden` is its deletion vector."""
    vector = {} if hidden is None else {"deletionVector": hidden}
    return {"add": {**file, "dataChange": data_change, **vector}}


def remove(file: File, hidden: Action | None = None, data_change: bool = True) -> Action:
    """A ``remove``; `hidden` is the deletion vector that the file had."""
    body = {k: file[k] for k in ("path", "partitionValues", "size")}
    vector = {} if hidden is None else {"deletionVector": hidden}
    return {"remove": {**body, "extendedFileMetadata": True, "dataChange": data_change, **vector}}


def cdc(table: Path, rows: Sequence[tuple[str, int]]) -> Action:
    """A file of the change feed: pairs of change type and id."""
    columns = {
        "id": pa.array([i for _, i in rows], pa.int64()),
        "text": [f"row {i}" for _, i in rows],
        "_change_type": [change for change, _ in rows],
    }
    name = f"_change_data/{uuid.uuid4()}.parquet"
    (table / "_change_data").mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), table / name)
    size = (table / name).stat().st_size
    return {"cdc": {"path": name, "partitionValues": {}, "size": size, "dataChange": False}}


def vector(*rows: int) -> Action:
    """An inline deletion vector that hides these physical rows."""
    data = _payload(rows)
    padded = data + b"\0" * (-len(data) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": _z85(padded),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def vector_in_file(table: Path, rows: Iterable[int]) -> Action:
    """A deletion vector in a file of its own."""
    listed = list(rows)
    data, name = _payload(listed), uuid.uuid4()
    framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (table / f"deletion_vector_{name}.bin").write_bytes(b"\1" + framed)
    return {
        "storageType": "u",
        "pathOrInlineDv": _z85(name.bytes),
        "offset": 1,
        "sizeInBytes": len(data),
        "cardinality": len(listed),
    }


def _payload(rows: Iterable[int]) -> bytes:
    return _MAGIC + bytes(pyroaring.BitMap64(rows).serialize())


def _z85(data: bytes) -> str:
    groups = (value for (value,) in struct.iter_unpack(">I", data))
    return "".join(_Z85[g // 85**power % 85] for g in groups for power in (4, 3, 2, 1, 0))

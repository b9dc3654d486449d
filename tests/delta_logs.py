"""Logs written by hand, for what no writer would write, or only after a month."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay_delta.log import DeltaLog, commit_path
from forebay_delta.store import open_store

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "p", "type": "string", "nullable": True, "metadata": {}},
    ],
}
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
VECTORS = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
}


def metadata(**configuration: str) -> dict[str, Any]:
    """A ``metaData`` action for a table partitioned by ``p``."""
    body = {
        "id": "d5d6e1b4-8c3f-4bd6-a21a-3d2f0a5a4e8c",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["p"],
        "configuration": {key.replace("_", "."): v for key, v in configuration.items()},
        "createdTime": 1,
    }
    return {"metaData": body}


def vector(number: int) -> dict[str, Any]:
    """The descriptor of a deletion vector; nothing is where it points to."""
    return {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": number,
        "sizeInBytes": 40,
        "cardinality": 6,
    }


def add(path: str, modified_ms: int = 0, **more: Any) -> dict[str, Any]:
    """An ``add`` action; `more` has further fields by their names in the protocol."""
    body = {
        "path": path,
        "partitionValues": {"p": "x"},
        "size": 100,
        "modificationTime": modified_ms,
        "dataChange": True,
        **more,
    }
    return {"add": body}


def remove(path: str, **more: Any) -> dict[str, Any]:
    """A ``remove`` action."""
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1, **more}}


def info(timestamp: int | None = None, **more: Any) -> dict[str, Any]:
    """A ``commitInfo`` action."""
    at = {} if timestamp is None else {"timestamp": timestamp}
    return {"commitInfo": {"operation": "WRITE", **at, **more}}


class HandWritten:
    """A table of which only the log exists."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "_delta_log"
        self.folder.mkdir(parents=True)

    @property
    def log(self) -> DeltaLog:
        return DeltaLog(open_store(self.root))

    def commit(self, version: int, *actions: Mapping[str, Any]) -> None:
        """Writes a commit of these actions."""
        text = "\n".join(json.dumps(action) for action in actions)
        (self.root / commit_path(version)).write_text(text + "\n")

    def begin(self, *actions: Mapping[str, Any], **configuration: str) -> None:
        """Writes version 0: protocol, metadata, and these actions."""
        self.commit(0, PROTOCOL, metadata(**configuration), *actions)

    def remove_commits(self, *versions: int) -> None:
        """What the cleanup of a log does."""
        for version in versions:
            (self.root / commit_path(version)).unlink()

    def paths(self, version: int | None = None) -> list[str]:
        """The files of a snapshot, in its order."""
        return [file.path for file in self.log.snapshot(version).files]

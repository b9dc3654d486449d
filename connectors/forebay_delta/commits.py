"""Reads one commit of a log: JSON lines, one action a line, into a ``Commit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from forebay_delta.actions import (
    Commit,
    DataFile,
    DeletionVector,
    FileAction,
    Kind,
    Metadata,
    Protocol,
)
from forebay_delta.errors import BrokenTable

_FILE_ACTIONS: dict[str, Kind] = {"add": "add", "remove": "remove", "cdc": "cdc"}


def parse_commit(version: int, data: bytes, where: str) -> Commit:
    """The commit `version` of the bytes of its file; `where` names the file in errors.

    Actions on files keep the order of their lines: it is part of a position.

    Raises:
        BrokenTable: a line is no JSON object, or an action lacks what it must have.
    """
    draft = _Draft()
    try:
        for draft.line, action in parse_lines(data, where):
            for name, body in action.items():
                draft.take(name, body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise BrokenTable(f"{where}, line {draft.line}: an action {what}") from error
    return draft.commit(version)


class _Draft:
    """Collects the actions of a commit."""

    def __init__(self) -> None:
        self.line = 0
        self._files: list[FileAction] = []
        self._metadata: Metadata | None = None
        self._protocol: Protocol | None = None
        self._info: Mapping[str, Any] = {}
        self._transactions: dict[str, int] = {}

    def take(self, name: str, body: Any) -> None:
        """Takes one action; those that a reader has no use for are left."""
        if name in _FILE_ACTIONS:
            self._files.append(FileAction(_FILE_ACTIONS[name], data_file_of(body)))
        elif name == "commitInfo":
            self._info = body
        elif name == "metaData":
            self._metadata = metadata_of(body)
        elif name == "protocol":
            self._protocol = protocol_of(body)
        elif name == "txn":
            self._transactions[body["appId"]] = int(body["version"])

    def commit(self, version: int) -> Commit:
        return Commit(
            version=version,
            files=tuple(self._files),
            metadata=self._metadata,
            protocol=self._protocol,
            timestamp_ms=_timestamp(self._info),
            operation=self._info.get("operation"),
            metrics=self._info.get("operationMetrics") or {},
            parameters=self._info.get("operationParameters") or {},
            transactions=self._transactions,
        )


def commit_time(data: bytes, where: str) -> int | None:
    """When the commit in `data` was made, as its ``commitInfo`` says; None if it does not say."""
    lines = b"\n".join(line for line in data.splitlines() if b'"commitInfo"' in line)
    for _, action in parse_lines(lines, where) if lines else ():
        if isinstance(action.get("commitInfo"), dict):
            return _timestamp(action["commitInfo"])
    return None


def parse_lines(data: bytes, where: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The actions of a file of JSON lines, each with the number of its line, from 1.

    Raises:
        BrokenTable: the file is empty, or a line is no JSON object.
    """
    if not data:
        raise BrokenTable(
            f"{where} is empty: its writer died, or the file was not wholly copied. "
            "Restore the file or, if it is the newest, remove it."
        )
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            action = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise BrokenTable(f"{where}, line {number} is no JSON: {error}") from error
        if not isinstance(action, dict):
            raise BrokenTable(f"{where}, line {number} is no JSON object: {line[:80]!r}")
        yield number, action


def data_file_of(body: Mapping[str, Any]) -> DataFile:
    """The file of an ``add``, ``remove`` or ``cdc``; a ``remove`` may lack all but the path."""
    return DataFile(
        path=body["path"],
        partition_values=body.get("partitionValues") or {},
        size=body.get("size") or 0,
        modified_ms=body.get("modificationTime") or 0,
        data_change=body.get("dataChange") is not False,
        deletion_vector=deletion_vector_of(body.get("deletionVector")),
        stats=body.get("stats"),
    )


def deletion_vector_of(body: Mapping[str, Any] | None) -> DeletionVector | None:
    """A deletion vector's descriptor; None for none, which a checkpoint has as empty fields."""
    if not body or body.get("storageType") is None:
        return None
    return DeletionVector(
        storage=body["storageType"],
        place=body["pathOrInlineDv"],
        offset=body.get("offset"),
        size=body["sizeInBytes"],
        cardinality=body["cardinality"],
    )


def metadata_of(body: Mapping[str, Any]) -> Metadata:
    """A ``metaData`` action; its schema is empty if there is no ``schemaString``.

    Some writers add the schema later; a table is broken only if it still has none when it is read.
    """
    text = body.get("schemaString")
    return Metadata(
        id=body["id"],
        schema=orjson.loads(text) if text else {},
        partition_columns=tuple(body.get("partitionColumns") or ()),
        configuration=body.get("configuration") or {},
    )


def protocol_of(body: Mapping[str, Any]) -> Protocol:
    """A ``protocol`` action."""
    return Protocol(
        reader_version=int(body["minReaderVersion"]),
        writer_version=int(body.get("minWriterVersion") or 0),
        reader_features=tuple(body.get("readerFeatures") or ()),
    )


def _timestamp(info: Mapping[str, Any]) -> int | None:
    for name in ("inCommitTimestamp", "timestamp"):
        if isinstance(info.get(name), int):
            return int(info[name])
    return None

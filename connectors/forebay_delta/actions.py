"""What a Delta log says: the actions of its commits, as plain data.

Source of the protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

Kind: TypeAlias = Literal["add", "remove", "cdc"]


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where the numbers of the deleted rows of a file are kept."""

    storage: Literal["u", "p", "i"]
    """A file named by UUID, a file named by an absolute path, or the text itself (inline)."""
    place: str
    offset: int | None
    size: int
    cardinality: int

    @property
    def id(self) -> str:
        """Unique in the table; the same file with another one is another action."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage}{self.place}{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file as an action names it."""

    path: str
    """As the log has it: percent-encoded, relative to the table or absolute."""
    partition_values: Mapping[str, str | None]
    """By physical name; as the log has them: never percent-encoded, null and "" mean null."""
    size: int
    modified_ms: int = 0
    data_change: bool = True
    deletion_vector: DeletionVector | None = None
    stats: str | None = None
    """JSON: ``numRecords``, ``minValues``, ``maxValues``, ``nullCount``, by physical name."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the file in the replay of a log."""
        return self.path, self.deletion_vector.id if self.deletion_vector else ""

    def statistics(self) -> Mapping[str, Any]:
        """The parsed statistics; empty if there are none."""
        return orjson.loads(self.stats) if self.stats else {}

    @property
    def num_records(self) -> int | None:
        """Physical rows, deleted ones included; None if the log does not say."""
        n = self.statistics().get("numRecords")
        return n if isinstance(n, int) else None


@dataclass(frozen=True, slots=True)
class FileAction:
    """An action on a file."""

    kind: Kind
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a reader must be able to do."""

    reader_version: int
    writer_version: int
    reader_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The table's identity, schema and properties."""

    id: str
    schema: Mapping[str, Any]
    """The parsed ``schemaString``: ``{"type": "struct", "fields": [...]}``."""
    partition_columns: tuple[str, ...] = ()
    """Logical names."""
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def mapping_mode(self) -> Literal["none", "name", "id"]:
        """How columns are found in files; decided by the property, whatever the protocol says."""
        mode = self.configuration.get("delta.columnMapping.mode", "none")
        assert mode in ("none", "name", "id")
        return mode  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of the log."""

    version: int
    files: tuple[FileAction, ...] = ()
    """In the order of the commit's lines; a place in here is the ``index`` of a position."""
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    timestamp_ms: int | None = None
    """The in-commit timestamp; else that of ``commitInfo``; milliseconds since the epoch."""
    operation: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """``commitInfo.operationMetrics``, as the writer named and typed them."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """``commitInfo.operationParameters``, likewise."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Last version of each application, by its id."""
    digest: bytes | None = None
    """``digest_of`` the commit's file: another table's commit has another one."""


def digest_of(content: bytes) -> bytes:
    """A short hash of a commit's bytes."""
    return hashlib.blake2b(content, digest_size=16).digest()

"""Delta Lake tables for Forebay: a snapshot and its tail as a source, sinks and recordings."""

from forebay_delta.errors import (
    BrokenTable,
    ChangeRefused,
    DataFileGone,
    SchemaChanged,
    TableReplaced,
    UnsupportedTable,
    VersionGone,
)
from forebay_delta.source import DeltaSource

__all__ = [
    "BrokenTable",
    "ChangeRefused",
    "DataFileGone",
    "DeltaSource",
    "SchemaChanged",
    "TableReplaced",
    "UnsupportedTable",
    "VersionGone",
]

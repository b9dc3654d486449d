"""Delta Lake tables for Forebay: a snapshot and its tail as a source, sinks and recordings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from forebay_delta.deadletters import DeltaSink
    from forebay_delta.recorder import DeltaRecorder

__all__ = [
    "BrokenTable",
    "ChangeRefused",
    "DataFileGone",
    "DeltaRecorder",
    "DeltaSink",
    "DeltaSource",
    "SchemaChanged",
    "TableReplaced",
    "UnsupportedTable",
    "VersionGone",
]

_WRITERS = {
    "DeltaRecorder": "forebay_delta.recorder",
    "DeltaSink": "forebay_delta.deadletters",
}


def __getattr__(name: str) -> Any:
    """What needs deltalake, imported when first asked for: reading does not, and once deltalake
    was used a process must not fork."""
    if name in _WRITERS:
        return getattr(import_module(_WRITERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

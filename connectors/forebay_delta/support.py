"""What this reader can do: every table that needs more is refused by name.

Reading on would give wrong rows without an error, as other readers do with mapped columns.
"""

from __future__ import annotations

from forebay_delta.actions import Metadata, Protocol
from forebay_delta.errors import UnsupportedTable

READER_VERSION = 3

READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Unshredded values only; a shredded one is refused by its own feature.
        "variantType",
        "variantType-preview",
    }
)

_MAPPING_MODES = ("none", "name", "id")


def check_supported(protocol: Protocol, metadata: Metadata, uri: str) -> None:
    """Refuses a table that needs what is not known here.

    Raises:
        UnsupportedTable: names everything that is not known, and the way out.
    """
    unknown = [*_unknown_protocol(protocol), *_unknown_mapping(metadata)]
    if unknown:
        raise UnsupportedTable(
            f"{uri} needs {', '.join(unknown)}, which cannot be read here. Use a newer version, "
            "or have the table's owner drop the feature (ALTER TABLE … DROP FEATURE)."
        )


def _unknown_protocol(protocol: Protocol) -> list[str]:
    if not 1 <= protocol.reader_version <= READER_VERSION:
        return [f"reader version {protocol.reader_version} (known: 1 to {READER_VERSION})"]
    strange = sorted(set(protocol.reader_features) - READER_FEATURES)
    return [f"the reader feature {name!r}" for name in strange]


def _unknown_mapping(metadata: Metadata) -> list[str]:
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    return [] if mode in _MAPPING_MODES else [f"the column mapping mode {mode!r}"]

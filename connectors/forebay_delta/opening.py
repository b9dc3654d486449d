"""Where reading begins: a saved position, or the place that the source's rule names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from forebay.errors import ConfigError, StateError
from forebay.source import Split
from forebay.state import Position
from forebay_delta.actions import Metadata, Protocol
from forebay_delta.errors import VersionGone
from forebay_delta.log import DeltaLog
from forebay_delta.positions import Origin, Place, place_of

_log = logging.getLogger("forebay.delta")

Schema: TypeAlias = tuple[int, Protocol, Metadata]
"""A version, and the protocol and metadata in force there."""
Kind: TypeAlias = Literal["snapshot", "latest", "version", "timestamp"]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run without a saved position begins."""

    kind: Kind
    value: int | None = None
    """A version, or milliseconds since the epoch; None for the newest version."""

    def origin(self, log: DeltaLog, latest: int, until: int | None) -> Origin:
        """The version that it means now."""
        if self.kind == "snapshot":
            newest = latest if until is None else min(latest, until)
            version = newest if self.value is None else self.value
            return Origin(version=version, snapshot=True)
        if self.kind == "timestamp":
            assert self.value is not None
            return Origin(version=log.version_at(self.value), snapshot=False)
        version = latest + 1 if self.value is None else self.value
        return Origin(version=version, snapshot=False)


def parse_start(value: Any, where: str) -> Start:
    """``"snapshot"``, ``"latest"``, or a mapping with one of snapshot, version, timestamp.

    Raises:
        ConfigError: it is nothing of that.
    """
    if value in ("snapshot", "latest"):
        return Start("snapshot" if value == "snapshot" else "latest")
    if isinstance(value, Mapping) and len(value) == 1:
        key, given = next(iter(value.items()))
        if key in ("version", "snapshot") and _is_version(given):
            return Start("version" if key == "version" else "snapshot", given)
        if key == "timestamp" and (ms := _milliseconds(given)) is not None:
            return Start("timestamp", ms)
    raise ConfigError(
        f"{where}: start must be 'snapshot' (the whole table, then its commits), 'latest', "
        "{'version': N} (its commits from N on), {'snapshot': N}, or {'timestamp': "
        f"milliseconds or a datetime with a time zone}}, not {value!r}"
    )


def parse_until(value: Any, where: str) -> Start | None:
    """``None``, ``"latest"``, or ``{"version": N}``.

    Raises:
        ConfigError: it is nothing of that.
    """
    if value is None:
        return None
    if value == "latest":
        return Start("latest")
    if isinstance(value, Mapping) and set(value) == {"version"} and _is_version(value["version"]):
        return Start("version", value["version"])
    raise ConfigError(
        f"{where}: until must be None (follow the table for ever), 'latest' (the newest version "
        f"when it is opened) or {{'version': N}} (N included), not {value!r}"
    )


def saved_places(
    positions: Mapping[str, Position], splits: Sequence[Split], shards: int, where: str
) -> dict[str, Place]:
    """The places of saved positions.

    Raises:
        StateError: a split is not one of this source, or the number of shards changed.
    """
    known = {s.id for s in splits}
    if unknown := sorted(positions.keys() - known):
        raise StateError(
            f"{where}: the state knows the split {unknown[0]!r}, this source has "
            f"{', '.join(sorted(known))}. Give the source the name= and shards= it had."
        )
    places = {split: place_of(split, p) for split, p in positions.items()}
    for place in places.values():
        if place.shards != shards:
            raise StateError(
                f"{where}: the state was saved with shards={place.shards}, the source has "
                f"shards={shards}: rows would change their split. Give it shards={place.shards}; "
                "any number of ranks up to that can share them."
            )
    return places


def schema_of(log: DeltaLog, versions: Sequence[int], newest: Schema, where: str) -> Schema:
    """The schema at the first of these versions that the log still knows, or the newest."""
    found = _first_known(log, versions, newest)
    if found[0] != min(versions[0], newest[0]):
        _log.warning(
            "%s: the log holds the schema of version %d no more; reading goes on with that of "
            "version %d",
            where,
            versions[0],
            found[0],
        )
    return found


def _first_known(log: DeltaLog, versions: Sequence[int], newest: Schema) -> Schema:
    for at in versions:
        if at >= newest[0]:
            break
        try:
            return at, *log.metadata(at)
        except VersionGone:
            continue
    return newest


def _is_version(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _milliseconds(value: Any) -> int | None:
    if isinstance(value, datetime):
        return None if value.tzinfo is None else int(value.timestamp() * 1000)
    return value if _is_version(value) else None

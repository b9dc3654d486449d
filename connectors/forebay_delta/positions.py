"""Where a split of a Delta table stands: the token of its position, and the place it means.

Offsets count physical rows from where the run began, deleted rows included. The token says which
file the row at an offset is in: ``{"table", "version", "index", "first", ...}``; the row in that
file is ``offset - first``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from forebay.errors import StateError
from forebay.slice import Token
from forebay.state import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run began: with a whole version (a snapshot), or with a commit."""

    version: int
    snapshot: bool
    offset: int = 0
    """The offset of its first row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The file that an offset lies in."""

    table: str
    """``metaData.id``: another table at the same address has another one."""
    shards: int
    origin: Origin
    schema: int
    """The version whose schema the rows are read with."""
    version: int
    index: int = 0
    """Place of the file among the file actions of the commit, or in the order of the snapshot."""
    first: int = 0
    """The offset of the file's row 0."""
    rows: int | None = None
    """Physical rows of the file; None before it was opened."""
    last: bool = False
    """Whether it is the last file of the version in this split."""

    @property
    def snapshot(self) -> bool:
        """Whether the file is read as part of a whole version."""
        return self.origin.snapshot and self.version == self.origin.version

    def next_file(self, offset: int) -> Place:
        """The place behind this file."""
        at = (self.version + 1, 0) if self.last else (self.version, self.index + 1)
        return replace(self, version=at[0], index=at[1], first=offset, rows=None, last=False)

    def beginning(self) -> Place:
        """The place where the run began."""
        o = self.origin
        return replace(self, version=o.version, index=0, first=o.offset, rows=None, last=False)

    def token(self) -> Token:
        """Plain JSON; what is usual is left out."""
        out: dict[str, Any] = {
            "table": self.table,
            "version": self.version,
            "index": self.index,
            "first": self.first,
            "schema": self.schema,
            "origin": [self.origin.version, self.origin.snapshot, self.origin.offset],
        }
        if self.snapshot:
            out["snapshot"] = True
        if self.rows is not None:
            out["rows"] = self.rows
        if self.last:
            out["last"] = True
        if self.shards > 1:
            out["shards"] = self.shards
        return out

    @classmethod
    def of_token(cls, split: str, token: Any) -> Place:
        """The inverse of ``token``.

        Raises:
            StateError: it is no token of a Delta table.
        """
        try:
            version, snapshot, offset = token["origin"]
            return cls(
                table=str(token["table"]),
                shards=int(token.get("shards", 1)),
                origin=Origin(version=int(version), snapshot=bool(snapshot), offset=int(offset)),
                schema=int(token["schema"]),
                version=int(token["version"]),
                index=int(token["index"]),
                first=int(token["first"]),
                rows=None if token.get("rows") is None else int(token["rows"]),
                last=bool(token.get("last", False)),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise StateError(
                f"the position of {split!r} is not one of a Delta table, or damaged: its token is "
                f"{token!r}. Load an older checkpoint, or start without a state."
            ) from e


def place_of(split: str, position: Position) -> Place:
    """The place where reading goes on; the row to begin with is ``position.low - place.first``.

    Raises:
        StateError: the position is damaged, or of another kind of source.
    """
    place, low = Place.of_token(split, position.low_token), position.low
    if low == place.origin.offset != place.first:
        return place.beginning()  # the next pass begins where the run began
    if place.rows is not None and low == place.first + place.rows:
        return place.next_file(low)
    inside = place.first <= low and (place.rows is None or low < place.first + place.rows)
    if not inside:
        raise StateError(
            f"the position of {split!r} is damaged: offset {low} does not lie in the file of its "
            f"token {position.low_token!r}. Load an older checkpoint."
        )
    return place

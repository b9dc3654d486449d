"""What a new schema means for a run that reads with an older one.

Columns are compared by their physical names, so that a renamed column is told from a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from forebay_delta.actions import Metadata
from forebay_delta.errors import SchemaChanged

SchemaPolicy: TypeAlias = Literal["keep", "evolve", "stop"]

_WIDER: Mapping[str, tuple[str, ...]] = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one schema differs from another, in words."""

    additive: Sequence[str] = ()
    """New columns and wider types: rows of before still fit."""
    breaking: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.additive or self.breaking)


def difference(old: Metadata, new: Metadata, columns: Collection[str] | None) -> Difference:
    """What changed in the columns that are read; None reads all."""
    additive: list[str] = []
    breaking: list[str] = []
    for change, breaks in _changes("", old.schema, new.schema):
        name = change.split(" ")[0].split(".")[0]
        if columns is None or name in columns:
            (breaking if breaks else additive).append(change)
    if old.partition_columns != new.partition_columns:
        was, now = ", ".join(old.partition_columns), ", ".join(new.partition_columns)
        breaking.append(f"partitioned by ({now}), was ({was})")
    return Difference(additive=additive, breaking=breaking)


def schema_after(
    pinned: Metadata,
    new: Metadata,
    version: int,
    *,
    policy: SchemaPolicy,
    accepted: int | None,
    columns: Collection[str] | None,
    uri: str,
) -> Metadata:
    """The metadata to read with from ``version`` on.

    Args:
        accepted: the last version whose breaking changes the user knows of.

    Raises:
        SchemaChanged: the policy stops here; names the version and what changed.
    """
    found = difference(pinned, new, columns)
    if not found:
        # With all columns read, nothing changed; else what was left out must stay left out.
        return new
    if accepted is not None and version <= accepted:
        return new
    if found.breaking or policy == "stop":
        listed = "; ".join([*found.breaking, *found.additive])
        raise SchemaChanged(
            f"{uri}: version {version} changes the schema: {listed}. Everything before it was "
            f"delivered, and nothing of it. To go on with the new schema, set "
            f"accept_schema={version} and resume"
            + ("." if found.breaking else "; schema='evolve' takes new columns as they come.")
        )
    return new if policy == "evolve" else pinned


def _changes(path: str, old: Any, new: Any) -> Iterator[tuple[str, bool]]:
    """Each change in words, beginning with the column's name, and whether it breaks."""
    if isinstance(old, str) or isinstance(new, str):
        if old != new:
            yield f"{path} is {_shown(new)}, was {_shown(old)}", not _widens(old, new)
    elif old["type"] != new["type"]:
        yield f"{path} is {_shown(new)}, was {_shown(old)}", True
    elif old["type"] == "struct":
        yield from _field_changes(path, old, new)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in old:
                yield from _changes(path, old[part], new.get(part))


def _field_changes(
    path: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    before = {_physical(f): f for f in old["fields"]}
    after = {_physical(f): f for f in new["fields"]}
    for key, f in before.items():
        here = f"{path}.{f['name']}" if path else f["name"]
        if key not in after:
            yield f"{here} is dropped", True
            continue
        if after[key]["name"] != f["name"]:
            yield f"{here} is renamed to {after[key]['name']}", True
        yield from _changes(here, f["type"], after[key]["type"])
    for key, f in after.items():
        if key not in before:
            here = f"{path}.{f['name']}" if path else f["name"]
            yield f"{here} is new ({_shown(f['type'])})", False


def _physical(field: Mapping[str, Any]) -> str:
    metadata = field.get("metadata") or {}
    return str(metadata.get("delta.columnMapping.physicalName", field["name"]))


def _widens(old: Any, new: Any) -> bool:
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    if new in _WIDER.get(old, ()):
        return True
    was, now = _decimal(old), _decimal(new)
    if now is None:
        return False
    if was is None:
        digits = {"byte": 10, "short": 10, "integer": 10, "long": 20}.get(old)
        return digits is not None and now[0] - now[1] >= digits
    return now[1] >= was[1] and now[0] - now[1] >= was[0] - was[1]


def _decimal(name: str) -> tuple[int, int] | None:
    """Precision and scale."""
    if not name.startswith("decimal("):
        return None
    precision, scale = name[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _shown(t: Any) -> str:
    return t if isinstance(t, str) else str(t.get("type")) if t else "nothing"

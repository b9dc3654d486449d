"""Where live begins: after the offsets that the history holds, at given ones, or at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from string import Formatter
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.columns import Column, as_arrow, cut, take
from forebay.errors import ConfigError, SourceError
from forebay.slice import Slice
from forebay.source import Source, Split

# How many of each unit make a millisecond; for seconds it is the other way round.
_IN_A_MILLISECOND = {"ms": 1, "us": 1_000, "ns": 1_000_000}


class Handover(Protocol):
    """The rule that says which records are the history's and which the live source's.

    Holds configuration only. Every record must be on one side, whatever is read when.
    """

    @property
    def whole_history(self) -> bool:
        """Whether a rank can read live splits only if it reads all of the history."""

    def check(self, live: Source, splits: Sequence[Split]) -> None:
        """Look whether the rule fits the live source, which has these splits.

        Raises:
            ConfigError: it does not.
        """

    def seen(self, s: Slice) -> Mapping[str, int]:
        """The largest offset of each live split in a slice of the history."""

    def history_part(self, s: Slice) -> Slice:
        """The slice less the rows that live gives; it answers for the same offsets."""

    def live_part(self, s: Slice) -> Slice:
        """The slice less the rows that the history gave; it answers for the same offsets."""

    def live_source(self, live: Source) -> Source:
        """The live source that begins where it has to."""

    def starts(self, seen: Mapping[str, int]) -> Mapping[str, int]:
        """The first offset to read of live splits. The others begin by the live source's rule:
        at their first record, if any of their group is here."""


@runtime_checkable
class StartsAt(Protocol):
    """A source that can begin at a time."""

    def starting_at(self, timestamp_ms: int) -> Source:
        """The same source, whose splits begin at their first record of this time or later."""


class _Uncut:
    """What a hand-over leaves as it is that goes by offsets: they alone cut the two apart."""

    __slots__ = ()

    def history_part(self, s: Slice) -> Slice:
        return s

    def live_part(self, s: Slice) -> Slice:
        return s

    def live_source(self, live: Source) -> Source:
        return live


@dataclass(frozen=True, slots=True)
class ByOffset(_Uncut):
    """The history holds each record's live split and offset: live goes on after the largest.

    The history must hold, of every live split, all records up to its largest offset. Splits that
    it has no row of begin at their first record if it has rows of their group (their topic), else
    by the live source's own rule.

    Raises:
        ConfigError: ``split`` is no format string over columns.
    """

    offset: str = "offset"
    """The column with the offset in the live split."""
    split: str = "kafka:{topic}/{partition}"
    """The id of the live split, as a format string over columns."""
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            parts = list(Formatter().parse(self.split))
        except ValueError as e:
            raise ConfigError(f"ByOffset: split={self.split!r} is no format string: {e}") from e
        names = [name for _, name, _, _ in parts if name is not None]
        if not all(name.isidentifier() for name in names):
            raise ConfigError(
                f"ByOffset: split={self.split!r} must name columns in braces, as in "
                "'kafka:{topic}/{partition}'"
            )
        object.__setattr__(self, "_names", tuple(dict.fromkeys(names)))

    @property
    def whole_history(self) -> bool:
        return True

    def check(self, live: Source, splits: Sequence[Split]) -> None:
        """Any live source will do: its splits are known from the rows alone."""

    def seen(self, s: Slice) -> Mapping[str, int]:
        if not len(s):
            return {}
        keys = {name: _key(_column(s, name), name, s) for name in self._names}
        offsets = _integers(_column(s, self.offset), self.offset, s)
        if not keys:
            return {self.split: int(pc.max(offsets).as_py())}
        found = pa.table({**keys, "\0offset": offsets}).group_by(list(keys))
        rows = found.aggregate([("\0offset", "max")]).to_pylist()
        out: dict[str, int] = {}
        for row in rows:
            split = self.split.format_map(row)
            out[split] = max(row["\0offset_max"], out.get(split, -1))
        return out

    def starts(self, seen: Mapping[str, int]) -> Mapping[str, int]:
        return {split: offset + 1 for split, offset in seen.items()}


@dataclass(frozen=True, slots=True)
class AtOffsets(_Uncut):
    """Live begins at these offsets; splits left out begin at their first record.

    The history must hold exactly the records before them: read a fixed version of a table.

    Raises:
        ConfigError: an offset is no whole number from 0 up, or there is none.
    """

    offsets: Mapping[str, int]
    """The first offset to read of each live split, by its id: ``{"kafka:clicks/0": 100}``."""

    def __post_init__(self) -> None:
        if not isinstance(self.offsets, Mapping) or not self.offsets:
            raise ConfigError(
                "AtOffsets: name live splits and offsets, {'kafka:clicks/0': 100}, not "
                f"{self.offsets!r}"
            )
        for split, offset in self.offsets.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise ConfigError(
                    f"AtOffsets: the offset of {split!r} must be a whole number from 0 up, not "
                    f"{offset!r}"
                )

    @property
    def whole_history(self) -> bool:
        return False

    def check(self, live: Source, splits: Sequence[Split]) -> None:
        known = [s.id for s in splits]
        if unknown := sorted(set(self.offsets) - set(known)):
            raise ConfigError(
                f"AtOffsets names {', '.join(map(repr, unknown))}, which the live source has not; "
                f"it has {', '.join(known[:3])}" + (" …" if len(known) > 3 else "")
            )

    def seen(self, s: Slice) -> Mapping[str, int]:
        return {}

    def starts(self, seen: Mapping[str, int]) -> Mapping[str, int]:
        return self.offsets


@dataclass(frozen=True, slots=True)
class ByTime:
    """Records before a time are the history's, all others the live source's.

    Rows of the history from ``at`` on are left out, and so are live rows before it. Both sides
    must carry the same time of a record. A record from before ``at`` that is not in the history
    when that is read is given by neither: let ``at`` be as old as the latest records may be late.

    Raises:
        ConfigError: ``at`` is no time.
    """

    at: datetime | int
    """A datetime with a time zone, or milliseconds since 1970."""
    column: str = "timestamp"
    """The column with the time of a record: a timestamp (UTC if it has no zone), or milliseconds.
    Rows that come with an event time are told by that."""

    def __post_init__(self) -> None:
        aware = isinstance(self.at, datetime) and self.at.tzinfo is not None
        number = isinstance(self.at, int) and not isinstance(self.at, bool) and self.at >= 0
        if not (aware or number):
            raise ConfigError(
                "ByTime: at must be a datetime with a time zone or milliseconds since 1970, not "
                f"{self.at!r}; write datetime(..., tzinfo=timezone.utc)"
            )

    @property
    def whole_history(self) -> bool:
        return False

    @property
    def ms(self) -> int:
        """Milliseconds since 1970. A part of a millisecond counts as a whole one."""
        if isinstance(self.at, int):
            return self.at
        since = self.at - datetime.fromtimestamp(0, timezone.utc)
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return -(-micros // 1_000)

    def check(self, live: Source, splits: Sequence[Split]) -> None:
        if not isinstance(live, StartsAt):
            raise ConfigError(
                f"ByTime: a {type(live).__name__} cannot begin at a time (it has no "
                "starting_at()): hand over with ByOffset or AtOffsets"
            )

    def seen(self, s: Slice) -> Mapping[str, int]:
        return {}

    def history_part(self, s: Slice) -> Slice:
        return _kept(s, self._times(s) < self.ms) if len(s) else s

    def live_part(self, s: Slice) -> Slice:
        return _kept(s, self._times(s) >= self.ms) if len(s) else s

    def live_source(self, live: Source) -> Source:
        return cast(StartsAt, live).starting_at(self.ms)

    def starts(self, seen: Mapping[str, int]) -> Mapping[str, int]:
        return {}

    def _times(self, s: Slice) -> NDArray[np.int64]:
        if s.event_times is not None:
            return s.event_times
        return _milliseconds(_column(s, self.column), self.column, s)


def _column(s: Slice, name: str) -> Column:
    if name not in s.columns:
        raise ConfigError(
            f"{s.split}: the hand-over needs column {name!r}, the rows have "
            f"{', '.join(map(repr, s.columns))}. Read it, too, or name another one."
        )
    return s.columns[name]


def _integers(column: Column, name: str, s: Slice) -> pa.Array[Any]:
    """A column of whole numbers, which may have come as floats, as int64."""
    array = _filled(column, name, s)
    try:
        return array.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SourceError(
            f"{s.split}@{s.start}: column {name!r} is {array.type}, and not all of it whole "
            "numbers: the hand-over cannot be told from it"
        ) from e


def _key(column: Column, name: str, s: Slice) -> pa.Array[Any]:
    """A column that tells splits apart: numbers as they are written, texts as text."""
    array = _filled(column, name, s)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        return _integers(array, name, s)
    if pa.types.is_integer(array.type):
        return array
    return array.cast(pa.string())


def _filled(column: Column, name: str, s: Slice) -> pa.Array[Any]:
    array = as_arrow(column)
    if not array.null_count:
        return array
    row = int(np.flatnonzero(np.asarray(array.is_null().to_numpy(zero_copy_only=False)))[0])
    raise SourceError(
        f"{s.split}@{int(s.offsets[row])}: column {name!r} is null: it cannot be told where the "
        "live source goes on. Leave such rows out where the history is read (filter=)."
    )


def _milliseconds(column: Column, name: str, s: Slice) -> NDArray[np.int64]:
    """Times as milliseconds since 1970, parts of them cut off downwards."""
    array = _filled(column, name, s)
    if pa.types.is_integer(array.type):
        return np.asarray(array.cast(pa.int64()))
    if not pa.types.is_timestamp(array.type):
        raise ConfigError(
            f"{s.split}: column {name!r} is {array.type}, no time: the hand-over needs a "
            "timestamp, or milliseconds as whole numbers"
        )
    ticks: NDArray[np.int64] = np.asarray(array.cast(pa.int64()))
    unit = array.type.unit
    return ticks * 1_000 if unit == "s" else ticks // _IN_A_MILLISECOND[unit]


def _kept(s: Slice, mask: NDArray[np.bool_]) -> Slice:
    """The rows for which ``mask`` is true."""
    rows = np.flatnonzero(mask)
    if len(rows) == len(s):
        return s
    if not len(rows):
        return replace(s, columns={}, offsets=s.offsets[:0], event_times=None)
    first, last = int(rows[0]), int(rows[-1])
    together = last - first + 1 == len(rows)
    columns = cut(s.columns, first, last + 1) if together else take(s.columns, rows)
    times = s.event_times
    return replace(
        s,
        columns=columns,
        offsets=s.offsets[rows],
        event_times=None if times is None else times[rows],
    )

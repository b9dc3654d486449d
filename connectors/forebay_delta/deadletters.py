"""A Delta table of dead letters: a row each, one folder for each day.

sink = DeltaSink("s3://bucket/clicks-dead")
for letter in sink.letters(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import pyarrow as pa

from forebay.deadletter import Letter
from forebay.errors import ConfigError, SourceError
from forebay.letterbox import ORIGINAL_TYPES, Key, Record, from_record, key, to_record
from forebay_delta.writing import DeltaWriter, Rival

_TYPES: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "split": pa.string(),
    "offset": pa.int64(),
    "stage": pa.string(),
    "reason": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    **ORIGINAL_TYPES,
    "other": pa.string(),
    "columns": pa.list_(pa.string()),
}
_SCHEMA = pa.schema(_TYPES)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ATTEMPTS = 20
# A predicate names each letter, and a longer one takes the engine long to plan.
_KEYS_AT_ONCE = 200


class DeltaSink:
    """Writes dead letters into a Delta table, which is made with the first ones.

    ``write`` buffers, ``flush`` commits. Several processes may share the table. A kill loses only
    letters that were not flushed; after a crash a letter may be there twice, and is read once.

    Args:
        uri: a folder, or an address such as ``s3://bucket/table``.
        storage_options: as ``deltalake`` takes them, under their own names.
        flush_rows: so many letters are committed at once, without a call of ``flush``.
        flush_bytes: likewise, by the bytes of the records.
    """

    def __init__(
        self,
        uri: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        flush_rows: int = 1000,
        flush_bytes: int = 8 << 20,
    ) -> None:
        if not isinstance(uri, str) or not uri:
            raise ConfigError(f"DeltaSink: uri must be an address, not {uri!r}")
        for name, value in (("flush_rows", flush_rows), ("flush_bytes", flush_bytes)):
            if value < 1:
                raise ConfigError(f"DeltaSink: {name} must be positive, not {value}")
        self.uri, self.flush_rows, self.flush_bytes = uri, flush_rows, flush_bytes
        self._storage_options = storage_options
        self._table = self._writer()
        self._letters: list[Letter] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"DeltaSink({self.uri!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._table = self._writer()

    def write(self, letters: Sequence[Letter]) -> None:
        """Take the letters; a full buffer is committed at once.

        Raises:
            SourceError: the table cannot be written.
        """
        for letter in letters:
            self._letters.append(letter)
            self._bytes += letter.failure.nbytes
            if len(self._letters) >= self.flush_rows or self._bytes >= self.flush_bytes:
                self.flush()

    def flush(self) -> None:
        """Return once all letters are committed.

        Raises:
            SourceError: they could not be written; they are kept, to be tried again.
        """
        if self._letters:
            rows = [_row(letter) for letter in self._letters]
            self._again(lambda: self._append(pa.Table.from_pylist(rows, _SCHEMA)))
            self._letters, self._bytes = [], 0

    def letters(self) -> Iterator[Letter]:
        """The letters in the table, oldest day first, repeats left out.

        The time is exact to the microsecond, all else as it was.

        Raises:
            ConfigError: there is no such table.
            SourceError: it cannot be read, or is no table of dead letters.
        """
        self._look()
        seen: set[Key] = set()
        for day in self._days():
            for rows in self._table.scan(_SCHEMA.names, f"date = '{day}'"):
                for letter in map(_letter, rows.to_pylist()):
                    if key(letter) not in seen:
                        seen.add(key(letter))
                        yield letter

    def remove(self, keys: Collection[Key]) -> int:
        """Delete letters; returns how many there were. Their bytes go when the table is vacuumed.

        Raises:
            ConfigError: there is no such table.
            SourceError: it cannot be changed.
        """
        self._look()
        found = iter(sorted(self._keys().intersection(keys)))
        removed = 0
        while some := list(islice(found, _KEYS_AT_ONCE)):
            self._again(lambda: self._delete(some))
            removed += len(some)
        return removed

    def close(self) -> None:
        """Flush. Nothing stays open between writes."""
        self.flush()

    def _writer(self) -> DeltaWriter:
        return DeltaWriter(self.uri, self._storage_options, "dead letters")

    def _append(self, rows: pa.Table) -> None:
        if not self._table.refresh():
            self._table.create(_SCHEMA, partition_by=["date"])
        self._table.check(_SCHEMA)
        self._table.append(rows)

    def _delete(self, keys: Sequence[Key]) -> None:
        self._table.refresh()
        self._table.delete(" or ".join(map(_is, keys)))

    def _days(self) -> list[str]:
        tables = self._table.scan(["date"])
        return sorted({str(day) for t in tables for day in t["date"].unique().to_pylist()})

    def _keys(self) -> set[Key]:
        names = ["split", "offset", "stage"]
        tables = self._table.scan(names)
        return {tuple(row[n] for n in names) for t in tables for row in t.to_pylist()}

    def _look(self) -> None:
        if not self._table.refresh():
            raise ConfigError(f"there is no table of dead letters at {self.uri}")
        self._table.check(_SCHEMA)

    def _again(self, change: Callable[[], None]) -> None:
        """Make a change to the table, again where others changed it meanwhile."""
        for _ in range(_ATTEMPTS):
            rival = _tried(change)
            if rival is None:
                return
        raise SourceError(
            f"dead letters: the table {self.uri} could not be changed in {_ATTEMPTS} attempts, "
            f"since others change it all the time ({rival}). Give each job a table of its own."
        )


def _tried(change: Callable[[], None]) -> Rival | None:
    try:
        change()
    except Rival as e:
        return e
    return None


def _row(letter: Letter) -> Record:
    time = _EPOCH + timedelta(microseconds=round(letter.time * 1e6))
    return {**to_record(letter), "time": time, "date": time.date()}


def _letter(row: Record) -> Letter:
    seconds = (row["time"] - _EPOCH) // timedelta(microseconds=1) / 1e6
    return from_record({**row, "time": seconds})


def _is(k: Key) -> str:
    """A predicate that is true for the letters of this key. Names in it may hold anything."""
    split, offset, stage = k
    return f'(split = {_quoted(split)} and "offset" = {offset} and stage = {_quoted(stage)})'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

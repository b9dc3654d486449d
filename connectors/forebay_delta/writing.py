"""Writing to a Delta table: appends that are whole or absent, and remember what they hold.

The only module that imports ``deltalake`` for writing. What it raises becomes one ``SourceError``
here, panics of its Rust part included, and never shows a credential.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from numpy.typing import NDArray

from forebay.columns import Column, Columns, as_arrow
from forebay.errors import ConfigError, ForebayError, SourceError

Compression: TypeAlias = Literal["none", "snappy", "zstd", "lz4"]

_CODECS: Mapping[str, Any] = {
    "none": "UNCOMPRESSED",
    "snappy": "SNAPPY",
    "zstd": "ZSTD",
    "lz4": "LZ4_RAW",
}
_ROW_GROUP_BYTES = 12 << 20
# Row groups of tiny rows would otherwise have millions of them, and a group is read as one.
_ROW_GROUP_ROWS = 1 << 20
_SECRET = re.compile(r"key|secret|token|password|credential|sas|signature|authorization", re.I)
_SHORTEST = 4  # a shorter value would blank out half of a message
_LOGIN = re.compile(r"://[^/@\s]+@")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WORDS = 400
_UNSIGNED: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


class Rival(Exception):
    """Another process has committed something since the table was looked at that this commit
    depends on. Nothing was written: look again."""


class DeltaWriter:
    """One table to write to, opened at the first use and kept. Used by one thread at a time.

    Args:
        uri: a folder, or an address such as ``s3://bucket/table``.
        storage_options: as ``deltalake`` takes them, under their own names.
        what: what is written, for messages: ``"dead letters"``.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None, what: str) -> None:
        self.uri, self._what = uri, what
        self._options = {k: str(v) for k, v in (storage_options or {}).items()}
        self._table: DeltaTable | None = None

    @property
    def version(self) -> int:
        """The version that was last looked at; -1 if there is no table."""
        return -1 if self._table is None else self._table.version()

    def refresh(self) -> bool:
        """Look at the newest version; False if there is no table.

        Raises:
            SourceError: the table cannot be read.
        """
        with self._told("be opened"):
            if self._table is not None:
                self._table.update_incremental()
                return True
            try:
                self._table = DeltaTable(self.uri, storage_options=self._options)
            except TableNotFoundError:
                return False
            return True

    def create(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Make the table, unless there is one by now.

        Raises:
            Rival: another process made it at this moment.
            SourceError: it cannot be made.
        """
        with self._told("be made"):
            # With retries, two processes would both succeed: the second one gives the table
            # another id, and readers take that for a table that was replaced.
            self._table = DeltaTable.create(
                self.uri,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self._options,
                commit_properties=CommitProperties(max_commit_retries=0),
            )

    def recorded(self, app_id: str) -> int | None:
        """The version of an application's last transaction, as of the last look."""
        with self._told("be read"):
            return None if self._table is None else self._table.transaction_version(app_id)

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the table has not, or has with other types.

        Raises:
            ConfigError: names the columns, and the ways out.
        """
        if self._table is None:
            return
        has, given = _types(self._table.schema()), _types(DeltaSchema.from_arrow(schema))
        if has == given:
            return
        new = [f"{n} ({t})" for n, t in given.items() if n not in has]
        missing = [f"{n} ({t})" for n, t in has.items() if n not in given]
        other = [f"{n} ({t}, not {has[n]})" for n, t in given.items() if has.get(n, t) != t]
        listed = (("new", new), ("missing", missing), ("of another type", other))
        raise ConfigError(
            f"{self._what} have other columns than the table {self.uri}: "
            + "; ".join(f"{word}: {', '.join(names)}" for word, names in listed if names)
            + ". Write them to another table, or give the source the columns= that this one has."
        )

    def append(
        self,
        rows: pa.Table,
        *,
        transactions: Mapping[str, int] | None = None,
        compression: Compression = "none",
    ) -> None:
        """Append rows in one commit, and these transactions (application, version) with them.

        The rows stand in one file, in their order.

        The table must have been looked at, and have these columns.

        Raises:
            Rival: another process committed a transaction of these applications meanwhile.
            SourceError: the rows could not be written; perhaps they were, if the storage failed
                to answer: look again, the transactions tell.
        """
        assert self._table is not None
        known = [Transaction(app_id, v) for app_id, v in (transactions or {}).items()]
        order = [f.name for f in self._table.schema().fields]
        with self._told("be written"):
            write_deltalake(
                self._table,
                # As one batch and into one file: deltalake shuffles batches, and files of a commit.
                rows.select(order).combine_chunks(),
                mode="append",
                target_file_size=max(2 * rows.nbytes, _ROW_GROUP_BYTES),
                writer_properties=_layout(rows, compression),
                commit_properties=CommitProperties(app_transactions=known),
            )

    def delete(self, predicate: str) -> None:
        """Delete the rows for which a SQL predicate is true, in one commit.

        Raises:
            Rival: another process changed the same files meanwhile.
            SourceError: it could not be done.
        """
        assert self._table is not None
        with self._told("be changed"):
            self._table.delete(predicate)

    def scan(self, columns: Sequence[str], predicate: str | None = None) -> Iterator[pa.Table]:
        """The rows as of the last look, a few thousand at a time, in no given order.

        Raises:
            SourceError: they cannot be read.
        """
        if self._table is None:
            return
        with self._told("be read"):
            # Its own iterator holds the GIL while it waits for the storage, pyarrow's does not.
            found: Any = self._table.scan(columns=list(columns), predicate=predicate)
            reader = pa.RecordBatchReader.from_stream(found)
        while True:
            with self._told("be read"):
                batch = next(reader, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """Errors in our words. Panics of the Rust part are no ``Exception``."""
        try:
            yield
        except (ForebayError, Rival):
            raise
        except CommitFailedError as e:
            raise Rival(self._redacted(e)) from None
        except BaseException as e:
            panicked = type(e).__name__ == "PanicException"
            if not isinstance(e, Exception) and not panicked:
                raise
            hint = (
                "deltalake does not survive a fork: start processes by the method 'spawn'."
                if panicked
                else "Check the address, the storage options and the rights to it."
            )
            # Not from the cause: its text may hold the credentials that are left out of ours.
            raise SourceError(
                f"{self._what}: the table {self.uri} cannot {verb}: {self._redacted(e)}. {hint}"
            ) from None

    def _redacted(self, error: BaseException) -> str:
        text = " ".join(_COLOURS.sub("", str(error)).replace("↳", "").split())
        text = _LOGIN.sub("://***@", text)
        secrets = [v for k, v in self._options.items() if _SECRET.search(k) and len(v) >= _SHORTEST]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text[:_WORDS].rstrip(". ")


def storable(columns: Columns) -> pa.Table:
    """The columns as a table of types that Delta has; values are never changed.

    Unsigned integers become wider ones, float16 float32, rows of several dimensions lists,
    dictionaries what they stand for.

    Raises:
        ConfigError: a column has a type that a Delta table cannot hold; names it.
    """
    arrays = {name: _storable(name, column) for name, column in columns.items()}
    return pa.table(arrays)


def _storable(name: str, column: Column) -> pa.Array[Any]:
    try:
        array = _lists(column) if isinstance(column, np.ndarray) else column
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        wanted = _delta_type(array.type)
        return array if array.type == wanted else array.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError) as e:
        kind = column.dtype if isinstance(column, np.ndarray) else column.type
        raise ConfigError(
            f"column {name!r} of type {kind} cannot be stored in a Delta table: {e}. Leave it out "
            "with columns=."
        ) from e


def _lists(values: NDArray[Any]) -> pa.Array[Any]:
    """An array of any shape as Arrow: nested lists behind the first dimension."""
    if values.dtype == object:
        payload = all(v is None or isinstance(v, bytes) for v in values)
        return pa.array(values, pa.large_binary()) if payload else pa.array(values)
    array = as_arrow(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        lists = math.prod(values.shape[:axis])
        offsets = np.arange(lists + 1, dtype=np.int64) * values.shape[axis]
        array = _nested(pa.array(offsets), array)
    return array


def _nested(offsets: pa.Array[Any], values: pa.Array[Any]) -> pa.Array[Any]:
    lists: Any = pa.LargeListArray  # the stubs know it with 32-bit offsets only
    made: pa.Array[Any] = lists.from_arrays(offsets, values)
    return made


def _delta_type(t: pa.DataType) -> pa.DataType:
    """The type in which Delta holds all values of this one."""
    kind: Any = t  # the stubs lack what nested types have
    if isinstance(t, pa.BaseExtensionType):
        return _delta_type(kind.storage_type)
    if (wider := _UNSIGNED.get(t)) is not None:
        return wider
    if pa.types.is_null(t) or pa.types.is_duration(t) or pa.types.is_time(t):
        raise TypeError("Delta has no such type")
    if pa.types.is_float16(t):
        return pa.float32()
    if pa.types.is_dictionary(t):
        return _delta_type(kind.value_type)
    if pa.types.is_timestamp(t):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_date64(t):
        return pa.date32()
    # One physical form of each, for slices of one column may differ in it.
    if _is_payload(t) or pa.types.is_binary_view(t) or pa.types.is_fixed_size_binary(t):
        return pa.large_binary()
    if pa.types.is_string(t) or pa.types.is_string_view(t):
        return pa.large_string()
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return pa.large_list(_delta_type(kind.value_type))
    if pa.types.is_struct(t):
        return pa.struct([(f.name, _delta_type(f.type)) for f in kind])
    if pa.types.is_map(t):
        return pa.map_(_delta_type(kind.key_type), _delta_type(kind.item_type))
    return t


def _layout(rows: pa.Table, compression: Compression) -> WriterProperties:
    """Row groups of some MB; payloads plain and without statistics, which nobody could use."""
    per_row = max(rows.nbytes // max(rows.num_rows, 1), 1)
    payloads = [f.name for f in rows.schema if _is_payload(f.type)]
    plain = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
    return WriterProperties(
        compression=_CODECS[compression],
        max_row_group_size=min(max(_ROW_GROUP_BYTES // per_row, 1), _ROW_GROUP_ROWS),
        column_properties=dict.fromkeys(payloads, plain),
    )


def _is_payload(t: pa.DataType) -> bool:
    return pa.types.is_binary(t) or pa.types.is_large_binary(t)


def _types(schema: DeltaSchema) -> dict[str, str]:
    """The type of each column as the table's log spells it."""
    return {f.name: _word(f.type.to_json()) for f in schema.fields}


def _word(json_type: str) -> str:
    return json_type.strip('"')

"""The rows of one data file, in pieces, from any physical row on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.columns import Column
from forebay_delta.actions import DataFile
from forebay_delta.bounds import Bounds
from forebay_delta.convert import Array, Convert, TypesDiffer, conversion, find
from forebay_delta.errors import BrokenTable, SchemaChanged, UnsupportedTable
from forebay_delta.filters import Filter
from forebay_delta.handover import as_column, as_matrix, constant
from forebay_delta.partition import partition_scalar
from forebay_delta.projection import CHANGE_TYPE, Projection
from forebay_delta.rowgroups import RowGroups
from forebay_delta.selection import Selection, mask_of, wants
from forebay_delta.storage import Store
from forebay_delta.types import Field

_PREFETCH_BYTES = 32 << 20
"""A row group of a remote file is fetched at once up to this size."""
_BUFFER_BYTES = 8 << 20
"""Else each of its columns is read by as much, and all of them together by no more than..."""
_BUFFERS_BYTES = 64 << 20
_PROBE_ROWS = 1024
_UNKNOWN_WIDTH_ROWS = 8192
_SILENT_BATCHES = 16
"""After as many batches without a row a piece without rows is given, so that readers get on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive physical rows of a file."""

    first: int
    """First physical row it answers for."""
    stop: int
    """One past the last one it answers for."""
    rows: NDArray[np.int64]
    """Physical row of each row given; ascending. Deleted and filtered ones are missing."""
    columns: dict[str, Column]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A column that the file holds."""

    field: Field
    place: int
    name: str
    convert: Convert | None
    physical: pa.DataType


@dataclass(frozen=True, slots=True)
class _Run:
    """Adjacent row groups that are read in one go."""

    groups: Sequence[int]
    first: int
    batch_rows: int


class FileScan:
    """Reads one data file; iterate over it once. Used by one thread; close it in the end.

    Args:
        store: where the file is.
        file: as an action names it. Its deletion vector is not looked at: see `selection`.
        projection: what to read.
        selection: physical rows to give, or to leave out: those of the deletion vector.
        start_row: the first physical row to answer for.
        piece_bytes: about as many bytes a piece holds.
        piece_rows: never more rows than that in a piece.

    Raises:
        FileNotFoundError: the file is gone.
        BrokenTable: it is no readable Parquet file; also while iterating.
        SchemaChanged: a column's type, or (while iterating) a value, does not fit the schema.
        UnsupportedTable: it holds a shredded variant.
    """

    def __init__(
        self,
        store: Store,
        file: DataFile,
        projection: Projection,
        *,
        selection: Selection = None,
        start_row: int = 0,
        piece_bytes: int = 4 << 20,
        piece_rows: int = 65536,
    ) -> None:
        self._path, self._file = file.path, file
        self._projection, self._selection = projection, selection
        self._start, self._piece_bytes, self._piece_rows = start_row, piece_bytes, piece_rows
        owner, path = store.at(file.path)
        self._local = owner.local
        self._source = owner.open(path, file.size or None)
        try:
            self._open()
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> FileScan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; the columns given stay valid."""
        self._parquet.close()
        self._source.close()

    def __iter__(self) -> Iterator[Piece]:
        """Pieces that together answer for every row from `start_row` on, in order."""
        reached, silent = self._start, 0
        for first, rows, batch in self._batches():
            piece = self._piece(reached, first, rows, batch)
            silent += 1
            if len(piece.rows) or silent == _SILENT_BATCHES:
                yield piece
                reached, silent = piece.stop, 0
        if reached < self.num_rows:
            yield self._empty(reached, self.num_rows)

    # Opening: what is where in the file.

    def _open(self) -> None:
        self._parquet = self._parquet_file(pre_buffer=False)
        metadata = self._parquet.metadata
        self.num_rows: int = metadata.num_rows
        """Physical rows, by the footer."""
        schema = self._parquet.schema_arrow
        self._groups = RowGroups(metadata, schema)
        self._constants, self._stored = self._located(schema)
        self._filter = self._remaining_filter()
        asked = [f.name for f in self._projection.fields]
        asked += self._filter.columns if self._filter else ()
        self._read = [self._stored[n] for n in dict.fromkeys(asked) if n in self._stored]
        self._places = [s.place for s in self._read]
        if not self._local:
            self._parquet = self._remote_file(metadata)

    def _parquet_file(self, **options: Any) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._source, coerce_int96_timestamp_unit="us", **options)
        except (pa.ArrowException, OSError) as e:
            raise self._broken(e) from e

    def _remote_file(self, metadata: pq.FileMetaData) -> pq.ParquetFile:
        """The file opened anew, to read as few times and as little at once as its size asks for."""
        sizes = [self._groups.stored_bytes(g, self._places) for g in range(len(self._groups))]
        self._at_once = max(sizes, default=0) <= _PREFETCH_BYTES
        if self._at_once:
            return self._parquet_file(metadata=metadata, pre_buffer=True)
        buffer = min(_BUFFER_BYTES, _BUFFERS_BYTES // max(len(self._places), 1))
        return self._parquet_file(metadata=metadata, pre_buffer=False, buffer_size=buffer)

    def _located(self, schema: pa.Schema) -> tuple[dict[str, pa.Scalar[Any]], dict[str, _Stored]]:
        """Which columns are one value, and which the file holds."""
        constants: dict[str, pa.Scalar[Any]] = {}
        stored: dict[str, _Stored] = {}
        columns = list(schema)
        for field in self._projection.read_fields:
            if field.name in self._projection.partitions:
                values = self._file.partition_values
                constants[field.name] = partition_scalar(values, field, self._path)
                continue
            place = find(columns, field, self._projection.mode)
            if place is not None:
                stored[field.name] = self._stored_column(field, place, columns[place])
            elif field is CHANGE_TYPE:
                raise BrokenTable(f"{self._path}: a file of changes has no {field.name!r}")
            else:
                constants[field.name] = pa.scalar(None, field.type.arrow)
        return constants, stored

    def _stored_column(self, field: Field, place: int, column: pa.Field[Any]) -> _Stored:
        try:
            convert = conversion(column.type, field.type, self._projection.mode)
        except TypesDiffer as e:
            raise self._schema_changed(field, column.type) from e
        except UnsupportedTable as e:
            raise UnsupportedTable(f"{self._path}: column {field.name!r}: {e}") from e
        return _Stored(field, place, column.name, convert, column.type)

    def _remaining_filter(self) -> Filter | None:
        """What of the filter depends on the row; None if nothing does."""
        if self._projection.filter is None:
            return None
        left = self._projection.filter.given(self._constants)
        return None if left.wants_all else left

    # Reading: row groups that are wanted, in runs, in batches.

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
        """Physical row, number of rows and stored columns of what may hold rows to give."""
        if not self._read:
            yield from self._without_columns()
            return
        for run in self._runs():
            at = run.first
            for batch in self._decoded(run.groups, run.batch_rows):
                cut = min(max(self._start - at, 0), batch.num_rows)
                if cut < batch.num_rows:
                    yield at + cut, batch.num_rows - cut, batch.slice(cut)
                at += batch.num_rows

    def _without_columns(self) -> Iterator[tuple[int, int, None]]:
        if self._filter is not None:  # no alternative is left: it wants no row
            return
        for first in range(self._start, self.num_rows, self._piece_rows):
            yield first, min(self._piece_rows, self.num_rows - first), None

    def _runs(self) -> Iterator[_Run]:
        wanted = [g for g in range(len(self._groups)) if self._is_wanted(g)]
        for groups in _adjacent(wanted, single=not self._local and self._at_once):
            yield _Run(groups, self._groups.starts[groups[0]], self._batch_rows(groups))

    def _is_wanted(self, group: int) -> bool:
        first, stop = self._groups.span(group)
        if not wants(self._selection, max(first, self._start), stop):
            return False
        return self._filter is None or self._filter.within(self._bounds(group, self._filter))

    def _bounds(self, group: int, filter: Filter) -> dict[str, Bounds]:
        """Of columns that the file has as the table has them: converted values have other ones."""
        looked_at = [self._stored[name] for name in filter.columns]
        return {
            s.field.name: self._groups.bounds(group, s.place)
            for s in looked_at
            if s.convert is None
        }

    def _batch_rows(self, groups: Sequence[int]) -> int:
        """A power of two, so that batches of most sizes are cut from pieces without a copy."""
        width = max(self._groups.row_bytes(g, self._places) for g in groups)
        texts = [s for s in self._read if self._groups.has_dictionary(groups[0], s.place)]
        rows = self._piece_rows
        if texts and self._groups.rows[groups[0]] > _PROBE_ROWS:
            if self._local:
                width += self._probed_width(groups[0], texts)
            else:
                rows = min(rows, _UNKNOWN_WIDTH_ROWS)
        rows = min(rows, max(int(self._piece_bytes / max(width, 1)), 1))
        return 1 << (rows.bit_length() - 1)

    def _probed_width(self, group: int, texts: Sequence[_Stored]) -> float:
        """Bytes of a row's texts: of those in dictionaries the footer does not say it."""
        batches = self._decoded([group], _PROBE_ROWS, texts)
        batch = next(batches)
        return batch.nbytes / batch.num_rows

    def _decoded(
        self, groups: Sequence[int], batch_rows: int, columns: Sequence[_Stored] | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = [s.name for s in columns or self._read]
        batches = self._parquet.iter_batches(
            batch_rows, row_groups=list(groups), columns=names, use_threads=self._local
        )
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as e:
                raise self._broken(e) from e
            yield batch

    # From batches to pieces.

    def _piece(self, reached: int, first: int, rows: int, batch: pa.RecordBatch | None) -> Piece:
        stop = first + rows
        mask = mask_of(self._selection, first, stop)
        arrays = self._converted(batch)
        if self._filter is not None:
            wanted = self._filter.mask(arrays, rows)
            mask = wanted if mask is None else mask & wanted
        if mask is None or mask.all():
            kept = np.arange(first, stop)
        else:
            kept = first + np.flatnonzero(mask)
            arrays = {name: a.filter(pa.array(mask)) for name, a in arrays.items()}
        columns = {f.name: self._column(f, arrays, len(kept)) for f in self._projection.fields}
        return Piece(first=reached, stop=stop, rows=kept, columns=columns)

    def _converted(self, batch: pa.RecordBatch | None) -> dict[str, Array]:
        if batch is None:
            return {}
        return {s.field.name: self._convert(s, batch) for s in self._read}

    def _convert(self, stored: _Stored, batch: pa.RecordBatch) -> Array:
        array = batch.column(stored.name)
        if stored.convert is None:
            return array
        try:
            return stored.convert(array)
        except (TypesDiffer, pa.ArrowException) as e:
            raise self._schema_changed(stored.field, stored.physical, e) from e

    def _column(self, field: Field, arrays: Mapping[str, Array], rows: int) -> Column:
        if field.name in self._constants:
            return constant(self._constants[field.name], rows)
        length = self._projection.lengths.get(field.name)
        if length is None:
            return as_column(arrays[field.name])
        try:
            return as_matrix(arrays[field.name], length)
        except TypesDiffer as e:
            raise self._schema_changed(field, self._stored[field.name].physical, e) from e

    def _empty(self, first: int, stop: int) -> Piece:
        columns = {f.name: as_column(pa.array([], f.type.arrow)) for f in self._projection.fields}
        return Piece(first=first, stop=stop, rows=np.zeros(0, np.int64), columns=columns)

    # Errors.

    def _broken(self, cause: Exception) -> Exception:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause  # the system's word, not the file's
        return BrokenTable(f"{self._path} cannot be read as Parquet: {cause}")

    def _schema_changed(
        self, field: Field, physical: pa.DataType, cause: Exception | None = None
    ) -> SchemaChanged:
        why = f": {cause}" if cause is not None and str(cause) else ""
        return SchemaChanged(
            f"{self._path}: column {field.name!r} is {physical} in the file, which does not fit "
            f"{field.type.arrow} of the schema it is read with{why}"
        )


def _adjacent(numbers: Sequence[int], *, single: bool) -> list[list[int]]:
    """Runs of numbers that follow each other; each on its own if `single`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and not single and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return runs

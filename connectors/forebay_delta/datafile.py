"""The rows of one data file, in pieces, from any physical row on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forebay.columns import Column
from forebay_delta.actions import DataFile
from forebay_delta.errors import BrokenTable
from forebay_delta.layout import Layout, Stored
from forebay_delta.projection import Projection
from forebay_delta.rowgroups import RowGroups
from forebay_delta.selection import Selection, mask_of, wants
from forebay_delta.storage import Store

_PREFETCH_BYTES = 32 << 20
"""A row group of a remote file is fetched at once up to this size."""
_BUFFER_BYTES = 8 << 20
"""Else each of its columns is read by as much, and all of them together by no more than..."""
_BUFFERS_BYTES = 64 << 20
_LOCAL_BUFFER_BYTES = 256 << 10
"""The same for a local file: as fast as a memory map, whose pages would stay with the process up
to the size of the file, and which kills it if the file is cut short."""
_LOCAL_BUFFERS_BYTES = 16 << 20
_THREADS_FROM = 4
"""Columns from which on Arrow decodes them in threads: 1.4 times as fast with 20 of them on two
cores, but no faster with two, of which one holds nearly all bytes."""
_PROBE_ROWS = 256
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
        metadata, schema = self._parquet.metadata, self._parquet.schema_arrow
        self.num_rows: int = metadata.num_rows
        """Physical rows, by the footer."""
        self._groups = RowGroups(metadata, schema)
        self._layout = Layout(self._file, self._projection, schema)
        self._threads = self._local and len(self._layout.read) >= _THREADS_FROM
        self._parquet = self._file_to_read(metadata)

    def _parquet_file(self, **options: Any) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._source, coerce_int96_timestamp_unit="us", **options)
        except (pa.ArrowException, OSError) as e:
            raise self._broken(e) from e

    def _file_to_read(self, metadata: pq.FileMetaData) -> pq.ParquetFile:
        """The file opened anew, to read as few times and as little at once as its size asks for."""
        columns = max(len(self._layout.places), 1)
        if self._local:
            buffer = min(_LOCAL_BUFFER_BYTES, _LOCAL_BUFFERS_BYTES // columns)
            return self._parquet_file(metadata=metadata, pre_buffer=False, buffer_size=buffer)
        sizes = [
            self._groups.stored_bytes(g, self._layout.places) for g in range(len(self._groups))
        ]
        self._at_once = max(sizes, default=0) <= _PREFETCH_BYTES
        if self._at_once:
            return self._parquet_file(metadata=metadata, pre_buffer=True)
        buffer = min(_BUFFER_BYTES, _BUFFERS_BYTES // columns)
        return self._parquet_file(metadata=metadata, pre_buffer=False, buffer_size=buffer)

    # Reading: row groups that are wanted, in runs, in batches.

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch | None]]:
        """Physical row, number of rows and stored columns of what may hold rows to give."""
        if not self._layout.read:
            yield from self._without_columns()
            return
        for run in self._runs():
            at = run.first
            for batch in self._decoded(run.groups, run.batch_rows):
                cut = min(max(self._start - at, 0), batch.num_rows)
                if cut < batch.num_rows:
                    yield at + cut, batch.num_rows - cut, batch.slice(cut) if cut else batch
                at += batch.num_rows

    def _without_columns(self) -> Iterator[tuple[int, int, None]]:
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
        filter = self._layout.filter
        return filter is None or filter.within(
            {
                s.field.name: self._groups.bounds(group, s.place)
                for s in self._layout.unchanged(filter.columns)  # others have other bounds
            }
        )

    def _batch_rows(self, groups: Sequence[int]) -> int:
        """A power of two, so that batches of most sizes are cut from pieces without a copy."""
        rows, first, columns = self._piece_rows, groups[0], self._layout.read
        texts = [s for s in columns if self._groups.may_repeat(first, s.place)]
        others = [s.place for s in columns if s not in texts]
        width = max(self._groups.row_bytes(g, others) for g in groups)
        if texts and self._local:
            width += self._probed_width(first, texts)
        elif texts:
            rows = min(rows, _UNKNOWN_WIDTH_ROWS)
            width += self._groups.row_bytes(first, [s.place for s in texts])
        rows = min(rows, max(int(self._piece_bytes / max(width, 1)), 1))
        return min(1 << round(math.log2(rows)), self._piece_rows)

    def _probed_width(self, group: int, texts: Sequence[Stored]) -> float:
        """Bytes of a row's texts: of those in dictionaries the footer does not say it."""
        batches = self._decoded([group], _PROBE_ROWS, texts)
        batch = next(batches)
        return batch.nbytes / batch.num_rows

    def _decoded(
        self, groups: Sequence[int], batch_rows: int, columns: Sequence[Stored] | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = [s.physical.name for s in columns or self._layout.read]
        batches = self._parquet.iter_batches(
            batch_rows, row_groups=list(groups), columns=names, use_threads=self._threads
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
        arrays = self._layout.arrays(batch)
        mask = mask_of(self._selection, first, first + rows)
        if self._layout.filter is not None:
            wanted = self._layout.filter.mask(arrays, rows)
            mask = wanted if mask is None else mask & wanted
        kept = np.arange(first, first + rows)
        if mask is not None and not mask.all():
            kept = kept[mask]
            arrays = {name: a.filter(pa.array(mask)) for name, a in arrays.items()}
        columns = self._layout.columns(arrays, len(kept))
        return Piece(first=reached, stop=first + rows, rows=kept, columns=columns)

    def _empty(self, first: int, stop: int) -> Piece:
        arrays = {s.field.name: pa.array([], s.field.type.arrow) for s in self._layout.read}
        columns = self._layout.columns(arrays, 0)
        return Piece(first=first, stop=stop, rows=np.zeros(0, np.int64), columns=columns)

    # Errors.

    def _broken(self, cause: Exception) -> Exception:
        if isinstance(cause, FileNotFoundError) or getattr(cause, "errno", None) is not None:
            return cause  # the store's or the system's word, not the file's
        return BrokenTable(f"{self._path} cannot be read as Parquet: {cause}")


def _adjacent(numbers: Sequence[int], *, single: bool) -> list[list[int]]:
    """Runs of numbers that follow each other; each on its own if `single`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and not single and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return runs

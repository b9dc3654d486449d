"""What a ``DeltaSource`` gives, slice by slice, before anything is made into tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from forebay.columns import as_arrow, as_numpy
from forebay.slice import Slice
from forebay.state import Position
from forebay_delta import DeltaSource
from forebay_delta.reader import DeltaReader

_POLL_SECONDS = 0.05


@contextmanager
def opened(
    source: DeltaSource, positions: Mapping[str, Position] | None = None
) -> Iterator[DeltaReader]:
    """A reader of all splits, closed in the end."""
    reader = source.open(positions or {}, lambda split: True)
    try:
        yield reader
    finally:
        reader.close()


def slices_of(reader: DeltaReader, splits: int = 1) -> Iterator[Slice]:
    """The slices of a bounded source, to its end."""
    while True:
        s = reader.poll(_POLL_SECONDS)
        if s is not None:
            yield s
        elif len(reader.finished_splits()) == splits:
            return


def next_rows(reader: DeltaReader) -> Slice:
    """The next slice that has rows; for readers of a table that goes on."""
    while True:
        s = reader.poll(_POLL_SECONDS)
        if s is not None and len(s):
            return s


def ids(s: Slice) -> list[int]:
    """The column ``id``."""
    return [int(i) for i in as_numpy(s.columns["id"])]


def table_of(source: DeltaSource) -> pa.Table:
    """All rows of a bounded source, columns as of the newest: null where they came later."""
    with opened(source) as reader:
        parts = [_table(s.columns) for s in slices_of(reader) if len(s)]
    newest = parts[-1].schema if parts else pa.schema([])
    alike = [part.cast(_types(part.schema, newest)) for part in parts]
    return pa.concat_tables(alike, promote_options="default") if alike else pa.table({})


def _types(schema: pa.Schema, newest: pa.Schema) -> pa.Schema:
    """The schema with the newest type of each column."""
    fields = [newest.field(f.name) if f.name in newest.names else f for f in schema]
    return pa.schema(fields)


def _table(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: as_arrow(column) for name, column in columns.items()})

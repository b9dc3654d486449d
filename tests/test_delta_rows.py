"""Tables that other writers made are read as those writers mean them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.delta_files import rows
from tests.delta_fixtures import Fixtures, canonical_rows, fixture_names, fixtures, needs_fixtures

from forebay_delta.actions import DataFile
from forebay_delta.errors import UnsupportedTable, VersionGone
from forebay_delta.log import DeltaLog
from forebay_delta.projection import Projection
from forebay_delta.selection import AllBut, Selection
from forebay_delta.storage import Store
from forebay_delta.store import open_store
from forebay_delta.vectors import load_deletion_vector

pytestmark = needs_fixtures


@pytest.fixture(scope="module")
def tables() -> Iterator[Fixtures]:
    with fixtures() as unpacked:
        yield unpacked


def _kept(store: Store, file: DataFile) -> Selection:
    vector = file.deletion_vector
    return None if vector is None else AllBut(load_deletion_vector(store, vector))


def _rows(path: str, columns: list[str] | None = None, piece_rows: int = 65536) -> pa.Table:
    store = open_store(path)
    snapshot = DeltaLog(store).snapshot()
    projection = Projection(snapshot.metadata, columns=columns)
    read = [
        rows(Path(path), file, projection, selection=_kept(store, file), piece_rows=piece_rows)
        for file in snapshot.files
    ]
    return pa.concat_tables([projection.schema.empty_table(), *read])


@pytest.mark.parametrize("name", fixture_names("spark", "agreed", "single-reader"))
def test_a_table_has_the_rows_that_its_writer_meant(tables: Fixtures, name: str) -> None:
    table = tables[name]
    assert canonical_rows(_rows(table.table)) == table.expected_rows()


@pytest.mark.parametrize("name", fixture_names("spark"))
def test_each_column_alone_in_small_pieces_has_the_values_it_has_among_all(
    tables: Fixtures, name: str
) -> None:
    whole = _rows(tables[name].table)
    for column in whole.column_names:
        alone = _rows(tables[name].table, [column], piece_rows=2)
        assert canonical_rows(alone) == canonical_rows(whole.select([column])), column


@pytest.mark.parametrize("name", fixture_names("refuse"))
def test_a_table_that_cannot_be_read_right_ends_in_a_named_error(
    tables: Fixtures, name: str
) -> None:
    with pytest.raises((UnsupportedTable, VersionGone, FileNotFoundError), match=r"\w+ .+"):
        _rows(tables[name].table)


@pytest.mark.parametrize("name", ["dat-deletion_vectors", "golden-dv-with-columnmapping"])
def test_reading_past_deleted_rows_from_any_row_gives_the_rest(tables: Fixtures, name: str) -> None:
    store = open_store(tables[name].table)
    snapshot = DeltaLog(store).snapshot()
    projection = Projection(snapshot.metadata)
    for file in snapshot.files:
        kept = _kept(store, file)
        assert kept is None or len(kept.rows)
        whole = rows(Path(tables[name].table), file, projection, selection=kept)
        numbers = [n for n in range(file.num_records or 0) if kept is None or n not in kept.rows]
        for start in itertools.chain(range(3), numbers[-2:]):
            rest = rows(Path(tables[name].table), file, projection, selection=kept, start_row=start)
            assert rest.equals(whole.slice(sum(n < start for n in numbers)))

"""A scan gives a file's rows by number, from any row on, in small pieces of a bounded size."""

from __future__ import annotations

import io
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from tests.delta_files import arrow_peak, field, metadata, pieces, rows, write
from tests.delta_s3 import S3Place, s3_server

from forebay_delta.actions import DataFile
from forebay_delta.datafile import FileScan
from forebay_delta.errors import BrokenTable
from forebay_delta.filters import Filter
from forebay_delta.log import DeltaLog
from forebay_delta.projection import Projection
from forebay_delta.selection import AllBut, Only, Selection
from forebay_delta.store import open_store

ABOUT = metadata(field("i", "long"), field("s", "string"))
MIXED = pa.table({"i": range(100), "s": [None if i % 7 == 0 else f"text {i}" for i in range(100)]})
EVERYTHING = Projection(ABOUT)


def _numbers(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(sorted(values), np.int64)


def _given(folder: Path, file: DataFile, **options: Any) -> list[tuple[int, Any]]:
    """Physical row and text of every row that a scan gives."""
    projection = options.pop("projection", EVERYTHING)
    found = pieces(folder, file, projection, **options)
    return [
        (int(row), text)
        for piece in found
        for row, text in zip(piece.rows, piece.columns["s"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("selection", [None, AllBut(_numbers([0, 9, 10, 11, 40, 99]))])
@pytest.mark.parametrize("filter", [None, [("i", ">=", 35)]])
def test_reading_from_any_row_gives_the_rest_of_reading_from_the_first(
    tmp_path: Path, selection: Selection, filter: Any
) -> None:
    file = write(tmp_path, MIXED, row_group_size=13)
    projection = Projection(ABOUT, filter=filter and Filter.parse(filter, ABOUT))
    options = {"selection": selection, "piece_rows": 8, "projection": projection}
    whole = _given(tmp_path, file, **options)
    for start in range(102):
        rest = [found for found in whole if found[0] >= start]
        assert _given(tmp_path, file, start_row=start, **options) == rest


@given(
    rows=st.integers(0, 60),
    group=st.integers(1, 20),
    start=st.integers(0, 60),
    listed=st.sets(st.integers(0, 59)),
    only=st.booleans(),
    piece_rows=st.sampled_from([1, 4, 64]),
)
def test_a_selection_gives_exactly_its_rows(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    group: int,
    start: int,
    listed: set[int],
    only: bool,
    piece_rows: int,
) -> None:
    folder = tmp_path_factory.mktemp("t")
    file = write(folder, MIXED.slice(0, rows), row_group_size=group)
    chosen = _numbers([n for n in listed if n < rows])
    selection = Only(chosen) if only else AllBut(chosen)
    options: dict[str, Any] = {"selection": selection, "piece_rows": piece_rows}
    found = _given(folder, file, start_row=start, **options)
    expected = [n for n in range(start, rows) if (n in listed) == only]
    assert found == [(n, MIXED["s"][n].as_py()) for n in expected]


def test_row_groups_without_a_wanted_row_are_not_decoded(tmp_path: Path) -> None:
    file = write(tmp_path, MIXED, row_group_size=50, compression="NONE")
    raw = bytearray((tmp_path / file.path).read_bytes())
    raw[4:400] = bytes(396)  # the first row group is damaged
    (tmp_path / file.path).write_bytes(raw)
    assert len(_given(tmp_path, file, start_row=50)) == 50
    assert len(_given(tmp_path, file, selection=AllBut(np.arange(50)))) == 50
    assert [n for n, _ in _given(tmp_path, file, selection=Only(_numbers([70])))] == [70]
    with pytest.raises(BrokenTable, match=r"^a\.parquet cannot be read as Parquet"):
        _given(tmp_path, file, start_row=49)


def test_a_piece_holds_about_the_bytes_asked_for_and_a_power_of_two_of_rows(tmp_path: Path) -> None:
    about = Projection(metadata(field("x", "binary")))
    table = pa.table({"x": [b"%05d" % i * 200 for i in range(5000)]})
    found = pieces(tmp_path, write(tmp_path, table), about, piece_bytes=100_000)
    assert {len(p.rows) for p in found[:-1]} == {128}
    assert {
        len(p.rows) for p in pieces(tmp_path, write(tmp_path, table), about, piece_rows=50)
    } == {50}


def test_texts_kept_once_in_a_dictionary_count_by_what_they_are_in_memory(tmp_path: Path) -> None:
    about = Projection(metadata(field("x", "string")))
    table = pa.table({"x": [str(i % 4) * 4000 for i in range(20_000)]})
    file = write(tmp_path, table)
    with arrow_peak() as peak:
        with FileScan(open_store(tmp_path), file, about, piece_bytes=1 << 20) as scan:
            assert sum(len(piece.rows) for piece in scan) == 20_000
        assert peak() < 8 << 20  # decoded it is 80 MB, stored some KB


def test_a_row_group_larger_than_the_bound_is_read_within_it(tmp_path: Path) -> None:
    about = Projection(metadata(field("x", "binary")))
    random = np.random.default_rng(0)
    table = pa.table({"x": [random.bytes(30_000) for _ in range(2000)]})
    file = write(tmp_path, table, row_group_size=2000, use_dictionary=False, write_batch_size=16)
    del table
    with arrow_peak() as peak:
        with FileScan(open_store(tmp_path), file, about, piece_bytes=1 << 20) as scan:
            assert sum(len(piece.rows) for piece in scan) == 2000
        assert peak() < 8 << 20  # the row group is 60 MB


def test_columns_stay_valid_when_the_file_is_closed(tmp_path: Path) -> None:
    file = write(tmp_path, MIXED, compression="NONE", use_dictionary=False)
    (piece,) = pieces(tmp_path, file, EVERYTHING)
    (tmp_path / file.path).unlink()
    assert piece.columns["i"].tolist() == list(range(100))
    assert piece.columns["s"].tolist() == MIXED["s"].to_pylist()


def test_no_two_pieces_share_memory_that_a_trainer_may_write_to(tmp_path: Path) -> None:
    found = pieces(tmp_path, write(tmp_path, MIXED), EVERYTHING, piece_rows=16)
    for piece in found:
        assert isinstance(piece.columns["i"], np.ndarray)
        piece.columns["i"][:] = -1 - piece.first
    assert [{-1 - p.first} for p in found] == [set(p.columns["i"].tolist()) for p in found]


def test_long_runs_without_a_row_are_answered_for_in_few_pieces(tmp_path: Path) -> None:
    table = pa.table({"i": range(10_000), "s": ["x"] * 10_000})
    file = write(tmp_path, table)
    nothing = Only(_numbers([0, 9999]))
    found = pieces(tmp_path, file, EVERYTHING, selection=nothing, piece_rows=64)
    assert [len(p.rows) for p in found if len(p.rows)] == [1, 1]
    assert 4 < len(found) < 20  # but not in one: a reader is to get on


def test_a_file_without_rows_has_no_pieces(tmp_path: Path) -> None:
    assert pieces(tmp_path, write(tmp_path, MIXED.slice(0, 0)), EVERYTHING) == []
    assert pieces(tmp_path, write(tmp_path, MIXED), EVERYTHING, start_row=100) == []


PARTITIONED = metadata(field("p", "long"), field("q", "string"), field("i", "long"), by=["p", "q"])


def test_partition_columns_alone_are_given_for_every_row_without_reading_one(
    tmp_path: Path,
) -> None:
    values = {"p": "7", "q": None}
    file = write(tmp_path, pa.table({"i": range(10)}), partition_values=values)
    projection = Projection(PARTITIONED, columns=["q", "p"])
    options: dict[str, Any] = {"selection": AllBut(_numbers([1, 2])), "piece_rows": 4}
    found = rows(tmp_path, file, projection, start_row=1, **options)
    assert found.to_pylist() == [{"q": None, "p": 7}] * 7


def test_no_columns_at_all_still_tell_which_rows_there_are(tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"i": range(10)}), partition_values={"p": "7", "q": "x"})
    (piece,) = pieces(tmp_path, file, Projection(PARTITIONED, columns=[]), start_row=8)
    assert piece.rows.tolist() == [8, 9]
    assert piece.columns == {}


@pytest.mark.parametrize(("filter", "expected"), [(("p", "==", 7), 10), (("p", ">", 7), 0)])
def test_a_filter_on_partitions_is_decided_for_the_whole_file(
    tmp_path: Path, filter: Any, expected: int
) -> None:
    file = write(tmp_path, pa.table({"i": range(10)}), partition_values={"p": "7", "q": "x"})
    projection = Projection(PARTITIONED, filter=Filter.parse([filter], PARTITIONED))
    assert rows(tmp_path, file, projection).num_rows == expected


@pytest.mark.parametrize(
    ("declared", "text", "expected"),
    [
        ("long", "-7", "-7"),
        ("byte", "127", "127"),
        ("double", "-1.5E10", "-15000000000.0"),
        ("float", "NaN", "nan"),
        ("double", "-Infinity", "-inf"),
        ("boolean", "TRUE", "True"),
        ("string", "a%20b/ü", "a%20b/ü"),
        ("binary", "\x00\x01", r"b'\x00\x01'"),
        ("binary", r"\u0061\u00FF", r"b'a\xff'"),
        ("date", "0001-01-01", "0001-01-01"),
        ("decimal(10,2)", "-3.5", "-3.50"),
        ("decimal(38,0)", "9" * 38, "9" * 38),
        ("timestamp", "2024-05-01 12:00:00.123456", "2024-05-01 12:00:00.123456+00:00"),
        ("timestamp", "2024-05-01T12:00:00.5Z", "2024-05-01 12:00:00.500000+00:00"),
        ("timestamp", "2024-05-01T12:00:00+02:00", "2024-05-01 10:00:00+00:00"),
        ("timestamp_ntz", "2024-05-01 12:00:00", "2024-05-01 12:00:00"),
        ("long", "", "None"),
        ("string", None, "None"),
    ],
)
def test_partition_values_have_the_type_of_their_column(
    tmp_path: Path, declared: str, text: str | None, expected: str
) -> None:
    about = metadata(field("p", declared), field("i", "long"), by=["p"])
    file = write(tmp_path, pa.table({"i": [1, 2]}), partition_values={"p": text})
    found = rows(tmp_path, file, Projection(about)).column("p").to_pylist()
    assert [str(v) for v in found] == [expected] * 2


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("long", "7.5"),
        ("byte", "128"),
        ("date", "May"),
        ("decimal(4,1)", "0.25"),
        ("boolean", "y"),
        ("timestamp_ntz", "2024-05-01T12:00:00+02:00"),
    ],
)
def test_a_partition_value_that_is_none_of_its_type_names_file_column_and_value(
    tmp_path: Path, declared: str, text: str
) -> None:
    about = metadata(field("p", declared), field("i", "long"), by=["p"])
    file = write(tmp_path, pa.table({"i": [1]}), partition_values={"p": text})
    with pytest.raises(BrokenTable, match=rf"a\.parquet.*column 'p'.*'{re.escape(text)}'"):
        pieces(tmp_path, file, Projection(about))


def test_partition_values_that_deltalake_wrote_are_read_back(tmp_path: Path) -> None:
    types: dict[str, Any] = {"f": pa.float64(), "m": pa.decimal128(9, 2), "b": pa.bool_()}
    types["y"] = pa.binary()
    columns: dict[str, list[Any]] = {
        "f": [-0.5, None],
        "m": ["1.25", None],
        "b": [False, None],
        "y": [b"\x00\xff", None],
        "i": [0, 1],
    }
    table = pa.table({n: pa.array(v).cast(types.get(n, pa.int64())) for n, v in columns.items()})
    write_deltalake(tmp_path, table, partition_by=list(types))
    snapshot = DeltaLog(open_store(tmp_path)).snapshot()
    found = [rows(tmp_path, f, Projection(snapshot.metadata)) for f in snapshot.files]
    read = pa.concat_tables(found).sort_by("i").select(table.column_names)
    assert read.to_pylist() == table.to_pylist()


def test_a_missing_file_is_a_missing_file_and_no_broken_one(tmp_path: Path) -> None:
    gone = DataFile(path="gone.parquet", partition_values={}, size=1)
    with pytest.raises(FileNotFoundError):
        FileScan(open_store(tmp_path), gone, EVERYTHING)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no Parquet at all" * 10])
def test_what_is_no_parquet_is_a_broken_table_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    file = DataFile(path="a.parquet", partition_values={}, size=len(content))
    with pytest.raises(BrokenTable, match=r"^a\.parquet cannot be read as Parquet"):
        FileScan(open_store(tmp_path), file, EVERYTHING)


def test_a_forked_child_reads_a_local_file(tmp_path: Path) -> None:
    file = write(tmp_path, MIXED)
    before = _given(tmp_path, file)  # Arrow's threads run when it forks
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(_given(tmp_path, file)))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == before
    child.join()


@pytest.fixture(scope="module")
def place() -> Iterator[S3Place]:
    with s3_server() as server:
        yield server.place()


@pytest.mark.parametrize(("prefetch", "requests"), [(32 << 20, 3), (1000, 5)])
def test_an_object_store_is_asked_for_row_groups_or_buffers_and_for_no_other_column(
    place: S3Place, monkeypatch: pytest.MonkeyPatch, prefetch: int, requests: int
) -> None:
    monkeypatch.setattr("forebay_delta.datafile._PREFETCH_BYTES", prefetch)
    numbers = np.random.default_rng(0).integers(0, 1 << 62, 300_000)
    table = pa.table({"i": numbers, "s": numbers.astype(str), "j": numbers})
    data = io.BytesIO()
    pq.write_table(table, data, row_group_size=100_000, use_dictionary=False)
    place.put("a.parquet", data.getvalue())
    file = DataFile(path="a.parquet", partition_values={}, size=len(data.getvalue()))
    store = open_store(place.uri, place.storage_options)
    before = len(place.requests())
    with FileScan(store, file, EVERYTHING, start_row=150_000) as scan:
        found = [p.columns["i"] for p in scan]
    assert np.array_equal(np.concatenate(found), numbers[150_000:])
    assert len(place.requests()) - before == requests


def test_a_file_gone_from_an_object_store_is_a_missing_file(place: S3Place) -> None:
    gone = DataFile(path="gone.parquet", partition_values={}, size=1000)
    with pytest.raises(FileNotFoundError):
        FileScan(open_store(place.uri, place.storage_options), gone, EVERYTHING)

"""A filter gives exactly the rows that match, and opens no file that cannot hold one."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from tests.delta_files import array_of, field, metadata, rows, write

from forebay.errors import ConfigError
from forebay_delta.actions import DataFile, Metadata
from forebay_delta.filters import Filter
from forebay_delta.log import DeltaLog
from forebay_delta.projection import Projection
from forebay_delta.store import open_store

UTC = timezone.utc
LISTS = pa.list_(pa.int64())
ABOUT = metadata(
    field("i", "integer"),
    field("f", "float"),
    field("s", "string"),
    field("b", "boolean"),
    field("d", "date"),
    field("t", "timestamp"),
    field("n", "timestamp_ntz"),
    field("m", "decimal(10,2)"),
    field("y", "binary"),
    field("l", array_of("long")),
)
ROWS: list[dict[str, Any]] = [
    {"i": 1, "f": 0.1, "s": "a", "b": True, "d": date(2024, 1, 1), "m": Decimal("1.00")},
    {"i": 2, "f": float("nan"), "s": "b", "b": False, "d": date(2024, 1, 2), "m": Decimal("-2.50")},
    {"i": None, "f": None, "s": None, "b": None, "d": None, "m": None},
    {"i": -3, "f": 7.0, "s": "", "b": True, "d": date(1969, 12, 31), "m": Decimal("0.00")},
]


def _matching(folder: Path, filter: Any, columns: list[str] | None = None) -> list[int]:
    about = Projection(ABOUT)
    stored = pa.Table.from_pylist(ROWS, pa.schema([about.schema.field(n) for n in ROWS[0]]))
    numbered = stored.append_column("l", pa.array([[i] for i in range(len(ROWS))]))
    wanted = Projection(ABOUT, columns=["l"], filter=Filter.parse(filter, ABOUT))
    return [r["l"][0] for r in rows(folder, write(folder, numbered), wanted).to_pylist()]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ([("i", "==", 1)], [0]),
        ([("i", "=", 1)], [0]),
        ([("i", "!=", 1)], [1, 3]),
        ([("i", "<=", 1)], [0, 3]),
        ([("f", "==", 0.1)], [0]),
        ([("f", "!=", 7)], [0, 1]),
        ([("f", ">", 0)], [0, 3]),
        ([("s", ">=", "a")], [0, 1]),
        ([("s", "==", "")], [3]),
        ([("s", "in", ["a", "", "zz"])], [0, 3]),
        ([("s", "not in", ["a"])], [1, 3]),
        ([("s", "in", [])], []),
        ([("b", "==", True)], [0, 3]),
        ([("d", "<", "2024-01-02")], [0, 3]),
        ([("d", "==", date(2024, 1, 2))], [1]),
        ([("m", ">", "-2.5")], [0, 3]),
        ([("m", "in", [1, Decimal("0")])], [0, 3]),
        ([("i", "is null")], [2]),
        ([("i", "is not null")], [0, 1, 3]),
        ([("i", "IS  NULL", None)], [2]),
        ([("i", ">", 0), ("b", "==", True)], [0]),
        ([[("i", ">", 1)], [("s", "==", ""), ("b", "==", True)]], [1, 3]),
        ([["i", "==", 1]], [0]),
        ([[["i", "==", 1]], [["i", "==", 2]]], [0, 1]),
        ([("l", "is not null")], [0, 1, 2, 3]),
    ],
)
def test_rows_match_as_in_sql_where_null_matches_nothing(
    tmp_path: Path, filter: Any, expected: list[int]
) -> None:
    assert _matching(tmp_path, filter) == expected


def test_times_compare_by_instant_or_by_wall_clock(tmp_path: Path) -> None:
    noon = datetime(2024, 5, 1, 12)
    table = pa.table({"t": pa.array([noon], pa.timestamp("us", "UTC")), "n": [noon]})
    file = write(tmp_path, table)

    def found(*term: Any) -> int:
        wanted = Projection(ABOUT, columns=["t"], filter=Filter.parse([term], ABOUT))
        return rows(tmp_path, file, wanted).num_rows

    assert found("t", "==", "2024-05-01T12:00:00Z") == found("t", "==", noon) == 1
    assert found("t", "==", "2024-05-01 14:00:00+02:00") == 1
    assert found("t", ">", date(2024, 5, 1)) == found("n", ">", date(2024, 5, 1)) == 1
    assert found("n", "==", "2024-05-01T12:00:00") == 1
    assert found("n", "<", noon) == 0


@pytest.mark.parametrize(
    ("filter", "why"),
    [
        ("i > 1", "is no list of terms"),
        ([], "is no list of terms"),
        ([("i",)], "is no term"),
        ([[("i", "==", 1)], []], "is no term"),
        ([("x", "==", 1)], r"\('x', '==', 1\): the table has no column 'x'.*i, f, s"),
        ([("i", "~", 1)], r"unknown operator '~'.*not in"),
        ([("i", "==")], "needs a value"),
        ([("i", "is null", 3)], "takes no value"),
        ([("i", "in", 3)], "needs a list"),
        ([("i", "==", None)], "use 'is null'"),
        ([("i", "in", [None])], "use 'is null'"),
        ([("i", "==", "1")], "'1' is no value of column 'i', which is integer"),
        ([("i", "==", True)], "is no value of column 'i'"),
        ([("i", "<", 2**31)], "is no value of column 'i'"),
        ([("i", ">", 1.5)], "is no value of column 'i'"),
        ([("s", "==", 1)], "is no value of column 's'"),
        ([("d", "==", "May")], "is no value of column 'd'"),
        ([("d", "==", datetime(2024, 1, 1))], "is no value of column 'd'"),
        ([("n", "==", datetime(2024, 1, 1, tzinfo=UTC))], "is no value of column 'n'"),
        ([("m", "==", 0.1)], "is no value of column 'm'"),
        ([("m", "==", "0.001")], "is no value of column 'm'"),
        ([("l", "==", [1])], "which has no order"),
    ],
)
def test_a_wrong_term_is_named_with_what_would_be_right(filter: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Filter.parse(filter, ABOUT)


AWKWARD = ["a b", "50%", "x/y", "k=v", "ü", "a%20b", "+", "'", '"', "\\", "..", "z" * 150]


@pytest.mark.parametrize("value", AWKWARD)
def test_every_partition_value_is_found_by_its_own_text(tmp_path: Path, value: str) -> None:
    table = pa.table({"p": [*AWKWARD, "", None], "i": range(len(AWKWARD) + 2)})
    write_deltalake(tmp_path, table, partition_by=["p"])
    assert _filtered(tmp_path, [("p", "==", value)]) == [AWKWARD.index(value)]
    others = [i for i in range(len(AWKWARD)) if AWKWARD[i] != value]
    assert _filtered(tmp_path, [("p", "not in", [value])]) == others
    assert _filtered(tmp_path, [("p", "is null")]) == [len(AWKWARD), len(AWKWARD) + 1]


def test_null_partitions_keep_their_type_read_from_json_and_from_a_checkpoint(
    tmp_path: Path,
) -> None:
    days = [date(2024, 1, 1), None]
    types: dict[str, Any] = {"d": pa.date32(), "s": pa.string(), "i": pa.int64()}
    for i in range(12):
        columns: dict[str, Any] = {"d": [days[i % 2]], "s": [None if i % 3 else "s"], "i": [i]}
        table = pa.table({n: pa.array(columns[n], t) for n, t in types.items()})
        write_deltalake(tmp_path, table, mode="append", partition_by=["d", "s"])
    from_json = _filtered(tmp_path, [("d", "is null"), ("s", "==", "s")])
    DeltaTable(tmp_path).create_checkpoint()
    assert _filtered(tmp_path, [("d", "is null"), ("s", "==", "s")]) == from_json == [3, 9]
    assert _filtered(tmp_path, [("d", "==", "2024-01-01"), ("s", "is null")]) == [2, 4, 8, 10]


def _filtered(path: Path, filter: Any) -> list[int]:
    """The `i` of the rows that match, read from the files that may hold one."""
    store = open_store(path)
    snapshot = DeltaLog(store).snapshot()
    parsed = Filter.parse(filter, snapshot.metadata)
    projection = Projection(snapshot.metadata, columns=["i"], filter=parsed)
    found: list[Any] = []
    for file in snapshot.files:
        matching = rows(path, file, projection).column("i").to_pylist()
        assert parsed.may_match(file) or not matching
        found += matching
    return sorted(found)


def _file(rows: int, nulls: int, low: Any, high: Any, column: str) -> DataFile:
    stats = {
        "numRecords": rows,
        "minValues": {column: low},
        "maxValues": {column: high},
        "nullCount": {column: nulls},
    }
    return DataFile(path="x", partition_values={}, size=1, stats=json.dumps(stats))


def _may(file: DataFile, *term: Any, about: Metadata = ABOUT) -> bool:
    return Filter.parse([term], about).may_match(file)


@pytest.mark.parametrize(
    ("term", "may"),
    [
        (("i", "==", 5), True),
        (("i", "==", 11), False),
        (("i", "==", 2), False),
        (("i", "in", [0, 99]), False),
        (("i", "in", [0, 3]), True),
        (("i", "<", 3), False),
        (("i", "<=", 3), True),
        (("i", ">", 10), False),
        (("i", ">=", 10), True),
        (("i", "!=", 3), True),
        (("i", "is null"), False),
        (("i", "is not null"), True),
        (("s", "==", "x"), True),
    ],
)
def test_files_are_left_out_by_the_statistics_of_the_log(term: Any, may: bool) -> None:
    assert _may(_file(4, 0, 3, 10, "i"), *term) == may


def test_a_file_of_nulls_matches_is_null_only() -> None:
    file = DataFile(
        path="x", partition_values={}, size=1, stats='{"numRecords":4,"nullCount":{"i":4}}'
    )
    assert _may(file, "i", "is null")
    assert not any(_may(file, "i", *t) for t in [("is not null",), ("!=", 3), ("not in", [3])])


@pytest.mark.parametrize("stats", [None, "{}", '{"numRecords":4}', '{"minValues":{"i":"?"}}'])
def test_without_statistics_every_file_may_match(stats: str | None) -> None:
    file = DataFile(path="x", partition_values={}, size=1, stats=stats)
    assert all(_may(file, "i", *t) for t in [("==", 3), ("is null",), ("not in", [1])])


def test_texts_cut_short_in_the_statistics_hide_no_row() -> None:
    long = "k" * 40
    file = _file(2, 0, long[:32], long[:32], "s")
    assert _may(file, "s", "==", long)
    assert _may(file, "s", ">", long[:32])
    assert _may(file, "s", "!=", long[:32])
    assert not _may(file, "s", "==", "l")


def test_times_cut_to_milliseconds_in_the_statistics_hide_no_row() -> None:
    moment = "2024-05-01T12:00:00.123"
    row = datetime(2024, 5, 1, 12, 0, 0, 123999)
    for column in ("t", "n"):
        file = _file(1, 0, moment, moment, column)
        assert _may(file, column, "==", row)
        assert _may(file, column, ">=", row)
        assert not _may(file, column, ">", datetime(2024, 5, 1, 12, 0, 0, 125000))
    zoned = _file(1, 0, "2024-05-01T14:00:00.000+02:00", "2024-05-01T14:00:00.000+02:00", "t")
    assert _may(zoned, "t", "==", datetime(2024, 5, 1, 12))
    assert not _may(zoned, "t", "==", datetime(2024, 5, 1, 14))


def test_decimals_that_went_through_a_float_hide_no_row() -> None:
    about = metadata(field("m", "decimal(38,20)"))
    exact = "0.10000000000000000001"
    file = _file(1, 0, 0.1, 0.1, "m")
    assert _may(file, "m", "==", exact, about=about)
    assert not _may(file, "m", "==", "0.11", about=about)


def test_statistics_of_a_float_column_compare_as_its_values_do() -> None:
    assert _may(_file(1, 0, 0.1, 0.1, "f"), "f", "==", 0.1)
    assert not _may(_file(1, 0, 0.1, 0.1, "f"), "f", "==", 0.2)


def test_floats_are_never_left_out_of_unequal_as_statistics_do_not_tell_of_nan() -> None:
    assert _may(_file(2, 0, 1.0, 1.0, "f"), "f", "!=", 1.0)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_VALUES: dict[str, Any] = {
    "i": st.integers(-3, 3),
    "f": st.sampled_from([-1.5, -0.0, 0.0, 0.1, 2.0, float("nan"), float("inf")]),
    "s": st.text("ab\U0001f600\uffff", max_size=3),
    "b": st.booleans(),
    "d": st.dates(date(2024, 1, 1), date(2024, 1, 5)),
    "m": st.decimals(-1, 1, places=2),
    "n": st.datetimes(datetime(1969, 12, 31, 23, 59, 59), datetime(1970, 1, 1, 0, 0, 1)),
    "t": st.datetimes(datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 1)),
}


@given(data=st.data())
def test_a_file_with_a_row_that_matches_is_never_left_out(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_VALUES)))
    values = data.draw(st.lists(st.none() | _VALUES[name], min_size=1, max_size=4))
    op, value = data.draw(st.sampled_from(sorted(_OPERATORS))), data.draw(_VALUES[name])
    array = pa.array(values, Projection(ABOUT).schema.field(name).type)
    known = [v for v in array.to_pylist() if v is not None and v == v]
    low, high = (_json(f(known, default=None)) for f in (min, max))
    parsed = Filter.parse([(name, op, value)], ABOUT)
    mask = parsed.mask({name: array}, len(values)).tolist()
    literal = pa.scalar(value, array.type).as_py()
    assert mask == [v is not None and _OPERATORS[op](v, literal) for v in array.to_pylist()]
    file = _file(len(values), array.null_count, low, high, name)
    assert parsed.may_match(file) or not any(mask)


@given(data=st.data())
def test_a_row_group_with_a_row_that_matches_is_never_left_out(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_VALUES)))
    values = data.draw(st.lists(st.none() | _VALUES[name], min_size=1, max_size=6))
    op, value = data.draw(st.sampled_from(sorted(_OPERATORS))), data.draw(_VALUES[name])
    array = pa.array(values, Projection(ABOUT).schema.field(name).type)
    parsed = Filter.parse([(name, op, value)], ABOUT)
    wanted = array.filter(pa.array(parsed.mask({name: array}, len(values))))
    with TemporaryDirectory() as folder:
        file = write(Path(folder), pa.table({name: array}), row_group_size=2)
        found = rows(Path(folder), file, Projection(ABOUT, columns=[name], filter=parsed))
    assert str(found.column(0).to_pylist()) == str(wanted.to_pylist())


def _json(value: Any) -> Any:
    """A bound as writers put it into the log: long texts and times are cut."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value[:2]
    return float(value) if isinstance(value, Decimal) else value


@pytest.mark.parametrize(
    ("name", "filter"),
    [
        ("i", ("i", ">=", 950)),
        ("i", ("i", "in", list(range(950, 1000)))),
        ("t", ("t", ">=", datetime(2024, 1, 1, 0, 15, 50))),
        ("f", ("f", "is not null")),
    ],
)
def test_row_groups_that_cannot_match_are_not_decoded(
    tmp_path: Path, name: str, filter: Any
) -> None:
    numbers = pa.array(range(1000), pa.int32())
    seconds = [datetime(2024, 1, 1) + timedelta(seconds=i) for i in range(1000)]
    columns: dict[str, Any] = {
        "i": numbers,
        "t": pa.array(seconds, pa.timestamp("us", "UTC")),
        "f": pa.array([None if i < 950 else float(i) for i in range(1000)], pa.float32()),
    }
    file = write(tmp_path, pa.table(columns), row_group_size=50)
    raw = bytearray((tmp_path / file.path).read_bytes())
    last = pq.read_metadata(tmp_path / file.path).row_group(19).column(0)
    begin = last.dictionary_page_offset
    assert begin is not None
    raw[4:begin] = bytes(begin - 4)
    (tmp_path / file.path).write_bytes(raw)
    wanted = Projection(ABOUT, columns=[name], filter=Filter.parse([filter], ABOUT))
    assert rows(tmp_path, file, wanted)[name].to_pylist() == columns[name].to_pylist()[950:]


def test_nulls_inside_lists_are_no_null_lists(tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"l": [[None, None], [None]]}, pa.schema([("l", LISTS)])))
    wanted = Projection(ABOUT, columns=["l"], filter=Filter.parse([("l", "is not null")], ABOUT))
    assert rows(tmp_path, file, wanted).num_rows == 2


def test_a_filter_on_a_column_that_the_file_lacks_sees_nulls(tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"i": pa.array([1, 2], pa.int32())}))

    def found(*term: Any) -> int:
        wanted = Projection(ABOUT, columns=["i"], filter=Filter.parse([term], ABOUT))
        return rows(tmp_path, file, wanted).num_rows

    assert found("s", "is null") == 2
    assert found("s", "!=", "x") == 0


def test_a_filter_on_widened_values_compares_the_widened_ones(tmp_path: Path) -> None:
    about = metadata(field("x", "double"))
    stored = pa.array([1, 2, 3], pa.int32())
    wanted = Projection(about, filter=Filter.parse([("x", ">", 1.5)], about))
    assert rows(tmp_path, write(tmp_path, pa.table({"x": stored})), wanted)["x"].to_pylist() == [
        2.0,
        3.0,
    ]


def test_a_filter_finds_its_rows_in_every_piece_and_row_group(tmp_path: Path) -> None:
    values = pa.array([(i * 7919) % 1009 for i in range(20_000)], pa.int32())
    file = write(tmp_path, pa.table({"i": values}), row_group_size=3000)
    wanted = Projection(ABOUT, columns=["i"], filter=Filter.parse([("i", "<", 17)], ABOUT))
    expected = [v for v in values.to_pylist() if v is not None and v < 17]
    assert rows(tmp_path, file, wanted, piece_rows=512)["i"].to_pylist() == expected

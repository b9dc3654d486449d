"""Columns have the type that the table declares, whatever type a file has them in."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.delta_files import (
    array_of,
    column,
    field,
    map_of,
    mapped,
    metadata,
    pieces,
    rows,
    struct,
    write,
)

from forebay.columns import concat
from forebay.errors import ConfigError
from forebay_delta.errors import BrokenTable, SchemaChanged, UnsupportedTable
from forebay_delta.projection import Projection

UTC = timezone.utc
NOON = datetime(2024, 5, 1, 12, 0, 0, 123456)


def _as(folder: Path, values: pa.Array[Any], declared: Any) -> list[Any]:
    return column(folder, write(folder, pa.table({"x": values})), metadata(field("x", declared)))


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("string", ["a", "", None, "ü"]),
        ("long", [1, None, -(2**63)]),
        ("integer", [1, None, 2**31 - 1]),
        ("short", [1, None, -(2**15)]),
        ("byte", [1, None, 127]),
        ("float", [0.5, None, float("inf")]),
        ("double", [0.1, None, -0.0]),
        ("boolean", [True, None, False]),
        ("binary", [b"\x00\xff", None, b""]),
        ("date", [date(1, 1, 1), None, date(9999, 12, 31)]),
        ("timestamp", [NOON.replace(tzinfo=UTC), None]),
        ("timestamp_ntz", [NOON, None, datetime(1, 1, 1)]),
        ("decimal(38,10)", [Decimal("-0.1000000000"), None]),
        (array_of("integer"), [[1, None], None, []]),
        (map_of("string", "long"), [[("a", 1), ("b", None)], None, []]),
        (struct(field("a", "long"), field("b", "string")), [{"a": 1, "b": None}, None]),
    ],
)
def test_a_value_of_every_type_comes_as_it_was_written(
    tmp_path: Path, declared: Any, values: list[Any]
) -> None:
    stored = pa.array(values, Projection(metadata(field("x", declared))).schema.field("x").type)
    assert _as(tmp_path, stored, declared) == values


def test_a_void_column_is_null_and_needs_no_file(tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"y": [1, 2]}))
    assert column(tmp_path, file, metadata(field("x", "void"))) == [None, None]


@pytest.mark.parametrize(
    ("stored", "declared", "expected"),
    [
        (pa.array([1, None], pa.int8()), "long", [1, None]),
        (pa.array([1, None], pa.int32()), "double", [1.0, None]),
        (pa.array([1.5, None], pa.float32()), "double", [1.5, None]),
        (pa.array([7, None], pa.int64()), "decimal(20,2)", [Decimal("7.00"), None]),
        (pa.array([Decimal("1.5")], pa.decimal128(4, 1)), "decimal(9,3)", [Decimal("1.500")]),
        (pa.array([date(2024, 5, 1)]), "timestamp_ntz", [datetime(2024, 5, 1)]),
        (pa.array([NOON], pa.timestamp("ns")), "timestamp", [NOON.replace(tzinfo=UTC)]),
        (
            pa.array([1_999], pa.timestamp("ns")),
            "timestamp_ntz",
            [datetime(1970, 1, 1, 0, 0, 0, 1)],
        ),
        (pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")), "timestamp_ntz", [NOON]),
        (pa.array([5], pa.uint8()), "integer", [5]),
        (pa.array([b"ab"], pa.binary()), "string", ["ab"]),
    ],
)
def test_older_files_with_narrower_types_are_widened(
    tmp_path: Path, stored: pa.Array[Any], declared: str, expected: list[Any]
) -> None:
    assert _as(tmp_path, stored, declared) == expected


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (pa.array([2**40], pa.int64()), "integer"),
        (pa.array([0.1], pa.float64()), "float"),
        (pa.array([2**60 + 1], pa.int64()), "double"),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "decimal(9,1)"),
        (pa.array([b"\xff"], pa.binary()), "string"),
        (pa.array(["7"], pa.string()), "long"),
        (pa.array([1.0], pa.float64()), "long"),
        (pa.array([[1]], pa.list_(pa.int64())), "long"),
        (pa.array([{"a": 1}]), array_of("long")),
    ],
)
def test_a_value_that_would_change_is_refused_with_file_column_and_types(
    tmp_path: Path, stored: pa.Array[Any], declared: Any
) -> None:
    with pytest.raises(SchemaChanged, match=r"a\.parquet: column 'x' is .* does not fit"):
        _as(tmp_path, stored, declared)


def test_a_narrower_declared_type_takes_the_values_that_fit(tmp_path: Path) -> None:
    assert _as(tmp_path, pa.array([5, None], pa.int64()), "integer") == [5, None]
    stored = pa.array([0.5, float("nan"), None], pa.float64())
    assert _as(tmp_path, stored, "float")[::2] == [0.5, None]


VIEWS: list[tuple[pa.DataType, Any, list[Any]]] = [
    (pa.large_string(), "string", ["a", None]),
    (pa.string_view(), "string", ["a", None]),
    (pa.large_binary(), "binary", [b"a", None]),
    (pa.binary_view(), "binary", [b"a", None]),
    (pa.binary(2), "binary", [b"ab", None]),
    (pa.dictionary(pa.int8(), pa.string()), "string", ["a", None, "a"]),
    (pa.large_list(pa.int64()), array_of("long"), [[1, 2], None, []]),
    (pa.list_view(pa.int64()), array_of("long"), [[1, 2], None, []]),
    (pa.list_(pa.int64(), 2), array_of("long"), [[1, 2], None, [3, 4]]),
    (
        pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]),
        struct(field("d", "string")),
        [{"d": "a"}, None, {"d": None}],
    ),
    (
        pa.list_(pa.struct([("d", pa.large_string())])),
        array_of(struct(field("d", "string"))),
        [[{"d": "a"}], None],
    ),
    (pa.map_(pa.large_string(), pa.int32()), map_of("string", "long"), [[("a", 1)], None, []]),
]


@pytest.mark.parametrize(("physical", "declared", "values"), VIEWS)
def test_every_physical_form_of_a_type_becomes_the_declared_one(
    tmp_path: Path, physical: pa.DataType, declared: Any, values: list[Any]
) -> None:
    try:
        file = write(tmp_path, pa.table({"x": pa.array(values, physical)}))
    except pa.ArrowException as e:
        pytest.skip(f"pyarrow {pa.__version__} writes no {physical}: {e}")
    about = metadata(field("x", declared))
    assert column(tmp_path, file, about) == values
    for start in range(len(values)):  # a slice of an array is converted as well as a whole one
        assert column(tmp_path, file, about, start_row=start) == values[start:]


def test_files_that_mix_dictionary_and_plain_texts_join_into_one_batch(tmp_path: Path) -> None:
    plain = pa.array(["a", "b"])
    nested = pa.StructArray.from_arrays([plain], ["s"])
    coded = pa.StructArray.from_arrays([plain.dictionary_encode()], ["s"])
    about = metadata(field("t", "string"), field("n", struct(field("s", "string"))))
    parts = [
        pieces(tmp_path, write(tmp_path, pa.table({"t": t, "n": n})), Projection(about))[0].columns
        for t, n in [(plain, nested), (plain.dictionary_encode(), coded)]
    ]
    joined = concat(parts)
    assert list(joined["t"].tolist()) == ["a", "b"] * 2
    assert joined["n"].tolist() == [{"s": "a"}, {"s": "b"}] * 2


def test_columns_are_found_by_their_physical_names_at_every_level(tmp_path: Path) -> None:
    inner = struct(mapped("a", "long", 3, "col-3"), mapped("b", "long", 4, "col-4"))
    about = metadata(
        mapped("s", inner, 1, "col-1"), mapped("l", array_of(inner), 2, "col-2"), mode="name"
    )
    value = {"col-4": 4, "col-3": 3}
    file = write(tmp_path, pa.table({"col-2": [[value]], "col-1": [value]}))
    found = rows(tmp_path, file, Projection(about)).to_pylist()
    assert found == [{"s": {"a": 3, "b": 4}, "l": [{"a": 3, "b": 4}]}]


def test_mode_id_finds_columns_by_field_id_before_any_name(tmp_path: Path) -> None:
    about = metadata(mapped("a", "long", 1, "x"), mapped("b", "long", 2, "y"), mode="id")
    ids = [pa.field(n, pa.int64(), metadata={"PARQUET:field_id": i}) for n, i in ("x2", "y1")]
    file = write(
        tmp_path, pa.Table.from_arrays([pa.array([20]), pa.array([10])], schema=pa.schema(ids))
    )
    assert rows(tmp_path, file, Projection(about)).to_pylist() == [{"a": 10, "b": 20}]
    named = write(tmp_path, pa.table({"y": [2], "x": [1]}), "b.parquet")
    assert rows(tmp_path, named, Projection(about)).to_pylist() == [{"a": 1, "b": 2}]


def test_mode_id_goes_by_id_inside_structs_also_where_the_names_say_otherwise(
    tmp_path: Path,
) -> None:
    inner = struct(mapped("a", "long", 1, "x"), mapped("b", "long", 2, "y"))
    about = metadata(mapped("s", inner, 3, "s"), mode="id")
    ids = [pa.field(n, pa.int64(), metadata={"PARQUET:field_id": i}) for n, i in ("a2", "b1")]
    values = pa.StructArray.from_arrays([pa.array([20]), pa.array([10])], fields=ids)
    file = write(tmp_path, pa.Table.from_arrays([values], names=["s"]))
    assert column(tmp_path, file, about) == [{"a": 10, "b": 20}]


def test_columns_that_an_older_file_lacks_are_null_also_inside_structs(tmp_path: Path) -> None:
    about = metadata(
        field("s", struct(field("old", "long"), field("new", "string"))), field("added", "double")
    )
    file = write(tmp_path, pa.table({"s": [{"old": 1}, None]}))
    assert rows(tmp_path, file, Projection(about)).to_pylist() == [
        {"s": {"old": 1, "new": None}, "added": None},
        {"s": None, "added": None},
    ]


def test_the_case_of_a_name_counts_only_if_another_column_has_it(tmp_path: Path) -> None:
    file = write(tmp_path, pa.table({"X": [1]}))
    assert column(tmp_path, file, metadata(field("x", "long"))) == [1]
    both = write(tmp_path, pa.table({"X": [1], "x": [2]}))
    assert column(tmp_path, both, metadata(field("x", "long"))) == [2]


def test_an_unshredded_variant_comes_as_its_two_binaries_and_a_shredded_one_is_refused(
    tmp_path: Path,
) -> None:
    about = metadata(field("x", "variant"))
    value = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    assert column(tmp_path, write(tmp_path, pa.table({"x": [value, None]})), about) == [value, None]
    shredded = write(tmp_path, pa.table({"x": [{**value, "typed_value": 1}]}))
    with pytest.raises(UnsupportedTable, match=r"a\.parquet: column 'x': .*shredded"):
        column(tmp_path, shredded, about)


def test_a_type_that_is_not_known_is_refused_with_its_column() -> None:
    nested = struct(field("where", array_of("geometry(OGC:CRS84)")))
    with pytest.raises(UnsupportedTable, match=r"'x\.where\.element'.*geometry"):
        Projection(metadata(field("x", nested)))


def test_a_schema_that_is_none_is_a_broken_table() -> None:
    with pytest.raises(BrokenTable, match="column 'x' is no struct"):
        Projection(metadata(field("x", {"type": "struct"})))


def test_a_class_of_spark_is_read_as_the_type_below_it(tmp_path: Path) -> None:
    udt = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT", "sqlType": "double"}
    assert column(tmp_path, write(tmp_path, pa.table({"x": [0.5]})), metadata(field("x", udt)))


@pytest.mark.parametrize("declared", ["long", "integer", "short", "byte", "float", "double"])
def test_numbers_without_nulls_are_numpy_over_the_decoded_memory_and_writable(
    tmp_path: Path, declared: str
) -> None:
    about = Projection(metadata(field("x", declared)))
    stored = pa.array(range(100)).cast(about.schema.field("x").type)
    file = write(tmp_path, pa.table({"x": stored}), compression="NONE", use_dictionary=False)
    before = (tmp_path / file.path).read_bytes()
    found = pieces(tmp_path, file, about, piece_rows=32, start_row=3)
    for piece in found:
        values = piece.columns["x"]
        assert isinstance(values, np.ndarray) and values.base is not None
        values += 1
    assert np.concatenate([p.columns["x"] for p in found]).tolist() == list(range(4, 101))
    assert (tmp_path / file.path).read_bytes() == before


def test_a_number_column_with_nulls_joins_with_pieces_of_it_that_have_none(tmp_path: Path) -> None:
    about = Projection(metadata(field("x", "long"), field("b", "boolean")))
    stored = pa.table({"x": [1, 2, None, 4], "b": [True, False, None, True]})
    found = pieces(tmp_path, write(tmp_path, stored), about, piece_rows=2)
    assert [type(p.columns["x"]) for p in found] == [np.ndarray, pa.Int64Array]
    joined = concat([p.columns for p in found])
    assert joined["x"].tolist() == [1, 2, None, 4]
    assert joined["b"].tolist() == [True, False, None, True]


@pytest.mark.parametrize("physical", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3)])
def test_lists_of_a_stated_length_are_matrices_over_the_decoded_memory(
    tmp_path: Path, physical: pa.DataType
) -> None:
    about = Projection(metadata(field("x", array_of("float"))), lengths={"x": 3})
    values = [[float(i), 0.5, -1.0] for i in range(10)]
    file = write(tmp_path, pa.table({"x": pa.array(values, physical)}))
    found = pieces(tmp_path, file, about, piece_rows=4, start_row=1)
    assert np.concatenate([p.columns["x"] for p in found]).tolist() == values[1:]
    assert all(p.columns["x"].base is not None for p in found)  # type: ignore[union-attr]


@pytest.mark.parametrize("odd", [[1.0], None, [1.0, None]])
def test_a_list_of_another_length_than_stated_is_refused(tmp_path: Path, odd: Any) -> None:
    about = Projection(metadata(field("x", array_of("double"))), lengths={"x": 2})
    file = write(tmp_path, pa.table({"x": [[1.0, 2.0], odd]}))
    with pytest.raises(SchemaChanged, match=r"lengths=.'x': 2., but .*list"):
        pieces(tmp_path, file, about)


def test_a_length_is_stated_for_lists_of_numbers_only() -> None:
    with pytest.raises(ConfigError, match="only lists of numbers have a length"):
        Projection(metadata(field("x", "long")), lengths={"x": 2})


def test_an_unknown_column_is_named_with_near_ones_and_all_there_are() -> None:
    about = metadata(field("user_id", "long"), field("clicked", "boolean"))
    with pytest.raises(ConfigError, match=r"no column 'userid'; did you mean 'user_id'.*clicked"):
        Projection(about, columns=["userid"])


def test_columns_come_in_the_order_asked_for_and_once(tmp_path: Path) -> None:
    about = metadata(field("a", "long"), field("b", "long"), field("c", "long"))
    file = write(tmp_path, pa.table({"a": [1], "b": [2], "c": [3]}))
    assert rows(tmp_path, file, Projection(about, columns=["c", "a"])).to_pylist() == [
        {"c": 3, "a": 1}
    ]
    with pytest.raises(ConfigError, match="more than once: a"):
        Projection(about, columns=["a", "b", "a"])


def test_names_with_dots_do_not_select_each_other(tmp_path: Path) -> None:
    about = metadata(field("a.b", "long"), field("a", struct(field("b", "long"))))
    file = write(tmp_path, pa.table({"a": [{"b": 1}], "a.b": [2]}))
    assert rows(tmp_path, file, Projection(about)).to_pylist() == [{"a.b": 2, "a": {"b": 1}}]
    assert column(tmp_path, file, metadata(field("a.b", "long"))) == [2]


def test_files_of_changes_say_what_happened_and_others_cannot(tmp_path: Path) -> None:
    about = Projection(metadata(field("x", "long")), change_type=True)
    assert about.schema.names == ["x", "_change_type"]
    file = write(tmp_path, pa.table({"x": [1], "_change_type": ["insert"]}))
    assert rows(tmp_path, file, about).to_pylist() == [{"x": 1, "_change_type": "insert"}]
    with pytest.raises(BrokenTable, match=r"b\.parquet: .*'_change_type'"):
        pieces(tmp_path, write(tmp_path, pa.table({"x": [1]}), "b.parquet"), about)

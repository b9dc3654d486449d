"""JSON payloads: one payload, one row, by a declared schema; exact, and each bad one alone."""

from __future__ import annotations

import pickle
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pictures import columns_of, outcome_of, reason

from forebay import decode
from forebay.columns import concat
from forebay.decode.json_rows import JsonDecoder
from forebay.errors import ConfigError

X = decode.json("value", {"x": "int64"})
MAX, MIN = 2**63 - 1, -(2**63)
NESTED = pa.schema(
    [
        pa.field("user", pa.struct([pa.field("name", pa.string(), False), ("age", pa.int8())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("box", pa.list_(pa.float32(), 4)),
        pa.field("scores", pa.map_(pa.string(), pa.float64())),
        pa.field("seen", pa.large_list(pa.struct([("at", pa.timestamp("s"))]))),
    ]
)


def values(decoder: JsonDecoder, payloads: Any, field: str = "x") -> list[Any]:
    """A field of all rows; there must be no failure."""
    outcome = outcome_of(decoder, payloads)
    assert outcome.failed == {}
    column: Any = outcome.columns[field]
    listed: list[Any] = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return listed


def test_fields_become_columns_in_the_place_of_the_payload() -> None:
    decoder = decode.json("value", {"x": "int64", "y": "float32", "ok": "bool", "name": "string?"})
    payloads = [b'{"x":1,"y":2,"ok":true,"name":"a"}', b'{"ok":false,"y":5e-1,"x":-0}']
    columns = columns_of(decoder, payloads)
    kinds = {"x": np.int64, "y": np.float32, "ok": np.bool_}
    assert list(columns) == ["id", "x", "y", "ok", "name"]
    assert {name: columns[name].dtype for name in kinds} == kinds
    assert columns["y"].tolist() == [2.0, 0.5]
    assert columns["name"].equals(pa.array(["a", None]))


def test_integers_keep_every_bit_with_and_without_nulls() -> None:
    big = [9007199254740993, MAX, MIN, 5]
    payloads = [b'{"x":%d}' % n for n in big]
    assert values(X, payloads) == big
    nullable = decode.json("value", {"x": "int64?"})
    assert values(nullable, [*payloads, b'{"x":null}', b"{}"]) == [*big, None, None]


@pytest.mark.parametrize("number", [MAX + 1, MIN - 1, 2**64, 10**30])
def test_an_integer_beyond_its_type_fails_naming_the_field(number: int) -> None:
    assert "$.x" in reason(X, b'{"x":%d}' % number)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_narrow_and_unsigned_integers_hold_their_range_and_no_more(sign: str, bits: int) -> None:
    for nullable in ("", "?"):
        decoder = decode.json("value", {"x": f"{sign}{bits}{nullable}"})
        low, high = (
            (0, 2**bits - 1) if sign == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        assert values(decoder, [b'{"x":%d}' % n for n in (low, high)]) == [low, high]
        outcome = outcome_of(decoder, [b'{"x":%d}' % n for n in (low - 1, low, high, high + 1)])
        assert outcome.failed.keys() == {0, 3} and all(
            "x" in why for why in outcome.failed.values()
        )


@pytest.mark.parametrize("text", [b"1.5", b"1.0", b"1e3", b'"1"', b"true", b"[1]", b"{}", b"null"])
def test_what_is_no_integer_is_not_made_one(text: bytes) -> None:
    assert "Expected `int`" in reason(X, b'{"x":%s}' % text)


def test_a_field_of_floats_takes_integers_and_refuses_what_it_cannot_hold() -> None:
    double, single = (decode.json("value", {"x": t}) for t in ("float64", "float32"))
    assert values(double, [b'{"x":1}', b'{"x":-2.5e-3}']) == [1.0, -0.0025]
    assert reason(double, b'{"x":1e400}') and reason(double, b'{"x":"1"}')
    assert "$.x" in reason(single, b'{"x":1e39}')


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity"])
@pytest.mark.parametrize("bits", [32, 64])
def test_nan_and_infinity_are_taken_only_when_allowed(word: bytes, bits: int) -> None:
    schema = {"x": f"float{bits}", "n": "int64"}
    payload = b'{"n":9007199254740993,"x":%s}' % word
    assert "malformed" in reason(decode.json("value", schema), payload)
    allowed = decode.json("value", schema, allow_nan=True)
    assert str(values(allowed, [payload])[0]) == str(float(word))
    assert values(allowed, [payload], "n") == [9007199254740993]
    assert "$.n" in reason(allowed, b'{"n":NaN,"x":1}')


def test_of_a_key_that_is_there_twice_the_last_one_counts() -> None:
    assert values(X, [b'{"x":1,"x":2}']) == [2]


def test_a_missing_key_is_null_or_a_failure_as_declared() -> None:
    assert "missing required field `x`" in reason(X, b'{"y":1}')
    assert values(decode.json("value", {"x": "string?"}), [b'{"y":1}']) == [None]


def test_unknown_keys_are_skipped_unless_they_shall_fail() -> None:
    payload = b'{"x":1,"new":{"deep":[1,{"er":null}]}}'
    assert values(X, [payload]) == [1]
    assert "unknown field `new`" in reason(
        decode.json("value", {"x": "int64"}, extra="fail"), payload
    )


@pytest.mark.parametrize(
    "payload",
    [
        b'{"x":1}{"x":2}', b'{"x":1}\n{"x":2}', b"", b"  \n", b"null", b'[{"x":1}]', b"1", b'"x"',
        b"{'x':1}", b'{"x":1,}', b'{"x":01}', b'{"x":1', b"\xef\xbb\xbf{}", b'{"x":1}\0',
        b'{"x":1,"\xff":2}x', b"[" * 100_000, b'{"y":' * 100_000, b"\x1f\x8b\x08",
    ],
)  # fmt: skip
def test_what_is_not_exactly_one_object_fails_alone(payload: bytes) -> None:
    outcome = outcome_of(X, [b'{"x":1}', payload, b'{\n  "x": 2\n}\n'])
    assert outcome.columns["x"].tolist() == [1, 2]
    assert outcome.columns["id"].tolist() == [0, 2]
    assert outcome.failed.keys() == {1} and outcome.failed[1]


def test_a_bare_null_among_good_rows_costs_its_row_only() -> None:
    good = [b'{"null":%d}' % i for i in range(9)]
    decoder = decode.json("value", {"null": "int64"})
    for at in (0, 5, 9):
        outcome = outcome_of(decoder, [*good[:at], b"null", *good[at:]])
        assert outcome.columns["null"].tolist() == list(range(9))
        assert outcome.failed.keys() == {at}


def test_text_must_be_utf8_and_may_hold_any_character() -> None:
    decoder = decode.json("value", {"x": "string"})
    assert values(decoder, ['{"x":"ß\\u0000😀"}'.encode()]) == ["ß\0😀"]
    assert "utf-8" in reason(decoder, b'{"x":"\xff"}').lower()
    assert reason(decoder, b'{"x":"\\ud800"}')


def test_nested_values_come_as_declared() -> None:
    decoder = decode.json("value", NESTED)
    full = (
        b'{"user":{"name":"a","age":3},"tags":["x",null],"box":[1,2,3,4],"scores":{"a":1,"b":null},'
        b'"seen":[{"at":"2024-01-02T03:04:05"},{"at":7}]}'
    )
    columns = columns_of(decoder, [full, b"{}", full])
    table = pa.table({name: columns[name] for name in NESTED.names})
    table.validate(full=True)
    rows = table.to_pylist()
    assert rows[0] == rows[2] == {
        "user": {"name": "a", "age": 3},
        "tags": ["x", None],
        "box": [1.0, 2.0, 3.0, 4.0],
        "scores": [("a", 1.0), ("b", None)],
        "seen": [{"at": datetime(2024, 1, 2, 3, 4, 5)}, {"at": datetime(1970, 1, 1, 0, 0, 7)}],
    }  # fmt: skip
    assert rows[1] == dict.fromkeys(NESTED.names)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b'{"user":{"age":3}}', "$.user"),
        (b'{"user":{"name":"a","age":300}}', "$.user.age"),
        (b'{"tags":["x",1]}', "$.tags[1]"),
        (b'{"box":[1,2,3]}', "$.box"),
        (b'{"scores":{"a":"b"}}', "$.scores[...]"),
        (b'{"seen":[{"at":"yesterday"}]}', "seen"),
    ],
)
def test_a_wrong_nested_value_is_named_by_its_path(payload: bytes, path: str) -> None:
    assert path in reason(decode.json("value", NESTED), payload)


def test_times_dates_decimals_and_bytes_have_a_form_in_json() -> None:
    types = {
        "at": pa.timestamp("ns", "UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(6, 2),
        "raw": pa.binary(),
    }
    payload = (
        b'{"at":"2024-01-02T03:04:05.123456789Z","day":"2024-02-29","price":1.10,"raw":"AP8="}'
    )
    decoder = decode.json("value", {name: pa.field(name, t) for name, t in types.items()})
    columns = columns_of(decoder, [payload, b'{"at":17,"day":1}'])
    assert columns["at"].cast(pa.int64()).to_pylist() == [1704164645123456789, 17]
    assert columns["day"].to_pylist() == [date(2024, 2, 29), date(1970, 1, 2)]
    assert columns["price"].to_pylist() == [Decimal("1.10"), None]
    assert columns["raw"].to_pylist() == [b"\0\xff", None]


@pytest.mark.parametrize("payload", [b'{"at":"x"}', b'{"day":"2023-02-29"}', b'{"price":0.001}'])
def test_values_found_wrong_only_as_columns_fail_alone(payload: bytes) -> None:
    types = {"at": pa.timestamp("s"), "day": pa.date32(), "price": pa.decimal128(4, 2)}
    schema = {name: pa.field(name, t) for name, t in types.items()}
    outcome = outcome_of(decode.json("value", schema), [b"{}", payload, b'{"at":1}', payload, b"{"])
    assert outcome.columns["id"].tolist() == [0, 2]
    assert outcome.failed.keys() == {1, 3, 4}


def test_a_field_takes_the_place_of_a_column_of_its_name_and_a_prefix_keeps_both() -> None:
    payload = [b'{"id":7}']
    assert values(decode.json("value", {"id": "int64"}), payload, "id") == [7]
    outcome = outcome_of(decode.json("value", {"id": "int64"}, prefix="value."), payload)
    assert {n: c.tolist() for n, c in outcome.columns.items()} == {"id": [0], "value.id": [7]}


def test_tombstones_fail_by_default_and_are_not_empty_payloads() -> None:
    payloads = [None, b"", b"{}", b'{"x":1}']
    failed = outcome_of(X, payloads).failed
    assert "tombstone" in failed[0] and 'nulls="skip"' in failed[0]
    assert "blank (0 bytes)" in failed[1] and "missing" in failed[2]
    skipping = outcome_of(decode.json("value", {"x": "int64"}, nulls="skip"), payloads)
    assert skipping.failed.keys() == {1, 2} and skipping.columns["id"].tolist() == [3]


def test_tombstones_can_be_kept_as_rows_of_nulls() -> None:
    keeping = decode.json("value", {"x": "int64?"}, nulls="keep")
    assert values(keeping, [b'{"x":1}', None, b'{"x":2}', None]) == [1, None, 2, None]
    assert values(keeping, pa.array([None, b'{"x":1}'], pa.binary())) == [None, 1]
    with pytest.raises(ConfigError, match="declare them nullable"):
        decode.json("value", {"x": "int64"}, nulls="keep")


@given(
    rows=st.lists(
        st.sampled_from([b'{"a":1}', b'{"a":2,"b":3}', b"{}", b"null", b'{"b":1e9}']), max_size=9
    ),
    cut=st.integers(1, 9),
)
def test_rows_do_not_depend_on_where_slices_are_cut(rows: list[bytes], cut: int) -> None:
    decoder = decode.json("value", {"a": "int64?", "b": "float64?"})
    whole = outcome_of(decoder, rows)
    parts = [outcome_of(decoder, rows[i : i + cut]) for i in range(0, len(rows), cut)] or [whole]
    joined: Any = concat([{n: p.columns[n] for n in ("a", "b")} for p in parts])
    assert all(joined[n].equals(whole.columns[n]) for n in ("a", "b"))
    assert sum(len(p.failed) for p in parts) == len(whole.failed)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.binary_view()])
def test_arrow_payloads_of_every_layout_are_read(kind: pa.DataType) -> None:
    column = pa.array([b"cut off", b'{"x":1}', b'{"x":2}'], pa.binary()).cast(kind)
    assert values(X, column[1:]) == [1, 2]
    assert values(
        X, column[1:].dictionary_encode() if kind != pa.binary_view() else column[1:]
    ) == [1, 2]


def test_no_rows_give_no_rows_of_the_declared_types() -> None:
    columns = columns_of(decode.json("value", NESTED), [])
    assert columns["box"].type == pa.list_(pa.float32(), 4)
    assert len(columns["id"]) == 0


def test_a_decoder_can_be_sent_to_another_process() -> None:
    decoder = decode.json("value", NESTED)
    assert pickle.loads(pickle.dumps(decoder)) == decoder


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({}, "no fields"),
        ({"x": "int65"}, "field 'x' has the unknown type 'int65'"),
        ({"x": {"y": 3}}, "field 'y'"),
        ({"x": pa.duration("s")}, r"\$\.x"),
        (pa.schema([("x", pa.int64()), ("x", pa.int64())]), "two fields"),
        (pa.schema([("x", pa.map_(pa.int64(), pa.int64()))]), "keys"),
    ],
)
def test_a_wrong_schema_is_one_error_naming_the_field(schema: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        decode.json("value", schema)


@pytest.mark.parametrize("column", [pa.array([1, 2]), np.array([b"a", b"b"]), np.zeros((2, 3))])
def test_a_column_without_payloads_is_refused(column: Any) -> None:
    with pytest.raises(ConfigError, match="column 'value' holds"):
        outcome_of(X, column)
    with pytest.raises(ConfigError, match="there is no column 'other' to decode"):
        outcome_of(decode.json("other", {"x": "int64"}), [b"{}"])

"""Raw arrays and Arrow messages: bytes taken as they are, after a look at their length."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.pictures import columns_of, outcome_of, reason

from forebay import decode
from forebay.columns import as_numpy
from forebay.errors import ConfigError

ROWS = pa.record_batch({"a": pa.array([1, 2, 3]), "b": pa.array(["x", None, "z"])})


def message(*batches: pa.RecordBatch) -> bytes:
    """An Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_arrays_come_back_as_they_were_sent(shape: tuple[int, ...]) -> None:
    sent = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    payloads = [row.tobytes() for row in sent]
    for column in (
        payloads,
        pa.array(payloads, pa.binary()),
        pa.array(payloads, pa.large_binary()),
    ):
        got = columns_of(decode.raw("value", "float32", shape), column)["value"]
        assert got.dtype == np.float32 and np.array_equal(got, sent)


def test_the_senders_byte_order_is_turned_into_ours() -> None:
    got = columns_of(decode.raw("value", ">i2"), [b"\x01\x00", b"\x00\x02"])["value"]
    assert got.dtype == np.int16 and got.tolist() == [256, 2]


def test_zero_bytes_at_the_end_are_kept() -> None:
    payloads = [b"a\0\0", b"\0\0\0", b"\0b\0"]
    got = columns_of(decode.raw("value", "uint8", (3,)), payloads)["value"]
    assert [row.tobytes() for row in got] == payloads


def test_a_payload_of_another_length_fails_alone() -> None:
    decoder = decode.raw("value", "float32", (2, 2), into="x")
    outcome = outcome_of(decoder, [b"\0" * 16, b"\0" * 15, b"\0" * 17, None, b"\0" * 16])
    assert outcome.failed[1] == "15 bytes, but 2x2 of float32 takes 16"
    assert outcome.failed.keys() == {1, 2, 3} and "tombstone" in outcome.failed[3]
    assert outcome.columns["id"].tolist() == [0, 4]
    assert np.asarray(outcome.columns["x"]).shape == (2, 2, 2)


def test_the_array_can_be_written_to_without_touching_the_source() -> None:
    payload = b"\x01"
    got = columns_of(decode.raw("value", "uint8"), [payload])["value"]
    got += 1
    assert payload == b"\x01"


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float33", ()), ("object", ()), ("U3", ()), ("int8", (2, 0))]
)
def test_a_wrong_type_or_shape_is_named_at_once(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"decode.raw\(value\)"):
        decode.raw("value", dtype, shape)


def test_an_arrow_message_gives_all_its_rows_each_with_its_parent() -> None:
    payloads = [message(ROWS, ROWS[:1]), message(ROWS[:0]), message(ROWS[1:])]
    outcome = outcome_of(decode.arrow_ipc("value", ROWS.schema), payloads)
    assert outcome.parents is not None and outcome.parents.tolist() == [0, 0, 0, 0, 2, 2]
    assert outcome.columns["id"].tolist() == [0, 0, 0, 0, 2, 2]
    assert as_numpy(outcome.columns["a"]).tolist() == [1, 2, 3, 1, 2, 3]
    assert as_numpy(outcome.columns["b"]).tolist() == ["x", None, "z", "x", None, "z"]


def test_a_message_of_another_schema_fails_naming_the_field() -> None:
    other = pa.record_batch({"a": pa.array([1.5]), "b": pa.array(["x"])})
    why = reason(decode.arrow_ipc("value", {"a": "int64", "b": "string"}), message(other))
    assert "'a' of double" in why and "'a' of int64" in why
    with pytest.raises(ValueError, match="'a' cannot be joined"):
        outcome_of(decode.arrow_ipc("value"), [message(ROWS), message(other)])


def test_a_schema_says_what_may_be_null_and_the_message_need_not() -> None:
    strict = decode.arrow_ipc("value", {"a": "int64", "b": "string?"})
    assert outcome_of(strict, [message(ROWS)]).failed == {}
    assert "null" in reason(
        strict, message(pa.record_batch({"a": pa.array([None], pa.int64()), "b": ["x"]}))
    )


@pytest.mark.parametrize("cut", [0, 1, 8, 100, -20])
def test_a_cut_message_fails(cut: int) -> None:
    assert "not a whole Arrow IPC stream" in reason(decode.arrow_ipc("value"), message(ROWS)[:cut])


def test_an_offset_that_points_outside_a_message_fails_it() -> None:
    offsets = np.array([0, 1, 1, 2], np.int32).tobytes()
    far = np.array([0, 1, 1, 2_000_000_000], np.int32).tobytes()
    hurt = message(ROWS).replace(offsets, far)
    assert hurt != message(ROWS)
    assert "not a whole Arrow IPC stream" in reason(decode.arrow_ipc("value"), hurt)


def test_damaged_messages_cost_their_rows_and_never_the_process() -> None:
    whole = message(ROWS)
    random = np.random.default_rng(0)
    damaged = []
    for _ in range(400):
        hurt = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            hurt[at] = random.integers(0, 256)
        damaged.append(bytes(hurt))
    for payload in damaged:
        outcome = outcome_of(decode.arrow_ipc("value", ROWS.schema), [payload])
        for column in outcome.columns.values():
            assert len(column) == len(outcome.parents if outcome.parents is not None else [])

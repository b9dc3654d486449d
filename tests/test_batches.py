"""What a step gets: tensors that may be written to, values unchanged, shapes by a stated rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

from forebay import Batch, ConfigError, Pipeline
from forebay.columns import Columns, as_numpy, concat, cut, nbytes, take
from forebay.tensors import to_batch
from forebay.testing import MemorySource


def batch_of(columns: dict[str, Any], size: int = 100, **options: Any) -> Batch:
    rows = len(next(iter(columns.values())))
    source = MemorySource({"a": list(range(rows))}, slice_rows=rows)
    pipeline = Pipeline(source).map(
        lambda c: cut(columns, c["value"][0].as_py(), c["value"][-1].as_py() + 1)
    )
    return next(iter(pipeline.batch(size).loader(**options)))


def test_integers_beyond_2_to_the_53_keep_every_bit_also_beside_a_null() -> None:
    big = 9007199254740993
    batch = batch_of({"id": pa.array([big, 5]), "maybe": pa.array([big, None])})
    assert batch["id"].dtype == torch.int64
    assert batch["id"].tolist() == [big, 5]
    assert batch["maybe"] == [big, None]


def test_unsigned_64_bit_integers_keep_every_bit() -> None:
    batch = batch_of({"id": pa.array([2**64 - 1, 1], pa.uint64())})
    assert batch["id"].numpy().tolist() == [2**64 - 1, 1]


def test_bytes_keep_their_length_and_text_its_characters() -> None:
    payloads = [b"a\x00\x00", b"", b"\x00", None]
    batch = batch_of({"b": pa.array(payloads), "t": pa.array(["ü", "", "x\x00", None])})
    assert batch["b"] == payloads
    assert batch["t"] == ["ü", "", "x\x00", None]
    assert as_numpy(pa.array(payloads)).tolist() == payloads


def test_texts_and_bytes_in_numpy_arrays_become_lists() -> None:
    batch = batch_of({"t": np.array(["a", "bc"]), "b": np.array([b"a", b"bc"])})
    assert (batch["t"], batch["b"]) == (["a", "bc"], [b"a", b"bc"])


def test_images_become_one_tensor_of_rows_by_height_by_width_by_channel() -> None:
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    batch = batch_of({"image": images})
    assert batch["image"].shape == (2, 4, 5, 3)
    assert batch["image"].dtype == torch.uint8


def test_writing_into_a_batch_changes_nothing_else() -> None:
    shared = np.ones((4, 3), np.float32)
    shared.flags.writeable = False
    source = pa.array([1, 2, 3, 4])
    batch = batch_of({"x": shared, "y": source})
    batch["x"] *= 0
    batch["y"] *= 0
    assert shared.sum() == 12
    assert source.to_pylist() == [1, 2, 3, 4]


def test_stages_get_arrow_memory_that_cannot_be_written_to() -> None:
    def in_place(columns: Columns) -> Columns:
        values = as_numpy(columns["value"])
        values *= 0
        return {"value": values}

    of = Pipeline(MemorySource({"a": list(range(200))})).map(in_place).batch(2)
    with pytest.raises(Exception, match="read-only"):
        next(iter(of.loader()))


def test_fixed_size_lists_become_a_tensor_of_two_axes() -> None:
    column = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))
    assert batch_of({"x": column})["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_of_different_length_are_a_list_or_padded_with_a_mask(size: int) -> None:
    lists = [[1, 2, 3], [], [4], [5, 6]]
    column = pa.array(lists, pa.list_(pa.int32()))
    listed = batch_of({"x": column}, size)["x"]
    assert [t.tolist() for t in listed] == lists[:size]
    padded = batch_of({"x": column}, size, ragged="pad")
    assert padded["x"].shape == padded["x_mask"].shape == (size, 3)
    assert padded["x_mask"][0].tolist() == [True, True, True]


def test_images_of_different_size_are_a_list_of_tensors() -> None:
    images = np.empty(2, object)
    images[:] = [np.zeros((3, 4, 5)), np.zeros((3, 6, 5))]
    assert [t.shape for t in batch_of({"x": images})["x"]] == [(3, 4, 5), (3, 6, 5)]


def test_padding_rows_of_different_rank_is_refused() -> None:
    images = np.empty(2, object)
    images[:] = [np.zeros((3, 4)), np.zeros(3)]
    with pytest.raises(ConfigError, match="column 'x': rows of different rank"):
        batch_of({"x": images}, ragged="pad")


def test_dictionary_encoded_and_plain_text_join() -> None:
    plain, encoded = pa.array(["a", "b"]), pa.array(["c", "c"]).dictionary_encode()
    joined = concat([{"x": plain}, {"x": encoded}])
    assert joined["x"].to_pylist() == ["a", "b", "c", "c"]  # type: ignore[union-attr]


def test_texts_and_bytes_of_several_slices_keep_their_order_and_nulls() -> None:
    texts: list[Any] = ["a", None, "", "ü"]
    payloads: list[Any] = [b"\0", b"", None, b"x\0"]
    whole: Columns = {
        "text": pa.array(texts),
        "data": pa.array(payloads),
        "n": pa.array([1, 2, 3, 4]),
    }
    parts = [cut(whole, 0, 2), cut(whole, 2, 4)]
    batch = to_batch(parts, 4, Batch.origins, "list")
    assert list(batch) == ["text", "data", "n"]
    assert (batch["text"], batch["data"]) == (texts, payloads)
    assert batch["n"].tolist() == [1, 2, 3, 4]


def test_more_than_two_gigabytes_of_binary_join() -> None:
    part = {"x": pa.array([b"\x00" * (100 << 20)])}
    joined = concat([part] * 22)
    assert nbytes(joined) > 22 * (100 << 20)
    assert len(take(joined, np.array([21]))["x"][0].as_py()) == 100 << 20


def test_columns_that_do_not_fit_together_name_the_column_and_the_way_out() -> None:
    def uneven(columns: Columns) -> Columns:
        first = columns["value"][0].as_py() == 0
        return {"x": pa.array([1] if first else ["one"])}

    of = Pipeline(MemorySource({"a": [0, 1]}, slice_rows=1)).map(uneven).batch(2).loader()
    with pytest.raises(ConfigError, match=r"column 'x' cannot be joined.*int64.*string.*schema="):
        next(iter(of))


@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_key_that_the_first_row_lacks_is_kept_whatever_the_batch_size(size: int) -> None:
    records = [{"a": 1}, {"a": 2, "b": 3}]
    schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    pipeline = Pipeline(MemorySource({"s": [0, 1]}, slice_rows=1))
    pipeline = pipeline.map(lambda row: records[row["value"]], per="row", schema=schema)
    given = [v for batch in pipeline.batch(size).loader() for v in list(batch["b"])]
    assert given == [None, 3]


def test_the_rows_of_a_batch_name_their_split_and_offset() -> None:
    source = MemorySource({"a": [1, 2], "b": [3]})
    batch = next(iter(Pipeline(source).batch(8).loader(order="deterministic")))
    assert list(batch.origins) == [("a", 0), ("a", 1), ("b", 0)]


def test_a_function_of_whole_batches_gets_random_numbers_that_survive_a_restart() -> None:
    def noisy(columns: Columns, rng: Any) -> Columns:
        return {**columns, "noise": rng.uniform()}

    def loader() -> Any:
        pipeline = Pipeline(MemorySource({"a": list(range(20))})).batch(4).map_batch(noisy)
        return pipeline.loader(seed=3)

    whole = [b["noise"].tolist() for b in loader()]
    first = loader()
    next(iter(first))
    again = loader()
    again.load_state_dict(first.state_dict())
    assert [b["noise"].tolist() for b in again] == whole[1:]


def test_failed_conversions_leave_no_memory_behind() -> None:
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros((100, 100)), np.zeros(20_000)]
    of = Pipeline(MemorySource({"a": [0, 1]})).map(lambda c: {"x": ragged}).batch(2)
    process = psutil.Process()
    for attempt in range(400):
        if attempt == 50:
            before = process.memory_info().rss
        with pytest.raises(ConfigError):
            next(iter(of.loader(ragged="pad")))
    assert process.memory_info().rss - before < 20 << 20

"""Deletion vectors: every form of a bitmap, every place it may be kept in, every way it may lie."""

from __future__ import annotations

import struct
import uuid
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyroaring
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_delta.actions import DeletionVector
from forebay_delta.errors import BrokenTable
from forebay_delta.roaring import decode_roaring64
from forebay_delta.store import open_store
from forebay_delta.vectors import decode_z85, load_deletion_vector, vector_path

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
MAGIC = struct.pack("<I", 1681511377)
ROWS = [0, 3, 4, 5, 70_000, 2**33 + 1]


def encode_z85(data: bytes) -> str:
    out = ""
    for (value,) in struct.iter_unpack(">I", data):
        out += "".join(Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return out


def payload(rows: list[int]) -> bytes:
    return MAGIC + bytes(pyroaring.BitMap64(rows).serialize())


def inline(data: bytes, cardinality: int) -> DeletionVector:
    padded = data + b"\0" * (-len(data) % 4)
    return DeletionVector("i", encode_z85(padded), None, len(data), cardinality)


def file_with(data: bytes, folder: Path, name: str = "dv.bin") -> tuple[Path, int]:
    """A file with another vector before the one that is meant; returns where that begins."""
    before = b"\1" + b"another vector"
    framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(before + framed + b"one more")
    return path, len(before)


def in_file(data: bytes, folder: Path) -> DeletionVector:
    path, offset = file_with(data, folder)
    return DeletionVector("p", path.as_uri(), offset, len(data), len(ROWS))


@given(
    st.sets(st.integers(0, 2**35), max_size=50),
    st.lists(st.tuples(st.integers(0, 2**34), st.integers(1, 9_000)), max_size=4),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(2, 11_000)), max_size=2),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_arrays_bitmaps_and_runs_decode_to_the_numbers_that_went_in(
    single: set[int], runs: list[tuple[int, int]], sparse: list[tuple[int, int]], pack: bool
) -> None:
    numbers = set(single)
    numbers.update(n for start, length in runs for n in range(start, start + length))
    numbers.update(n for start, length in sparse for n in range(start, start + 2 * length, 2))
    bitmap = pyroaring.BitMap64(numbers)
    if pack:
        bitmap.run_optimize()
    decoded = decode_roaring64(bitmap.serialize())
    assert decoded.dtype == np.int64
    assert decoded.tolist() == sorted(numbers)


def test_an_empty_bitmap_has_no_numbers() -> None:
    assert decode_roaring64(pyroaring.BitMap64().serialize()).tolist() == []


@pytest.mark.parametrize("numbers", [range(5), range(0, 20_000, 2), [1, 2**33]])
def test_a_bitmap_that_ends_too_early_is_refused_wherever_it_ends(numbers: list[int]) -> None:
    data = pyroaring.BitMap64(numbers).serialize()
    for stop in {*range(min(len(data), 60)), len(data) - 1}:
        with pytest.raises(ValueError, match="too few"):
            decode_roaring64(data[:stop])


@pytest.mark.parametrize(("numbers", "has"), [(range(5), 65_536), (range(0, 12_000, 2), 6_016)])
def test_a_container_that_has_other_than_it_states_is_refused(numbers: list[int], has: int) -> None:
    bitmap = pyroaring.BitMap64(numbers)
    bitmap.run_optimize()
    data = bitmap.serialize()[:-2] + b"\xff\xff"
    with pytest.raises(ValueError, match=f"states {len(numbers)} numbers and has {has}"):
        decode_roaring64(data)


def test_numbers_that_are_not_ascending_are_refused() -> None:
    data = bytearray(pyroaring.BitMap64([1, 2]).serialize())
    data[-4:] = struct.pack("<2H", 2, 1)
    with pytest.raises(ValueError, match="ascending"):
        decode_roaring64(bytes(data))


@given(st.data(), st.sampled_from([range(5), range(0, 12_000, 2), range(9_000), [1, 2**33]]))
@settings(max_examples=100, deadline=None)
def test_a_damaged_bitmap_gives_numbers_or_an_error_in_words(
    data: st.DataObject, numbers: list[int]
) -> None:
    damaged = bytearray(pyroaring.BitMap64(numbers).serialize())
    place = data.draw(st.integers(0, min(len(damaged), 60) - 1))
    damaged[place] = data.draw(st.integers(0, 255))
    try:
        assert len(decode_roaring64(bytes(damaged))) <= 2**17
    except ValueError as error:
        assert str(error)


def test_an_inline_vector_needs_no_file(tmp_path: Path) -> None:
    vector = inline(payload(ROWS), len(ROWS))
    assert load_deletion_vector(open_store(tmp_path), vector).tolist() == ROWS


def test_a_last_group_filled_up_with_number_signs_is_as_many_bytes_shorter() -> None:
    assert decode_z85("##" + encode_z85(b"\0\0ef")[2:]) == b"ef"
    assert decode_z85("#" + encode_z85(b"\0def")[1:]) == b"def"


@pytest.mark.parametrize("prefix", ["", "ab"])
def test_a_vector_named_by_uuid_lies_under_the_table_with_its_prefix_as_folder(
    tmp_path: Path, prefix: str
) -> None:
    name = uuid.UUID("61d16c75-6994-46b7-a15b-8b538852e50e")
    folder = tmp_path / prefix
    _, offset = file_with(payload(ROWS), folder, f"deletion_vector_{name}.bin")
    place = prefix + encode_z85(name.bytes)
    vector = DeletionVector("u", place, offset, len(payload(ROWS)), len(ROWS))
    assert vector_path(vector) == f"{prefix}/deletion_vector_{name}.bin".lstrip("/")
    assert load_deletion_vector(open_store(tmp_path), vector).tolist() == ROWS


def test_a_vector_with_an_absolute_path_may_lie_outside_the_table(tmp_path: Path) -> None:
    vector = in_file(payload(ROWS), tmp_path / "other folder")
    assert load_deletion_vector(open_store(tmp_path / "table"), vector).tolist() == ROWS


def test_a_vector_whose_file_is_gone_says_so_by_its_path(tmp_path: Path) -> None:
    vector = DeletionVector("p", (tmp_path / "no.bin").as_uri(), 1, 40, 2)
    with pytest.raises(FileNotFoundError, match=r"no\.bin"):
        load_deletion_vector(open_store(tmp_path), vector)


def test_a_vector_with_a_wrong_checksum_is_refused_by_name(tmp_path: Path) -> None:
    vector = in_file(payload(ROWS), tmp_path)
    file = tmp_path / "dv.bin"
    data = bytearray(file.read_bytes())
    data[vector.offset + 4 + vector.size - 1] ^= 1  # type: ignore[operator]
    file.write_bytes(data)
    with pytest.raises(BrokenTable, match=r"dv\.bin.*checksum"):
        load_deletion_vector(open_store(tmp_path), vector)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cardinality": 5}, "has 6 rows; the log says 5"),
        ({"size": 3}, "the file says that it has"),
        ({"size": 10_000}, "the file ends after"),
        ({"storage": "x"}, "unknown storage type 'x'"),
    ],
)
def test_a_vector_that_contradicts_the_log_is_refused(
    tmp_path: Path, change: dict[str, int], why: str
) -> None:
    vector = replace(in_file(payload(ROWS), tmp_path), **change)  # type: ignore[arg-type]
    with pytest.raises(BrokenTable, match=why):
        load_deletion_vector(open_store(tmp_path), vector)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("<I", 1681511376) + payload(ROWS)[4:], "unknown magic number 1681511376"),
        (payload(ROWS)[:-2], "too few"),
        (b"ab", "requires"),
    ],
)
def test_a_payload_that_is_no_bitmap_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(BrokenTable, match=why):
        load_deletion_vector(open_store(tmp_path), in_file(data, tmp_path))


@pytest.mark.parametrize("text", ["abc", "~bcde", "#####aaaaa"])
def test_an_inline_text_that_is_not_base_85_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrokenTable, match="deletion vector"):
        load_deletion_vector(open_store(tmp_path), DeletionVector("i", text, None, 3, 1))

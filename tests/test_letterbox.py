"""Dead letters in a folder: every byte kept, whole files only, repeats read once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.deadletter import Letter, Sink
from forebay.errors import ConfigError, SourceError
from forebay.letterbox import FolderSink, Format, key, read_letters, remove_letters
from forebay.slice import Failure

FORMATS: tuple[Format, ...] = ("parquet", "jsonl")

WRITES = """
import sys
from forebay.deadletter import Letter
from forebay.letterbox import FolderSink
from forebay.slice import Failure
sink = FolderSink(sys.argv[1])
for i in range(1_000_000):
    original = {"value": b"x" * 2000}
    sink.write([Letter(split="s", failure=Failure(
        offset=i, stage="decode", reason="bad", original=original))])
    if i % 7 == 0:
        sink.flush()
        print(i, flush=True)
"""


def letter(offset: int, stage: str = "decode", /, **original: Any) -> Letter:
    failure = Failure(offset=offset, stage=stage, reason=f"bad {offset}", original=original)
    return Letter(split="kafka:clicks/3", time=1e9 + offset, failure=failure)


def kafka_letter(offset: int, value: bytes | None, key: bytes | None = None) -> Letter:
    return letter(
        offset,
        topic="clicks",
        partition=np.int32(3),
        offset=np.int64(offset),
        timestamp=np.int64(1_764_500_000_123),
        timestamp_type=np.int8(0),
        key=key,
        value=value,
        headers=[{"key": "a", "value": b"\xff\x00"}, {"key": "a", "value": None}],
    )


@pytest.mark.parametrize("format", FORMATS)
def test_a_kafka_record_comes_back_byte_for_byte(tmp_path: Path, format: Format) -> None:
    written = [kafka_letter(1, b"\x00\xff\n", b"k"), kafka_letter(2, b""), kafka_letter(3, None)]
    sink = FolderSink(tmp_path / "letters", format)
    sink.write(written)
    sink.close()
    assert list(read_letters(tmp_path / "letters")) == written


@pytest.mark.parametrize("format", FORMATS)
def test_columns_of_any_source_come_back(tmp_path: Path, format: Format) -> None:
    strange: dict[str, Any] = {
        "value": 2**62 + 1,
        "offset": "not the offset",
        "headers": {"no": "pairs"},
        "topic": "\ud800",
        "raw": [b"\xff", None, 1.5, float("inf")],
        "nested": {"a": [{"b": b"\x00"}]},
        "key": "text",
    }
    sink = FolderSink(tmp_path, format)
    sink.write([letter(7, **strange), letter(8)])
    sink.flush()
    first, second = read_letters(tmp_path)
    assert first.failure.original == strange
    assert list(first.failure.original) == list(strange)
    assert second.failure.original == {}


def test_an_array_comes_back_with_its_type_and_shape(tmp_path: Path) -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    sink = FolderSink(tmp_path)
    sink.write([letter(0, image=image)])
    sink.flush()
    back = next(iter(read_letters(tmp_path))).failure.original["image"]
    assert back.dtype == np.uint8
    assert np.array_equal(back, image)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["value", "key", "topic", "x", "partition"]), json_values))
def test_whatever_a_record_holds_its_letter_is_kept(
    tmp_path_factory: pytest.TempPathFactory, original: dict[str, Any]
) -> None:
    for format in FORMATS:
        sink = FolderSink(folder := tmp_path_factory.mktemp("letters"), format)
        sink.write([letter(0, **original)])
        sink.flush()
        (back,) = read_letters(folder)
        assert back.failure.original == original


def test_repeats_are_read_once_and_another_stage_is_no_repeat(tmp_path: Path) -> None:
    for _ in range(2):  # as after a crash: a new process writes the same letters again
        sink = FolderSink(tmp_path)
        sink.write([letter(1, value=b"a"), letter(1, "map", value=b"a")])
        sink.flush()
    assert [key(found) for found in read_letters(tmp_path)] == [
        ("kafka:clicks/3", 1, "decode"),
        ("kafka:clicks/3", 1, "map"),
    ]


def test_files_are_bounded_and_full_ones_are_written_before_flush(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path, max_file_bytes=10_000)
    sink.write([letter(i, value=b"x" * 1000) for i in range(25)])
    assert [found.failure.offset for found in read_letters(tmp_path)] == list(range(20))
    sink.close()
    assert [pq.read_table(p).num_rows for p in sorted(tmp_path.iterdir())] == [10, 10, 5]


def test_two_trainers_share_a_folder(tmp_path: Path) -> None:
    a, b = FolderSink(tmp_path), FolderSink(tmp_path, "jsonl")
    for i in range(3):
        a.write([letter(i, value=b"a")])
        b.write([letter(10 + i, value=b"b")])
        a.flush()
        b.flush()
    assert {found.failure.offset for found in read_letters(tmp_path)} == {0, 1, 2, 10, 11, 12}


def test_a_kill_loses_nothing_that_was_flushed_and_leaves_no_broken_file(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = [int(child.stdout.readline()) for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        said += [int(line) for line in child.stdout if line.endswith("\n")]
    offsets = [found.failure.offset for found in read_letters(tmp_path)]
    assert offsets == list(range(len(offsets)))
    assert offsets[-1] >= said[-1]


def test_what_a_killed_process_left_half_written_is_removed_by_a_later_one(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".letters-old.parquet.tmp", tmp_path / ".letters-new.parquet.tmp"
    for file in (old, fresh):
        file.write_bytes(b"PAR1")
    os.utime(old, (0, time.time() - 7200))
    sink = FolderSink(tmp_path)
    sink.write([letter(0, value=b"")])
    sink.flush()
    assert not old.exists()
    assert fresh.exists()


def test_a_folder_that_cannot_be_written_is_an_error_and_no_letter_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.write_text("in the way")
    sink = FolderSink(folder)
    sink.write([letter(0, value=b"a")])
    with pytest.raises(SourceError, match=r"folder for dead letters .*letters cannot be made"):
        sink.flush()
    folder.unlink()
    sink.flush()
    assert len(list(read_letters(folder))) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_removing_letters_leaves_the_others(tmp_path: Path, format: Format) -> None:
    sink = FolderSink(tmp_path, format, max_file_bytes=3000)
    sink.write([letter(i, value=b"x" * 900) for i in range(9)])
    sink.close()
    gone = {("kafka:clicks/3", i, "decode") for i in (0, 1, 2, 4, 99)}
    assert remove_letters(tmp_path, gone) == 4
    assert {found.failure.offset for found in read_letters(tmp_path)} == {3, 5, 6, 7, 8}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for name in ("letters-a.parquet", "letters-b.jsonl"):
        file = tmp_path / name
        file.write_bytes(b'{"split": 1')
        with pytest.raises(SourceError, match=f"{name} is no file of dead letters, or damaged"):
            list(read_letters(tmp_path))
        file.unlink()


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text("mine\n")
    assert list(read_letters(tmp_path)) == []


def test_jsonl_is_plain_json_with_base64(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path, "jsonl")
    sink.write([kafka_letter(1, b"\xff", b"k")])
    sink.flush()
    (file,) = tmp_path.iterdir()
    row = json.loads(file.read_text())
    assert (row["topic"], row["key"], row["value"]) == ("clicks", "aw==", "/w==")
    assert row["headers"] == [["a", "/wA="], ["a", None]]


def test_wrong_options_and_missing_folders_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'parquet' or 'jsonl', not 'csv'"):
        FolderSink(tmp_path, "csv")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_file_bytes must be positive"):
        FolderSink(tmp_path, max_file_bytes=0)
    with pytest.raises(ConfigError, match=r"no folder of dead letters at .*nowhere"):
        list(read_letters(tmp_path / "nowhere"))


def test_the_sink_is_a_sink(tmp_path: Path) -> None:
    assert isinstance(FolderSink(tmp_path), Sink)

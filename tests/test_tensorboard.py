"""TensorBoard's own reader finds in our event files what the snapshots say."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from tests.snapshots import JOB, busy, idle

from forebay.errors import ConfigError
from forebay.observe.snapshot import Snapshot
from forebay.observe.tensorboard import TensorBoard, crc32c, scalars

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorBoard's, and its dependencies'
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New


def written(folder: Path, *snapshots: Snapshot) -> Path:
    board = TensorBoard(folder)
    for snapshot in snapshots:
        board.write(snapshot)
    board.close()
    return folder


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    events = read(written(tmp_path / "made/for/it", busy(10), busy(20)))
    assert events.file_version == 2.0
    rows = events.Scalars("throughput/rows")
    assert [(e.wall_time, e.step, e.value) for e in rows] == [
        (busy(10).at, 100, 25600.0),
        (busy(20).at, 200, 51200.0),
    ]
    (rate,) = events.Scalars("throughput/rows_per_second")
    assert (rate.step, rate.value) == (200, 2560.0)


def test_its_checksums_hold(tmp_path: Path) -> None:
    assert crc32c(b"123456789") == 0xE3069283
    (path,) = written(tmp_path, busy(10), busy(11)).iterdir()
    reader = PyRecordReader_New(str(path))  # raises where a checksum does not fit
    records = 0
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            break
        records += 1
    assert records == 3


def test_there_are_scalars_for_what_a_trainer_asks() -> None:
    found = scalars([busy(10)], busy(15))
    assert found["time/starved"] == pytest.approx(0.1)
    assert found["lag/records"] == 100
    assert 1 < found["freshness/p50_seconds"] <= found["freshness/p95_seconds"] <= 2.5
    assert (found["workers/decode"], found["dead_letters/rows"]) == (2, 3)
    assert (found["gpu_0/any_kernel_ran"], found["gpu_0/watts"]) == (0.9, 300)


def test_what_is_not_known_is_no_scalar() -> None:
    assert scalars([], idle()) == {
        "throughput/rows": 0,
        "buffer/bytes": 0,
        "buffer/ready_batches": 0,
        "dead_letters/rows": 0,
    }


def test_the_next_run_adds_a_file_to_the_folder(tmp_path: Path) -> None:
    written(tmp_path, busy(10))
    written(tmp_path, idle(100, rows=1, job=replace(JOB, pid=8)))
    assert [e.value for e in read(tmp_path).Scalars("throughput/rows")] == [25600.0, 1.0]


def test_each_rank_of_several_has_a_folder(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path, idle(rows=rank, job=replace(JOB, rank=rank, world_size=2)))
    values = [read(tmp_path / f"rank-{r}").Scalars("throughput/rows")[0].value for r in (0, 1)]
    assert values == [0.0, 1.0]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"TensorBoard folder .*file/x cannot be made"):
        TensorBoard(tmp_path / "file" / "x")

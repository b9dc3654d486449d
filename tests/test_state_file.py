"""A state file holds whole snapshots, is bounded, and tells of the last run only."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.snapshots import JOB, busy, idle, split

from forebay.errors import ConfigError
from forebay.observe.snapshot import Snapshot
from forebay.observe.statefile import StateFile, read_last, read_snapshots


def written(path: Path, *snapshots: Snapshot, max_bytes: int = 64 << 20) -> Path:
    file = StateFile(path, max_bytes)
    for snapshot in snapshots:
        file.write(snapshot)
    file.close()
    return path


def test_what_was_written_is_read_back_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "made/for/it/run.jsonl", idle(), busy(10))
    assert read_snapshots(path) == [idle(), busy(10)]
    assert read_last(path) == busy(10)


def test_a_reader_asks_for_what_came_since(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", *(idle(second) for second in range(5)))
    assert read_snapshots(path, since=idle(2).at) == [idle(3), idle(4)]


def test_there_is_nothing_before_the_first_snapshot(tmp_path: Path) -> None:
    assert read_last(tmp_path / "none") is None
    path = written(tmp_path / "run.jsonl")
    assert read_last(path) is None
    path.write_bytes(b'{"format":1,"at":17')
    assert read_snapshots(path) == []


def test_a_line_that_is_half_written_is_not_read_and_the_next_run_cuts_it(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", idle(0), idle(1))
    with path.open("ab") as file:
        file.write(b'{"format":1,"at":17')
    assert read_last(path) == idle(1)
    assert read_last(written(path, idle(2))) == idle(2)
    assert [s.at for s in read_snapshots(path)] == [idle(i).at for i in range(3)]


def test_lines_longer_than_a_block_of_the_reader_are_whole(tmp_path: Path) -> None:
    one = split(5, lag=1)
    many = {f"kafka:clicks/{i}": one for i in range(4000)}
    large = [idle(second, splits=many) for second in range(3)]
    path = written(tmp_path / "run.jsonl", *large)
    assert path.stat().st_size > 3 * (512 << 10)
    assert read_snapshots(path) == large


def test_the_file_is_bounded_and_the_one_before_is_read_with_it(tmp_path: Path) -> None:
    seen = [idle(second) for second in range(10)]
    line = len(written(tmp_path / "one", seen[0]).read_bytes())
    path = written(tmp_path / "run.jsonl", *seen, max_bytes=4 * line)
    sizes = [p.stat().st_size for p in tmp_path.glob("run.jsonl*")]
    assert len(sizes) == 2
    assert max(sizes) <= 4 * line
    assert read_snapshots(path) == seen[4:]


def test_a_reader_between_two_files_reads_none_of_them_twice(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", idle(0), idle(1))
    path.with_name("run.jsonl.1").hardlink_to(path)
    assert read_snapshots(path) == [idle(0), idle(1)]


def test_only_the_last_run_is_told_of(tmp_path: Path) -> None:
    again = replace(JOB, pid=8, began=JOB.began + 100)
    path = written(tmp_path / "run.jsonl", busy(10), idle(100, job=again), busy(101, job=again))
    assert read_snapshots(path) == [idle(100, job=again), busy(101, job=again)]


def test_two_ranks_do_not_write_one_file(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "run.jsonl")
    with pytest.raises(ConfigError, match="another process writes it: give each rank"):
        StateFile(tmp_path / "run.jsonl")
    first.close()


def test_a_path_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the state file .* cannot be written"):
        StateFile(tmp_path)


def test_another_kind_of_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not ours\n")
    with pytest.raises(ConfigError, match="notes is no state file of a job"):
        read_last(tmp_path / "notes")


def test_a_full_disk_costs_the_lines_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = StateFile(tmp_path / "run.jsonl")
    write = os.write
    file.write(idle(0))
    with monkeypatch.context() as disk, caplog.at_level(logging.WARNING):
        disk.setattr(os, "write", lambda fd, data: write(fd, data[:50]))
        file.write(idle(1))
        file.write(idle(2))
    file.write(idle(3))
    file.close()
    assert read_snapshots(tmp_path / "run.jsonl") == [idle(0), idle(3)]
    assert [os.strerror(errno.ENOSPC) in r.message for r in caplog.records] == [True]

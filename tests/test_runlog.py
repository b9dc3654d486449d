"""The log of trained records counts a step unless a later run resumed from before it."""

from __future__ import annotations

from pathlib import Path

from forebay.runlog import RunLog, kept_ids


def test_steps_after_the_checkpoint_that_a_later_run_resumed_from_do_not_count(
    tmp_path: Path,
) -> None:
    first = RunLog(tmp_path / "log", resumed_at=0)
    for step in range(1, 5):
        first.step(step, [10 * step, 10 * step + 1])
    second = RunLog(tmp_path / "log", resumed_at=2)
    second.step(3, [30])
    assert kept_ids(tmp_path / "log") == [10, 11, 20, 21, 30]


def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log", resumed_at=0)
    log.step(1, [1, 2])
    log.close()
    with (tmp_path / "log").open("ab") as f:
        f.write(b'{"step":2,"ids":[3,')
    assert kept_ids(tmp_path / "log") == [1, 2]
    RunLog(tmp_path / "log", resumed_at=1).step(2, [3, 4])
    assert kept_ids(tmp_path / "log") == [1, 2, 3, 4]


def test_a_record_that_was_trained_twice_is_there_twice(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log", resumed_at=0)
    log.step(1, [1, 2])
    log.step(2, [2])
    assert kept_ids(tmp_path / "log") == [1, 2, 2]

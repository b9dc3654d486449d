"""What workers write down so that the next one knows what they died of, and who removes it."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from pathlib import Path

from forebay.ray.attempts import Attempts, Loading, forget_all, forget_old


def dies_while_loading(prefix: Path) -> None:
    """A worker whose stages bring a library that ends the process."""
    worker = mp.get_context("fork").Process(target=loads_and_dies, args=(prefix,))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL


def loads_and_dies(prefix: Path) -> None:
    Loading(prefix)
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_died_while_they_loaded_are_counted_until_one_comes_through(
    tmp_path: Path,
) -> None:
    living = Loading(tmp_path / "run")
    for _ in range(2):
        dies_while_loading(tmp_path / "run")
    dies_while_loading(tmp_path / "another-run")
    assert Loading(tmp_path / "run").deaths == 2
    living.done()
    assert Loading(tmp_path / "run").deaths == 0


def test_a_closed_run_leaves_no_file(tmp_path: Path) -> None:
    Attempts(tmp_path / "run", 1).at(0, 5, "decode")
    Loading(tmp_path / "run")
    forget_all(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_what_killed_runs_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    killed, living, users = (
        tmp_path / name for name in ("forebay-attempts-a", "forebay-attempts-b", "forebay-notes")
    )
    Attempts(killed, 1).at(0, 5, "decode")
    Attempts(living, 1).at(0, 5, "decode")
    for path in (tmp_path / "forebay-attempts-a-1", users):
        path.touch()
        os.utime(path, (0, 0))
    forget_old(tmp_path / "forebay-attempts-c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["forebay-attempts-b-1", "forebay-notes"]

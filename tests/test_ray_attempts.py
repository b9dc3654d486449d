"""What workers write down so that the next one knows what they died of, and who removes it."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.ray.attempts import Attempts, Record, Rows, forget_all, forget_old

PARCEL = [Rows("a", 0, 50), Rows("b", 7, 9)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What the files of a run begin with."""
    return tmp_path / "forebay-attempts-run"


def dies(prefix: Path, does: Callable[[Attempts], object] = lambda worker: None) -> None:
    """A worker of a run that does something, and is killed in it."""
    worker = mp.get_context("fork").Process(target=does_and_dies, args=(prefix, does))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL


def does_and_dies(prefix: Path, does: Callable[[Attempts], object]) -> None:
    does(Attempts(prefix))
    os.kill(os.getpid(), signal.SIGKILL)


def runs_two_records(worker: Attempts) -> None:
    worker.begin(PARCEL)
    with worker.alone():
        worker.at(Record("a", 5), "decode")
        worker.at(Record("a", 6), "augment")


def waits_for_its_turn(worker: Attempts) -> None:
    worker.begin(PARCEL)
    worker.alone().__enter__()


def test_a_record_at_which_two_workers_died_is_the_culprit_and_one_death_proves_nothing(
    run: Path,
) -> None:
    dies(run, lambda worker: worker.begin(PARCEL))
    for deaths in (1, 2):
        living = Attempts(run)
        living.begin(PARCEL)
        assert (living.earlier, living.culprits) == (deaths, {})
        dies(run, runs_two_records)
    living.begin(PARCEL)
    assert living.culprits == {Record("a", 6): "augment"}


def test_deaths_are_of_rows_in_whatever_parcel_they_come(run: Path) -> None:
    dies(run, lambda worker: worker.begin(PARCEL))
    dies(run, runs_two_records)
    living = Attempts(run)
    for parcel, deaths in [([Rows("a", 6, 7)], 2), ([Rows("a", 7, 60)], 1), ([Rows("c", 0, 9)], 0)]:
        living.begin(parcel)
        assert living.earlier == deaths
    dies(run.with_name("another-run"), runs_two_records)
    living.begin([Rows("a", 50, 60), Rows("b", 0, 7)])
    assert living.earlier == 0


def test_a_parcel_that_came_through_is_not_suspected_any_more(run: Path) -> None:
    dies(run, runs_two_records)
    living = Attempts(run)
    living.begin(PARCEL)
    living.done()
    living.begin(PARCEL)
    assert living.earlier == 0


def test_whoever_died_in_waiting_for_its_turn_died_of_something_else(run: Path) -> None:
    dies(run, waits_for_its_turn)
    living = Attempts(run)
    living.begin(PARCEL)
    assert living.earlier == 0


def test_only_one_worker_at_a_time_runs_what_is_suspected(run: Path) -> None:
    one, other, entered = Attempts(run), Attempts(run), threading.Event()

    def enters() -> None:
        with other.alone():
            entered.set()

    waiting = threading.Thread(target=enters)
    with one.alone():
        waiting.start()
        assert not entered.wait(0.3)
    assert entered.wait(30)
    waiting.join()


def test_workers_that_died_while_they_loaded_are_counted_until_one_comes_through(
    run: Path,
) -> None:
    living = Attempts(run)
    for _ in range(2):
        dies(run)
    dies(run.with_name("another-run"))
    assert Attempts(run).deaths_loading == 2
    living.loaded()
    assert Attempts(run).deaths_loading == 0


def test_a_closed_run_leaves_no_file(run: Path) -> None:
    dies(run, runs_two_records)
    dies(run)
    forget_all(run)
    assert not list(run.parent.iterdir())


def test_what_killed_runs_left_is_removed_once_it_is_old(run: Path) -> None:
    living, users = Attempts(run), run.with_name("forebay-notes")
    dies(run, lambda worker: worker.begin(PARCEL))
    users.touch()
    for path in run.parent.iterdir():
        os.utime(path, (0, 0))
    dies(run)
    assert len(list(run.parent.iterdir())) == 4
    forget_old(run.with_name("forebay-attempts-another"))
    assert len(list(run.parent.iterdir())) == 3
    assert users.exists()
    living.loaded()

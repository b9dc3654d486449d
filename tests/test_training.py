"""A training function gets a loader whose saved position covers ended steps only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from forebay import Loader, Pipeline
from forebay.checkpoint import save_torch
from forebay.errors import StateError
from forebay.testing import MemorySource
from forebay.training import Checkpoint, Stop, Stopper, TrainingLoader


def loader_of(rows: int = 10, **options: Any) -> Loader:
    pipeline = Pipeline(MemorySource({"a": range(rows)})).batch(2)
    return pipeline.loader(state_of="committed", **options)


@pytest.fixture
def stopper() -> Iterator[Stopper]:
    with Stopper(grace=0.05) as stopper:
        yield stopper


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["value"]]


def test_the_position_covers_the_steps_that_have_ended(stopper: Stopper) -> None:
    loader = TrainingLoader(loader_of(), stopper)
    states = []
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        states.append(loader._loader.state_dict()["batches"])
    assert states == [0, 1, 2]
    assert loader.state_dict()["batches"] == 3
    loader.close()


def test_asking_for_the_state_ends_the_step(stopper: Stopper) -> None:
    loader = TrainingLoader(loader_of(), stopper)
    first = ids([next(iter(loader))])
    state = loader.state_dict()
    loader.close()
    resumed = TrainingLoader(loader_of(), stopper)
    resumed.load_state_dict(state)
    assert first + ids(resumed) == list(range(10))


def test_after_each_step_it_is_told_how_many_there_were(stopper: Stopper) -> None:
    told: list[int] = []
    loader = TrainingLoader(loader_of(), stopper, after_step=told.append)
    ids(loader)
    assert told == [1, 2, 3, 4, 5]


def test_a_signal_lets_the_step_end_and_gives_no_further_batch() -> None:
    with Stopper(grace=3600) as stopper:
        loader = TrainingLoader(loader_of(), stopper)
        seen = []
        for batch in loader:
            seen.append(batch)
            os.kill(os.getpid(), signal.SIGTERM)
            assert loader.stopping
        assert ids(seen) == [0, 1]
        assert loader.state_dict()["batches"] == 1
        assert stopper.signal is signal.SIGTERM
        loader.close()


def test_a_signal_ends_the_wait_for_a_batch() -> None:
    endless = Pipeline(MemorySource({"a": [1, 2]}, bounded=False)).batch(2)
    with Stopper(grace=3600) as stopper:
        loader = TrainingLoader(endless.loader(state_of="committed"), stopper)
        seen = []
        for batch in loader:
            seen.append(batch)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert ids(seen) == [1, 2]
        assert loader.state_dict()["batches"] == 1
        loader.close()


class SlowToOpen(MemorySource):
    """Waited for by C code, which makes an error of its own of what a signal raises."""

    def open(self, positions: Any, owns: Any) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Stop as e:
            raise SystemError("returned a result with an exception set") from e


def test_a_signal_ends_a_run_whose_source_is_being_opened_in_c_code(stopper: Stopper) -> None:
    opening = Pipeline(SlowToOpen({"a": [1, 2]})).batch(2).loader(state_of="committed")
    loader = TrainingLoader(opening, stopper)
    assert ids(loader) == []
    assert (stopper.signal, loader.error) == (signal.SIGTERM, None)
    loader.close()


def test_a_step_that_takes_too_long_is_given_up_and_its_batch_comes_again(
    stopper: Stopper,
) -> None:
    loader = TrainingLoader(loader_of(), stopper)
    batches = iter(loader)
    done = ids([next(batches)])
    next(batches)
    with pytest.raises(Stop):
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            signal.pause()
    loader.abandon_step()
    state = loader.state_dict()
    loader.close()
    resumed = TrainingLoader(loader_of(), Stopper())
    resumed.load_state_dict(state)
    assert done + ids(resumed) == list(range(10))


def test_the_end_of_a_step_is_never_cut_in_two(stopper: Stopper) -> None:
    saved = []

    def slow_save(batches: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()  # the alarm of the grace period comes here
        saved.append(batches)

    loader = TrainingLoader(loader_of(), stopper, after_step=slow_save)
    batches = iter(loader)
    next(batches)
    with pytest.raises(Stop):
        next(batches)
    assert saved == [1]
    assert loader._loader.state_dict()["batches"] == 1
    loader.close()


def test_the_last_save_is_not_interrupted() -> None:
    with Stopper(grace=3600) as stopper:
        os.kill(os.getpid(), signal.SIGTERM)
        stopper.finish()
        stopper._interrupt()
    assert stopper.signal is signal.SIGTERM


def test_a_limit_ends_the_loop(stopper: Stopper) -> None:
    loader = TrainingLoader(loader_of(), stopper, limit=2)
    assert ids(loader) == [0, 1, 2, 3]
    loader.close()


def test_it_may_stand_in_a_dataloader(stopper: Stopper) -> None:
    loader = TrainingLoader(loader_of(), stopper)
    assert ids(DataLoader(loader, batch_size=None)) == list(range(10))
    assert loader.state_dict()["batches"] == 5


def test_commit_is_the_functions_own_where_the_topology_says_so(stopper: Stopper) -> None:
    loader = TrainingLoader(loader_of(), stopper, commits=True)
    ids(loader)
    assert loader.state_dict()["batches"] == 0
    loader.commit(5)
    assert loader.state_dict()["batches"] == 5
    with pytest.raises(StateError, match="state_of: committed"):
        TrainingLoader(loader_of(), stopper).commit()


def test_model_and_position_resume_together(tmp_path: Path, stopper: Stopper) -> None:
    trained: list[int] = []
    for limit in (2, 1, None):
        loader = TrainingLoader(loader_of(), stopper, limit=limit)
        checkpoint = Checkpoint(tmp_path / "model.pt", loader, every=1)
        saved = checkpoint.load()
        model = [] if saved is None else saved["seen"]
        for batch in loader:
            model = [*model, *ids([batch])]
            if checkpoint.due:
                checkpoint.save({"seen": model})
        trained = model
        loader.close()
    assert trained == list(range(10))


def test_a_checkpoint_is_due_every_so_many_batches_and_at_the_end_of_the_run(
    tmp_path: Path, stopper: Stopper
) -> None:
    loader = TrainingLoader(loader_of(), stopper)
    checkpoint = Checkpoint(tmp_path / "model.pt", loader, every=2)
    due = []
    for _ in loader:
        if loader.batches == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        due.append(checkpoint.due)
        if checkpoint.due:
            checkpoint.save({})
    assert due == [False, True, False, True, True]
    loader.close()


def test_the_checkpoint_of_another_run_or_of_something_else_is_refused(
    tmp_path: Path, stopper: Stopper
) -> None:
    path, loader = tmp_path / "model.pt", TrainingLoader(loader_of(), stopper)
    Checkpoint(path, loader, every=1, run="a").save({})
    with pytest.raises(StateError, match="belongs to the run 'a', this one is 'b'"):
        Checkpoint(path, loader, every=1, run="b").load()
    save_torch(path, {"model": {}})
    with pytest.raises(StateError, match="was not saved by a run of a topology"):
        Checkpoint(path, loader, every=1).load()

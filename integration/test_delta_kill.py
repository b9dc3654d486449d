"""Three writers append and compact while a trainer is killed again and again: each row once.

Counted from the trainer's own log (the rows of all steps that a checkpoint kept) against what
the writers say that they wrote, and against what deltalake reads of the table in the end.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration import delta_trainer, delta_writer
from integration.delta_trainer import Task
from integration.delta_writer import Job
from integration.mortal import Moment
from tests.delta_s3 import s3_server

from forebay import checkpoint
from forebay.runlog import kept_ids

KILLS = 16
WRITERS = 3
_TWO_LINES = 40
"""Bytes that the log grows by when a trainer has begun, and trained a step."""
MOMENTS: list[Moment] = ["any", "step", "save", "fetch", "step", "any"]

# A server that has imported everything, and used nothing of it, forks trainers and writers.
FORKS = mp.get_context("forkserver")
FORKS.set_forkserver_preload(["integration.delta_trainer", "integration.delta_writer"])


@contextmanager
def writing(uri: str, folder: Path, options: Mapping[str, str]) -> Iterator[list[Job]]:
    """Writers at work; they have ended behind it."""
    delta_writer.create(uri, options)
    jobs = [Job(uri=uri, number=i, folder=folder, options=options) for i in range(WRITERS)]
    processes = [FORKS.Process(target=delta_writer.run, args=(job,)) for job in jobs]
    for process in processes:
        process.start()
    try:
        yield jobs
    finally:
        jobs[0].stop.touch()
        for process in processes:
            process.join(60)
    assert [p.exitcode for p in processes] == [0] * WRITERS


def killed(task: Task, dice: random.Random) -> None:
    """Run a trainer until it dies."""
    process = FORKS.Process(target=delta_trainer.run, args=(task,))
    process.start()
    if task.dies == "any":
        trained = _size(task.log)
        while process.is_alive() and _size(task.log) < trained + _TWO_LINES:
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 0.3))
        process.kill()
    process.join(20)
    if process.is_alive():  # it waits for data and never came to its moment
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def finished(task: Task) -> None:
    """Run a trainer to the end of the table."""
    process = FORKS.Process(target=delta_trainer.run, args=(task,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def after(moment: Moment, dice: random.Random) -> float:
    """How far into the moment the trainer dies: steps or seconds."""
    if moment == "step":
        return dice.randint(1, 25)
    return dice.uniform(0.0, 0.3) if moment == "fetch" else dice.uniform(0.0, 0.004)


def chain(uri: str, folder: Path, storage: Mapping[str, str], **settings: Any) -> None:
    """Write and kill; compare what was trained with what was written."""
    dice = random.Random(30)
    task = Task(uri=uri, folder=folder, storage=storage, **settings)
    steps = []
    with writing(uri, folder, storage) as jobs:
        for kill in range(KILLS):
            moment = MOMENTS[kill % len(MOMENTS)]
            killed(replace(task, dies=moment, after=after(moment, dice)), dice)
            steps.append((checkpoint.load(task.checkpoint) or {"step": 0})["step"])
    finished(task)
    trained, saved = kept_ids(task.log), checkpoint.load(task.checkpoint)
    written = [i for job in jobs for i in job.ids()]
    assert saved is not None
    assert len(set(steps)) > KILLS / 3, "kills came before the first step too often"
    assert delta_trainer.WRONG not in trained
    assert Counter(trained) == Counter(written)
    assert saved["model"] == sum(trained)
    assert sorted(ids_of(uri, folder, storage)) == sorted(written)


def ids_of(uri: str, folder: Path, storage: Mapping[str, str]) -> list[int]:
    """What another reader finds.

    In a process of its own: it holds the GIL while it waits for an object store that runs here.
    """
    found = folder / "found"
    process = FORKS.Process(target=delta_writer.read, args=(uri, storage, found))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    ids: list[int] = json.loads(found.read_text())
    return ids


CHAINS = pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"options": {"order": "split"}}, id="split"),
        pytest.param(
            {"options": {"order": "arrival"}, "shuffle": 200, "shards": 2}, id="arrival-shuffle"
        ),
    ],
)


@pytest.mark.slow
@pytest.mark.timeout(400)
@CHAINS
def test_a_chain_of_kills_beside_three_writers_keeps_every_row_once(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    chain(str(tmp_path / "table"), tmp_path, {}, **settings)


@pytest.mark.slow
@pytest.mark.timeout(400)
@CHAINS
def test_a_chain_of_kills_on_an_object_store_keeps_every_row_once(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with s3_server() as server:
        place = server.place()
        chain(place.uri, tmp_path, place.storage_options, **settings)

"""A chain of SIGKILLs at any moment: every record is trained exactly once all the same.

Counted from the trainer's own log: the rows of all steps that a checkpoint kept.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration import kill_trainer
from integration.conftest import Broker
from integration.kill_trainer import Task
from integration.mortal import Moment
from tests.kafka_client import produce
from tests.topics import Topics

from forebay import checkpoint
from forebay.runlog import kept_ids

KILLS = 24
PARTITIONS = 4
MOMENTS: list[Moment] = ["any", "fetch", "decode", "step", "save", "any"]

# A server that has imported everything forks each trainer: it starts in milliseconds, with no
# thread or client in it.
SPAWN = mp.get_context("forkserver")
SPAWN.set_forkserver_preload(["integration.kill_trainer"])


def killed(task: Task, dice: random.Random) -> None:
    """Run a trainer until it dies."""
    process = SPAWN.Process(target=kill_trainer.run, args=(task,))
    process.start()
    if task.dies == "any":
        time.sleep(dice.uniform(0.0, 0.8))
        process.kill()
    process.join(30)
    if process.is_alive():  # it waits for data and never came to its moment
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL


def finished(task: Task) -> None:
    """Run a trainer to the end of the topic."""
    process = SPAWN.Process(target=kill_trainer.run, args=(task,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def after(moment: Moment, dice: random.Random) -> float:
    """How far into the moment the trainer dies: slices, steps or seconds."""
    if moment in ("decode", "step"):
        return dice.randint(1, 20)
    return dice.uniform(0.0, 0.3) if moment == "fetch" else dice.uniform(0.0, 0.004)


def chain(broker: Broker, topic: str, folder: Path, **settings: Any) -> list[int]:
    """Produce and kill in turn; the rows that the kept steps trained."""
    dice = random.Random(20)
    produced = 0
    task = Task(bootstrap=broker.bootstrap, topic=topic, folder=folder, **settings)
    for kill in range(KILLS):
        produced = more(broker, topic, produced, 200)
        moment = MOMENTS[kill % len(MOMENTS)]
        killed(replace(task, dies=moment, after=after(moment, dice)), dice)
    finished(task)
    rows = kept_ids(task.log)
    saved = checkpoint.load(task.checkpoint)
    assert saved is not None
    assert saved["model"] == sum(rows)
    assert Counter(rows) == Counter(r for i in range(produced) for r in kill_trainer.rows_of(i))
    return rows


def more(broker: Broker, topic: str, first: int, count: int) -> int:
    """Append records, id by id in turn to each partition."""
    for partition in range(PARTITIONS):
        ids = range(first + partition, first + count, PARTITIONS)
        records = [json.dumps({"id": i, "pad": "x" * (i % 90)}).encode() for i in ids]
        produce(broker.bootstrap, topic, records, partition=partition)
    return first + count


@pytest.mark.timeout(400)
def test_a_chain_of_kills_keeps_every_record_once_and_each_partition_in_order(
    broker: Broker, make_topic: Topics, tmp_path: Path
) -> None:
    rows = chain(broker, make_topic(PARTITIONS), tmp_path, options={"order": "split"})
    for partition in range(PARTITIONS):
        mine = [r for r in rows if r // 10 % PARTITIONS == partition]
        assert mine == sorted(mine)


@pytest.mark.timeout(400)
def test_a_chain_of_kills_keeps_every_record_once_with_overtaking_and_shuffle(
    broker: Broker, make_topic: Topics, tmp_path: Path
) -> None:
    chain(broker, make_topic(PARTITIONS), tmp_path, shuffle=100, options={"order": "arrival"})

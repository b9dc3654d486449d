"""SIGKILL of whatever takes part in a run on Ray: every record is trained exactly once.

Counted as in the kill tests of the threads engine, from the trainer's own log.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

import pytest
from integration import kill_trainer
from integration.kill_trainer import Task
from integration.local_ray import kill, processes_of, small_engine
from tests.kafka_client import produce
from tests.topics import Topics

from forebay import checkpoint
from forebay.runlog import kept_ids
from forebay_kafka.devbroker import DevBrokerProcess

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
]

PARTITIONS = 3
ROUNDS = 6
VICTIMS: list[Literal["Reading", "MapWorker"]] = ["Reading", "MapWorker"]
# Not the fork server of other tests: its environment is from before the cluster, without its token.
SPAWN = mp.get_context("spawn")


@pytest.fixture
def make_topic(dev_broker: DevBrokerProcess) -> Topics:
    """On the dev broker only: the broker is not what is tested here."""
    return Topics(dev_broker.bootstrap)


def more(bootstrap: str, topic: str, first: int, count: int) -> int:
    """Append records, id by id in turn to each partition."""
    for partition in range(PARTITIONS):
        ids = range(first + partition, first + count, PARTITIONS)
        records = [json.dumps({"id": i, "pad": "x" * (i % 90)}).encode() for i in ids]
        produce(bootstrap, topic, records, partition=partition)
    return first + count


def started(task: Task) -> SpawnProcess:
    process = SPAWN.Process(target=kill_trainer.run, args=(task,))
    process.start()
    return process


def wait_until(true: Callable[[], Any], process: SpawnProcess) -> Any:
    """Wait for something that a living trainer brings about."""
    while not (value := true()):
        process.join(0.05)
        assert process.exitcode is None, f"the trainer ended with {process.exitcode}"
    return value


def killed_in_action(
    task: Task, victim: Literal["Reading", "MapWorker"], dice: Any, produced: int
) -> int:
    """Kill a reader or a worker of a run, see the run go on, and kill the trainer."""
    log = task.log
    produced = more(task.bootstrap, task.topic, produced, 600)
    before = len(kept_ids(log)) if log.exists() else 0
    process = started(task)
    wait_until(lambda: log.exists() and len(kept_ids(log)) > before + 50, process)
    kill(dice.choice(wait_until(lambda: processes_of(victim), process)))
    before = len(kept_ids(log))
    produced = more(task.bootstrap, task.topic, produced, 600)
    wait_until(lambda: len(kept_ids(log)) > before + 100, process)
    time.sleep(dice.uniform(0.0, 0.5))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return produced


def test_killed_readers_workers_and_trainers_lose_and_repeat_nothing(
    dev_broker: DevBrokerProcess, ray_cluster: str, make_topic: Topics, tmp_path: Path
) -> None:
    dice, produced = random.Random(5), 0
    options = {"engine": small_engine(ray_cluster), "workers": (1, 2)}
    topic = make_topic(PARTITIONS)
    task = Task(
        bootstrap=dev_broker.bootstrap, topic=topic, folder=tmp_path, dies="any", options=options
    )
    for round_ in range(ROUNDS):
        produced = killed_in_action(task, VICTIMS[round_ % 2], dice, produced)
    last = started(replace(task, dies=None))
    last.join(120)
    assert last.exitcode == 0
    rows = kept_ids(task.log)
    saved = checkpoint.load(task.checkpoint)
    assert saved is not None
    assert saved["model"] == sum(rows)
    assert Counter(rows) == Counter(r for i in range(produced) for r in kill_trainer.rows_of(i))
    for partition in range(PARTITIONS):
        mine = [r for r in rows if r // 10 % PARTITIONS == partition]
        assert mine == sorted(mine)


def test_a_run_on_threads_goes_on_on_ray_and_back(
    dev_broker: DevBrokerProcess, ray_cluster: str, make_topic: Topics, tmp_path: Path
) -> None:
    topic, produced = make_topic(PARTITIONS), 0
    task = Task(bootstrap=dev_broker.bootstrap, topic=topic, folder=tmp_path)
    for options in ({}, {"engine": small_engine(ray_cluster), "workers": (1, 2)}, {}):
        produced = more(dev_broker.bootstrap, topic, produced, 300)
        kill_trainer.run(replace(task, options=options))
    rows = kept_ids(task.log)
    assert Counter(rows) == Counter(r for i in range(produced) for r in kill_trainer.rows_of(i))

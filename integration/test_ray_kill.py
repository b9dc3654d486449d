"""SIGKILL of whatever takes part in a run on Ray: every record is trained exactly once.

Counted as in the kill tests of the threads engine, from the trainers' own logs.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil
import pytest
from integration import delta_trainer, delta_writer, kill_trainer
from integration.apache_kafka import ApacheKafka
from integration.local_ray import kill, small_engine, title
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
ROW_SECONDS = 0.01
"""Work enough that most of what is there is in flight when something is killed."""
Victim = Literal["Reading", "MapWorker", "Host", "any"]
# Not the fork server of other tests: its environment is from before the cluster, without its token.
SPAWN = mp.get_context("spawn")


class Supply(Protocol):
    """Rows to train on, and who trains on them."""

    def more(self) -> None:
        """Add some hundred rows."""

    def due(self) -> Counter[int]:
        """What must be trained in the end."""

    def start(self, folder: Path, dies: Literal["any"] | None, options: Any) -> SpawnProcess:
        """A trainer, which ends with the rows, or is killed."""


@dataclass
class Topic:
    """A topic."""

    bootstrap: str
    name: str
    shuffle: int = 0
    produced: int = 0

    def more(self) -> None:
        self.produced = more(self.bootstrap, self.name, self.produced, 600)

    def due(self) -> Counter[int]:
        return Counter(r for i in range(self.produced) for r in kill_trainer.rows_of(i))

    def start(self, folder: Path, dies: Literal["any"] | None, options: Any) -> SpawnProcess:
        task = kill_trainer.Task(
            bootstrap=self.bootstrap,
            topic=self.name,
            folder=folder,
            dies=dies,
            shuffle=self.shuffle,
            row_seconds=ROW_SECONDS,
            options=options,
        )
        return started(kill_trainer.run, task)


@dataclass
class Table:
    """A Delta table."""

    folder: Path
    shuffle: int = 0
    shards: int = 1
    written: int = 0

    @property
    def uri(self) -> str:
        return str(self.folder / "table")

    def more(self) -> None:
        if not self.written:
            delta_writer.create(self.uri, {})
        job = delta_writer.Job(uri=self.uri, number=0, folder=self.folder)
        for _ in range(5):
            delta_writer.append(job, range(self.written, self.written + 120))
            self.written += 120

    def due(self) -> Counter[int]:
        return Counter(range(self.written))

    def start(self, folder: Path, dies: Literal["any"] | None, options: Any) -> SpawnProcess:
        task = delta_trainer.Task(
            uri=self.uri,
            folder=folder,
            dies=dies,
            shuffle=self.shuffle,
            row_seconds=ROW_SECONDS,
            shards=self.shards,
            start={"snapshot": 0},  # the same one on each rank
            options=options,
        )
        return started(delta_trainer.run, task)


def more(bootstrap: str, topic: str, first: int, count: int) -> int:
    """Append records, id by id in turn to each partition."""
    for partition in range(PARTITIONS):
        ids = range(first + partition, first + count, PARTITIONS)
        records = [json.dumps({"id": i, "pad": "x" * (i % 90)}).encode() for i in ids]
        produce(bootstrap, topic, records, partition=partition)
    return first + count


def started(run: Callable[[Any], None], task: Any) -> SpawnProcess:
    process = SPAWN.Process(target=run, args=(task,))
    process.start()
    return process


@dataclass(frozen=True)
class Job:
    """A training job of some ranks, each with a folder of its own."""

    supply: Supply
    folders: Sequence[Path]
    options: dict[str, Any]

    def start(self, dies: Literal["any"] | None) -> list[SpawnProcess]:
        """All ranks."""
        ranks = len(self.folders)
        return [
            self.supply.start(folder, dies, {**self.options, "rank": rank, "world_size": ranks})
            for rank, folder in enumerate(self.folders)
        ]

    def trained(self) -> list[int]:
        """What the kept steps of all ranks trained."""
        logs = [folder / "log" for folder in self.folders]
        return [i for log in logs if log.exists() for i in kept_ids(log)]

    def model(self) -> int:
        """The sum of all that was saved."""
        saved = [checkpoint.load(folder / "checkpoint") or {} for folder in self.folders]
        return sum(int(s["model"]) for s in saved)


def chain(job: Job, victims: Sequence[Victim]) -> None:
    """Kill one of each in turn, and the trainers; compare what was trained with what was due."""
    dice = random.Random(5)
    for victim in victims:
        job.supply.more()
        killed_in_action(job, victim, dice)
    for process in job.start(None):
        process.join(120)
        assert process.exitcode == 0
    assert Counter(job.trained()) == job.supply.due()
    assert job.model() == sum(job.trained())


def killed_in_action(job: Job, victim: Victim, dice: random.Random) -> None:
    """Kill a process of a run, see the run go on, and kill the trainers."""
    before = len(job.trained())
    processes = job.start("any")
    wait_until(lambda: len(job.trained()) > before + 50, processes)
    kill(dice.choice(wait_until(lambda: candidates(victim), processes)))
    before = len(job.trained())
    job.supply.more()
    wait_until(lambda: len(job.trained()) > before + 100, processes)
    for process in processes:
        time.sleep(dice.uniform(0.0, 0.5))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL


def wait_until(true: Callable[[], Any], processes: Sequence[SpawnProcess]) -> Any:
    """Wait for something that living trainers bring about."""
    while not (value := true()):
        for process in processes:
            process.join(0.05)
            assert process.exitcode is None, f"a trainer ended with {process.exitcode}"
    return value


def candidates(victim: Victim) -> list[int]:
    """Processes that Ray started for a run; not the agents, with which its node would die."""
    titles = {p.pid: title(p) for p in psutil.Process().children(recursive=True)}
    wanted = "ray::" if victim == "any" else f"ray::{victim}"
    return [pid for pid, t in titles.items() if wanted in t and "Agent" not in t]


def on_ray(address: str, **options: Any) -> dict[str, Any]:
    return {"engine": small_engine(address), "workers": (1, 2), **options}


@pytest.fixture
def make_topic(dev_broker: DevBrokerProcess) -> Topics:
    """On the dev broker only: the broker is not what is tested here."""
    return Topics(dev_broker.bootstrap)


def test_kills_lose_and_repeat_nothing_and_each_partition_stays_in_order(
    dev_broker: DevBrokerProcess, ray_cluster: str, make_topic: Topics, tmp_path: Path
) -> None:
    topic = Topic(dev_broker.bootstrap, make_topic(PARTITIONS))
    job = Job(topic, [tmp_path], on_ray(ray_cluster))
    chain(job, ["Reading", "MapWorker", "Host"])
    for partition in range(PARTITIONS):
        mine = [r for r in job.trained() if r // 10 % PARTITIONS == partition]
        assert mine == sorted(mine)


@pytest.mark.kafka
def test_kills_on_apache_kafka_lose_and_repeat_nothing(
    apache_kafka: ApacheKafka, ray_cluster: str, tmp_path: Path
) -> None:
    topic = Topic(apache_kafka.bootstrap, Topics(apache_kafka.bootstrap)(PARTITIONS))
    chain(Job(topic, [tmp_path], on_ray(ray_cluster)), ["any", "Host"])


@pytest.mark.kafka
def test_kills_of_two_ranks_with_overtaking_and_shuffle_lose_and_repeat_nothing(
    apache_kafka: ApacheKafka, ray_cluster: str, tmp_path: Path
) -> None:
    name = Topics(apache_kafka.bootstrap)(PARTITIONS)
    topic = Topic(apache_kafka.bootstrap, name, shuffle=100)
    job = Job(topic, ranks(tmp_path, 2), on_ray(ray_cluster, order="arrival"))
    chain(job, ["MapWorker", "any"])


def test_kills_of_two_ranks_on_a_delta_table_lose_and_repeat_nothing(
    ray_cluster: str, tmp_path: Path
) -> None:
    table = Table(tmp_path, shuffle=100, shards=2)
    job = Job(table, ranks(tmp_path, 2), on_ray(ray_cluster, order="arrival"))
    chain(job, ["any", "Reading"])


def ranks(folder: Path, count: int) -> list[Path]:
    """A folder for each rank."""
    folders = [folder / f"rank{i}" for i in range(count)]
    for each in folders:
        each.mkdir()
    return folders


def test_a_run_on_threads_goes_on_on_ray_and_back(
    dev_broker: DevBrokerProcess, ray_cluster: str, make_topic: Topics, tmp_path: Path
) -> None:
    topic, produced = make_topic(PARTITIONS), 0
    task = kill_trainer.Task(bootstrap=dev_broker.bootstrap, topic=topic, folder=tmp_path)
    for options in ({}, {"engine": small_engine(ray_cluster), "workers": (1, 2)}, {}):
        produced = more(dev_broker.bootstrap, topic, produced, 300)
        kill_trainer.run(replace(task, options=options))
    rows = kept_ids(task.log)
    assert Counter(rows) == Counter(r for i in range(produced) for r in kill_trainer.rows_of(i))

"""A Delta table, then the topic it was filled from: no record is missed at the seam, or repeated.

Records are produced all the while, and trainers are killed with SIGKILL around the seam.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from integration import backfill_trainer
from integration.backfill_trainer import Task
from integration.conftest import Broker
from tests.kafka_client import produce, read_to_end, reader
from tests.topics import Topics

from forebay import Pipeline, decode
from forebay.hybrid import AtOffsets, ByOffset, ByTime, Handover
from forebay.runlog import kept_ids
from forebay_delta import DeltaSource
from forebay_delta.recorder import DeltaRecorder
from forebay_kafka import KafkaSource

PARTITIONS, KEPT, SEAM = 3, 100, 300 // 16
"""The table has the first 100 records of each partition: about 18 steps of 16."""
KILLS = 12

SPAWN = mp.get_context("forkserver")
SPAWN.set_forkserver_preload(["integration.backfill_trainer"])


@dataclass
class Feed:
    """Records that are put into a topic, numbered through."""

    bootstrap: str
    topic: str
    produced: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def more(self, count: int) -> None:
        """Produce so many more, in turn to each partition."""
        ids = range(self.produced, self.produced + count)
        for partition in range(PARTITIONS):
            mine = [{"id": i, "pad": "x" * (i % 50)} for i in ids if i % PARTITIONS == partition]
            values = [json.dumps(row).encode() for row in mine]
            produce(self.bootstrap, self.topic, values, partition=partition)
        self.produced += count

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produce in the background."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self.stopped.set()
            thread.join()

    def _run(self) -> None:
        while not self.stopped.wait(0.05):
            self.more(6)


def filled(broker: Broker, topic: str, table: Path, first: int, count: int) -> int:
    """Copy records of each partition from the topic to the table, in files that mix partitions;
    returns the time of the newest record."""
    rows: list[dict[str, Any]] = []
    for partition in range(PARTITIONS):
        with reader(broker.bootstrap, topic, first, partition=partition) as consumer:
            rows += [
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": m.offset(),
                    "timestamp": m.timestamp()[1],
                    "value": m.value(),
                }
                for m in read_to_end(consumer, count).messages
            ]
    rows.sort(key=lambda row: row["offset"])
    for i in range(0, len(rows), 70):
        part = pa.Table.from_pylist(rows[i : i + 70])
        times = part["timestamp"].cast(pa.timestamp("ms", "UTC"))
        part = part.set_column(3, "timestamp", times)
        write_deltalake(table, part, mode="append")
    return max(int(row["timestamp"]) for row in rows)


def started(broker: Broker, make_topic: Topics, folder: Path) -> tuple[Feed, int]:
    """A topic whose first records are in a table; more are in the topic."""
    feed = Feed(broker.bootstrap, make_topic(PARTITIONS))
    feed.more(PARTITIONS * KEPT)
    newest = filled(broker, feed.topic, folder / "table", 0, KEPT)
    feed.more(30)
    return feed, newest


def trained(task: Task) -> int | None:
    """Run a trainer until it dies or the topic ends."""
    process = SPAWN.Process(target=backfill_trainer.run, args=(task,))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"it neither died nor ended: {task}")
    return process.exitcode


def chain(feed: Feed, task: Task, between: Any = lambda kill: None) -> list[int]:
    """Kill a trainer before the seam, at it and after it; the ids that it trained in the end."""
    dice = random.Random(9)
    with feed.running():
        assert trained(replace(task, until=None, steps=SEAM - 3)) == -signal.SIGKILL
        for kill in range(KILLS):
            between(kill)
            after = dice.choice([0.0, 0.0, dice.uniform(0.0, 0.2)])
            steps = dice.choice([0, 1]) if after else dice.choice([1, 2, 2, 3])
            assert trained(replace(task, until=None, steps=steps, after=after)) == -signal.SIGKILL
    assert trained(task) == 0
    saved = [json.loads(line).get("resumed") for line in task.log.read_text().splitlines()]
    runs = [step for step in saved if step is not None]
    assert len([step for step in runs if SEAM - 4 <= step <= SEAM + 12]) >= 8, runs
    assert min(runs[1:]) < SEAM < max(runs), runs
    return kept_ids(task.log)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "settings",
    [
        {"options": {"order": "split"}},
        {"options": {"order": "arrival"}, "shuffle": 50},
        {"options": {"order": "deterministic"}},
    ],
    ids=["split", "arrival-shuffled", "deterministic"],
)
def test_kills_around_the_seam_miss_no_record_and_repeat_none(
    broker: Broker, make_topic: Topics, tmp_path: Path, settings: dict[str, Any]
) -> None:
    feed, _ = started(broker, make_topic, tmp_path)
    task = Task(
        bootstrap=feed.bootstrap,
        topic=feed.topic,
        folder=tmp_path,
        handover=ByOffset(),
        **settings,
    )
    assert Counter(chain(feed, task)) == Counter(range(feed.produced))


@pytest.mark.timeout(300)
def test_a_table_that_grows_while_trainers_are_killed_repeats_nothing(
    broker: Broker, make_topic: Topics, tmp_path: Path
) -> None:
    feed, _ = started(broker, make_topic, tmp_path)
    task = Task(bootstrap=feed.bootstrap, topic=feed.topic, folder=tmp_path, handover=ByOffset())

    def grown(kill: int) -> None:
        filled(broker, feed.topic, task.table, KEPT + kill, 1)

    assert Counter(chain(feed, task, grown)) == Counter(range(feed.produced))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rule", ["offsets", "time"])
def test_the_seam_may_be_given_as_offsets_or_as_a_time(
    broker: Broker, make_topic: Topics, tmp_path: Path, rule: str
) -> None:
    feed, newest = started(broker, make_topic, tmp_path)
    offsets = {f"kafka:{feed.topic}/{p}": KEPT for p in range(PARTITIONS)}
    handover: Handover = AtOffsets(offsets) if rule == "offsets" else ByTime(newest)
    task = Task(bootstrap=feed.bootstrap, topic=feed.topic, folder=tmp_path, handover=handover)
    for steps in (SEAM - 1, 1, 1, 1):
        assert trained(replace(task, until=None, steps=steps)) == -signal.SIGKILL
    assert trained(task) == 0
    assert Counter(kept_ids(task.log)) == Counter(range(feed.produced))


@pytest.mark.timeout(120)
def test_a_table_that_a_recorder_wrote_goes_over_into_its_topic(
    broker: Broker, make_topic: Topics, tmp_path: Path
) -> None:
    feed = Feed(broker.bootstrap, make_topic(PARTITIONS))
    settings = {"bootstrap.servers": broker.bootstrap}
    feed.more(90)
    first = Pipeline(KafkaSource(feed.topic, settings, until="latest"))
    with first.record(DeltaRecorder(str(tmp_path))).batch(10).loader() as of:
        assert sum(b.rows for b in of) == 90
    feed.more(30)
    recorded = DeltaSource(str(tmp_path), until="latest", columns=["value", "_split", "_offset"])
    handover = ByOffset(offset="_offset", split="{_split}")
    again = Pipeline(recorded).chain(
        KafkaSource(feed.topic, settings, until="latest"), handover=handover, columns=["value"]
    )
    with again.decode(decode.json("value", schema={"id": "int64"})).batch(10).loader() as of:
        ids = [i for b in of for i in b["id"].tolist()]
    assert set(ids[:90]) == set(range(90))
    assert Counter(ids) == Counter(range(120))

"""From the moment a record is produced to that in which the trainer has it, at 200 records/s.

A process produces records of 1 KB to a topic of 4 partitions, at a steady rate; each holds when it
was produced. The contenders read it in turn, each in a process of its own:

* **consumer**: confluent-kafka alone, one record at a time, nothing decoded: the floor.
* **forebay on threads**: decode JSON, batches of 4, the default engine.
* **forebay on ray**: the same pipeline, ``engine="ray"`` on a Ray of this machine.
* **ray data in a loop**: ``ray.data.read_kafka`` from where the last read ended to the latest
  record, decoded by ``map_batches``, again and again. Ray Data has no source without an end, so
  this is what its users write; the position is theirs to keep, from the offsets of the rows.

An age is that of each record when its batch is in the trainer's hands. At 200 records/s a batch of
4 takes 15 ms to fill, so the average record waits 7.5 ms for the others of its batch. The first
seconds are not counted: Ray's workers start in them.

The ratio is the median age on threads over the 50 ms that are aimed at: at most 1. Also required:
both ages on Ray are below those of Ray Data.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import ray
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from _report import report, table
from _rounds import Result, give, in_process, interleaved, median
from forebay import Engine, Pipeline, ThreadEngine, decode
from forebay.ray import RayEngine
from forebay_kafka import KafkaSource
from forebay_kafka.devbroker import DevBrokerProcess

RATE, SIZE, PARTITIONS, BATCH, TARGET_MS = 200, 1_000, 4, 4, 50.0
ALONE, ON_THREADS, ON_RAY = "consumer", "forebay on threads", "forebay on ray"
RAY_DATA = "ray data in a loop"
WARM_UP = {ALONE: 2.0, ON_THREADS: 3.0, ON_RAY: 15.0, RAY_DATA: 15.0}


Ages: TypeAlias = "Generator[list[float], None, None]"


def consumer_ages(bootstrap: str, topic: str) -> Ages:
    """Of one record after the other, read by the client alone."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "latency", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, p, -1) for p in range(PARTITIONS)])
    while True:
        message = consumer.poll(1.0)
        value = None if message is None or message.error() else message.value()
        if value is not None:
            yield [time.time() - json.loads(value)["at"]]


def our_ages(engine: Engine, bootstrap: str, topic: str) -> Ages:
    """Of batch after batch of a loader."""
    source = KafkaSource(topic, {"bootstrap.servers": bootstrap}, start="latest", columns=["value"])
    schema = {"at": "float64", "pad": "string"}
    pipeline = Pipeline(source).decode(decode.json("value", schema=schema)).batch(BATCH)
    with pipeline.loader(engine=engine, workers=2) as loader:
        for batch in loader:
            yield (time.time() - batch["at"]).tolist()


def ray_data_ages(bootstrap: str, topic: str) -> Ages:
    """Of one bounded read after the other."""
    at = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        rows = ray.data.read_kafka(topic, bootstrap_servers=bootstrap, start_offset={topic: at})
        decoded = rows.map_batches(_decoded, batch_format="pyarrow")
        for batch in decoded.iter_batches(batch_size=BATCH, batch_format="numpy"):
            yield (time.time() - batch["at"]).tolist()
            for partition, offset in zip(batch["partition"], batch["offset"], strict=True):
                at[int(partition)] = int(offset) + 1


def _decoded(batch: pa.Table) -> pa.Table:
    values = [json.loads(value) for value in batch["value"].to_pylist() if value is not None]
    columns = {"at": [v["at"] for v in values], "pad": [v["pad"] for v in values]}
    return pa.table({**columns, "partition": batch["partition"], "offset": batch["offset"]})


def ages_on_ray(name: str, bootstrap: str, topic: str) -> Ages:
    """Of ours or of Ray Data's, on a Ray of this machine."""
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    if name == RAY_DATA:
        return ray_data_ages(bootstrap, topic)
    return our_ages(RayEngine(num_cpus=0.5), bootstrap, topic)


def contend(name: str, bootstrap: str, topic: str, seconds: float) -> Result:
    """Ages of one contender, in milliseconds."""
    if name == ALONE:
        steps = consumer_ages(bootstrap, topic)
    elif name == ON_THREADS:
        steps = our_ages(ThreadEngine(), bootstrap, topic)
    else:
        steps = ages_on_ray(name, bootstrap, topic)
    ages: list[float] = []
    with closing(steps):
        next(steps)
        begin = time.monotonic() + WARM_UP[name]
        while (now := time.monotonic()) < begin + seconds:
            step = next(steps)
            ages += step if now > begin else []
    p50, p99 = np.percentile(ages, [50, 99]) * 1e3
    return {"p50_ms": float(p50), "p99_ms": float(p99), "most_ms": max(ages) * 1e3}


@contextmanager
def produced(bootstrap: str, topic: str) -> Iterator[None]:
    """Records come while this lasts."""
    script = str(Path(__file__).with_name("_paced_producer.py"))
    arguments = [bootstrap, topic, *map(str, (PARTITIONS, RATE, SIZE))]
    process = subprocess.Popen([sys.executable, script, *arguments], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--contend", nargs=3, metavar=("NAME", "BROKER", "TOPIC"))
    options = parser.parse_args()
    if options.contend:
        name, bootstrap, topic = options.contend
        give(contend(name, bootstrap, topic, options.seconds))
        return 0
    with DevBrokerProcess() as broker:
        results = interleaved(list(WARM_UP), options.rounds, run_on(broker, options.seconds))
    figures = {
        name: {key: median(rounds, key) for key in rounds[0]} for name, rounds in results.items()
    }
    table([{"contender": name, **row} for name, row in figures.items()])
    ratio = figures[ON_THREADS]["p50_ms"] / TARGET_MS
    lower = all(figures[ON_RAY][k] < figures[RAY_DATA][k] for k in ("p50_ms", "p99_ms"))
    return report("latency", ratio, 1.0, ratio <= 1.0 and lower, figures)


def run_on(broker: DevBrokerProcess, seconds: float) -> Callable[[str], Result]:
    """What runs a contender on a topic of its own."""
    numbers, admin = count(1), AdminClient({"bootstrap.servers": broker.bootstrap})

    def run(name: str) -> Result:
        topic = f"latency-{next(numbers)}"
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
        with produced(broker.bootstrap, topic):
            arguments = (name, broker.bootstrap, topic, "--seconds", seconds)
            return in_process(__file__, "--contend", *arguments)

    return run


if __name__ == "__main__":
    sys.exit(main())

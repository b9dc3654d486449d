"""Records out of a Kafka topic: how many a second of CPU, against others in the same run.

Topics of 4 partitions with records of 100 B, 1 KB and 30 KB (and a short key) lie on the dev
broker, which runs in a process of its own. Every contender reads a topic to its end, in a fresh
process, all of them in every round; counted is the CPU time of that process, the client's threads
included, from making the client to the last record. Imports are not counted, nor what Python and
pyarrow do only once: each contender reads a small topic first.

* ``bare client``: ``consume(100)`` of confluent-kafka in a loop that looks at value and offset and
  builds nothing, with our client settings (checksums verified, committed records only): what any
  reader in Python pays at least. ``bare, defaults``: with the client's own, for information.
* ``forebay``: ``KafkaSource`` to slices with all eight columns; values of half a KB and more as an
  object array, which is what decode stages read. ``forebay, arrow``: with those joined into Arrow
  binary, too; for information.
* ``hand-written``: ``poll()``, lists, and ``pa.array`` of the same columns for every 500 records.
* ``hand + DataLoader``: the same behind a torch ``DataLoader`` with one worker process.
* ``ray``: ``ray.data.read_kafka`` as users run it, Ray's processes counted, the second read of a
  session. ``ray reader``: its read tasks alone, called in process, without what Ray does with
  their blocks; for information.

The ratio is the worst of (ours / theirs) / target over all comparisons, so at least 1 is asked
for. Targets are of records per CPU second, by each contender's best round (what else runs on the
machine only ever adds): bare client 0.45 (100 B), 0.6 (1 KB), 0.7 (30 KB); Ray 5; hand-written
1.5; behind a DataLoader, faster still.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, Producer
from torch.utils.data import DataLoader, IterableDataset

from _peers import environment_if_any, run_with
from _report import report, table
from _rounds import Result, give, in_process, interleaved, median
from forebay_kafka import KafkaSource
from forebay_kafka.config import Settings, for_reading
from forebay_kafka.devbroker import DevBrokerProcess

PARTITIONS = 4
RECORDS = {"100 B": (100, 200_000), "1 KB": (1_000, 100_000), "30 KB": (30_000, 12_000)}
BARE = {"100 B": 0.45, "1 KB": 0.6, "30 KB": 0.7}
RAY = ("ray[data]==2.60.0", "confluent-kafka==2.16.1", "psutil")
HERE = Path(__file__).resolve().parent
WARM, WARM_RECORDS = "warm", 1_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def bare(bootstrap: str, topic: str, records: int) -> int:
    """The client alone, with the settings that ours has."""
    source = KafkaSource(topic, {"bootstrap.servers": bootstrap})
    settings = for_reading(Settings(source.config), "benchmark", lambda error: None)
    return _count(_assigned(settings, topic), records)


def bare_defaults(bootstrap: str, topic: str, records: int) -> int:
    """The client alone, with its own settings."""
    return _count(_consumer(bootstrap, topic), records)


def _count(consumer: Consumer, records: int) -> int:
    found = 0
    while found < records:
        for message in consumer.consume(100, 1.0):
            if message.error() is None:
                message.value()
                message.offset()
                found += 1
    consumer.close()
    return found


def forebay(bootstrap: str, topic: str, records: int) -> int:
    """Our source, as the engine reads it."""
    return _read(KafkaSource(topic, {"bootstrap.servers": bootstrap}, until="latest"))


def _read(source: KafkaSource) -> int:
    reader = source.open({}, lambda split: True)
    found = 0
    while not reader.finished():
        if (s := reader.poll(1.0)) is not None:
            found += len(s)
    reader.close()
    return found


def forebay_arrow(bootstrap: str, topic: str, records: int) -> int:
    """Our source, with values joined into Arrow columns whatever their size."""
    return _read(
        KafkaSource(topic, {"bootstrap.servers": bootstrap}, until="latest", payload="arrow")
    )


def by_hand(bootstrap: str, topic: str, records: int) -> int:
    """What people write."""
    return sum(len(batch["value"]) for batch in _hand_written(bootstrap, topic, records))


def by_hand_in_worker(bootstrap: str, topic: str, records: int) -> int:
    """The same, in a DataLoader's worker."""
    dataset = HandWritten(bootstrap, topic, records)
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    return sum(len(batch["value"]) for batch in loader)


class HandWritten(IterableDataset[Mapping[str, Any]]):
    """The hand-written loop as torch takes it."""

    def __init__(self, bootstrap: str, topic: str, records: int) -> None:
        self._arguments = (bootstrap, topic, records)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return _hand_written(*self._arguments)


def _hand_written(
    bootstrap: str, topic: str, records: int
) -> Iterator[Mapping[str, pa.Array[Any]]]:
    consumer = _consumer(bootstrap, topic)
    rows: list[Message] = []
    found = 0
    while found < records:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        rows.append(message)
        found += 1
        if len(rows) == 500 or found == records:
            yield _columns(rows)
            rows = []
    consumer.close()


def _columns(rows: list[Message]) -> Mapping[str, pa.Array[Any]]:
    headers = [
        [dict(zip(("key", "value"), h, strict=True)) for h in m.headers() or ()] for m in rows
    ]
    return {
        "topic": pa.array([m.topic() for m in rows], pa.string()),
        "partition": pa.array([m.partition() for m in rows], pa.int32()),
        "offset": pa.array([m.offset() for m in rows], pa.int64()),
        "timestamp": pa.array([m.timestamp()[1] for m in rows], pa.int64()),
        "timestamp_type": pa.array([m.timestamp()[0] for m in rows], pa.int8()),
        "key": pa.array([m.key() for m in rows], pa.binary()),
        "value": pa.array([m.value() for m in rows], pa.binary()),
        "headers": pa.array(headers, HEADERS),
    }


def _consumer(bootstrap: str, topic: str) -> Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "benchmark",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    return _assigned(settings, topic)


def _assigned(settings: dict[str, Any], topic: str) -> Consumer:
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    return consumer


READERS: dict[str, Callable[[str, str, int], int]] = {
    "bare client": bare,
    "bare, defaults": bare_defaults,
    "forebay": forebay,
    "forebay, arrow": forebay_arrow,
    "hand-written": by_hand,
    "hand + DataLoader": by_hand_in_worker,
}
PEERS = {"ray": "whole", "ray reader": "reader"}


def contend(name: str, bootstrap: str, topic: str, records: int) -> Result:
    """CPU seconds, those of ended children included, and wall seconds of one read."""
    READERS[name](bootstrap, WARM, WARM_RECORDS)
    cpu, wall = _cpu_seconds(), time.perf_counter()
    found = READERS[name](bootstrap, topic, records)
    result = {"cpu": _cpu_seconds() - cpu, "wall": time.perf_counter() - wall}
    if found != records:
        raise RuntimeError(f"{name}: {found} records instead of {records}")
    return result


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def fill(bootstrap: str, topic: str, size: int, records: int) -> None:
    """Write the records, evenly over the partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    failed: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000, "acks": 1}
    )
    payload = os.urandom(size)

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    for i in range(records):
        while not _sent(producer, topic, payload, i, delivered):
            producer.poll(0.05)
    if producer.flush(120) or failed:
        raise RuntimeError(f"topic {topic} could not be filled: {failed[:1]}")


def _sent(
    producer: Producer,
    topic: str,
    payload: bytes,
    i: int,
    delivered: Callable[[KafkaError | None, Message], None],
) -> bool:
    try:
        producer.produce(
            topic, payload, b"key-%d" % i, partition=i % PARTITIONS, on_delivery=delivered
        )
    except BufferError:
        return False
    producer.poll(0)
    return True


def main() -> int:
    """Run all contenders, print the tables and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the records, for a quick look")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray Data out")
    parser.add_argument("--contend", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, bootstrap, topic, records = options.contend
        give(contend(name, bootstrap, topic, int(records)))
        return 0
    ray = None if options.no_ray else environment_if_any("ray-data", RAY, "Ray Data")
    with DevBrokerProcess() as broker:
        fill(broker.bootstrap, WARM, 100, WARM_RECORDS)
        figures = {
            label: compare(
                broker.bootstrap, label, size, int(n * options.share), options.rounds, ray
            )
            for label, (size, n) in RECORDS.items()
        }
    return conclude(figures)


def compare(
    bootstrap: str, label: str, size: int, records: int, rounds: int, ray: Path | None
) -> dict[str, dict[str, float]]:
    """Records per CPU second and per second of wall time, by contender."""
    topic = f"records-of-{size}"
    fill(bootstrap, topic, size, records)
    contenders = [*READERS, *(PEERS if ray else ())]

    def run(name: str) -> Result:
        if ray is not None and name in PEERS:
            script = HERE / "_ray_kafka_read.py"
            return run_with(ray, script, bootstrap, topic, records, PEERS[name], timeout=300)
        return in_process(__file__, "--contend", name, bootstrap, topic, records)

    results = interleaved(contenders, rounds, run)
    return {
        name: {
            "per_cpu_second": records / min(r["cpu"] for r in of),
            "median_per_cpu_second": records / median(of, "cpu"),
            "per_second": records / median(of, "wall"),
        }
        for name, of in results.items()
    }


def targets(label: str) -> dict[str, float]:
    """What ours over theirs must be at least."""
    return {
        "bare client": BARE[label],
        "hand-written": 1.5,
        "hand + DataLoader": 1.5,
        "ray": 5.0,
    }


def conclude(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> int:
    """The tables and the line."""
    worst: dict[str, float] = {}
    for label, by_name in figures.items():
        ours = by_name["forebay"]["per_cpu_second"]
        ratios = {name: ours / f["per_cpu_second"] for name, f in by_name.items()}
        wanted = targets(label)
        table(
            [
                {
                    "contender": name,
                    "records / CPU s": f["per_cpu_second"],
                    "median": f["median_per_cpu_second"],
                    "CPU us / record": 1e6 / f["per_cpu_second"],
                    "records / s": f["per_second"],
                    "ours / its": None if name.startswith("forebay") else ratios[name],
                    "target": wanted.get(name),
                }
                for name, f in by_name.items()
            ],
            f"records of {label}, best of the rounds",
        )
        worst |= {f"{label} / {n}": ratios[n] / t for n, t in wanted.items() if n in ratios}
    ratio = min(worst.values())
    skipped = [] if "ray" in figures["1 KB"] else ["Ray Data"]
    return report(
        "kafka_read",
        ratio,
        1.0,
        ratio >= 1.0,
        {"ours_over_theirs_over_target": worst, "rates": figures, "skipped": skipped},
    )


if __name__ == "__main__":
    sys.exit(main())

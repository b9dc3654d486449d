"""What a trainer that pauses costs in memory: at most ``max_bytes`` and a constant.

A trainer takes forty batches, pauses for a minute while its source has more to give than fits,
and takes forty more: a pause costs lag only. Shown is the resident memory of the process, less
what it was before the first batch: at the peak of all that, and over the pause.

* ``memory``: an endless source of 30 kB records that a stage inflates to 150 kB, in slices of
  4 MB, as Kafka's are, on two workers.
* ``kafka``: the same records in a topic on the dev broker (``--no-kafka`` leaves it out).
* ``trickle``: endless records of 100 bytes that come one by one, without stages: what a slice
  costs beside its rows has to count, too.

The constant is stated here, and is the same whatever ``max_bytes`` is:

* one slice of the source, inflated: it is admitted while there is room for any of it: 21 MB;
* two batches of 64 rows, the one that the trainer holds and the one being put together: 19 MB;
* what malloc keeps of memory that was given back. glibc has a heap of up to 64 MB for every thread
  that allocates, here two workers, the reading and the batching one: 256 MB. ``one heap`` runs
  with ``MALLOC_ARENA_MAX=1``, under which it is 100 MB;
* with Kafka what its client holds beyond: 32 MiB of queue, and one fetch: 50 MB;
* for ``trickle``, which has no large slices, batches or workers, 40 MB for everything.

The ratio is peak growth / (``max_bytes`` + constant), the worst of all: at most 1.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, Producer
from numpy.typing import NDArray

from _report import report, table
from _rounds import Result, give, in_process
from _sources import MadeSource
from forebay import Loader, Pipeline
from forebay.columns import Columns
from forebay.source import Source
from forebay_kafka import KafkaSource
from forebay_kafka.devbroker import DevBrokerProcess

TARGET = 1.0
MB = 1_000_000
RECORD_BYTES, INFLATED, BATCH, SLICE_ROWS = 30_000, 5, 64, 140
BATCHES = 40  # before the pause, and after it
LARGE = SLICE_ROWS * RECORD_BYTES * INFLATED / MB + 2 * BATCH * RECORD_BYTES * INFLATED / MB
HEAPS, ONE_HEAP, CLIENT, SMALL = 4 * 64, 100, 50, 40
TOPIC, TOPIC_RECORDS = "pictures", 15_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table; megabytes."""

    source: str
    max_bytes: int
    constant: float
    one_heap: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What is set for the process that runs it."""
        return {"MALLOC_ARENA_MAX": "1"} if self.one_heap else {}


SETTINGS = [
    Setting("memory", 64, LARGE + HEAPS),
    Setting("memory", 256, LARGE + HEAPS),
    Setting("memory", 64, LARGE + ONE_HEAP, one_heap=True),
    Setting("memory", 256, LARGE + ONE_HEAP, one_heap=True),
    Setting("kafka", 64, LARGE + HEAPS + CLIENT),
    Setting("kafka", 256, LARGE + HEAPS + CLIENT),
    Setting("trickle", 16, SMALL),
]


def endless_records(split: int, offsets: NDArray[np.int64]) -> Columns:
    """Records of 30 kB, every page of them written to."""
    return {"value": np.full((len(offsets), RECORD_BYTES), 7, np.uint8)}


def small_records(split: int, offsets: NDArray[np.int64]) -> Columns:
    """Records of 100 bytes."""
    return {"value": np.full((len(offsets), 100), 7, np.uint8)}


def inflate(columns: Columns) -> Columns:
    """What a decoder does to memory: five bytes out for each byte in."""
    values: Any = columns["value"]
    if values.dtype == object:
        values = np.stack([np.frombuffer(value, np.uint8) for value in values])
    return {"picture": np.repeat(values, INFLATED, axis=1)}


def loader_over(kind: str, max_bytes: int, bootstrap: str) -> Loader:
    """The loader of one setting."""
    source: Source
    if kind == "trickle":
        source = MadeSource(make=small_records, slice_rows=1)
        return Pipeline(source).batch(BATCH).loader(max_bytes=max_bytes)
    if kind == "kafka":
        source = KafkaSource(TOPIC, {"bootstrap.servers": bootstrap})
    else:
        source = MadeSource(make=endless_records, slice_rows=SLICE_ROWS)
    return Pipeline(source).map(inflate).batch(BATCH).loader(max_bytes=max_bytes, workers=2)


@contextmanager
def sampled() -> Iterator[list[float]]:
    """Resident megabytes every 50 ms for as long as the block runs, less those at its start."""
    process, stop = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    samples = [0.0]

    def sample() -> None:
        while not stop.wait(0.05):
            samples.append((process.memory_info().rss - before) / MB)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def contend(kind: str, bound: int, seconds: float, bootstrap: str) -> Result:
    """Growth in megabytes: at the peak, and at each quarter of the pause."""
    torch.set_num_threads(1)
    with sampled() as growth, loader_over(kind, bound * MB, bootstrap) as loader:
        batches = iter(loader)
        for _ in range(BATCHES):
            held = next(batches)
        over_time = [growth[-1]]
        for _ in range(4):
            time.sleep(seconds / 4)
            over_time.append(growth[-1])
        counted = loader.stats().bytes_in_flight / MB
        rows = held.rows + sum(next(batches).rows for _ in range(BATCHES))
        peak = max(growth)
    if rows != BATCH * (BATCHES + 1):
        raise RuntimeError(f"after the pause came {rows} rows")
    return {"peak": peak, "over_time": over_time, "counted": counted}


def fill(bootstrap: str) -> None:
    """A topic with more records than any window takes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(TOPIC_RECORDS):
        producer.produce(TOPIC, bytes([i % 256]) * RECORD_BYTES)
        if i % 500 == 0:
            producer.flush()
    if producer.flush(60):
        raise RuntimeError("the dev broker did not take all records within 60 s")


def measured(seconds: float, kafka: bool) -> list[dict[str, Any]]:
    """One row of the table for each setting, each in a process of its own."""
    rows = []
    with DevBrokerProcess() as broker:
        if kafka:
            fill(broker.bootstrap)
        for setting in SETTINGS:
            if setting.source == "kafka" and not kafka:
                continue
            arguments = (setting.source, setting.max_bytes, seconds, broker.bootstrap)
            result = in_process(
                __file__, "--contender", *arguments, timeout=900, variables=setting.variables
            )
            rows.append(row(setting, result))
            print(f"  {setting.source}, {setting.max_bytes} MB", file=sys.stderr, flush=True)
    return rows


def row(setting: Setting, result: Result) -> dict[str, Any]:
    """What the table shows of one setting."""
    allowed = setting.max_bytes + setting.constant
    quarters = zip(("0", "1/4", "1/2", "3/4", "1"), result["over_time"], strict=True)
    return {
        "source": setting.source + (", one heap" if setting.one_heap else ""),
        "max_bytes": setting.max_bytes,
        "constant": setting.constant,
        "peak growth": result["peak"],
        "peak / allowed": result["peak"] / allowed,
        "counted by us": result["counted"],
        **{f"{name} of pause": growth for name, growth in quarters},
    }


def main() -> int:
    """Run all settings, print the table and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="that the trainer pauses")
    parser.add_argument("--quick", action="store_true", help="pause for 15 s only")
    parser.add_argument("--no-kafka", action="store_true", help="leave the topic out")
    parser.add_argument("--contender", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        kind, bound, seconds, bootstrap = options.contender
        give(contend(kind, int(bound), float(seconds), bootstrap))
        return 0
    seconds = 15.0 if options.quick else options.seconds
    rows = measured(seconds, not options.no_kafka)
    table(rows, f"resident memory, MB; the trainer pauses for {seconds:g} s")
    worst = max(r["peak / allowed"] for r in rows)
    return report("memory", worst, TARGET, worst <= TARGET, {"seconds": seconds, "settings": rows})


if __name__ == "__main__":
    sys.exit(main())

"""What a state costs, and whether a job that stands far into its stream resumes as fast as one
that has only begun.

* **State**: ``state_dict()`` at 64 splits takes less than 1 ms (median) and gives at most 10 kB of
  JSON, as ``json.dumps`` writes it. Split ids, offsets of ten digits and tokens are as Kafka gives
  them. States are taken of running loaders: plain; with a stuck row in 8 splits, whose ranges are
  pending; inside a shuffle window that has rows of every split; and with both. A thousand splits
  for information.
* **Resume**: from ``load_state_dict`` to the first batch, at positions 10^3 to 10^6, over a source
  that is all in memory, inside a shuffle window of 4,096 rows, and over a Kafka topic of a million
  records (on the dev broker, in a process of its own; ``--no-kafka`` leaves it out). All positions
  take turns in each repeat. Each state is one that a loader gave there, and the first batch is
  checked to begin where the state says.

The ratio is the median time at 10^6 over that at 10^3, the worst of the sources: at most 1.2.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import numpy as np
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, Producer
from numpy.typing import NDArray

from _report import report, table
from _sources import MadeSource
from forebay import Loader, Pipeline
from forebay.columns import Columns
from forebay.source import Source
from forebay_kafka import KafkaSource
from forebay_kafka.devbroker import DevBrokerProcess
from forebay_kafka.positions import identity, token

TARGET = 1.2
POSITIONS = (1_000, 10_000, 100_000, 1_000_000)
MOST_SECONDS, MOST_BYTES = 0.001, 10_000
SPLITS, STUCK, WINDOW = 64, 8, 4096
TOPIC = "numbers"
BEYOND = 150_000  # records after the last position: as much to read ahead there as elsewhere
AS_KAFKA = token(identity("qmFXUYLBQEyP7nFrhJWGiA", "Some22LettersOfCluster"), 12)
FAR = 1_000_000_000


# -- states --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loader whose state is taken."""

    splits: int = SPLITS
    stuck: int = 0
    """Splits of which the second row read does not come out of its stage."""
    shuffle: bool = False
    batches: int = 300


CASES = {
    f"{SPLITS} splits": Case(),
    f"{SPLITS} splits, {STUCK} with a pending range": Case(stuck=STUCK),
    f"{SPLITS} splits, inside a shuffle window": Case(shuffle=True),
    f"{SPLITS} splits, both": Case(shuffle=True, stuck=STUCK),
    "1,000 splits": Case(splits=1_000, batches=1_000),
}


def measured_state(case: Case, calls: int) -> dict[str, Any]:
    """Size of the state and seconds of ``state_dict()``, in the middle of a run."""
    free = threading.Event()
    pipeline = Pipeline(numbers(partitions=case.splits, start=FAR, slice_rows=64))
    if case.stuck:
        pipeline = pipeline.map(stuck_until(free, case.stuck), name="stuck")
    if case.shuffle:
        pipeline = pipeline.shuffle(WINDOW)
    order = "arrival" if case.stuck else "split"
    with pipeline.batch(256).loader(order=order, workers=STUCK + 1) as loader:
        batches = iter(loader)
        for _ in range(case.batches + 5):  # ends inside a window, which is sixteen batches
            next(batches)
        figures = state_figures(loader, calls)
        free.set()
    return figures


def state_figures(loader: Loader, calls: int) -> dict[str, Any]:
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        state = loader.state_dict()
        seconds.append(time.perf_counter() - began)
    pending = sum(len(p.get("pending", ())) for p in state["splits"].values())
    windows = state.get("open_windows", ())
    return {
        "splits": len(state["splits"]),
        "pending": pending,
        "window splits": len(windows[0]["splits"]) if windows else 0,
        "ms": median(seconds) * 1000,
        "p99 ms": quantiles(seconds, n=100)[-1] * 1000,
        "bytes": len(json.dumps(state)),
    }


def stuck_until(free: threading.Event, splits: int) -> Callable[[Columns], Columns]:
    """A stage that holds the second slice of each of the first splits back."""
    seen: set[int] = set()
    lock = threading.Lock()

    def stuck(columns: Columns) -> Columns:
        with lock:
            hold = len(seen) < splits and int(np.asarray(columns["n"])[0]) >= FAR + 64
            seen.update([len(seen)] if hold else [])
        if hold:
            free.wait()
        return columns

    return stuck


def numbers(**settings: Any) -> MadeSource:
    """Rows that hold their own offset."""
    return MadeSource(make=own_offset, token=AS_KAFKA, **settings)


def own_offset(split: int, offsets: NDArray[np.int64]) -> Columns:
    """The column ``n``."""
    return {"n": offsets.copy()}


# -- resuming ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Road:
    """One way to a first batch: a pipeline over a source that begins at an offset."""

    source: Callable[[int], Source]
    shuffle: bool = False

    def loader(self, start: int) -> Loader:
        pipeline = Pipeline(self.source(start))
        return (pipeline.shuffle(WINDOW) if self.shuffle else pipeline).batch(256).loader()

    def state_at(self, position: int) -> dict[str, Any]:
        """The state that a loader gives which began at ``position``, after three batches."""
        with self.loader(position) as loader:
            batches = iter(loader)
            for _ in range(3):
                next(batches)
            return loader.state_dict()

    def seconds_from(self, state: Mapping[str, Any]) -> float:
        """From ``load_state_dict`` to the first batch of a new loader."""
        with self.loader(0) as loader:
            began = time.perf_counter()
            loader.load_state_dict(state)
            batch = next(iter(loader))
            seconds = time.perf_counter() - began
            (position,) = state["splits"].values()
            if not self.shuffle and next(iter(batch.origins))[1] != position["offset"]:
                raise RuntimeError(f"resumed at {next(iter(batch.origins))}, not at {position}")
        return seconds


def resume_times(road: Road, repeats: int) -> dict[int, float]:
    """Median seconds to the first batch by position; the positions take turns."""
    states = {position: road.state_at(position) for position in POSITIONS}
    seconds: dict[int, list[float]] = {position: [] for position in POSITIONS}
    for repeat in range(repeats + 1):
        for position, state in states.items():
            taken = road.seconds_from(state)
            if repeat:  # the first round warms caches up
                seconds[position].append(taken)
    return {position: median(times) for position, times in seconds.items()}


def kafka_times(repeats: int) -> dict[int, float]:
    """The same over a topic of a million records and some more."""
    with DevBrokerProcess() as broker:
        fill(broker.bootstrap, POSITIONS[-1] + BEYOND)
        config = {"bootstrap.servers": broker.bootstrap}
        return resume_times(
            Road(lambda start: KafkaSource(TOPIC, config, start={TOPIC: {0: start}})), repeats
        )


def fill(bootstrap: str, records: int) -> None:
    """A topic of one partition with this many records of about 100 bytes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    padding = "x" * 92
    for i in range(records):
        producer.produce(TOPIC, f"{i:08}{padding}")
        if i % 50_000 == 0:
            producer.flush()
    if producer.flush(60):
        raise RuntimeError("the dev broker did not take all records within 60 s")


# -- the whole -----------------------------------------------------------------------------------


def main() -> int:
    """Measure, print the tables and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=201, help="resumes at each position")
    parser.add_argument("--kafka-repeats", type=int, default=21)
    parser.add_argument("--calls", type=int, default=500, help="of state_dict() in each case")
    parser.add_argument("--no-kafka", action="store_true", help="leave the topic out")
    options = parser.parse_args()
    states = {name: measured_state(case, options.calls) for name, case in CASES.items()}
    table([{"state": name, **figures} for name, figures in states.items()], "state_dict()")
    times = {
        "memory": resume_times(Road(lambda start: numbers(start=start)), options.repeats),
        "inside a shuffle window": resume_times(
            Road(lambda start: numbers(start=start), shuffle=True), options.repeats
        ),
    }
    if not options.no_kafka:
        times["kafka"] = kafka_times(options.kafka_repeats)
    return conclude(states, times)


def conclude(states: Mapping[str, dict[str, Any]], times: Mapping[str, dict[int, float]]) -> int:
    """The second table and the line."""
    ratios = {name: at[POSITIONS[-1]] / at[POSITIONS[0]] for name, at in times.items()}
    rows = [
        {
            "first batch after, ms": name,
            **{f"at {position:,}": seconds * 1000 for position, seconds in at.items()},
            "ratio": ratios[name],
        }
        for name, at in times.items()
    ]
    table(rows, "resume")
    small = [figures for figures in states.values() if figures["splits"] == SPLITS]
    ok = (
        max(ratios.values()) <= TARGET
        and max(figures["ms"] for figures in small) < MOST_SECONDS * 1000
        and max(figures["bytes"] for figures in small) <= MOST_BYTES
    )
    figures = {"state": dict(states), "resume_seconds": dict(times), "ratios": ratios}
    return report("resume", max(ratios.values()), TARGET, ok, figures)


if __name__ == "__main__":
    sys.exit(main())

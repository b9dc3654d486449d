"""Ray Data's read_kafka as a contender of ``kafka_read``; runs in an environment of its own.

    python _ray_kafka_read.py BOOTSTRAP TOPIC RECORDS whole|reader

``reader`` calls Ray's read tasks in this process, without its scheduler, object store and worker
processes: the kindest way to count its CPU. ``whole`` is what a user runs; the CPU is that of
this process and all that Ray started, in a second read, when the workers are warm.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable

import psutil
import ray
from ray.data._internal.datasource.kafka_datasource import KafkaDatasource


def cpu_seconds() -> float:
    """Of this process and all its descendants."""
    me = psutil.Process()
    times = [p.cpu_times() for p in [me, *me.children(recursive=True)]]
    return float(sum(t.user + t.system for t in times))


def whole(bootstrap: str, topic: str) -> int:
    """What a user runs."""
    rows = ray.data.read_kafka(topic, bootstrap_servers=bootstrap)
    return sum(batch.num_rows for batch in rows.iter_batches(batch_format="pyarrow"))


def reader(bootstrap: str, topic: str) -> int:
    """Only the functions that read."""
    source = KafkaDatasource(
        topics=topic, bootstrap_servers=bootstrap, start_offset="earliest", end_offset="latest"
    )
    tasks = source.get_read_tasks(4)
    return sum(block.num_rows for task in tasks for block in task())


def measured(read: Callable[[str, str], int], bootstrap: str, topic: str, records: int) -> None:
    """Print CPU and wall seconds of one read, as ``_rounds.give`` would."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    found = read(bootstrap, topic)
    result = {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - wall}
    if found != records:
        raise SystemExit(f"{found} records instead of {records}")
    print("@result " + json.dumps(result), flush=True)


def main() -> None:
    """Read once, or twice where workers must be warm."""
    bootstrap, topic, records, way = sys.argv[1:]
    if way == "whole":
        ray.init(
            num_cpus=2, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
    read = whole if way == "whole" else reader
    read(bootstrap, "warm")
    measured(read, bootstrap, topic, int(records))


if __name__ == "__main__":
    main()

"""What it costs to watch the lag of 1,000 partitions, once a second.

* **looks**: ``LagWatch.look`` on splits of which each gets and gives records in every second, for
  longer than what it keeps: time of a look (median, and the longest, when what is remembered is
  thinned), and the memory of all that is remembered.
* **deques**: the same question (since when is the oldest record there?) asked of a queue of
  (time, end) for each split, as one would first write it: what the arrays are compared with.
* **questions**: a broker in a process of its own, and the two questions that a reader of Kafka
  asks it: for the ends, every 5 s (``lag_seconds``), and for everything, every 30 s
  (``discover_seconds``). Time of all threads of this process and of the broker, and the requests
  that arrived there. ``--bootstrap`` asks another broker, on which a topic is made and deleted;
  its time and requests are not seen.

The ratio is the CPU time of watching 1,000 partitions, as a share of one core: a look a second and
the questions at their pace. At most 0.02. Also required: a question for the ends of all partitions
is one request to a broker, beside the one that asks who leads them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from _report import report, table
from forebay.observe.lag import LagWatch
from forebay.options import SplitStats
from forebay_kafka.clienterrors import ErrorLog
from forebay_kafka.cluster import Cluster, latest
from forebay_kafka.config import Settings
from forebay_kafka.devbroker import DevBrokerProcess
from forebay_kafka.lag import survey
from forebay_kafka.positions import Partition

PARTITIONS, SECONDS, TARGET = 1_000, 300, 0.02
ENDS_EVERY, ALL_EVERY = 5.0, 30.0
_KEPT_SECONDS = 900


def splits_at(second: int, n: int) -> dict[str, SplitStats]:
    """Splits that get 100 records a second, and give the trainer those of half a minute ago."""
    end = 100 * second
    given = max(0, end - 3_000)
    return {
        f"kafka:clicks/{i}": SplitStats(
            delivered=given, end=end + i % 7, fetched=end, saved=given, event_time=1e9
        )
        for i in range(n)
    }


def times_of_looks(n: int) -> tuple[list[float], int]:
    """Milliseconds of each look at ``n`` splits, and the bytes that were kept in the end."""
    watch, took = LagWatch(), []
    for second in range(SECONDS):
        splits = splits_at(second, n)
        began = time.thread_time()
        watch.look(1e9 + second, splits, second, 0.0)
        took.append((time.thread_time() - began) * 1e3)
    return took, watch.nbytes


def times_of_deques(n: int) -> tuple[list[float], int]:
    """The same with a queue for each split, for lag in seconds alone."""
    queues: dict[str, deque[tuple[float, int]]] = {}
    took = []
    for second in range(SECONDS):
        splits = splits_at(second, n)
        began = time.thread_time()
        for name, s in splits.items():
            queue = queues.setdefault(name, deque(maxlen=_KEPT_SECONDS))
            queue.append((1e9 + second, s.end or 0))
            bisect_right(queue, s.delivered, key=lambda seen: seen[1])
        took.append((time.thread_time() - began) * 1e3)
    bytes_of_one = 56 + 24 + 32  # a tuple, its float, its int
    return took, n * _KEPT_SECONDS * bytes_of_one


@dataclass(frozen=True, slots=True)
class Asked:
    """What one question took."""

    wall_ms: float
    client_ms: float
    broker_ms: float | None
    requests: Mapping[str, float]


class Asking:
    """Asks a broker for the ends of a topic's partitions, as a reader does."""

    def __init__(self, bootstrap: str, topic: str, n: int) -> None:
        settings = Settings({"bootstrap.servers": bootstrap})
        self._topic, self._cluster = topic, Cluster(settings, ErrorLog(str), 30.0)
        self._partitions = [Partition(topic, i) for i in range(n)]

    def ends(self) -> None:
        """The question of every five seconds."""
        found = self._cluster.offsets(self._partitions, latest(), committed=True, partial=True)
        assert len(found) == len(self._partitions)

    def everything(self) -> None:
        """The question of every half minute."""
        topics = self._cluster.topics([self._topic])
        survey(self._cluster, topics, self._partitions, committed=True, partial=True)


def asked(question: Callable[[], None], broker: DevBrokerProcess | None, times: int) -> Asked:
    """The mean of several times, after one that is not counted."""
    question()
    before = _requests(broker)
    broker_ms, client, wall = _cpu_ms(broker), time.process_time(), time.perf_counter()
    for _ in range(times):
        question()
    wall, client = time.perf_counter() - wall, time.process_time() - client
    after_ms = _cpu_ms(broker)
    arrived = _requests(broker) - before
    return Asked(
        wall_ms=wall * 1e3 / times,
        client_ms=client * 1e3 / times,
        broker_ms=None if broker_ms is None or after_ms is None else (after_ms - broker_ms) / times,
        requests={api: count / times for api, count in sorted(arrived.items())},
    )


def _requests(broker: DevBrokerProcess | None) -> Counter[str]:
    return Counter() if broker is None else Counter(broker.faults.requests())


def _cpu_ms(broker: DevBrokerProcess | None) -> float | None:
    if broker is None:
        return None
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


@contextmanager
def some_topic(bootstrap: str, n: int) -> Iterator[str]:
    """A topic of ``n`` partitions, deleted in the end."""
    admin, name = AdminClient({"bootstrap.servers": bootstrap}), f"lag-cost-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, n, 1)], operation_timeout=60)[name].result(60)
    try:
        yield name
    finally:
        admin.delete_topics([name], operation_timeout=60)[name].result(60)


def asked_both(bootstrap: str, broker: DevBrokerProcess | None, n: int) -> tuple[Asked, Asked]:
    """What the two questions took."""
    with some_topic(bootstrap, n) as topic:
        asking = Asking(bootstrap, topic, n)
        return asked(asking.ends, broker, 20), asked(asking.everything, broker, 5)


def ask(bootstrap: str | None, n: int) -> tuple[Asked, Asked]:
    """The same, on a broker of our own where none is given."""
    if bootstrap is not None:
        return asked_both(bootstrap, None, n)
    with DevBrokerProcess() as broker:
        return asked_both(broker.bootstrap, broker, n)


def row_of(name: str, n: int, took: list[float], nbytes: int) -> dict[str, object]:
    return {
        "": name,
        "splits": n,
        "median ms": statistics.median(took),
        "longest ms": max(took),
        "MB": nbytes / 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap", help="a broker to ask instead of our own")
    bootstrap = parser.parse_args().bootstrap
    looks = {n: times_of_looks(n) for n in (10, 100, PARTITIONS, 10 * PARTITIONS)}
    rows = [row_of("look", n, *found) for n, found in looks.items()]
    rows.append(row_of("deques", PARTITIONS, *times_of_deques(PARTITIONS)))
    table(rows, f"LagWatch.look, {SECONDS} looks")
    ends, everything = ask(bootstrap, PARTITIONS)
    table(
        [
            {
                "question": name,
                "wall ms": found.wall_ms,
                "client ms": found.client_ms,
                "broker ms": found.broker_ms,
                "requests": ", ".join(f"{n:g} {api}" for api, n in found.requests.items()) or "-",
            }
            for name, found in (("ends", ends), ("everything", everything))
        ],
        f"What a reader asks Kafka, {PARTITIONS} partitions",
    )
    look_ms = statistics.mean(looks[PARTITIONS][0])
    asking_ms = ends.client_ms / ENDS_EVERY + everything.client_ms / ALL_EVERY
    share = (look_ms + asking_ms) / 1e3
    one_request = not ends.requests or ends.requests.get("ListOffsets") == 1.0
    figures = {
        "look_ms": {n: statistics.median(took) for n, (took, _) in looks.items()},
        "kept_mb": looks[PARTITIONS][1] / 1e6,
        "cpu_ms_a_second": {"looks": look_ms, "questions": asking_ms},
        "ends": {"client_ms": ends.client_ms, "requests": ends.requests},
        "everything": {"client_ms": everything.client_ms, "requests": everything.requests},
    }
    return report("lag_cost", share, TARGET, share <= TARGET and one_request, figures)


if __name__ == "__main__":
    raise SystemExit(main())

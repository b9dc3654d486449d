"""Produces JSON records at a steady rate until its standard input is closed.

``BOOTSTRAP TOPIC PARTITIONS RATE BYTES``: each record holds when it was produced (seconds since the
epoch) and padding; partitions take turns. A producer that was held up does not make up for it.
"""

from __future__ import annotations

import json
import select
import sys
import time

from confluent_kafka import Producer


def closed(timeout: float) -> bool:
    """Whether standard input was closed within ``timeout`` seconds."""
    readable, _, _ = select.select([sys.stdin], [], [], timeout)
    return bool(readable) and not sys.stdin.read(1)


def main(bootstrap: str, topic: str, partitions: int, rate: float, size: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    due, sent, pad = time.monotonic(), 0, "x" * size
    while not closed(max(0.0, due - time.monotonic())):
        value = json.dumps({"at": time.time(), "pad": pad}).encode()
        producer.produce(topic, value, partition=sent % partitions)
        producer.poll(0)
        sent += 1
        due = max(due + 1 / rate, time.monotonic() - 1 / rate)
    producer.flush(10)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))

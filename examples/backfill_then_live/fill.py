"""Put clicks into the topic ``clicks``, and the first two thirds of them into a Delta table.

The table is written by a recorder, as a service would that keeps a topic's history for longer
than Kafka does. It keeps each record's partition and offset: that is what live goes on from.
"""

from __future__ import annotations

import argparse
import json
import random

from confluent_kafka import Producer

from forebay import Pipeline
from forebay_delta.recorder import DeltaRecorder
from forebay_kafka import KafkaSource

PARTITIONS = 4


def produce(broker: str, first: int, count: int) -> None:
    """Send ``count`` clicks whose label follows from their features, numbered from ``first``."""
    dice = random.Random(first)
    producer = Producer({"bootstrap.servers": broker})
    for i in range(first, first + count):
        features = [round(dice.gauss(0, 1), 4) for _ in range(8)]
        click = {"id": i, "features": features, "clicked": int(sum(features[:3]) > 0)}
        value = json.dumps(click).encode()
        producer.produce("clicks", value=value, partition=i % PARTITIONS)
        producer.poll(0)
    producer.flush()


def record(broker: str, table: str) -> int:
    """Copy what the topic holds now into the table; returns how many records."""
    topic = KafkaSource("clicks", {"bootstrap.servers": broker}, until="latest")
    with Pipeline(topic).record(DeltaRecorder(table)).batch(1000).loader() as batches:
        return sum(batch.rows for batch in batches)


def main(broker: str, table: str, count: int) -> None:
    """The history first, then what only the topic has."""
    produce(broker, 0, count * 2 // 3)
    recorded = record(broker, table)
    produce(broker, recorded, count - recorded)
    print(f"{count:,} clicks in the topic, the first {recorded:,} of them also in {table}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("broker", help="host:port")
    arguments.add_argument("--table", default="clicks-table", help="a folder for the Delta table")
    arguments.add_argument("--count", type=int, default=30_000)
    given = arguments.parse_args()
    main(given.broker, given.table, given.count)

"""Put clicks into the topic ``clicks``: ``python examples/clicks/produce.py host:port [count]``."""

from __future__ import annotations

import json
import random
import sys

from confluent_kafka import Producer


def main(broker: str, count: int) -> None:
    """Send ``count`` clicks whose label follows from their features."""
    dice = random.Random(1)
    producer = Producer({"bootstrap.servers": broker})
    for i in range(count):
        features = [round(dice.gauss(0, 1), 4) for _ in range(8)]
        clicked = int(sum(features[:3]) > 0)
        value = json.dumps({"id": i, "features": features, "clicked": clicked})
        producer.produce("clicks", value=value.encode(), partition=i % 4)
        producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)

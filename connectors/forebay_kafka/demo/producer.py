"""The demo's producer: a process that sends numbered, labelled pictures at a steady rate."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import msgspec
import numpy as np
from confluent_kafka import Producer

from forebay.demo.leash import end_with_parent
from forebay_kafka.demo.pictures import broken, picture

_DISTINCT = 200
KEY = np.dtype([("id", "<i8"), ("label", "<i8")])
"""A record's key: the number of the picture, and of its shape."""


class Order(msgspec.Struct, frozen=True):
    """What to produce."""

    bootstrap: str
    topic: str
    images: int
    broken: int
    per_second: float
    seed: int


@dataclass(frozen=True, slots=True)
class _Stock:
    """Pictures made once and sent many times: encoding is not what the demo is about."""

    jpegs: list[bytes]
    labels: list[int]


def produce(order: Order) -> None:
    """Send all pictures; record ``i`` carries the id ``i``, and some are broken off."""
    rng = np.random.default_rng(order.seed)
    stock = _stock(rng)
    bad = set(rng.choice(order.images, order.broken, replace=False).tolist())
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": order.bootstrap, "linger.ms": 20})
    began = time.monotonic()
    for i in range(order.images):
        at = int(rng.integers(_DISTINCT))
        jpeg = stock.jpegs[at]
        key = np.array([(i, stock.labels[at])], KEY).tobytes()
        producer.produce(
            order.topic,
            value=broken(jpeg) if i in bad else jpeg,
            key=key,
            on_delivery=lambda error, _: errors.append(str(error)) if error else None,
        )
        producer.poll(0)
        ahead = (i + 1) / order.per_second - (time.monotonic() - began)
        if ahead > 0.02:
            print(i + 1, flush=True)
            time.sleep(ahead)
    if producer.flush(30) or errors:
        raise SystemExit(f"the demo's producer could not deliver everything: {errors[:1]}")
    print(order.images, flush=True)


def _stock(rng: np.random.Generator) -> _Stock:
    pairs = [picture(rng) for _ in range(_DISTINCT)]
    return _Stock([jpeg for jpeg, _ in pairs], [label for _, label in pairs])


if __name__ == "__main__":
    end_with_parent()
    produce(msgspec.json.decode(sys.argv[1], type=Order))

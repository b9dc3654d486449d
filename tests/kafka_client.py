"""Short words for what Kafka tests do: put records in a topic, read a partition to its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.cimpl import KafkaException, Producer

Settings = Mapping[str, Any]
GIVE_UP_SECONDS = 30.0

READER: Settings = {
    "group.id": "forebay-tests",
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    "log_level": 2,
}


@dataclass(slots=True)
class Read:
    """What one partition gave, up to its end or to the first error."""

    messages: list[Message] = field(default_factory=list)
    error: KafkaError | None = None

    @property
    def values(self) -> list[bytes | None]:
        return [message.value() for message in self.messages]

    @property
    def offsets(self) -> list[int | None]:
        return [message.offset() for message in self.messages]


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[bytes | Mapping[str, Any]],
    *,
    partition: int = 0,
    settings: Settings | None = None,
) -> list[int | None]:
    """Write values, or keyword arguments of Producer.produce; returns their offsets.

    Raises the first delivery error as KafkaException.
    """
    offsets: list[int | None] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            offsets.append(message.offset())
        else:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, **(settings or {})})
    for record in records:
        fields = record if isinstance(record, Mapping) else {"value": record}
        producer.produce(topic, partition=partition, on_delivery=delivered, **fields)
        producer.poll(0)
    left = producer.flush(GIVE_UP_SECONDS)
    if errors:
        raise KafkaException(errors[0])
    assert left == 0, f"{left} records were not delivered in {GIVE_UP_SECONDS:.0f} s"
    return offsets


@contextmanager
def reader(
    bootstrap: str,
    topic: str,
    offset: int = OFFSET_BEGINNING,
    *,
    partition: int = 0,
    leader_epoch: int = -1,
    settings: Settings | None = None,
) -> Iterator[Consumer]:
    """A consumer assigned to one partition from an offset on, which was read under an epoch."""
    consumer = Consumer({**READER, "bootstrap.servers": bootstrap, **(settings or {})})
    try:
        if offset < 0:
            # To ask where the log starts or ends one must know the leader: half a second faster.
            # Not with an offset: librdkafka checks its epoch only against a leader that is new.
            consumer.list_topics(topic, timeout=GIVE_UP_SECONDS)
        consumer.assign([TopicPartition(topic, partition, offset, leader_epoch=leader_epoch)])
        yield consumer
    finally:
        consumer.close()


def read_to_end(consumer: Consumer, most: int | None = None) -> Read:
    """Poll until the end of the partition is reported, or an error is.

    Or until there are ``most`` messages: a topic that others write to may never end.
    """
    read = Read()
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            read.messages.append(message)
            if len(read.messages) == most:
                return read
        elif error.code() == KafkaError._PARTITION_EOF:
            return read
        else:
            read.error = error
            return read
    got = len(read.messages)
    raise AssertionError(f"no end of partition in {GIVE_UP_SECONDS:.0f} s, {got} messages")


def read_all(bootstrap: str, topic: str, offset: int = OFFSET_BEGINNING, **settings: Any) -> Read:
    """Read partition 0 from an offset to its end; settings with `_` for `.`."""
    dotted = {key.replace("_", "."): value for key, value in settings.items()}
    with reader(bootstrap, topic, offset, settings=dotted) as consumer:
        return read_to_end(consumer)

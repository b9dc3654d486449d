"""What tests of the Kafka source share: reading it to its end, and records in transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, Producer

from forebay.slice import Slice
from forebay.source import Owns, Split
from forebay.stage import to_rows
from forebay.state import Position, advanced
from forebay_kafka import KafkaReader, KafkaSource
from forebay_kafka.cluster import latest

GIVE_UP_SECONDS = 30.0


def all_splits(split: Split) -> bool:
    """One rank that owns everything."""
    return True


def kafka(bootstrap: str, topics: str | Sequence[str], **options: Any) -> KafkaSource:
    """A source that reads to the end of now, and looks at the brokers often."""
    settings = {"bootstrap.servers": bootstrap, **options.pop("config", {})}
    quick: dict[str, Any] = {"until": "latest", "discover_seconds": 0.3, "lag_seconds": 0.2}
    return KafkaSource(topics, settings, **{**quick, **options})


@contextmanager
def opened(
    source: KafkaSource, positions: Mapping[str, Position] | None = None, owns: Owns = all_splits
) -> Iterator[KafkaReader]:
    """A reader, closed in the end."""
    reader = source.open(positions or {}, owns)
    try:
        yield reader
    finally:
        reader.close()


def slices_of(reader: KafkaReader, rows: int | None = None) -> list[Slice]:
    """All slices of a bounded reader, or as many as give ``rows`` rows."""
    return slices_until(reader, lambda slices: rows is not None and count(slices) >= rows)


def slices_until(reader: KafkaReader, enough: Callable[[list[Slice]], bool]) -> list[Slice]:
    """Slices until they are enough, or the reader has finished."""
    out: list[Slice] = []
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not reader.finished() and not enough(out):
        assert time.monotonic() < deadline, f"only {count(out)} rows in {GIVE_UP_SECONDS:.0f} s"
        if (s := reader.poll(0.2)) is not None:
            out.append(s)
    return out


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return once something has come true."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not so within {GIVE_UP_SECONDS:.0f} s: {what}"
        time.sleep(0.02)


def read(
    source: KafkaSource, positions: Mapping[str, Position] | None = None, owns: Owns = all_splits
) -> list[Slice]:
    """All slices of a bounded source."""
    with opened(source, positions, owns) as reader:
        return slices_of(reader)


def count(slices: Iterable[Slice]) -> int:
    """Rows in all."""
    return sum(map(len, slices))


def rows_of(slices: Iterable[Slice]) -> list[dict[str, Any]]:
    """All rows as dicts, in the order in which they came."""
    return [row for s in slices if len(s) for row in to_rows(s.columns)]


def values(slices: Iterable[Slice]) -> list[bytes | None]:
    """The column ``value`` of all rows."""
    return [row["value"] for row in rows_of(slices)]


def state_after(reader: KafkaReader, slices: Iterable[Slice]) -> dict[str, Position]:
    """The positions that a checkpoint would hold when these slices were delivered."""
    return advanced(reader.positions(), slices)


def transaction(bootstrap: str, topic: str, records: Iterable[bytes], *, commit: bool) -> None:
    """Write values to partition 0 in one transaction, and return when it has ended.

    Brokers write the markers that end it after they have said yes.
    """
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex, "log_level": 2}
    )
    producer.init_transactions(GIVE_UP_SECONDS)
    producer.begin_transaction()
    for value in records:
        producer.produce(topic, value, partition=0)
    producer.flush(GIVE_UP_SECONDS)
    if commit:
        producer.commit_transaction(GIVE_UP_SECONDS)
    else:
        producer.abort_transaction(GIVE_UP_SECONDS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    wait_for(lambda: _end(admin, topic, True) == _end(admin, topic, False), "it has ended")


def _end(admin: AdminClient, topic: str, committed: bool) -> int:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    asked = {TopicPartition(topic, 0): latest()}
    (found,) = admin.list_offsets(asked, isolation_level=level).values()
    return int(found.result(GIVE_UP_SECONDS).offset)


def committed(bootstrap: str, topic: str, group: str) -> int:
    """The offset that a group has committed for partition 0; negative for none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=GIVE_UP_SECONDS)
        return found.offset
    finally:
        consumer.close()


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(GIVE_UP_SECONDS)


def numbered(n: int, start: int = 0) -> list[bytes]:
    """``n`` values that are all different."""
    return [b"%d" % i for i in range(start, start + n)]

"""From client messages to columns: the one place that touches single records.

This is a seam. Everything beyond it sees runs (records of one partition as columns) and events;
a compiled drain that fills Arrow buffers straight from the client's queue can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message
from numpy.typing import NDArray

from forebay.columns import Column
from forebay.errors import SourceError
from forebay_kafka.positions import Partition

Payload: TypeAlias = Literal["auto", "arrow", "objects"]
COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)
# Of a record neither is None; the client's types must allow for events.
_OFFSET: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
_TIMESTAMP: Callable[[Message], tuple[int, int]] = Message.timestamp
_BINARY = pa.binary()
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
# Values of this mean size and more stay where the client put them. Decode stages read them one by
# one, so joining them into an Arrow column would only be undone: a copy, and its fresh pages.
_OBJECTS_FROM = 512
# From this mean size on, joining bytes beats pyarrow's own conversion.
_JOIN_FROM = 400
# Records that come one by one are gathered for this long into one run.
_LINGER_SECONDS = 0.01


class Run(NamedTuple):
    """Consecutive records of one partition as columns."""

    partition: Partition
    columns: Mapping[str, Column]
    offsets: NDArray[np.int64]
    times: NDArray[np.int64] | None
    """Milliseconds since the epoch; None if a record has no time."""
    next_offset: int
    epoch: int | None
    """Leader epoch of these records."""
    tombstones: int
    """Records without a value, kept or skipped."""
    nbytes: int
    """Bytes of values."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is no record: an error, or the end of a partition."""

    partition: Partition | None
    error: KafkaError
    offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What runs are made of."""

    topics: int
    """How many topics there are."""
    columns: frozenset[str]
    payload: Payload
    skip_tombstones: bool
    rows: int
    nbytes: int
    """Bound on the bytes of values of a run; a single larger record makes a run of its own."""


class Drain(Protocol):
    """Takes what the client fetched."""

    def take(self, timeout: float) -> Iterable[Run | Event]:
        """What is there, or comes within ``timeout`` seconds; in the order of each partition."""


class PythonDrain:
    """Drains a ``confluent_kafka.Consumer``: per record only C methods, mapped over a list.

    Measured: at 500 messages a call the interpreter's share is small and the GIL is held for
    1 to 2 ms; larger calls lose more to page faults than they save.
    """

    def __init__(self, consumer: Consumer, shape: Shape) -> None:
        self._consumer, self._shape = consumer, shape
        self._mean = 1.0
        self._objects: dict[str, bool] = {}
        self._topics: dict[str, pa.Array[Any]] = {}
        self._no_headers = _header_lists(np.zeros(shape.rows + 1, np.int32), (), ())
        build: Mapping[str, Callable[[_Records], Column]] = {
            "topic": self._topic,
            "partition": lambda r: np.full(len(r.offsets), r.partition.number, np.int32),
            "offset": lambda r: r.offsets,
            "timestamp": lambda r: r.times,
            "timestamp_type": lambda r: r.kinds,
            "key": lambda r: pa.array(list(map(Message.key, r.messages)), _BINARY),
            "value": self._value,
            "headers": self._headers,
        }
        self._build = {name: build[name] for name in COLUMNS if name in shape.columns}

    def take(self, timeout: float) -> Iterator[Run | Event]:
        messages = self._consume(timeout)
        if not any(map(Message.error, messages)):
            return self._runs(messages)
        return self._runs_and_events(messages)

    def _consume(self, timeout: float) -> list[Message]:
        """Up to a slice of messages: at once if they are there, else soon after the first came.

        ``consume(n, timeout)`` waits for all ``n``: with a slow topic that would be latency.
        """
        most = int(min(max(self._shape.nbytes / self._mean, 1), self._shape.rows))
        messages = self._consumer.consume(most, 0)
        if not messages and timeout > 0:
            messages = self._consumer.consume(1, timeout)
            if messages and most > 1:
                messages += self._consumer.consume(most - 1, _LINGER_SECONDS)
        return messages

    def _runs_and_events(self, messages: Sequence[Message]) -> Iterator[Run | Event]:
        for failed, some in groupby(messages, lambda m: m.error() is not None):
            part = list(some)
            yield from map(_event, part) if failed else self._runs(part)

    def _runs(self, messages: Sequence[Message]) -> Iterator[Run]:
        if not messages:
            return
        numbers = np.fromiter(map(Message.partition, messages), np.int32, len(messages))
        changes = numbers[1:] != numbers[:-1]
        if self._shape.topics > 1:
            names = list(map(Message.topic, messages))
            changes |= np.fromiter((a != b for a, b in pairwise(names)), np.bool_, len(changes))
        for a, b in _stretches(changes, len(messages)):
            partition = Partition(str(messages[a].topic()), int(numbers[a]))
            yield from self._of_one_epoch(partition, messages[a:b])

    def _of_one_epoch(self, partition: Partition, messages: Sequence[Message]) -> Iterator[Run]:
        """Cut where the leader epoch changes: a position must be checked by its own."""
        if messages[0].leader_epoch() == messages[-1].leader_epoch():
            yield from self._of_bounded_size(partition, messages)
            return
        for _, some in groupby(messages, Message.leader_epoch):
            yield from self._of_bounded_size(partition, list(some))

    def _of_bounded_size(self, partition: Partition, messages: Sequence[Message]) -> Iterator[Run]:
        values: list[Any] = list(map(Message.value, messages))
        nulls, size = _weigh(values)
        self._mean += (size / len(values) - self._mean) / 4
        if size <= self._shape.nbytes or len(values) == 1:
            yield self._run(partition, messages, values, nulls, size)
            return
        for a, b in _by_size(values, self._shape.nbytes):
            yield self._run(partition, messages[a:b], values[a:b], *_weigh(values[a:b]))

    def _run(
        self,
        partition: Partition,
        messages: Sequence[Message],
        values: list[Any],
        nulls: int,
        size: int,
    ) -> Run:
        last = messages[-1]
        if nulls and self._shape.skip_tombstones:
            messages = [m for m, v in zip(messages, values, strict=True) if v is not None]
            values = [v for v in values if v is not None]
        records = _Records.of(partition, messages, values, size)
        return Run(
            partition=partition,
            columns={n: build(records) for n, build in self._build.items()} if values else {},
            offsets=records.offsets,
            times=records.times if records.kinds.all() else None,
            next_offset=_number(last.offset()) + 1,
            epoch=last.leader_epoch(),
            tombstones=nulls,
            nbytes=size,
        )

    def _topic(self, records: _Records) -> Column:
        name = records.partition.topic
        if name not in self._topics:
            index = pa.array(np.zeros(self._shape.rows, np.int32), pa.int32())
            self._topics[name] = pa.DictionaryArray.from_arrays(index, pa.array([name]))
        return self._topics[name][: len(records.offsets)]

    def _value(self, records: _Records) -> Column:
        values, n = records.values, len(records.values)
        if self._as_objects(records):
            return np.fromiter(values, object, n)
        if records.size < _JOIN_FROM * n or None in values:
            return pa.array(values, _BINARY)
        ends = np.zeros(n + 1, np.int32)
        np.cumsum(np.fromiter(map(len, values), np.int32, n), out=ends[1:])
        data = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
        joined: Column = pa.Array.from_buffers(_BINARY, n, data)
        return joined

    def _as_objects(self, records: _Records) -> bool:
        """Decided by the first run of a topic, so that a user's function meets one form only."""
        if self._shape.payload != "auto":
            return self._shape.payload == "objects"
        large = records.size >= _OBJECTS_FROM * len(records.values)
        return self._objects.setdefault(records.partition.topic, large)

    def _headers(self, records: _Records) -> Column:
        lists = _read_headers(records)
        if not any(lists):
            return self._no_headers[: len(lists)]
        ends = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(h) if h else 0 for h in lists], out=ends[1:])
        keys, values = zip(*chain.from_iterable(filter(None, lists)), strict=True)
        return _header_lists(ends, keys, values)


class _Records(NamedTuple):
    """Messages of one partition, known to be records."""

    partition: Partition
    messages: Sequence[Message]
    values: list[Any]
    size: int
    offsets: NDArray[np.int64]
    kinds: NDArray[np.int8]
    times: NDArray[np.int64]

    @classmethod
    def of(
        cls, partition: Partition, messages: Sequence[Message], values: list[Any], size: int
    ) -> _Records:
        n = len(messages)
        stamps = list(map(_TIMESTAMP, messages))
        kinds: NDArray[np.int8] = np.fromiter(map(itemgetter(0), stamps), np.int8, n)
        times: NDArray[np.int64] = np.fromiter(map(itemgetter(1), stamps), np.int64, n)
        return cls(partition, messages, values, size, _offsets(messages, n), kinds, times)


def _offsets(messages: Sequence[Message], n: int) -> NDArray[np.int64]:
    """The offset of each record. They rise, so with n of them in a span of n none is left out."""
    first, last = (_OFFSET(messages[0]), _OFFSET(messages[-1])) if n else (0, -1)
    if last - first == n - 1:
        return np.arange(first, last + 1, dtype=np.int64)
    return np.fromiter(map(_OFFSET, messages), np.int64, n)


def _stretches(changes: NDArray[np.bool_], n: int) -> Iterator[tuple[int, int]]:
    """Where runs of equal neighbours begin and end."""
    return pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), n])


def _by_size(values: Sequence[bytes | None], most: int) -> Iterator[tuple[int, int]]:
    """Cut into parts of at most ``most`` bytes, or of one value."""
    start = size = 0
    for i, value in enumerate(values):
        length = len(value or b"")
        if size + length > most and i > start:
            yield start, i
            start, size = i, 0
        size += length
    yield start, len(values)


def _weigh(values: list[Any]) -> tuple[int, int]:
    """The number of nulls and of bytes. Nulls are rare, so they are met by exception."""
    try:
        return 0, sum(map(len, values))
    except TypeError:
        present = [v for v in values if v is not None]
        return len(values) - len(present), sum(map(len, present))


def _read_headers(records: _Records) -> list[Any]:
    try:
        return list(map(Message.headers, records.messages))
    except UnicodeDecodeError as e:
        where = f"{records.partition.id}@{records.offsets[0]} to {records.offsets[-1]}"
        raise SourceError(
            f"{where}: a header's key is not UTF-8 ({e}). Read the topic without the column "
            "'headers': columns=('key', 'value', ...)."
        ) from e


def _header_lists(
    ends: NDArray[np.int32], keys: Sequence[str], values: Sequence[bytes | None]
) -> pa.Array[Any]:
    pairs = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(_HEADER)
    )
    lists: pa.Array[Any] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)
    return lists


def _event(message: Message) -> Event:
    error, topic, number = message.error(), message.topic(), message.partition()
    assert error is not None
    partition = None if topic is None or number is None or number < 0 else Partition(topic, number)
    return Event(partition, error, message.offset())


def _number(value: int | None) -> int:
    assert value is not None  # records have an offset; only events may have none
    return value

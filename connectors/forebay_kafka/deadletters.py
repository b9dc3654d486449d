"""A Kafka topic of dead letters: each one a record with the original value, key and headers.

    sink = KafkaSink("clicks.dead", {"bootstrap.servers": "localhost:9092"})
    for letter in read_letters("clicks.dead", {"bootstrap.servers": "localhost:9092"}): ...

Where a letter came from and why it failed stands in headers behind the original ones:
``forebay.split``, ``.offset``, ``.stage``, ``.reason``, ``.time``, and the columns that a Kafka
record has no place for in ``.origin`` (JSON).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.cimpl import Producer

from forebay.deadletter import Letter
from forebay.errors import ConfigError, SourceError
from forebay.letterbox import Key, from_record, to_record
from forebay.slice import Slice
from forebay.stage import to_rows
from forebay_kafka.clienterrors import ErrorLog, error_of, likely_cause
from forebay_kafka.config import check, for_reading_from, for_writing
from forebay_kafka.source import KafkaSource

Header = tuple[str, bytes | None]

_NAMES = ("split", "offset", "stage", "reason", "time", "origin")
_ORIGIN = ("topic", "partition", "timestamp", "timestamp_type", "other", "columns")
_REMOVED = "forebay.removed"
_WAIT_SECONDS = 0.1
_READ_SECONDS = 30.0


class KafkaSink:
    """Writes dead letters to a topic; holds configuration only until the first write.

    Args:
        topic: must exist, or the brokers must create topics by themselves.
        config: librdkafka settings of a producer, under their own names. ``acks=all`` and
            idempotence are on.
        annotate: add the ``forebay.*`` headers; without them records are written as they came,
            to be read from the start again.
        flush_seconds: for how long ``flush`` waits for the brokers.
    """

    def __init__(
        self,
        topic: str,
        config: Mapping[str, Any],
        *,
        annotate: bool = True,
        flush_seconds: float = 35.0,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            raise ConfigError(f"KafkaSink: topic must be a name, not {topic!r}")
        self.topic, self.annotate, self.flush_seconds = topic, annotate, flush_seconds
        self.config = check(config, "producer", f"KafkaSink({topic!r})")
        self._errors = ErrorLog(self.config.redact)
        self._producer: Producer | None = None
        self._failed: list[KafkaError] = []

    def __repr__(self) -> str:
        return f"KafkaSink({self.topic!r}, {self.config!r})"

    def write(self, letters: Sequence[Letter]) -> None:
        """Hand the letters to the client, which sends them in the background.

        Raises:
            SourceError: the client refuses one, or an earlier one was not stored.
        """
        for letter in letters:
            record = to_record(letter)
            headers = _headers(record) if self.annotate else _original_headers(record)
            self._send(record["value"], record["key"], headers)
        self._raise_failures()

    def flush(self) -> None:
        """Return once the brokers have acknowledged everything written.

        Raises:
            SourceError: they have not; no state may be saved past these letters.
        """
        if self._producer is None:
            return
        left = self._producer.flush(self.flush_seconds)
        self._raise_failures()
        if left:
            raise SourceError(
                f"{left} dead letters for topic {self.topic!r} were not acknowledged within "
                f"{self.flush_seconds:g} s: {self._errors.words()}. Likely cause: "
                f"{self._errors.cause()}. The position is not moved past them."
            )

    def letters(self) -> Iterator[Letter]:
        """The letters in the topic, as ``read_letters``."""
        return read_letters(self.topic, for_reading_from(self.config))

    def remove(self, keys: Collection[Key]) -> int:
        """Mark letters as dealt with, by a record each; returns how many there were.

        The topic keeps their bytes until its retention ends; they are only read no more.
        """
        there = _times(self.topic, for_reading_from(self.config))
        for k in keys:
            if k in there:
                self._send(None, None, [(_REMOVED, json.dumps([*k, there[k]]).encode())])
        self.flush()
        return sum(k in there for k in set(keys))

    def close(self) -> None:
        """Flush; nothing stays open. May be called twice."""
        try:
            self.flush()
        finally:
            self._producer = None

    def _send(self, value: bytes | None, key: bytes | None, headers: list[Header]) -> None:
        producer = self._client()
        while not self._accepted(producer, value, key, headers):
            producer.poll(_WAIT_SECONDS)  # the client's queue is full: let it send
            self._raise_failures()

    def _accepted(
        self, producer: Producer, value: bytes | None, key: bytes | None, headers: list[Header]
    ) -> bool:
        fields: list[Any] = [*headers]
        try:
            producer.produce(self.topic, value, key, headers=fields, on_delivery=self._delivered)
        except BufferError:
            return False
        except KafkaException as e:
            raise self._not_stored(error_of(e), 1) from None
        return True

    def _client(self) -> Producer:
        if self._producer is None:
            try:
                self._producer = Producer(for_writing(self.config, self._errors))
            except KafkaException as e:
                text = self.config.redact(error_of(e).str())
                raise ConfigError(f"KafkaSink({self.topic!r}): {text}") from None
        return self._producer

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _raise_failures(self) -> None:
        if self._producer is not None:
            self._producer.poll(0)
        failed, self._failed = self._failed, []
        if failed:
            raise self._not_stored(failed[0], len(failed))

    def _not_stored(self, error: KafkaError, n: int) -> SourceError:
        hint = f"Likely cause: {likely_cause(error)}."
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            hint = "Create the topic."
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            hint = "Raise max.message.bytes of the topic above the largest record."
        return SourceError(
            f"{n} dead letters were not stored in topic {self.topic!r}: "
            f"{self.config.redact(error.str())}. {hint} The position is not moved past them."
        )


def read_letters(topic: str, config: Mapping[str, Any]) -> Iterator[Letter]:
    """The letters that a topic holds now; repeats and removed ones left out.

    Reads the topic twice: first its headers, to know which letters stand.

    Raises:
        ConfigError: there is no such topic, or a setting is wrong.
        SourceError: the topic cannot be read, or holds a record that is no letter.
    """
    standing = _standing(topic, config)
    for s in _slices(topic, config, ("key", "value", "headers")):
        for offset, row in zip(s.offsets.tolist(), to_rows(s.columns), strict=True):
            if (s.split, offset) in standing:
                yield _letter(row)


@dataclass(frozen=True, slots=True)
class _Written:
    """What the headers of a record say: a letter, or (no place) that one was removed."""

    key: Key
    time: float
    """When it failed; of a removal: the last failure that it removes."""
    place: tuple[str, int] | None


def _standing(topic: str, config: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Where the letters stand that are neither repeats nor removed.

    A removal and its letter may be in different partitions, so their order says nothing.
    """
    written = list(_written(topic, config))
    removed = _latest(w for w in written if w.place is None)
    first: dict[Key, tuple[str, int]] = {}
    for w in written:
        if w.place is not None and w.time > removed.get(w.key, -1.0):
            first.setdefault(w.key, w.place)
    return set(first.values())


def _times(topic: str, config: Mapping[str, Any]) -> dict[Key, float]:
    """The letters that stand, each with its last failure."""
    written = list(_written(topic, config))
    removed = _latest(w for w in written if w.place is None)
    failed = _latest(w for w in written if w.place is not None)
    return {k: t for k, t in failed.items() if t > removed.get(k, -1.0)}


def _latest(written: Iterable[_Written]) -> dict[Key, float]:
    out: dict[Key, float] = {}
    for w in written:
        out[w.key] = max(w.time, out.get(w.key, w.time))
    return out


def _written(topic: str, config: Mapping[str, Any]) -> Iterator[_Written]:
    for s in _slices(topic, config, ("headers",)):
        for offset, row in zip(s.offsets.tolist(), to_rows(s.columns), strict=True):
            headers = [(h["key"], h["value"]) for h in row["headers"]]
            if headers and headers[-1][0] == _REMOVED:
                split, at, stage, failed = json.loads(headers[-1][1])
                yield _Written((split, at, stage), failed, None)
            else:
                ours = _ours(headers, f"{s.split}@{offset}")
                k = (ours["split"], int(ours["offset"]), ours["stage"])
                yield _Written(k, float(ours["time"]), (s.split, offset))


def _slices(topic: str, config: Mapping[str, Any], columns: Sequence[str]) -> Iterator[Slice]:
    source = KafkaSource(topic, config, until="latest", columns=columns)
    reader = source.open({}, lambda split: True)
    try:
        deadline = time.monotonic() + _READ_SECONDS
        while not reader.finished():
            if (s := reader.poll(_WAIT_SECONDS)) is not None and len(s):
                yield s
                deadline = time.monotonic() + _READ_SECONDS
            elif time.monotonic() > deadline:
                raise SourceError(f"topic {topic!r} was not read to its end: nothing arrives")
    finally:
        reader.close()


def _headers(record: Mapping[str, Any]) -> list[Header]:
    origin = {name: record[name] for name in _ORIGIN}
    ours = {**record, "origin": json.dumps(origin)}
    added: list[Header] = [(f"forebay.{name}", str(ours[name]).encode()) for name in _NAMES]
    return _original_headers(record) + added


def _original_headers(record: Mapping[str, Any]) -> list[Header]:
    return [(h["key"], h["value"]) for h in record["headers"] or ()]


def _ours(headers: Sequence[Header], where: str) -> dict[str, str]:
    """Our headers of a letter: the last ones, for the original may have had the same names."""
    last = headers[-len(_NAMES) :]
    if [name for name, _ in last] != [f"forebay.{name}" for name in _NAMES]:
        raise SourceError(
            f"{where} is no dead letter: it lacks the forebay.* headers. Give a topic that only "
            "KafkaSink writes to."
        )
    return {name: (value or b"").decode() for name, (_, value) in zip(_NAMES, last, strict=True)}


def _letter(row: Mapping[str, Any]) -> Letter:
    headers = row["headers"]
    ours = _ours([(h["key"], h["value"]) for h in headers], "the record")
    return from_record(
        {
            **json.loads(ours["origin"]),
            "split": ours["split"],
            "offset": int(ours["offset"]),
            "stage": ours["stage"],
            "reason": ours["reason"],
            "time": float(ours["time"]),
            "key": row["key"],
            "value": row["value"],
            "headers": headers[: -len(_NAMES)],
        }
    )

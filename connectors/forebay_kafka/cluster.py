"""Questions to the brokers: which topics there are, and where their partitions begin and end.

Asked over an admin client, which has connections of its own: on the consumer's connection a
question would wait behind its long-polling fetches.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from forebay.errors import ConfigError, SourceError
from forebay_kafka.clienterrors import ErrorLog, error_of, likely_cause, locked_out
from forebay_kafka.config import Settings, for_asking
from forebay_kafka.positions import Identity, Instant, Partition, identity

T = TypeVar("T")

_TICK = 0.1
# A topic that was just made is not known to every broker at once.
_UNKNOWN_FOR = 2.0
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID}
_READ_UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
_READ_COMMITTED = IsolationLevel.READ_COMMITTED


class Stopped(Exception):
    """The asker was told to stop while it waited for an answer."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it."""

    identity: Identity
    partitions: tuple[int, ...]
    error: KafkaError | None = None
    """Why it cannot be described: unknown, not authorised."""

    @property
    def missing(self) -> bool:
        """Whether there is no topic of that name."""
        return self.error is not None and self.error.code() in _MISSING


class Cluster:
    """Asks the brokers. Used by one thread at a time; errors are ``SourceError``."""

    def __init__(self, settings: Settings, errors: ErrorLog, patience: float) -> None:
        self._settings, self._errors, self._patience = settings, errors, patience
        self._stop = threading.Event()
        self._admin = _admin(settings, errors)
        self._cluster_id: str | None = None

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Describe topics; those that cannot be described carry an error."""
        cluster = self._answer(
            lambda: self._wait(self._admin.describe_cluster(request_timeout=self._patience))
        )
        futures = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=self._patience
        )
        return {name: self._topic(futures[name], cluster.cluster_id) for name in names}

    def existing_topics(self, names: Collection[str], where: str) -> Mapping[str, Topic]:
        """Describe topics that must exist.

        Raises:
            ConfigError: one does not; names those most like it.
            SourceError: the brokers cannot be reached, or refuse.
        """
        deadline = time.monotonic() + _UNKNOWN_FOR
        while True:
            found = self.topics(names)
            wrong = {name: t.error for name, t in found.items() if t.error is not None}
            if not wrong:
                return found
            if not all(t.missing for t in found.values() if t.error) or _past(deadline):
                name, error = next(iter(wrong.items()))
                raise self._cannot_describe(name, error, found[name].missing, where)
            self._stop.wait(_TICK)

    def offsets(
        self,
        partitions: Sequence[Partition],
        spec: OffsetSpec,
        *,
        committed: bool = False,
        partial: bool = False,
    ) -> dict[Partition, int]:
        """The offset that ``spec`` asks for, of each partition; -1 where no record has the time.

        ``committed``: the end is before the first record of an open transaction. ``partial``:
        partitions that give no answer are left out, unless none gives one.
        """
        if not partitions:
            return {}
        level = _READ_COMMITTED if committed else _READ_UNCOMMITTED
        return self._answer(lambda: self._offsets(partitions, spec, level, partial))

    def close(self) -> None:
        """Let a thread that waits for an answer give up, with ``Stopped``."""
        self._stop.set()

    def _offsets(
        self,
        partitions: Sequence[Partition],
        spec: OffsetSpec,
        level: IsolationLevel,
        partial: bool,
    ) -> dict[Partition, int]:
        futures = self._admin.list_offsets(
            {TopicPartition(p.topic, p.number): spec for p in partitions},
            isolation_level=level,
            request_timeout=self._patience,
        )
        answers = {Partition(tp.topic, tp.partition): self._tried(f) for tp, f in futures.items()}
        offsets = {p: a for p, a in answers.items() if isinstance(a, int)}
        errors = [a for a in answers.values() if isinstance(a, KafkaException)]
        if errors and not (partial and offsets):
            raise errors[0]
        return offsets

    def _tried(self, future: Future[Any]) -> int | KafkaException:
        try:
            return int(self._wait(future).offset)
        except KafkaException as e:
            return e

    def _topic(self, future: Future[Any], cluster_id: str | None) -> Topic:
        try:
            found = self._wait(future)
        except KafkaException as e:
            return Topic(identity(None, cluster_id), (), error_of(e))
        numbers = tuple(sorted(p.id for p in found.partitions))
        return Topic(identity(str(found.topic_id), cluster_id), numbers)

    def _answer(self, ask: Callable[[], T]) -> T:
        """The answer to a question, asked again while a leader is being elected.

        Raises:
            SourceError: no answer in time, or a refusal; says what the client complained of.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return ask()
            except KafkaException as e:
                error = error_of(e)
                if _past(deadline) or not error.retriable():
                    raise self._no_answer(error) from None
            self._stop.wait(_TICK)

    def _wait(self, future: Future[T]) -> T:
        """Wait for a future in small steps, so that ``close`` and refusals end it early."""
        while True:
            if self._stop.is_set():
                raise Stopped
            try:
                return future.result(_TICK)
            except FutureTimeout:
                self._admin.poll(0)
                if locked_out(self._errors.last):
                    raise KafkaException(self._errors.last) from None

    def _no_answer(self, error: KafkaError) -> SourceError:
        self._admin.poll(0)
        told = self._errors.last or error
        return SourceError(
            f"no answer from Kafka at bootstrap.servers={self._settings.brokers!r} within "
            f"{self._patience:g} s: {self._settings.redact(told.str()).strip()}. Likely cause: "
            f"{likely_cause(told)}."
        )

    def _cannot_describe(
        self, name: str, error: KafkaError, missing: bool, where: str
    ) -> ConfigError | SourceError:
        at = f"Kafka at bootstrap.servers={self._settings.brokers!r}"
        if not missing:
            return SourceError(
                f"{where}: {at} does not describe topic {name!r}: {error.str()}. Likely cause: "
                f"{likely_cause(error)}."
            )
        return ConfigError(f"{where}: {at} has no topic {name!r}. {self._nearest(name)}")

    def _nearest(self, name: str) -> str:
        try:
            names = [n for n in self._admin.list_topics(timeout=2).topics if not n.startswith("__")]
        except KafkaException:
            return "Create it, or correct its name."
        close = difflib.get_close_matches(name, names, n=3) or sorted(names)[:3]
        there = f"There are {', '.join(map(repr, close))}. " if close else ""
        return f"{there}Create it, or correct its name."


def earliest() -> OffsetSpec:
    """Asks for the first offset still held."""
    return OffsetSpec.earliest()  # type: ignore[no-any-return,no-untyped-call]


def latest() -> OffsetSpec:
    """Asks for one past the last offset."""
    return OffsetSpec.latest()  # type: ignore[no-any-return,no-untyped-call]


def at_time(instant: Instant) -> OffsetSpec:
    """Asks for the first record at or after a time."""
    return OffsetSpec.for_timestamp(instant.ms)  # type: ignore[no-any-return]


def _admin(settings: Settings, errors: ErrorLog) -> AdminClient:
    try:
        return AdminClient(for_asking(settings, errors))
    except KafkaException as e:
        text = settings.redact(error_of(e).str())
    raise ConfigError(f"the Kafka client cannot be made: {text}")


def _past(deadline: float) -> bool:
    return time.monotonic() >= deadline

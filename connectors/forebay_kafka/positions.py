"""Where reading begins and ends: split ids, tokens, and the meaning of ``start`` and ``until``."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from forebay.errors import ConfigError, StateError
from forebay.slice import Token
from forebay.source import Split

_PREFIX = "kafka:"
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # sixteen zero bytes: the broker has no topic ids


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    @property
    def split(self) -> Split:
        """The split that this partition is."""
        return Split(id=self.id, group=self.topic, number=self.number)

    @property
    def id(self) -> str:
        """The split's id: ``kafka:clicks/3``."""
        return f"{_PREFIX}{self.topic}/{self.number}"

    @classmethod
    def parse(cls, split: str) -> Partition:
        """The inverse of ``id``.

        Raises:
            StateError: the split is not of Kafka.
        """
        topic, slash, number = split.removeprefix(_PREFIX).rpartition("/")
        if not (split.startswith(_PREFIX) and slash and topic and number.isdecimal()):
            raise StateError(
                f"the state knows split {split!r}, which is no partition of a Kafka topic: it was "
                "saved with another source. Load the checkpoint of this pipeline."
            )
        return cls(topic, int(number))


@dataclass(frozen=True, slots=True)
class Edge:
    """The first or the last record there is."""

    at: Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class Instant:
    """The first record at or after this time, milliseconds since the epoch."""

    ms: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for each partition named; the others have none."""

    by_partition: Mapping[Partition, int]


Place: TypeAlias = "Edge | Instant | Offsets"


class Identity(NamedTuple):
    """Which topic of which cluster; None where the brokers do not say."""

    topic_id: str | None
    cluster: str | None


def token(identity: Identity, epoch: int | None) -> Token:
    """What a position must be checked by before it is used again.

    ``id``: the topic id, ``at``: a short hash of the cluster id (an id of 22 letters in each of
    64 splits would make the state too long), ``epoch``: the leader epoch of the last record.
    """
    out: dict[str, Any] = {}
    if identity.topic_id is not None:
        out["id"] = identity.topic_id
    if identity.cluster is not None:
        out["at"] = identity.cluster
    if epoch is not None and epoch >= 0:
        out["epoch"] = epoch
    return out


def identity(topic_id: str | None, cluster_id: str | None) -> Identity:
    """The identity of a topic in the short form that tokens hold."""
    known = topic_id if topic_id != _NO_TOPIC_ID else None
    return Identity(known or None, short_hash(cluster_id) if cluster_id else None)


def short_hash(text: str) -> str:
    """Eight letters that tell cluster ids apart."""
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return base64.urlsafe_b64encode(digest).decode()


def parse_place(name: str, value: Any, topics: tuple[str, ...], where: str) -> Place:
    """What ``start`` or ``until`` means.

    Raises:
        ConfigError: names the argument, its value and what it may be.
    """
    if value in ("earliest", "latest"):
        return Edge(value)
    if isinstance(value, Mapping) and set(value) == {"timestamp"}:
        return Instant(_milliseconds(name, value["timestamp"], where))
    if isinstance(value, Mapping) and value:
        return Offsets(_offsets(name, value, topics, where))
    raise ConfigError(
        f"{where}: {name} must be 'earliest', 'latest', {{'timestamp': milliseconds or datetime}} "
        f"or {{topic: {{partition: offset}}}}, not {value!r}"
    )


def _milliseconds(name: str, value: Any, where: str) -> int:
    if isinstance(value, str):
        value = _parsed_time(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return int(value.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError(
        f"{where}: the timestamp of {name} must be milliseconds since 1970 or a datetime with a "
        f"time zone, not {value!r}; write datetime(..., tzinfo=timezone.utc)"
    )


def _parsed_time(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text


def _offsets(
    name: str, value: Mapping[Any, Any], topics: tuple[str, ...], where: str
) -> dict[Partition, int]:
    out = {}
    for topic, partitions in value.items():
        if topic not in topics:
            raise ConfigError(
                f"{where}: {name} names topic {topic!r}, which is not read; topics are {topics}"
            )
        if not isinstance(partitions, Mapping):
            raise ConfigError(f"{where}: {name}[{topic!r}] must be {{partition: offset}}")
        for number, offset in partitions.items():
            if not (_natural(number) and _natural(offset)):
                raise ConfigError(
                    f"{where}: {name}[{topic!r}] must map partition numbers to offsets from 0 up, "
                    f"not {number!r} to {offset!r}"
                )
            out[Partition(topic, number)] = offset
    return out


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

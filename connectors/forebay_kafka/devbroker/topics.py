"""What the broker holds: topics with their partitions and settings, and committed offsets."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.log import PartitionLog

NO_ID = uuid.UUID(int=0)
MAX_PARTITIONS = 10_000
NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

# Kafka's names and defaults. Only the first three change what this broker does; the others are
# accepted so that a set-up script written for Kafka runs, and are shown as they were set.
TOPIC_DEFAULTS = {
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}
NUMBERS = ("max.message.bytes", "retention.bytes")
CHOICES = {"message.timestamp.type": ("CreateTime", "LogAppendTime")}


@dataclass(slots=True)
class Topic:
    """A topic; a new one of the same name has another id."""

    name: str
    settings: dict[str, str]
    retention_bytes: int
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    partitions: list[PartitionLog] = field(default_factory=list)

    def grow(self, count: int) -> None:
        while len(self.partitions) < count:
            self.partitions.append(PartitionLog(self.retention_bytes))

    def setting(self, key: str) -> str:
        return self.settings.get(key, TOPIC_DEFAULTS[key])

    @property
    def max_batch_bytes(self) -> int:
        return int(self.setting("max.message.bytes"))

    @property
    def append_time(self) -> bool:
        return self.setting("message.timestamp.type") == "LogAppendTime"


class Committed(NamedTuple):
    """A group's committed offset in one partition."""

    offset: int
    leader_epoch: int
    metadata: str


NOT_COMMITTED = Committed(-1, -1, "")


class CommitKey(NamedTuple):
    group: str
    topic: str
    partition: int


class Topics:
    """All topics by name, and the committed offsets of all groups."""

    def __init__(self, *, retention_bytes: int, auto_create_partitions: int = 0) -> None:
        self.cluster_id = _random_id()
        self.auto_create_partitions = auto_create_partitions
        self.committed: dict[CommitKey, Committed] = {}
        self._retention_bytes = retention_bytes
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def named(self, name: str | None) -> Topic:
        topic = self._by_name.get(name or "")
        if topic is None:
            raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def with_id(self, topic_id: uuid.UUID) -> Topic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise Refusal(Code.UNKNOWN_TOPIC_ID)
        return topic

    def partition(self, name: str, index: int) -> PartitionLog:
        return partition_of(self.named(name), index)

    def named_or_created(self, name: str) -> Topic:
        """What a metadata request means by a name where topics are created on first use."""
        if name not in self._by_name and self.auto_create_partitions:
            return self.create(name, self.auto_create_partitions, {})
        return self.named(name)

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> Topic:
        self.check_new(name, partitions, settings)
        retention = int(settings.get("retention.bytes", "-1"))
        topic = Topic(name, settings, retention if retention >= 0 else self._retention_bytes)
        topic.grow(partitions)
        self._by_name[name] = self._by_id[topic.id] = topic
        return topic

    def check_new(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        """Refusal where a topic like this cannot be made; changes nothing."""
        if not NAME.fullmatch(name) or name in (".", ".."):
            raise Refusal(Code.INVALID_TOPIC, f"{name!r} is not a legal topic name")
        if name in self._by_name:
            raise Refusal(Code.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise Refusal(
                Code.INVALID_PARTITIONS,
                f"topic {name!r}: {partitions} partitions; 1 to {MAX_PARTITIONS} are possible",
            )
        _check_settings(settings)

    def delete(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        for key in [key for key in self.committed if key.topic == topic.name]:
            del self.committed[key]

    def recreate(self, name: str) -> Topic:
        """Delete a topic and make an empty one with its name, partition count and settings."""
        old = self.named(name)
        self.delete(old)
        return self.create(name, len(old.partitions), old.settings)


def _random_id() -> str:
    """22 letters as Kafka's cluster ids have, never with a dash in front."""
    raw = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([raw[0] & 0x7F]) + raw[1:]).decode().rstrip("=")


def partition_of(topic: Topic, index: int) -> PartitionLog:
    if not 0 <= index < len(topic.partitions):
        raise Refusal(Code.UNKNOWN_TOPIC_OR_PARTITION)
    return topic.partitions[index]


def _check_settings(settings: dict[str, str]) -> None:
    for key, value in settings.items():
        if key not in TOPIC_DEFAULTS:
            raise Refusal(Code.INVALID_CONFIG, f"unknown topic setting {key!r}")
        if key in NUMBERS and not value.lstrip("-").isdigit():
            raise Refusal(Code.INVALID_CONFIG, f"{key}={value!r} is not a whole number")
        if value not in CHOICES.get(key, (value,)):
            raise Refusal(Code.INVALID_CONFIG, f"{key}={value!r}: expected {CHOICES[key]}")

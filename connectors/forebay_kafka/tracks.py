"""The partitions being read: how far each is, and which of them the client fetches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Consumer, TopicPartition

from forebay.slice import Token
from forebay_kafka.positions import Identity, Partition, token


@dataclass(slots=True)
class Track:
    """One partition being read. Reading thread only."""

    partition: Partition
    identity: Identity
    next: int
    """The next offset to be given."""
    bound: int | None
    """One past the last offset to be given; None: no end."""
    epoch: int | None = None
    """Leader epoch of the last record that was given."""
    state: Literal["reading", "asking", "done"] = "reading"
    """``asking``: the client stopped, and the brokers were asked what became of the log."""
    question: int = 0
    """While asking: the number of the answer that is waited for."""
    divergence: int | None = None
    """While asking: from where on the client found the log to be another."""
    refused_since: float | None = None
    token: Token | None = None
    split: str = ""
    """The split's id."""

    def __post_init__(self) -> None:
        self.token = token(self.identity, self.epoch)
        self.split = self.partition.id

    @property
    def reading(self) -> bool:
        """Whether the client fetches it."""
        return self.state == "reading"

    @property
    def at_bound(self) -> bool:
        """Whether all of it that is to be read was given."""
        return self.bound is not None and self.next >= self.bound

    def token_of(self, epoch: int | None) -> Token | None:
        """The token of records of a leader epoch, which are the last ones now."""
        if epoch != self.epoch:
            self.epoch, self.token = epoch, token(self.identity, epoch)
        return self.token

    def begin_anew(self, identity: Identity) -> None:
        """Forget what was known of the log that the partition was."""
        self.identity, self.epoch, self.token = identity, None, token(identity, None)


class Assignment:
    """What the client is told to fetch. It is told by increments, and only what changed.

    ``seek`` is of no use here: after an error it fails, and the partition stays where it was.
    """

    def __init__(self, consumer: Consumer, tracks: Mapping[Partition, Track]) -> None:
        self._consumer, self._tracks = consumer, tracks
        self.paused: frozenset[Partition] = frozenset()

    def begin(self, starts: Mapping[Partition, tuple[int, int | None]]) -> None:
        """Fetch partitions from (offset, leader epoch of the record before it) on."""
        self._consumer.assign([_from(p, at, epoch) for p, (at, epoch) in starts.items()])

    def add(self, track: Track, epoch: int | None) -> None:
        """Fetch a track from its next offset on, unless it has reached its bound."""
        if track.at_bound:
            track.state = "done"
            return
        track.state = "reading"
        self._consumer.incremental_assign([_from(track.partition, track.next, epoch)])
        if track.partition in self.paused:
            self._consumer.pause([_of(track.partition)])

    def drop(self, track: Track, state: Literal["asking", "done"]) -> None:
        """Fetch a track no more; what the client holds of it is thrown away."""
        if track.reading:
            self._consumer.incremental_unassign([_of(track.partition)])
        track.state = state

    def epoch_before(self, track: Track, offset: int) -> int | None:
        """The leader epoch of what stands before an offset that the client has come to.

        Events do not carry it. The epoch of the last record will not do: a marker behind it may
        be of a newer leader, and the position behind that would look as if the log had been cut.
        """
        (at,) = self._consumer.position([_of(track.partition)])
        return at.leader_epoch if at.offset == offset else None

    def pause(self, partitions: Collection[Partition]) -> Sequence[Partition]:
        """Fetch nothing of these, and again of all others; returns those that go on."""
        wanted = frozenset(partitions)
        resumed, paused = self.paused - wanted, wanted - self.paused
        self.paused = wanted
        if fetched := self._fetched(resumed):
            self._consumer.resume(fetched)
        if fetched := self._fetched(paused):
            self._consumer.pause(fetched)
        return sorted(resumed)

    def _fetched(self, partitions: Collection[Partition]) -> list[TopicPartition]:
        known = [p for p in partitions if p in self._tracks]
        return [_of(p) for p in known if self._tracks[p].reading]


def _of(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)


def _from(partition: Partition, offset: int, epoch: int | None) -> TopicPartition:
    unknown = -1
    return TopicPartition(
        partition.topic,
        partition.number,
        offset,
        leader_epoch=unknown if epoch is None else epoch,
    )

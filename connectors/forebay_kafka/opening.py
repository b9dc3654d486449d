"""Where each partition is read from and to, worked out when a reader is opened."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forebay.errors import ConfigError, StateError
from forebay.source import Owns
from forebay.state import Position
from forebay_kafka.cluster import Cluster, Topic, at_time
from forebay_kafka.gaps import Gap, Log, OnGap, find_gap, find_recreation
from forebay_kafka.lag import News
from forebay_kafka.positions import Edge, Instant, Offsets, Partition, Place, token

_log = logging.getLogger("forebay.kafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How the reading of a partition begins."""

    partition: Partition
    position: Position
    """What ``Reader.positions`` reports."""
    at: int
    """The first offset asked for."""
    epoch: int | None
    """Leader epoch of the record before it, for the client to check; None: not to be checked."""
    bound: int | None
    """One past the last offset to be read; None: no end."""
    gap: Gap | None
    """What is lost between ``position`` and ``at``."""


def saved_positions(
    positions: Mapping[str, Position], topics: Sequence[str]
) -> dict[Partition, Position]:
    """The positions of a state by partition.

    Raises:
        StateError: they are of other topics than those of the source.
    """
    out = {Partition.parse(split): p for split, p in positions.items()}
    foreign = sorted({p.topic for p in out} - set(topics))
    if foreign:
        raise StateError(
            f"the state has positions of topic {', '.join(map(repr, foreign))}, the source reads "
            f"{', '.join(map(repr, topics))}. Load the checkpoint of this pipeline, or name the "
            "topic in the source."
        )
    return out


def check_partitions_exist(
    saved: Mapping[Partition, Position], topics: Mapping[str, Topic], owns: Owns, on_gap: OnGap
) -> None:
    """Refuse a state that names partitions of ours which are not there.

    Raises:
        DataLossError: the topic was re-created with fewer partitions.
        StateError: there never were that many.
    """
    for partition, position in saved.items():
        topic = topics[partition.topic]
        if partition.number in topic.partitions or not owns(partition.split):
            continue
        nothing = Log(identity=topic.identity, low=0, high=0, end=0)
        gap = find_recreation(partition.id, position, nothing)
        if gap is not None:
            gap.resume(on_gap)
            continue
        raise StateError(
            f"the state has a position of {partition.id}, but topic {partition.topic!r} has only "
            f"{len(topic.partitions)} partitions. Load the checkpoint of this topic, or remove the "
            "split from the state."
        )


class Openings:
    """Works out the openings of the partitions that a reader owns."""

    def __init__(
        self, cluster: Cluster, news: News, start: Place, until: Place | None, where: str
    ) -> None:
        self._cluster, self._news = cluster, news
        self._start, self._until, self._where = start, until, where

    def all(self, saved: Mapping[Partition, Position], on_gap: OnGap) -> list[Opening]:
        """One opening for each partition, in order.

        Raises:
            DataLossError: a position lies before what is still held, and ``on_gap`` is to fail.
            ConfigError: ``start`` or ``until`` names an offset or partition that does not exist.
        """
        known = {p.topic for p in saved}
        old = [p for p in self._news.low if p in saved]
        grown = [p for p in self._news.low if p not in saved and p.topic in known]
        new = [p for p in self._news.low if p.topic not in known]
        self._check_named(self._start, "start")
        self._check_named(self._until, "until")
        first = self._starts(new) | {p: self._news.low[p] for p in grown}
        wanted = {p: saved[p] for p in old} | {p: self._fresh(p, at) for p, at in first.items()}
        bounds = self._bounds(list(wanted))
        return [
            self._opening(p, wanted[p], bounds.get(p), on_gap, saved=p in saved)
            for p in self._news.low
        ]

    def _opening(
        self,
        partition: Partition,
        position: Position,
        bound: int | None,
        on_gap: OnGap,
        *,
        saved: bool,
    ) -> Opening:
        # The client compares leader epochs where it begins to read; here it would not begin.
        unread = bound is not None and bound <= position.low
        log = log_of(self._news, partition)
        if not saved:  # an end that was asked for later than the log's is no cut
            log = replace(log, high=max(log.high, position.offset))
        gap = find_gap(partition.id, position, log, refused=unread)
        at, epoch = position.low, (position.token or {}).get("epoch")
        if gap is not None:
            at, epoch = gap.resume(on_gap), None
            if gap.resets:
                position = self._fresh(partition, at)
        return Opening(
            partition=partition, position=position, at=at, epoch=epoch, bound=bound, gap=gap
        )

    def _fresh(self, partition: Partition, at: int) -> Position:
        identity = self._news.topics[partition.topic].identity
        return Position(at, base=at, token=token(identity, None))

    def _starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        match self._start:
            case Edge("earliest"):
                return {p: self._news.low[p] for p in partitions}
            case Edge():
                return {p: self._news.ends[p] for p in partitions}
            case Instant() as instant:
                return self._at(instant, partitions)
            case Offsets(given):
                return {p: self._in_log(p, given.get(p)) for p in partitions}

    def _in_log(self, partition: Partition, offset: int | None) -> int:
        if offset is None:
            return self._news.low[partition]
        if offset > self._news.high[partition]:
            raise ConfigError(
                f"{self._where}: start names offset {offset} of {partition.id}, which ends at "
                f"{self._news.high[partition]}"
            )
        return offset

    def _bounds(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        ends = self._news.ends
        match self._until:
            case None:
                return {}
            case Instant() as instant:
                found = self._at(instant, partitions)
                return {p: min(found[p], ends[p]) for p in partitions}
            case Offsets(given):
                return {p: self._clamped(p, given.get(p)) for p in partitions}
            case _:
                return {p: ends[p] for p in partitions}

    def _clamped(self, partition: Partition, offset: int | None) -> int:
        end = self._news.ends[partition]
        if offset is None or offset <= end:
            return end if offset is None else offset
        _log.warning(
            "%s: until names offset %d of %s, which ends at %d: reading ends there",
            self._where,
            offset,
            partition.id,
            end,
        )
        return end

    def _at(self, instant: Instant, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The first record of a time, or the end where there is none."""
        found = self._cluster.offsets(partitions, at_time(instant))
        return {p: found[p] if found[p] >= 0 else self._news.ends[p] for p in partitions}

    def _check_named(self, place: Place | None, name: str) -> None:
        """Partitions named in the configuration must exist, whoever owns them."""
        for partition in place.by_partition if isinstance(place, Offsets) else ():
            topic = self._news.topics[partition.topic]
            if partition.number not in topic.partitions:
                raise ConfigError(
                    f"{self._where}: {name} names partition {partition.number} of topic "
                    f"{partition.topic!r}, which has {len(topic.partitions)} partitions"
                )


def log_of(news: News, partition: Partition) -> Log:
    """What the brokers said of a partition."""
    return Log(
        identity=news.topics[partition.topic].identity,
        low=news.low[partition],
        high=news.high[partition],
        end=news.ends[partition],
    )

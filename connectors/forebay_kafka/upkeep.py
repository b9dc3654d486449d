"""Keeps the reading in step with the topics: new partitions, lost records, topics that change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import DataLossError, SourceError
from forebay.source import Owns
from forebay.state import Position
from forebay_kafka.gaps import Gap, OnGap, find_gap
from forebay_kafka.lag import News, partitions_of
from forebay_kafka.opening import log_of
from forebay_kafka.outbox import Outbox
from forebay_kafka.positions import Identity, Partition
from forebay_kafka.tracks import Assignment, Track

_log = logging.getLogger("forebay.kafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a reader deals with what it meets."""

    on_gap: OnGap
    bounded: bool
    owns: Owns
    stall_seconds: float
    commit_group: str | None


class Upkeep:
    """Looks at what the brokers say, and acts on it. Reading thread only; never waits.

    ``ask`` has the brokers asked anew, and returns the number that the answer will carry.
    """

    def __init__(
        self,
        tracks: dict[Partition, Track],
        assignment: Assignment,
        outbox: Outbox,
        rules: Rules,
        ask: Callable[[], int],
    ) -> None:
        self._tracks, self._assignment, self._outbox = tracks, assignment, outbox
        self._rules, self._ask = rules, ask
        self._missing_since: dict[str, float] = {}

    def suspect(self, track: Track, divergence: int | None) -> None:
        """The client cannot go on with a partition: have the brokers asked what became of it."""
        self._assignment.drop(track, "asking")
        track.divergence, track.question = divergence, self._ask()

    def leave_out(self, track: Track, why: str, advice: str) -> None:
        """Records that nobody can count are lost.

        Raises:
            DataLossError: by the rules, that ends the reading.
        """
        loss = DataLossError(track.split, track.next, None, why, advice)
        if self._rules.on_gap == "fail":
            raise loss
        _log.warning("%s", loss)

    def heed(self, news: News) -> None:
        """Act on what the brokers said.

        Raises:
            DataLossError: records are lost, and by the rules that ends the reading.
            SourceError: a topic has been gone, or closed to us, for too long.
        """
        self._check_topics(news)
        for track in self._tracks.values():
            topic = news.topics[track.partition.topic]
            if track.state != "done" and topic.error is None:
                self._check(track, topic.identity, topic.partitions, news)
        if not self._rules.bounded:
            self._begin_new(news)

    def _check_topics(self, news: News) -> None:
        now = time.monotonic()
        for name, topic in news.topics.items():
            if topic.error is None:
                self._missing_since.pop(name, None)
                continue
            lasts = now - self._missing_since.setdefault(name, now)
            if lasts >= self._rules.stall_seconds:
                raise SourceError(
                    f"topic {name!r} cannot be read any more: {topic.error.str()}, for "
                    f"{lasts:.0f} s now. Restore the topic or the right to read it, and resume "
                    "from the last checkpoint."
                )
            self._ask()

    def _check(self, track: Track, now: Identity, numbers: tuple[int, ...], news: News) -> None:
        answered = track.state == "asking" and news.answers >= track.question
        if track.partition.number not in numbers:
            self._vanished(track)
        elif track.partition not in news.low:
            if answered:
                track.question = self._ask()
        elif answered or now != track.identity:
            gap = find_gap(
                track.split,
                Position(track.next, token=track.token),
                log_of(news, track.partition),
                divergence=track.divergence,
                refused=track.state == "asking",
            )
            track.identity = now
            if gap is not None:
                self._go_on_after(track, gap, now)
            elif answered:
                track.divergence = None
                self._assignment.add(track, track.epoch)  # the trouble was passing

    def _go_on_after(self, track: Track, gap: Gap, now: Identity) -> None:
        to = gap.resume(self._rules.on_gap)
        self._assignment.drop(track, "asking")
        track.divergence = None
        track.begin_anew(now)
        self._outbox.leap(track, gap, track.next, to)
        self._assignment.add(track, None)

    def _vanished(self, track: Track) -> None:
        self.leave_out(
            track,
            "the topic was re-created with fewer partitions",
            "To go on with those that are there now, set on_gap='earliest' or 'latest'.",
        )
        self._assignment.drop(track, "done")

    def _begin_new(self, news: News) -> None:
        """Partitions that were added are read from their first record, not by ``start``."""
        for partition in partitions_of(news.topics):
            known = partition in self._tracks or partition not in news.low
            if not known and self._rules.owns(partition.split):
                identity = news.topics[partition.topic].identity
                track = Track(partition, identity, news.low[partition], None)
                self._tracks[partition] = track
                self._assignment.add(track, None)

"""Reads the partitions that one rank owns, all through one client."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay.columns import cut
from forebay.errors import DataLossError, ProcessError, SourceError, SourceStalled
from forebay.slice import Slice, Token
from forebay.source import Owns
from forebay.state import Position
from forebay_kafka.clienterrors import ErrorLog, error_of, refused
from forebay_kafka.drain import Drain, Event, Run
from forebay_kafka.gaps import Gap, OnGap, find_gap
from forebay_kafka.lag import Lookout, News, partitions_of
from forebay_kafka.opening import Opening, log_of
from forebay_kafka.positions import Identity, Partition, token
from forebay_kafka.watchdog import Watchdog

_log = logging.getLogger("forebay.kafka")
# The client's calls do not heed signals while they wait, and news must be looked at.
_STEP_SECONDS = 0.25
_WATCH_SECONDS = 1.0
_NO_ROWS = np.zeros(0, np.int64)
_OUT_OF_RANGE = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError.OFFSET_OUT_OF_RANGE,
}
_UNKNOWN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
# The client skips a batch that it cannot read, with this as the only sign.
_UNREADABLE = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
# Destroying a client in a forked child waits for threads that only its parent has.
_kept_in_child: list[object] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStats:
    """What a reader has done since it was opened."""

    records: int = 0
    bytes: int = 0
    """Bytes of values."""
    slices: int = 0
    tombstones: int = 0
    """Records without a value, kept or skipped."""
    lost: int = 0
    """At most so many records were gone before they could be read."""
    resets: int = 0
    """Splits that began anew: topic re-created, log cut."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors that the client reported, by name; most of them it mends itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a reader deals with what it meets."""

    on_gap: OnGap
    bounded: bool
    owns: Owns
    stall_seconds: float
    commit_group: str | None


@dataclass(slots=True)
class _Track:
    """One partition being read."""

    partition: Partition
    identity: Identity
    next: int
    """The next offset to be given."""
    bound: int | None
    token: Token
    epoch: int | None = None
    state: Literal["reading", "asking", "done"] = "reading"
    question: int = 0
    """While asking: the answer that is waited for."""
    divergence: int | None = None
    refused_since: float | None = None

    @property
    def assigned(self) -> bool:
        """Whether the client reads it."""
        return self.state == "reading"

    def token_of(self, epoch: int | None) -> Token:
        """The token of records of a leader epoch."""
        if epoch != self.epoch:
            self.epoch, self.token = epoch, token(self.identity, epoch)
        return self.token


class KafkaReader:
    """A ``forebay.source.Reader``; made by ``KafkaSource.open``."""

    def __init__(
        self,
        consumer: Consumer,
        drain: Drain,
        lookout: Lookout,
        errors: ErrorLog,
        rules: Rules,
        openings: Sequence[Opening],
    ) -> None:
        self._pid = os.getpid()
        self._consumer, self._drain, self._lookout = consumer, drain, lookout
        self._errors, self._rules = errors, rules
        self._watchdog = Watchdog(rules.stall_seconds)
        self._seen = lookout.news
        self._positions = {o.partition.id: o.position for o in openings}
        self._bounds = {o.partition: o.bound for o in openings}
        self._ready: deque[Slice] = deque()
        self._paused: frozenset[Partition] = frozenset()
        self._failure: SourceError | None = None
        self._watched = time.monotonic()
        self._missing_since: dict[str, float] = {}
        self._stats = KafkaStats()
        self._closed = False
        self._tracks: dict[Partition, _Track] = {}
        self._begin(openings)

    def positions(self) -> Mapping[str, Position]:
        return self._positions

    def poll(self, timeout: float) -> Slice | None:
        self._check_process()
        self._lookout.start()
        self._watchdog.asked()
        deadline = time.monotonic() + timeout
        while (s := self._next_ready()) is None:
            if self._failure is not None:
                raise self._failure
            left = deadline - time.monotonic()
            self._fill(min(max(left, 0), _STEP_SECONDS))
            if left <= 0 or self.finished():
                return self._next_ready()
        return s

    def pause(self, splits: Collection[str]) -> None:
        self._check_process()
        wanted = frozenset(Partition.parse(s) for s in splits)
        if wanted == self._paused:
            return
        resumed, paused = self._paused - wanted, wanted - self._paused
        self._paused = wanted
        for partition in resumed:
            self._watchdog.heard(partition.id)
        if assigned := self._assigned(resumed):
            self._consumer.resume(assigned)
        if assigned := self._assigned(paused):
            self._consumer.pause(assigned)

    def finished(self) -> bool:
        all_read = all(t.state == "done" for t in self._tracks.values())
        return self._rules.bounded and all_read and not self._ready

    def ends(self) -> Mapping[str, int]:
        """The end offset of each split; of a bounded one, where its reading ends if that is less.

        Asked of the brokers every few seconds, once reading has begun.
        """
        out = {}
        for partition, end in self._lookout.news.ends.items():
            bound = self._bounds.get(partition)
            out[partition.id] = end if bound is None else min(end, bound)
        return out

    def stats(self) -> KafkaStats:
        """What was read, lost and complained of so far. Any thread."""
        return replace(self._stats, errors=self._errors.counts())

    def publish(self, positions: Mapping[str, Position]) -> None:
        """Commit positions to the group ``commit_group``, for lag monitors to see; else nothing.

        Call it after the checkpoint that holds them was saved. Reading never looks at these
        offsets, so a failure is only logged.
        """
        self._check_process()
        offsets = [_committed(Partition.parse(s), p) for s, p in positions.items()]
        if self._rules.commit_group is None or not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as e:
            _log.warning("offsets were not committed for monitoring: %s", error_of(e).str())

    def close(self) -> None:
        if os.getpid() != self._pid:
            _kept_in_child.append((self._consumer, self._lookout))
            return
        if self._closed:
            return
        self._closed = True
        self._lookout.close()
        self._consumer.close()

    # Beginning.

    def _begin(self, openings: Sequence[Opening]) -> None:
        for o in openings:
            topic = self._seen.topics[o.partition.topic]
            track = self._tracks[o.partition] = _Track(
                o.partition, topic.identity, o.at, o.bound, token(topic.identity, None)
            )
            if o.gap is not None:
                self._report_gap(o.gap, o.position.low, o.at, track)
            if _at_bound(track):
                track.state = "done"
        reading = [o for o in openings if self._tracks[o.partition].assigned]
        self._consumer.assign([_assignment(o.partition, o.at, o.epoch) for o in reading])

    def _report_gap(self, gap: Gap, start: int, at: int, track: _Track) -> None:
        """Move the position over what is lost, by a slice without rows, and count it."""
        lost = gap.skipped(self._rules.on_gap)
        _log.warning("%s; going on at %d", gap.error(), at)
        self._stats = replace(
            self._stats,
            lost=self._stats.lost + lost,
            resets=self._stats.resets + gap.resets,
        )
        if gap.resets:
            self._ready = deque(s for s in self._ready if s.split != gap.split)
        self._emit_empty(track, at if gap.resets else start, at, resets=gap.resets)

    # Filling: from the client to ready slices.

    def _fill(self, timeout: float) -> None:
        """Take what the client has; a failure is kept until all that came before it was given."""
        try:
            self._heed(self._lookout.news)
            nothing = True
            for item in self._drain.take(timeout):
                if isinstance(item, Run):
                    nothing = False
                    self._take_run(item)
                else:
                    self._take_event(item)
            if nothing:
                self._watch()
        except SourceError as e:
            self._failure = e
        except KafkaException as e:
            self._failure = SourceError(f"the Kafka client failed: {error_of(e).str()}")

    def _next_ready(self) -> Slice | None:
        """The oldest slice of a split that is not paused."""
        if not self._paused:
            return self._ready.popleft() if self._ready else None
        held = {p.id for p in self._paused}
        for i, s in enumerate(self._ready):
            if s.split not in held:
                del self._ready[i]
                return s
        return None

    def _take_run(self, run: Run) -> None:
        track = self._tracks.get(run.partition)
        if track is None or not track.assigned or run.next_offset <= track.next:
            return  # fetched for an assignment that was replaced since
        first, stop = track.next, run.next_offset
        if track.bound is not None:
            stop = min(stop, track.bound)
        a, b = (int(i) for i in np.searchsorted(run.offsets, [first, stop]))
        whole = (a, b) == (0, len(run.offsets))
        s = Slice(
            split=run.partition.id,
            columns=run.columns if whole else cut(run.columns, a, b) if b > a else {},
            offsets=run.offsets[a:b],
            start=first,
            next_offset=stop,
            token=track.token_of(run.epoch),
            event_times=None if run.times is None else run.times[a:b],
        )
        self._count(run, s)
        self._give(track, s)

    def _count(self, run: Run, s: Slice) -> None:
        old = self._stats
        self._stats = replace(
            old,
            records=old.records + len(s),
            bytes=old.bytes + run.nbytes,
            slices=old.slices + 1,
            tombstones=old.tombstones + run.tombstones,
        )

    def _give(self, track: _Track, s: Slice) -> None:
        self._ready.append(s)
        track.next = s.next_offset
        self._heard(track)
        if _at_bound(track):
            self._retire(track)

    def _emit_empty(self, track: _Track, start: int, at: int, *, resets: bool = False) -> None:
        self._ready.append(
            Slice(
                split=track.partition.id,
                columns={},
                offsets=_NO_ROWS,
                start=start,
                next_offset=at,
                token=track.token,
                resets=resets,
            )
        )
        track.next = at

    def _heard(self, track: _Track) -> None:
        self._watchdog.heard(track.partition.id)
        self._errors.forget()
        track.refused_since = None

    # Events: what is no record.

    def _take_event(self, event: Event) -> None:
        track = None if event.partition is None else self._tracks.get(event.partition)
        code = event.error.code()
        if code == KafkaError._PARTITION_EOF:
            if track is not None and track.assigned:
                self._take_end(track, event)
            return
        self._errors(event.error)
        if event.error.fatal():
            raise SourceError(f"the Kafka client gave up: {event.error.str()}")
        if track is None or not track.assigned:
            return
        if code in _OUT_OF_RANGE:
            self._ask_about(track, _divergence(event.error))
        elif code in _UNREADABLE:
            self._skip_unreadable(track, event.error)
        elif code in _UNKNOWN:
            self._lookout.ask()
        elif refused(event.error) and track.refused_since is None:
            track.refused_since = time.monotonic()

    def _take_end(self, track: _Track, event: Event) -> None:
        """All was read up to here. Markers of transactions take offsets and give no record."""
        self._heard(track)
        end = track.next if event.offset is None else event.offset
        end = end if track.bound is None else min(end, track.bound)
        if end > track.next:
            track.token_of(event.epoch)
            self._emit_empty(track, track.next, end)
        if _at_bound(track):
            self._retire(track)

    def _skip_unreadable(self, track: _Track, error: KafkaError) -> None:
        loss = DataLossError(
            track.partition.id,
            track.next,
            None,
            f"a batch cannot be read and is left out ({error.str()})",
            "Find out what damaged it; to go on without it, set on_gap='earliest'.",
        )
        if self._rules.on_gap == "fail":
            raise loss
        _log.warning("%s", loss)

    def _retire(self, track: _Track) -> None:
        track.state = "done"
        self._consumer.incremental_unassign([_assignment(track.partition)])

    # Trouble: the log is not what the position needs.

    def _ask_about(self, track: _Track, divergence: int | None) -> None:
        """The client has stopped reading a partition: have the brokers asked what became of it."""
        self._consumer.incremental_unassign([_assignment(track.partition)])
        track.state, track.divergence = "asking", divergence
        track.question = self._lookout.ask()

    def _heed(self, news: News) -> None:
        """Look at what the brokers said since the last time."""
        if news is self._seen:
            return
        self._seen = news
        self._check_topics(news)
        for track in list(self._tracks.values()):
            self._check_track(track, news)
        if not self._rules.bounded:
            self._begin_new(news)

    def _check_topics(self, news: News) -> None:
        now = time.monotonic()
        for name, topic in news.topics.items():
            if topic.error is None:
                self._missing_since.pop(name, None)
                continue
            since = self._missing_since.setdefault(name, now)
            if now - since >= self._rules.stall_seconds:
                raise SourceError(
                    f"topic {name!r} cannot be read any more: {topic.error.str()}, for "
                    f"{now - since:.0f} s now. Restore the topic or the right to read it, and "
                    "resume from the last checkpoint."
                )
            self._lookout.ask()

    def _check_track(self, track: _Track, news: News) -> None:
        topic = news.topics[track.partition.topic]
        if track.state == "done" or topic.error is not None:
            return
        if track.partition not in news.low:
            if track.partition.number not in topic.partitions:
                self._vanished(track)
            elif track.state == "asking":
                self._lookout.ask()
            return
        answered = track.state == "asking" and news.answers >= track.question
        if not answered and topic.identity == track.identity:
            return
        gap = find_gap(
            track.partition.id,
            Position(track.next, token=token(track.identity, track.epoch)),
            log_of(news, track.partition),
            divergence=track.divergence,
            refused=track.state == "asking",
        )
        if gap is not None or answered:
            self._go_on(track, gap, topic.identity)

    def _go_on(self, track: _Track, gap: Gap | None, now: Identity) -> None:
        """Read on past a gap; without one the trouble was passing, and reading goes on there."""
        at = track.next if gap is None else gap.resume(self._rules.on_gap)
        if track.assigned:
            self._consumer.incremental_unassign([_assignment(track.partition)])
        track.state, track.identity, track.divergence = "reading", now, None
        epoch = track.epoch
        if gap is not None:
            track.epoch = epoch = None
            track.token = token(now, None)
            self._report_gap(gap, track.next, at, track)
        self._assign(track, epoch)

    def _assign(self, track: _Track, epoch: int | None) -> None:
        if _at_bound(track):
            track.state = "done"
            return
        self._consumer.incremental_assign([_assignment(track.partition, track.next, epoch)])
        if track.partition in self._paused:
            self._consumer.pause([_assignment(track.partition)])
        self._watchdog.heard(track.partition.id)

    def _vanished(self, track: _Track) -> None:
        loss = DataLossError(
            track.partition.id,
            track.next,
            None,
            "the topic was re-created with fewer partitions",
            "To go on with those that are there now, set on_gap='earliest' or 'latest'.",
        )
        if self._rules.on_gap == "fail":
            raise loss
        _log.warning("%s", loss)
        self._retire(track)

    def _begin_new(self, news: News) -> None:
        """Partitions added while running are read from their first record."""
        for partition in partitions_of(news.topics):
            if partition in self._tracks or partition not in news.low:
                continue
            if self._rules.owns(partition.split):
                identity = news.topics[partition.topic].identity
                track = _Track(
                    partition, identity, news.low[partition], None, token(identity, None)
                )
                self._tracks[partition] = track
                self._assign(track, None)

    # Silence.

    def _watch(self) -> None:
        """Nothing came: look, once a second, whether that has gone on for too long.

        Raises:
            SourceStalled: records wait, or the brokers say nothing at all.
            SourceError: access has been refused for as long.
        """
        now = time.monotonic()
        if now - self._watched < _WATCH_SECONDS:
            return
        self._watched = now
        for track in self._tracks.values():
            if track.assigned and track.partition not in self._paused:
                self._check_refused(track, now)
                self._check_silence(track)
        since, news = self._seen.silent_since, self._seen
        asked = [t.partition.id for t in self._tracks.values() if t.assigned]
        silent = since is not None and now - since >= self._rules.stall_seconds
        if silent and asked and len(self._watchdog.overdue(asked)) == len(asked):
            raise SourceStalled(f"nothing is heard from the brokers. {news.trouble}")

    def _check_refused(self, track: _Track, now: float) -> None:
        since = track.refused_since
        if since is not None and now - since >= self._rules.stall_seconds:
            raise SourceError(
                f"{track.partition.id}: access has been refused for {now - since:.0f} s: "
                f"{self._errors.words()}. Give the user the right to read the topic, and resume "
                "from the last checkpoint."
            )

    def _check_silence(self, track: _Track) -> None:
        split = track.partition.id
        end = self._seen.ends.get(track.partition, track.next)
        end = end if track.bound is None else track.bound
        if end <= track.next or not self._watchdog.overdue([split]):
            return
        raise SourceStalled(
            f"{split}: records {track.next} to {end - 1} wait at the brokers, and nothing has "
            f"arrived for {self._watchdog.silent(split):.0f} s. The client's last error: "
            f"{self._errors.words()}. Likely cause: {self._errors.cause()}."
        )

    def _assigned(self, partitions: Collection[Partition]) -> list[TopicPartition]:
        tracks = [self._tracks[p] for p in sorted(partitions) if p in self._tracks]
        return [_assignment(t.partition) for t in tracks if t.assigned]

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ProcessError(
                "a Kafka reader was opened in another process and has no threads in this one, a "
                "forked child. Open it here: iterate the loader in the process that trains, or "
                "start workers with the method 'spawn'."
            )


def _at_bound(track: _Track) -> bool:
    return track.bound is not None and track.next >= track.bound


def _assignment(
    partition: Partition, offset: int | None = None, epoch: int | None = None
) -> TopicPartition:
    if offset is None:
        return TopicPartition(partition.topic, partition.number)
    return TopicPartition(
        partition.topic, partition.number, offset, leader_epoch=-1 if epoch is None else epoch
    )


def _committed(partition: Partition, position: Position) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number, position.low)


def _divergence(error: KafkaError) -> int | None:
    """Where the log was cut, which the client tells in words only."""
    found = re.search(r"truncation detected.*broker end offset is (\d+)", error.str())
    return None if found is None else int(found[1])

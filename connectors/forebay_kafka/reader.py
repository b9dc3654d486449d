"""Reads the partitions that one rank owns, all through one client."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay.errors import ProcessError, SourceError
from forebay.slice import Slice
from forebay.state import Position
from forebay_kafka.clienterrors import UNREADABLE, ErrorLog, error_of, refused
from forebay_kafka.drain import Drain, Event, Run
from forebay_kafka.lag import Lookout
from forebay_kafka.opening import Opening
from forebay_kafka.outbox import KafkaStats, Outbox
from forebay_kafka.positions import Partition
from forebay_kafka.tracks import Assignment, Track
from forebay_kafka.upkeep import Rules, Upkeep
from forebay_kafka.watchdog import Watchdog

_log = logging.getLogger("forebay.kafka")
# The client's calls do not heed signals while they wait, and news must be looked at.
_STEP_SECONDS = 0.25
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
# Destroying a client in a forked child waits for threads that only its parent has.
_kept_in_child: list[object] = []


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
        self._news = lookout.news
        self._tracks: dict[Partition, Track] = {}
        self._assignment = Assignment(consumer, self._tracks)
        self._outbox = Outbox(rules.on_gap)
        self._watchdog = Watchdog(rules.stall_seconds, errors)
        self._upkeep = Upkeep(self._tracks, self._assignment, self._outbox, rules, lookout.ask)
        self._positions = {o.partition.id: o.position for o in openings}
        self._bounds = {o.partition: o.bound for o in openings}
        self._held: frozenset[str] = frozenset()
        self._failure: SourceError | None = None
        self._closed = False
        self._begin(openings)

    def positions(self) -> Mapping[str, Position]:
        return self._positions

    def poll(self, timeout: float) -> Slice | None:
        self._check_process()
        self._lookout.start()
        self._watchdog.asked()
        deadline = time.monotonic() + timeout
        while (s := self._outbox.next(self._held)) is None:
            if self._failure is not None:
                raise self._failure
            left = deadline - time.monotonic()
            self._fill(min(max(left, 0), _STEP_SECONDS))
            if left <= 0 or self.finished():
                return self._outbox.next(self._held)
        return s

    def pause(self, splits: Collection[str]) -> None:
        self._check_process()
        held = frozenset(splits)
        if held == self._held:
            return
        self._held = held
        for partition in self._assignment.pause([Partition.parse(s) for s in held]):
            self._watchdog.heard(partition.id)

    def finished(self) -> bool:
        all_read = all(t.state == "done" for t in self._tracks.values())
        return self._rules.bounded and all_read and not len(self._outbox)

    def finished_splits(self) -> Collection[str]:
        if not self._rules.bounded:
            return ()
        waiting = self._outbox.splits()
        return [
            t.split for t in self._tracks.values() if t.state == "done" and t.split not in waiting
        ]

    def ends(self) -> Mapping[str, int]:
        """The end offset of each split; of a bounded one, where its reading ends if that is less.

        Asked of the brokers every few seconds, once reading has begun. Splits of which they do not
        tell are left out: an end of before is no end of now.
        """
        out = {}
        news = self._lookout.news
        for partition, end in news.ends.items():
            if news.silent_since is not None or partition in news.unanswered:
                continue
            bound = self._bounds.get(partition)
            out[partition.id] = end if bound is None else min(end, bound)
        return out

    def stats(self) -> KafkaStats:
        """What was read, lost and complained of so far. Any thread."""
        return self._outbox.stats(self._errors.counts())

    def counts(self) -> Mapping[str, float]:
        """The same as plain numbers; the client's errors by what they mean."""
        stats = self.stats()
        return {
            "records": stats.records,
            "bytes": stats.bytes,
            "slices": stats.slices,
            "tombstones": stats.tombstones,
            "lost_records": stats.lost,
            "resets": stats.resets,
            **{f"{kind}_errors": n for kind, n in self._errors.by_kind().items()},
        }

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
        if not self._closed:
            self._closed = True
            self._lookout.close()
            self._consumer.close()

    def _begin(self, openings: Sequence[Opening]) -> None:
        starts = {}
        for o in openings:
            identity = self._news.topics[o.partition.topic].identity
            track = self._tracks[o.partition] = Track(o.partition, identity, o.at, o.bound)
            if o.gap is not None:
                self._outbox.leap(track, o.gap, o.position.low, o.at)
            if track.at_bound:
                track.state = "done"
            else:
                starts[o.partition] = (o.at, o.epoch)
        self._assignment.begin(starts)

    def _fill(self, timeout: float) -> None:
        """Take what the client has; a failure is kept until all that came before it was given."""
        try:
            self._heed_news()
            records = False
            for item in self._drain.take(timeout):
                if isinstance(item, Run):
                    records = True
                    self._take_run(item)
                else:
                    self._take_event(item)
            if not records:
                self._watchdog.look(self._wanted(), self._news)
        except SourceError as e:
            self._failure = e
        except KafkaException as e:
            self._failure = SourceError(f"the Kafka client failed: {error_of(e).str()}")

    def _heed_news(self) -> None:
        news = self._lookout.news
        if news is not self._news:
            self._news = news
            self._upkeep.heed(news)

    def _wanted(self) -> list[Track]:
        paused = self._assignment.paused
        return [t for t in self._tracks.values() if t.reading and t.partition not in paused]

    def _take_run(self, run: Run) -> None:
        track = self._tracks.get(run.partition)
        if track is None or not track.reading or run.next_offset <= track.next:
            return  # fetched for an assignment that was replaced since
        self._outbox.put(track, run)
        self._heard(track)

    def _take_event(self, event: Event) -> None:
        track = None if event.partition is None else self._tracks.get(event.partition)
        code = event.error.code()
        if code != KafkaError._PARTITION_EOF:
            self._errors(event.error)
        if event.error.fatal():
            raise SourceError(f"the Kafka client gave up: {event.error.str()}")
        if track is None or not track.reading:
            return
        if code == KafkaError._PARTITION_EOF:
            self._take_end(track, event)
        elif code in _OUT_OF_RANGE:
            self._upkeep.suspect(track, _divergence(event.error))
        elif code in UNREADABLE:
            self._upkeep.leave_out(
                track,
                f"a batch cannot be read and is left out ({event.error.str()})",
                "Find out what damaged it; to go on without it, set on_gap='earliest'.",
            )
        elif code in _UNKNOWN:
            self._lookout.ask()
        elif refused(event.error) and track.refused_since is None:
            track.refused_since = time.monotonic()

    def _take_end(self, track: Track, event: Event) -> None:
        """All was read up to here. Markers of transactions take offsets and give no record."""
        end = track.next if event.offset is None else event.offset
        end = end if track.bound is None else min(end, track.bound)
        if end > track.next:
            self._outbox.move(track, end, self._assignment.epoch_before(track, end))
        self._heard(track)

    def _heard(self, track: Track) -> None:
        self._watchdog.heard(track.split)
        self._errors.forget()
        track.refused_since = None
        if track.at_bound:
            self._assignment.drop(track, "done")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ProcessError(
                "a Kafka reader was opened in another process and has no threads in this one, a "
                "forked child. Open it here: iterate the loader in the process that trains, or "
                "start workers with the method 'spawn'."
            )


def _committed(partition: Partition, position: Position) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number, position.low)


def _divergence(error: KafkaError) -> int | None:
    """Where the log was cut, which the client tells in words only."""
    found = re.search(r"truncation detected.*broker end offset is (\d+)", error.str())
    return None if found is None else int(found[1])

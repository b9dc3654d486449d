"""One partition's log: whole record batches as bytes, with the bookkeeping a leader does."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay_kafka.devbroker import batches, records
from forebay_kafka.devbroker.codes import Code, Refusal

REMEMBERED_BATCHES = 5  # Kafka's own number: what a producer may have in flight
TRIM_SHARE = 0.05  # cut old data in strides, as segments do, not batch by batch
UNDEFINED = -1


class Stored(NamedTuple):
    """A batch in the log."""

    base: int
    last: int
    max_timestamp: int
    data: bytearray


class Aborted(NamedTuple):
    """An aborted transaction: its first record and its marker."""

    producer_id: int
    first: int
    last: int


class EpochStart(NamedTuple):
    """The first offset that was written under a leader epoch."""

    epoch: int
    start: int


class Appended(NamedTuple):
    """Where a produce request's records went; `timestamp` is -1 unless the broker set it."""

    base: int
    timestamp: int


class Chunk(NamedTuple):
    """Consecutive batches for a fetch answer."""

    data: list[bytearray]
    size: int


@dataclass(slots=True)
class Producer:
    """What the log remembers of an idempotent producer, to recognise a repeated request."""

    epoch: int
    recent: deque[tuple[int, int, int]] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES)
    )
    """(first sequence, last sequence, base offset) of the newest batches."""


class PartitionLog:
    """Offsets from `start` up to but without `end`; used on the broker's event loop only."""

    def __init__(self, retention_bytes: int) -> None:
        self.retention_bytes = retention_bytes
        self.start = 0
        self.end = 0
        self.size = 0
        self.epochs = [EpochStart(0, 0)]
        self.batches: list[Stored] = []
        self.open_transactions: dict[int, int] = {}
        self.aborted: list[Aborted] = []
        self._producers: dict[int, Producer] = {}

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch

    @property
    def stable_end(self) -> int:
        """The last stable offset: readers of committed data stop at the oldest open transaction."""
        return min(self.open_transactions.values(), default=self.end)

    def readable_end(self, *, committed_only: bool) -> int:
        return self.stable_end if committed_only else self.end

    # Writing

    def append(
        self, parts: list[bytearray], *, max_batch_bytes: int, append_time: bool
    ) -> Appended:
        """Append the batches of a produce request; Refusal says why not."""
        for batch in parts:
            if len(batch) > max_batch_bytes:
                raise Refusal(Code.MESSAGE_TOO_LARGE)
        now_ms = _now_ms() if append_time else UNDEFINED
        base = UNDEFINED
        for batch in parts:
            repeated = self._check_producer(batches.header(batch))
            if repeated is not None:
                base = repeated if base == UNDEFINED else base
                continue
            if append_time:
                batches.stamp_append_time(batch, now_ms)
            at = self._store(batch)
            base = at if base == UNDEFINED else base
        self._trim()
        return Appended(base, now_ms)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Write the marker, and let readers of committed data pass."""
        first = self.open_transactions.pop(producer_id, None)
        marker = batches.transaction_marker(
            producer_id, producer_epoch, committed=committed, now_ms=_now_ms()
        )
        last = self._store(marker)
        if first is not None and not committed:
            self.aborted.append(Aborted(producer_id, first, last))

    def _store(self, batch: bytearray) -> int:
        base = self.end
        batches.stamp(batch, base, self.epoch)
        head = batches.header(batch)
        last = base + head.last_offset_delta
        self.batches.append(Stored(base, last, head.max_timestamp, batch))
        self.end = last + 1
        self.size += len(batch)
        if head.is_transactional and not head.is_control:
            self.open_transactions.setdefault(head.producer_id, base)
        return base

    def _check_producer(self, head: batches.Header) -> int | None:
        """The old base offset if this batch is here already; Refusal if it is out of turn."""
        if head.producer_id == batches.NO_PRODUCER or head.base_sequence < 0:
            return None
        known = self._producers.get(head.producer_id)
        if known is not None and head.producer_epoch < known.epoch:
            raise Refusal(Code.INVALID_PRODUCER_EPOCH)
        if known is None or head.producer_epoch > known.epoch:
            known = self._producers[head.producer_id] = Producer(head.producer_epoch)
        last_sequence = _sequence_after(head.base_sequence, head.last_offset_delta)
        for first, last, base in known.recent:
            if (first, last) == (head.base_sequence, last_sequence):
                return base
        if known.recent and head.base_sequence != _sequence_after(known.recent[-1][1], 1):
            raise Refusal(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        known.recent.append((head.base_sequence, last_sequence, self.end))
        return None

    # Reading

    def read(self, offset: int, *, max_bytes: int, before: int, at_least_one: bool) -> Chunk:
        """Whole batches from the one that holds `offset`, all starting below offset `before`."""
        data: list[bytearray] = []
        size = 0
        for index in range(self._index(offset), len(self.batches)):
            batch = self.batches[index]
            if batch.base >= before:
                break
            if size + len(batch.data) > max_bytes and (data or not at_least_one):
                break
            data.append(batch.data)
            size += len(batch.data)
        return Chunk(data, size)

    def aborted_between(self, offset: int, before: int) -> list[Aborted]:
        return [gone for gone in self.aborted if gone.last >= offset and gone.first < before]

    def first_at(self, timestamp: int) -> tuple[int, int]:
        """(offset, timestamp) of the first record at or after a time; (-1, -1) if there is none."""
        for batch in self.batches:
            if batch.max_timestamp >= timestamp:
                for record in self._live_records(batch):
                    if record.timestamp >= timestamp:
                        return record.offset, record.timestamp
        return UNDEFINED, UNDEFINED

    def newest(self) -> tuple[int, int]:
        """(offset, timestamp) of the first record that has the highest timestamp; else (-1, -1)."""
        best = max(self.batches, key=lambda batch: batch.max_timestamp, default=None)
        if best is None:
            return UNDEFINED, UNDEFINED
        record = max(records.walk(best.data), key=lambda record: record.timestamp)
        return record.offset, record.timestamp

    def _live_records(self, batch: Stored) -> list[records.Record]:
        if batches.header(batch.data).is_control:
            return []
        return [record for record in records.walk(batch.data) if record.offset >= self.start]

    def _index(self, offset: int) -> int:
        return bisect_left(self.batches, offset, key=_last_offset)

    # Leader epochs

    def check_epoch(self, seen: int) -> None:
        """Refuse a client whose idea of the leader epoch is older or newer than the log's."""
        if seen == UNDEFINED or seen == self.epoch:
            return
        raise Refusal(Code.FENCED_LEADER_EPOCH if seen < self.epoch else Code.UNKNOWN_LEADER_EPOCH)

    def end_of_epoch(self, epoch: int) -> EpochStart:
        """The newest epoch not above the one asked for, and where the log left it.

        A client whose position lies behind that offset holds records that were truncated.
        """
        if epoch == self.epoch:
            return EpochStart(epoch, self.end)
        later = [entry for entry in self.epochs if entry.epoch > epoch]
        if not later:
            return EpochStart(UNDEFINED, UNDEFINED)
        earlier = [entry.epoch for entry in self.epochs if entry.epoch <= epoch]
        return EpochStart(max(earlier, default=epoch), later[0].start)

    # Losing data

    def truncate(self, to_offset: int) -> None:
        """Drop everything from `to_offset` on under a new leader epoch: an unclean election."""
        if not self.start <= to_offset <= self.end:
            raise Refusal(
                Code.OFFSET_OUT_OF_RANGE,
                f"cannot truncate to {to_offset}: the log holds {self.start} to {self.end}",
            )
        next_epoch = self.epoch + 1
        index = self._index(to_offset)
        cut = self.batches[index] if index < len(self.batches) else None
        del self.batches[index:]
        if cut is not None and cut.base < to_offset:
            shorter = records.keep_before(cut.data, to_offset)
            self.batches.append(Stored(cut.base, to_offset - 1, cut.max_timestamp, shorter))
        self.end = to_offset
        self.size = sum(len(batch.data) for batch in self.batches)
        self.epochs = [entry for entry in self.epochs if entry.start < to_offset]
        self.epochs.append(EpochStart(next_epoch, to_offset))
        self._forget_from(to_offset)

    def delete_before(self, offset: int) -> None:
        """Move the log start forward; batches that lie before it altogether are freed."""
        if offset == UNDEFINED:
            offset = self.end
        if not 0 <= offset <= self.end:
            raise Refusal(Code.OFFSET_OUT_OF_RANGE)
        self._drop_batches(self._index(offset), max(self.start, offset))

    def _trim(self) -> None:
        """Delete the oldest batches once the log outgrows its bound; the newest one stays."""
        if self.retention_bytes < 0 or self.size <= self.retention_bytes:
            return
        excess = self.size - int(self.retention_bytes * (1 - TRIM_SHARE))
        count = 0
        while excess > 0 and count < len(self.batches) - 1:
            excess -= len(self.batches[count].data)
            count += 1
        if count:
            self._drop_batches(count, self.batches[count].base)

    def _drop_batches(self, count: int, start: int) -> None:
        self.size -= sum(len(batch.data) for batch in self.batches[:count])
        del self.batches[:count]
        self.start = start
        self.aborted = [gone for gone in self.aborted if gone.last >= start]

    def _forget_from(self, offset: int) -> None:
        """Producers start anew: what the log knew of their sequences may be gone."""
        self._producers.clear()
        self.aborted = [gone for gone in self.aborted if gone.last < offset]
        self.open_transactions = {
            producer: first for producer, first in self.open_transactions.items() if first < offset
        }


def _last_offset(batch: Stored) -> int:
    return batch.last


def _sequence_after(sequence: int, steps: int) -> int:
    """Sequence numbers wrap from 2**31 - 1 to 0."""
    return (sequence + steps) & 0x7FFFFFFF


def _now_ms() -> int:
    return int(time.time() * 1000)

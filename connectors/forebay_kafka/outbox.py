"""Slices that are ready to be given, and the count of what they held."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from forebay.columns import cut
from forebay.slice import Slice
from forebay_kafka.drain import Run
from forebay_kafka.gaps import Gap, OnGap
from forebay_kafka.tracks import Track

_log = logging.getLogger("forebay.kafka")
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStats:
    """What a reader has done since it was opened."""

    records: int = 0
    bytes: int = 0
    """Bytes of values."""
    slices: int = 0
    """Slices with records."""
    tombstones: int = 0
    """Records without a value, kept or skipped."""
    lost: int = 0
    """At most so many records were gone before they could be read."""
    resets: int = 0
    """Splits that began anew: topic re-created, log cut."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Errors that the client reported, by name; most of them it mends itself."""


class Outbox:
    """Ready slices in order. The slices of a split follow each other without a hole."""

    def __init__(self, on_gap: OnGap) -> None:
        self._on_gap = on_gap
        self._ready: deque[Slice] = deque()
        self._records = self._bytes = self._slices = self._tombstones = 0
        self._lost = self._resets = 0

    def stats(self, errors: Mapping[str, int]) -> KafkaStats:
        """The counts so far. Any thread."""
        return KafkaStats(
            records=self._records,
            bytes=self._bytes,
            slices=self._slices,
            tombstones=self._tombstones,
            lost=self._lost,
            resets=self._resets,
            errors=errors,
        )

    def __len__(self) -> int:
        return len(self._ready)

    def splits(self) -> Collection[str]:
        """The splits of which slices are ready."""
        return {s.split for s in self._ready}

    def next(self, held: Collection[str]) -> Slice | None:
        """The oldest slice that is not of the splits ``held``."""
        if not held:
            return self._ready.popleft() if self._ready else None
        for i, s in enumerate(self._ready):
            if s.split not in held:
                del self._ready[i]
                return s
        return None

    def put(self, track: Track, run: Run) -> None:
        """What a run has between the track's next offset and its bound."""
        stop = run.next_offset if track.bound is None else min(run.next_offset, track.bound)
        columns, offsets, times = run.columns, run.offsets, run.times
        if len(offsets) and (offsets[0] < track.next or offsets[-1] >= stop):
            a, b = (int(i) for i in np.searchsorted(offsets, [track.next, stop]))
            columns, offsets = cut(columns, a, b) if a < b else {}, offsets[a:b]
            times = None if times is None else times[a:b]
        s = Slice(
            split=track.split,
            columns=columns,
            offsets=offsets,
            start=track.next,
            next_offset=stop,
            token=track.token_of(run.epoch),
            event_times=times,
        )
        self._records += len(offsets)
        self._bytes += run.nbytes
        self._slices += 1
        self._tombstones += run.tombstones
        self._ready.append(s)
        track.next = stop

    def move(self, track: Track, to: int, epoch: int | None) -> None:
        """Move the position past offsets that give no records, by a slice without rows."""
        track.token_of(epoch)
        self._empty(track, track.next, to)

    def leap(self, track: Track, gap: Gap, start: int, to: int) -> None:
        """Move the position over what is lost, and count it."""
        _log.warning("%s Going on at offset %d.", gap.error(), to)
        self._lost += gap.skipped(self._on_gap)
        self._resets += gap.resets
        if gap.resets:
            # Whether these are of the old log or of the new one cannot be told; the new one is
            # read from its beginning.
            self._ready = deque(s for s in self._ready if s.split != track.split)
            start = to
        self._empty(track, start, to, resets=gap.resets)

    def _empty(self, track: Track, start: int, to: int, *, resets: bool = False) -> None:
        self._ready.append(
            Slice(
                split=track.split,
                columns={},
                offsets=_NO_ROWS,
                start=start,
                next_offset=to,
                token=track.token,
                resets=resets,
            )
        )
        track.next = to

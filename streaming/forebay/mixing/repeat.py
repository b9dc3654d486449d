"""A bounded source without end: when all its splits were read to their end, it begins anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from forebay.errors import SourceError
from forebay.slice import Slice, Token
from forebay.source import Owns, Reader, Source, added, counts_of
from forebay.state import Position

_ROUND = "round"


class Repeated:
    """Reads a member's splits round after round: a ``Reader``.

    The round of a split is part of its token, from the second on: a state in which some splits
    are a round ahead of others resumes exactly. A round begins, for each split, with a slice
    without rows that ``resets`` it.
    """

    def __init__(
        self, name: str, source: Source, positions: Mapping[str, Position], owns: Owns
    ) -> None:
        self._name, self._source, self._owns = name, source, owns
        self._rounds = {k: round_of(p.token) for k, p in positions.items()}
        self._reader: Reader = source.open({k: _bare(p) for k, p in positions.items()}, owns)
        at = self._reader.positions()
        self._began = {k: self._tagged_position(k, p) for k, p in at.items()}
        self._base = {k: p.low if p.base is None else p.base for k, p in at.items()}
        self._next = dict(at)
        self._markers: deque[Slice] = deque()
        self._paused: Collection[str] = ()
        self._whole, self._rows = False, 0
        # Of the rounds before, and the reader of this one: changed at once, as any thread counts.
        self._counted: tuple[Mapping[str, float], Reader] = ({}, self._reader)

    def positions(self) -> Mapping[str, Position]:
        return self._began

    def poll(self, timeout: float) -> Slice | None:
        """The next slice; None, too, where a round begins, so that an engine hears of the end."""
        if (marker := self._unpaused_marker()) is not None:
            return marker
        s = self._reader.poll(timeout)
        if s is not None:
            return self._noted(s)
        if not self._markers and self._at_end():
            self._begin_round()
        return None

    def pause(self, splits: Collection[str]) -> None:
        self._paused = splits
        self._reader.pause(splits)

    def finished_splits(self) -> Collection[str]:
        """The splits that were read to the end of this round, and wait for others."""
        if self._at_end():
            return ()
        begin = {m.split for m in self._markers}
        return [k for k in self._reader.finished_splits() if k not in begin]

    def ends(self) -> Mapping[str, int]:
        return self._reader.ends()

    def counts(self) -> Mapping[str, float]:
        """Of all rounds together."""
        before, reader = self._counted
        return added(before, counts_of(reader))

    def close(self) -> None:
        self._reader.close()

    def _noted(self, s: Slice) -> Slice:
        if s.resets:
            self._base[s.split] = s.start
        self._base.setdefault(s.split, s.start)
        self._rows += len(s)
        before = self._next.get(s.split)
        token = s.token if s.token is not None or before is None else before.token
        base = self._base[s.split]
        self._next[s.split] = Position(s.next_offset, token=token, base=base)
        return replace(s, token=_tagged(s.token, self._rounds.get(s.split, 0)))

    def _at_end(self) -> bool:
        return bool(self._next) and set(self._reader.finished_splits()) >= self._next.keys()

    def _begin_round(self) -> None:
        """Open the source anew: at their first offset the splits that are not a round ahead.

        Raises:
            SourceError: there is nothing to repeat.
        """
        behind = min(self._rounds.get(k, 0) for k in self._next)
        again = sorted(k for k in self._next if self._rounds.get(k, 0) == behind)
        if self._whole and not self._rows:
            raise SourceError(
                f"mix: the source {self._name!r} has no rows, so it cannot be repeated. Leave it "
                'out, or mix with when_dry="others".'
            )
        self._whole, self._rows = len(again) == len(self._next), 0
        for k in again:
            base = self._base[k]
            self._next[k] = Position(base, token=self._next[k].token, base=base)
            self._rounds[k] = behind + 1
        before = self.counts()
        self._reader.close()
        self._reader = self._source.open(self._next, self._owns)
        self._counted = (before, self._reader)
        self._reader.pause(self._paused)
        at = self._reader.positions()
        self._markers.extend(self._marker(k, at.get(k, self._next[k])) for k in again)

    def _marker(self, split: str, p: Position) -> Slice:
        return Slice(
            split=split,
            columns={},
            offsets=np.zeros(0, np.int64),
            start=p.low,
            next_offset=p.low,
            token=_tagged(p.low_token, self._rounds[split]),
            resets=True,
        )

    def _unpaused_marker(self) -> Slice | None:
        for marker in self._markers:
            if marker.split not in self._paused:
                self._markers.remove(marker)
                return marker
        return None

    def _tagged_position(self, split: str, p: Position) -> Position:
        number = self._rounds.get(split, 0)
        pending = tuple(r._replace(token=_tagged(r.token, number)) for r in p.pending)
        return replace(p, token=_tagged(p.token, number), pending=pending)


def round_of(token: Token | None) -> int:
    """The round of a split where this token is valid; the first is 0."""
    return int((token or {}).get(_ROUND, 0))


def _tagged(token: Token | None, number: int) -> Token | None:
    return {**(token or {}), _ROUND: number} if number else token


def _untagged(token: Token | None) -> Token | None:
    rest: dict[str, Any] = {k: v for k, v in (token or {}).items() if k != _ROUND}
    return rest or None


def _bare(p: Position) -> Position:
    """The position as the source itself gave it."""
    pending = tuple(r._replace(token=_untagged(r.token)) for r in p.pending)
    return replace(p, token=_untagged(p.token), pending=pending)

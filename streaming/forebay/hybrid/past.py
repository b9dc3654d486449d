"""The history's side of a hybrid reader: its slices with tokens that remember what live needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from forebay.hybrid.handover import Handover
from forebay.hybrid.slices import HISTORY, HISTORY_ENDS, given_on, mark
from forebay.hybrid.tokens import all_seen, end_of, history_token, wrapped
from forebay.slice import Slice, Token
from forebay.source import Reader, counts_of
from forebay.state import Position


class Past:
    """Reads the history of one rank. The reading thread only, but for ``ends``.

    Args:
        reader: on all splits but those that were delivered to their end.
        saved: the positions of the state, for what their tokens know.
    """

    def __init__(
        self,
        reader: Reader,
        handover: Handover,
        columns: Sequence[str] | None,
        saved: Mapping[str, Position],
    ) -> None:
        self._reader, self._handover, self._columns = reader, handover, columns
        self._began = reader.positions()
        self._at = {k: p.low for k, p in self._began.items()}
        self._own_tokens: dict[str, Token | None] = {k: p.low_token for k, p in self._began.items()}
        self._limits = {k: end for k, p in saved.items() if (end := end_of(p)) is not None}
        self._seen: Mapping[str, int] = all_seen(saved.values())
        self._finished: frozenset[str] = frozenset()
        self._last = max(self._at, default="")
        self._closed = False

    @property
    def seen(self) -> Mapping[str, int]:
        """The largest offset of each live split in all that was read. Never changed in place."""
        return self._seen

    @property
    def over(self) -> bool:
        """Whether all was given."""
        return self._finished >= self._at.keys()

    @property
    def splits(self) -> Collection[str]:
        """The splits that are or were read."""
        return self._at.keys()

    def positions(self) -> dict[str, Position]:
        """Where reading began."""
        return {
            k: wrapped(p, lambda of: history_token(of, self._seen), self._limits.get(k))
            for k, p in self._began.items()
        }

    def finished(self) -> Collection[str]:
        """The splits that were given to their end."""
        return self._finished

    def finished_but_last(self) -> Collection[str]:
        """The same, but never all: the split that a slice was given of last is left out then."""
        return self._finished - {self._last} if self.over else self._finished

    def pause(self, splits: Collection[str]) -> None:
        """As ``Reader.pause``; names of other sources are passed over."""
        self._reader.pause(frozenset(splits) & self._at.keys())

    def poll(self, timeout: float) -> Slice | None:
        """As ``Reader.poll``."""
        s = self._reader.poll(timeout)
        if s is not None and (s := self._within_limit(s)) is not None:
            return self._given(s)
        self._note_finished()
        return None

    def end_marks(self) -> list[Slice]:
        """For each split a slice without rows whose token says that this is its end.

        A state that has it never opens the split again, whatever comes into the history later.
        """
        return [
            mark(k, at, history_token(self._own_tokens[k], self._seen, at), HISTORY_ENDS)
            for k, at in self._at.items()
        ]

    def ends(self) -> Mapping[str, int]:
        """As ``Reader.ends``. Any thread."""
        return dict(self._at) if self._closed else self._reader.ends()

    def counts(self) -> Mapping[str, float]:
        """As ``Counting.counts``; also once it was closed. Any thread."""
        return counts_of(self._reader)

    def close(self) -> None:
        """May be called twice."""
        if not self._closed:
            self._closed = True
            self._reader.close()

    def _within_limit(self, s: Slice) -> Slice | None:
        """The part before the end that an earlier run came to."""
        limit = self._limits.get(s.split)
        if limit is None or s.next_offset <= limit:
            return s
        return s.between(s.start, limit) if s.start < limit else None

    def _given(self, s: Slice) -> Slice:
        self._at[s.split], self._last = s.next_offset, s.split
        self._own_tokens[s.split] = s.token or self._own_tokens.get(s.split)
        self._note_seen(self._handover.seen(s))
        part = self._handover.history_part(s)
        return given_on(part, history_token(s.token, self._seen), HISTORY, self._columns)

    def _note_seen(self, seen: Mapping[str, int]) -> None:
        larger = {k: v for k, v in seen.items() if v > self._seen.get(k, -1)}
        if larger:
            self._seen = {**self._seen, **larger}

    def _note_finished(self) -> None:
        at_limit = {k for k, end in self._limits.items() if self._at.get(k, -1) >= end}
        self._finished = frozenset({*self._reader.finished_splits(), *at_limit} & self._at.keys())

"""The live side of a hybrid reader."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from forebay.hybrid.handover import Handover
from forebay.hybrid.slices import HISTORY, LIVE_BEGINS, LIVE_ROWS, given_on, mark
from forebay.hybrid.tokens import live_token, wrapped
from forebay.slice import Slice
from forebay.source import Reader, counts_of
from forebay.state import Position


class Present:
    """Reads the live source of one rank. The reading thread only, but for ``ends``.

    Args:
        groups: how many splits each group had at the hand-over.
        after_history: whether the history was read by this same reader, and goes before it.
    """

    def __init__(
        self,
        reader: Reader,
        handover: Handover,
        columns: Sequence[str] | None,
        groups: Mapping[str, int],
        *,
        after_history: bool,
    ) -> None:
        self._reader, self._handover, self._columns = reader, handover, columns
        self._groups, self._after_history = groups, after_history

    def positions(self) -> dict[str, Position]:
        """Where reading began."""
        began = self._reader.positions()
        return {k: wrapped(p, self._token) for k, p in began.items()}

    def marks(self) -> list[Slice]:
        """A slice without rows for each split: where it begins."""
        return [mark(k, p.offset, p.token or {}, LIVE_BEGINS) for k, p in self.positions().items()]

    def poll(self, timeout: float) -> Slice | None:
        """As ``Reader.poll``."""
        s = self._reader.poll(timeout)
        if s is None:
            return None
        phase = LIVE_ROWS if self._after_history else HISTORY
        return given_on(self._handover.live_part(s), self._token(s.token), phase, self._columns)

    def pause(self, splits: Collection[str]) -> None:
        """As ``Reader.pause``."""
        self._reader.pause(splits)

    def finished(self) -> Collection[str]:
        """As ``Reader.finished_splits``."""
        return self._reader.finished_splits()

    def ends(self) -> Mapping[str, int]:
        """As ``Reader.ends``. Any thread."""
        return self._reader.ends()

    def counts(self) -> Mapping[str, float]:
        """As ``Counting.counts``. Any thread."""
        return counts_of(self._reader)

    def close(self) -> None:
        """May be called twice."""
        self._reader.close()

    def _token(self, of: Mapping[str, object] | None) -> Mapping[str, object]:
        return live_token(of, self._groups)

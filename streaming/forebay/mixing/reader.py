"""Reads the members of a mix in about the proportion in which their rows are used."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack

import numpy as np

from forebay.mixing.repeat import Repeated
from forebay.slice import Slice
from forebay.source import Reader, counts_of
from forebay.state import Position

# One member waits for data at most so long while another may have some.
_WAIT_SECONDS = 0.005
# While some splits are paused: others may be asked for any moment.
_PAUSED_SECONDS = 0.01
# A member that gave nothing for so long has none: a client may take a while to fetch.
_DRY_SECONDS = 0.2
# How much more of a member is read when it was the one that was waited for.
_STEP, _LARGEST = 1.25, 1e6
_SLICE_BYTES = 600  # beside its rows: a member of empty slices must not be read without end


class MixedReader:
    """Reads several sources as one: a ``Reader``.

    The window of an engine should hold the members as the mix uses them, or what is waited for
    is read slice by slice beyond a full window. How much of a member the stages leave is not
    known here; but whom the engine reads beyond the window (it pauses all others) was read too
    little, and gets a larger part.

    Args:
        readers: of the members, by name; closed by ``close``.
        bounded: the members that end.
        says_dry: whether a member without data is told of by slices without rows, one for each
            of its splits, that begin and end where reading stands. They come after all that was
            read of the split.
    """

    def __init__(
        self,
        readers: Mapping[str, Reader],
        weights: Mapping[str, float],
        *,
        bounded: Collection[str],
        says_dry: bool,
    ) -> None:
        self._members = [_Member(r, weights[k], k in bounded) for k, r in readers.items()]
        self._says_dry = says_dry
        self._some_paused = False
        self._now = 0.0

    def positions(self) -> Mapping[str, Position]:
        return {k: p for m in self._members for k, p in m.reader.positions().items()}

    def poll(self, timeout: float) -> Slice | None:
        left = min(timeout, _PAUSED_SECONDS) if self._some_paused else timeout
        deadline, wait = time.monotonic() + left, 0.0
        while True:
            members = [m for m in self._members if m.gives]
            for member in sorted(members, key=lambda m: m.used):
                s = member.poll(wait)
                if s is not None:
                    return self._counted(member, s)
                if self._says_dry and (s := member.notice()) is not None:
                    return s
                if member.has_news():
                    return None  # so that the engine asks which splits are finished
            if left <= 0:
                return None
            if not members:
                threading.Event().wait(left)
            left = deadline - time.monotonic()
            wait = max(0.0, min(_WAIT_SECONDS, left / max(len(members), 1)))

    def pause(self, splits: Collection[str]) -> None:
        self._some_paused = bool(splits)
        for member in self._members:
            member.pause(splits)
        waited_for = [m for m in self._members if not m.paused]
        if splits and len(waited_for) < len(self._members):
            for member in waited_for:
                member.part = min(member.part * _STEP, _LARGEST)

    def finished_splits(self) -> Collection[str]:
        return [k for m in self._members for k in m.tell_finished()]

    def ends(self) -> Mapping[str, int]:
        return {k: end for m in self._members for k, end in m.reader.ends().items()}

    def counts(self) -> Mapping[str, float]:
        return counts_of(*(m.reader for m in self._members))

    def close(self) -> None:
        """Close all members, whatever one of them raises."""
        with ExitStack() as stack:
            for member in self._members:
                stack.callback(member.reader.close)

    def _counted(self, member: _Member, s: Slice) -> Slice:
        """The slice, counted so that the member's turn comes by its part.

        One that had nothing for a while does not make up for it.
        """
        self._now = max(self._now, member.used)
        member.used = self._now + (s.nbytes + _SLICE_BYTES) / member.part
        return s


class _Member:
    """One member's reader, and what is known of it."""

    def __init__(self, reader: Reader, part: float, bounded: bool) -> None:
        self.reader, self.part, self._bounded = reader, part, bounded
        self.used = 0.0
        self.paused = False
        self._at = {k: (p.low, 0 if p.pending else p.skip) for k, p in reader.positions().items()}
        self._paused_splits: Collection[str] = ()
        self._unsaid = set(self._at)
        self._empty_since: float | None = None
        self._finished: frozenset[str] = frozenset()

    @property
    def gives(self) -> bool:
        """Whether polling it makes sense."""
        over = bool(self._finished) and self._finished >= self._at.keys()
        return not self.paused and (not over or isinstance(self.reader, Repeated))

    def poll(self, timeout: float) -> Slice | None:
        s = self.reader.poll(timeout)
        if s is None:
            self._empty_since = self._empty_since or time.monotonic()
        else:
            self._empty_since = None
            self._at[s.split] = (s.next_offset, s.skip)
            self._unsaid.add(s.split)
        return s

    def pause(self, splits: Collection[str]) -> None:
        # A reader may refuse names that are not its own, as that of a topic does.
        self.reader.pause(self._at.keys() & splits)
        self._paused_splits = splits
        self.paused = bool(splits) and self._at.keys() <= set(splits)
        if self.paused:
            self._empty_since = None

    def notice(self) -> Slice | None:
        """A slice that says that nothing more of its split is there now."""
        since = self._empty_since
        if since is None or time.monotonic() - since < _DRY_SECONDS:
            return None
        split = min(self._unsaid.difference(self._paused_splits, self._finished), default=None)
        if split is None:
            return None
        self._unsaid.remove(split)
        at, skip = self._at[split]
        nothing = np.zeros(0, np.int64)
        return Slice(
            split=split,
            columns={},
            offsets=nothing,
            start=at,
            next_offset=at,
            lead=skip,
            skip=skip,
        )

    def has_news(self) -> bool:
        """Whether other splits are finished than were told last."""
        return self._bounded and frozenset(self.reader.finished_splits()) != self._finished

    def tell_finished(self) -> Collection[str]:
        """The splits that are finished; the caller then has no old news."""
        self._finished = frozenset(self.reader.finished_splits())
        return self._finished

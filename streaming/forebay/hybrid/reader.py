"""Reads a history to its end, opens the live source from there, and reads on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from forebay.hybrid.past import Past
from forebay.hybrid.present import Present
from forebay.slice import Slice
from forebay.source import added
from forebay.state import Position


class HybridReader:
    """A ``forebay.source.Reader``; made by ``HybridSource.open``.

    Args:
        past: the history; None if nothing of it is left to be read.
        present: the live source, if it is open already; it is then read beside what is left of
            the history.
        open_present: opens it from what the history has seen, on a thread of its own: that may
            take longer than a poll may.
    """

    def __init__(
        self,
        past: Past | None,
        present: Present | None,
        open_present: Callable[[Mapping[str, int]], Present],
    ) -> None:
        self._past, self._present, self._open_present = past, present, open_present
        self._opener: ThreadPoolExecutor | None = None
        self._opening: Future[Present] | None = None
        self._marks: deque[Slice | None] = deque()
        self._paused: frozenset[str] = frozenset()
        self._positions = {
            **(past.positions() if past else {}),
            **(present.positions() if present else {}),
        }

    def positions(self) -> Mapping[str, Position]:
        """What is known when opened: the live splits are not, while a history goes before them."""
        return self._positions

    def poll(self, timeout: float) -> Slice | None:
        if self._marks:
            return self._marks.popleft()
        past, present = self._past, self._present
        if past is not None and not past.over:
            s = past.poll(timeout / 2 if present else timeout)
            return s if s is not None or present is None else present.poll(timeout / 2)
        return self._cross(timeout) if present is None else present.poll(timeout)

    def pause(self, splits: Collection[str]) -> None:
        self._paused = frozenset(splits)
        if self._past is not None and not self._past.over:
            self._past.pause(self._paused)
        if self._present is not None:
            self._present.pause(self._paused_live())

    def finished_splits(self) -> Collection[str]:
        """The last split of the history is not named before the live splits are known: an engine
        would take that for the end of all."""
        past, present = self._past, self._present
        if present is None or self._marks:
            return past.finished_but_last() if past is not None else ()
        return {*(past.finished() if past else ()), *present.finished()}

    def ends(self) -> Mapping[str, int]:
        past, present = self._past, self._present
        return {**(past.ends() if past else {}), **(present.ends() if present else {})}

    def counts(self) -> Mapping[str, float]:
        """Of both sides together; those of the live one come with it."""
        return added(*(side.counts() for side in (self._past, self._present) if side is not None))

    def close(self) -> None:
        if self._opener is not None:
            self._opener.shutdown(wait=True)
        opened = self._opening
        if opened is not None and opened.exception() is None:
            opened.result().close()
        for side in (self._past, self._present):
            if side is not None:
                side.close()

    def _cross(self, timeout: float) -> Slice | None:
        """Go from the history to live, as far as that comes within ``timeout``."""
        if self._opening is None:
            assert self._past is not None
            self._past.close()
            self._opener = ThreadPoolExecutor(1, thread_name_prefix="forebay-open-live")
            self._opening = self._opener.submit(self._open_present, self._past.seen)
            self._marks.extend(self._past.end_marks())
            return self._marks.popleft()
        wait([self._opening], timeout)
        if not self._opening.done():
            return None
        present = self._opening.result()
        present.pause(self._paused_live())
        # None at the end: an engine looks for finished splits when nothing comes.
        self._marks.extend([*present.marks(), None])
        self._present = present
        return self._marks.popleft()

    def _paused_live(self) -> frozenset[str]:
        return self._paused.difference(self._past.splits if self._past is not None else ())

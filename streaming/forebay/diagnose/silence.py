"""A source of which nothing comes: told after some patience, in place of waiting for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from forebay.loader import Loader
from forebay.observe.verdict import Verdict
from forebay.options import SplitStats

_LOOK_SECONDS = 0.2
_WORD_SECONDS = 3.0
WORTH_SECONDS = 1.0
"""A silence that is shorter says nothing of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """That nothing came of a source, and how much it still held as far as it told."""

    seconds: float
    unread: int | None
    """Offsets up to the ends that were not read; None: the end of a split is not known."""
    held: int
    """Offsets that were read and given to nobody: they are too few for a batch."""
    splits: int

    @classmethod
    def of(cls, seconds: float, splits: Mapping[str, SplitStats]) -> Silence:
        """The silence of a loader with these splits."""
        fetched = {k: s.delivered if s.fetched is None else s.fetched for k, s in splits.items()}
        ends = [s.end for s in splits.values()]
        unread = None
        if ends and None not in ends:
            unread = sum(max(0, (s.end or 0) - fetched[k]) for k, s in splits.items())
        held = sum(max(0, fetched[k] - s.delivered) + s.pending for k, s in splits.items())
        return cls(seconds=seconds, unread=unread, held=held, splits=len(splits))

    def sentence(self, source: str) -> str:
        """What came, and why no more."""
        nothing = f"nothing came of {source} within {self.seconds:.0f} s"
        if self.unread is None:
            return f"{nothing}; whether more is there is not known: it could not be reached"
        if self.unread:
            return f"{nothing}, though {self.unread:,} records wait there: reading is the limit"
        return f"{nothing}, and all that it holds was read: the producer is the limit"

    def verdict(self, source: str, *, trains: bool) -> Verdict:
        """The verdict where this is all that was seen."""
        who = "The trainer waits for data all the time" if trains else "Nobody trains"
        evidence = [f"records that were not read yet: {self._unread()}"]
        if self.held:
            evidence.append(f"{self.held:,} were read, and wait for more to make a whole batch")
        return Verdict(
            cause="source" if trains else "draining",
            sentence=f"{who}: {self.sentence(source)}.",
            shares={"starved": 1.0},
            evidence=tuple(evidence),
            guess=self._guess(),
            advice=self._advice(),
        )

    def _unread(self) -> str:
        if self.unread is None:
            return "not known, as the source told no end"
        return f"{self.unread:,}, in {self.splits} splits"

    def _guess(self) -> tuple[str, ...]:
        if self.unread == 0:
            return ()
        return ("the broker or the store could not be reached, or answers very slowly",)

    def _advice(self) -> str:
        if self.unread == 0:
            return (
                "let more be written and ask again; to measure with what was read before, ask with "
                "a topology that has no section 'checkpoint'"
            )
        return "look whether it can be reached from here, and at the log lines: --debug"


class Silent(Exception):
    """The wait for a batch was ended: nothing came."""


class SilenceWatch:
    """Ends the wait for a loader's batch when nothing happens in it for ``patience`` seconds.

    Something happens where records are read, a worker works, or workers are being started: stages
    may take as long as they like. ``begin``, ``waiting`` and ``end`` are of the trainer's thread;
    a thread of its own looks, and closes the loader, which ends the wait.

    Args:
        tell: is told, once in each wait, that it lasts; on the thread that looks.
    """

    def __init__(self, loader: Loader, patience: float, tell: Callable[[str], None]) -> None:
        self._loader, self._patience, self._tell = loader, patience, tell
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._since: float | None = None
        self._signs: object = None
        self._changed = 0.0
        """When ``_signs`` did so last; the looking thread's, as ``_since`` is the trainer's."""
        self._told = False
        self.over: Silence | None = None
        """Why a wait was ended."""

    def begin(self) -> None:
        """Look, until ``end``."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="forebay-silence", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, a batch is waited for."""
        self._since, self._told = time.monotonic(), False
        yield  # not where it is interrupted: then ``silence`` tells how long it was
        self._since = None

    def silence(self) -> Silence | None:
        """That of the wait that goes on, or was interrupted; None if there is none."""
        if self.over is not None or self._since is None:
            return self.over
        seconds = time.monotonic() - max(self._since, self._changed)
        return Silence.of(seconds, self._loader.splits())

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        since, signs = self._since, self._seen()
        if since is None:
            return
        if signs is None or signs != self._signs:
            self._signs, self._changed = signs, time.monotonic()
            return
        silent = time.monotonic() - max(since, self._changed)
        if silent >= self._patience:
            self.over = self.over or Silence.of(silent, self._loader.splits())
            self._loader.close()
        elif silent >= _WORD_SECONDS and not self._told:
            self._told = True
            self._tell(f"nothing comes of the source: waiting {self._patience:.0f} s at most")

    def _seen(self) -> object:
        """What changes while anything happens; None while it is being started."""
        pools = self._loader.pools()
        if not pools or any(p.starting for p in pools.values()):
            return None
        splits = self._loader.splits()
        read = sorted((k, s.fetched, s.delivered) for k, s in splits.items())
        return read, sum(p.busy_seconds for p in pools.values())

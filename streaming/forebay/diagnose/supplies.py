"""Where the batches of the doctor's phases come from: a loader, the live pipeline, one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch

from forebay.diagnose.silence import Silence, SilenceWatch, Silent
from forebay.errors import SourceError
from forebay.loader import Loader
from forebay.stepclock import StepClock
from forebay.tensors import Batch

_READ_TO_THE_END = 2
"""Batches that may wait in a source of which all is read as it comes."""
_TRY_SECONDS = 1.0


class Supply(Protocol):
    """Where the batches of a phase come from. The trainer's thread."""

    def begin(self) -> None:
        """A phase of it begins."""

    def next(self) -> Batch:
        """The next batch; the step clock is told of the wait."""

    def end(self) -> None:
        """Leave nothing running."""


class FromLoader:
    """Batches of a loader that is started for each phase, and goes on where it was."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Batch] = iter(())
        self._in_pass: int | None = None

    def begin(self) -> None:
        self._in_pass, self._batches = None, iter(self._loader)
        self._catch_up()

    def next(self) -> Batch:
        while (batch := self._next()) is None:
            if self._in_pass == 0:
                raise SourceError("the source ended twice without giving a batch")
            self._in_pass, self._batches = 0, iter(self._loader)
        self._in_pass = (self._in_pass or 0) + 1
        return batch

    def end(self) -> None:
        self._loader.close()

    def _next(self) -> Batch | None:
        """None at the end of a pass."""
        return next(self._batches, None)

    def _catch_up(self) -> None:
        """Nothing is to be caught up with."""


class Live(FromLoader):
    """Batches of the whole pipeline. What came while other phases ran is thrown away: a source that
    is read to its end would else have a store to give from, as it never has in a run.

    Args:
        grows: whether records may come meanwhile.
        patience: seconds after which what is there is a backlog, which a run would have, too; and
            after which nothing is waited for, if nothing comes.
        tell: is told of a long wait, on any thread.
    """

    def __init__(
        self, loader: Loader, *, grows: bool, patience: float, tell: Callable[[str], None]
    ) -> None:
        super().__init__(loader)
        self._catches_up, self._patience = grows, patience
        self._watch = SilenceWatch(loader, patience, tell)

    def begin(self) -> None:
        self._watch.begin()
        super().begin()

    def end(self) -> None:
        self._watch.end()
        super().end()

    def silence(self) -> Silence | None:
        """Of the wait that was interrupted, or ended because nothing came; None without one."""
        return self._watch.silence()

    def _next(self) -> Batch | None:
        with self._watch.waiting():
            batch = super()._next()
        if batch is None and self._watch.over is not None:
            raise Silent
        return batch

    def _catch_up(self) -> None:
        began, first = time.monotonic(), 0
        while self._catches_up:
            rows = self.next().rows
            lag, took = self._loader.lag(), time.monotonic() - began
            behind = sum(lag.values())
            first = first or behind
            if lag and behind <= _READ_TO_THE_END * rows:
                return
            if took >= _TRY_SECONDS:
                pace = (first - behind) / took
                self._catches_up = bool(lag) and behind < pace * (self._patience - took)


class Frozen:
    """One batch, again and again: the trainer's own pace. Restored if the trainer wrote into it."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._batch: Batch | None = None
        self._kept: Batch | None = None
        self._versions: Mapping[str, int] = {}

    def keep(self, batch: Batch) -> None:
        """Take this batch from now on, before the trainer has it."""
        self._kept, self._batch = _cloned(batch), None

    def begin(self) -> None:
        """Nothing is to be started."""

    def next(self) -> Batch:
        assert self._kept is not None
        if self._batch is None or _versions(self._batch) != self._versions:
            self._batch = _cloned(self._kept)
            self._versions = _versions(self._batch)
        self._clock.wait_begins()
        self._clock.wait_ends()
        return _shallow(self._batch)

    def end(self) -> None:
        self._batch = None


def _cloned(batch: Batch) -> Batch:
    return batch._map(torch.clone)


def _shallow(batch: Batch) -> Batch:
    """A trainer may take columns out of its batch."""
    return batch._map(_itself)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _versions(batch: Batch) -> dict[str, int]:
    """How often each tensor was written into."""
    return {k: v._version for k, v in batch.items() if isinstance(v, torch.Tensor)}

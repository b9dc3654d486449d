"""One short measurement of one loader: its first batch, then a stretch of steady running.

A loader with W workers gives its batches in bursts of W, so a stretch is a number of bursts, or of
whole epochs where these are short; the first ones are not in it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader

from forebay.diagnose.foreign.contents import contents, digest, rows
from forebay.diagnose.foreign.setting import Setting
from forebay.observe.memory import memory_of

_TICKS = os.sysconf("SC_CLK_TCK")
_BURSTS_BEFORE = 2
_LONGEST = 4.0
"""Times as long as it was to be: then a stretch ends wherever it is."""
_MEMORY_POINTS = 30
CLOSING = "closing the loader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    setting: Setting
    batches: int
    """In the stretch, at least, if there is time for them."""
    seconds: float
    """How long the stretch is, about."""
    step: bool = False
    """Whether the training step is run on each batch."""
    memory: bool = False
    """Whether to look at it; the stretch is not cut short then."""
    digests: int = 0
    """Of how many of the first batches to take one; nothing else is measured then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Memory after some batches; bytes."""

    batches: int
    private: int
    """Of the workers together, or without workers of the process: what is theirs alone, without
    the batches that they hand over in shared memory."""
    rss: int
    """Of the same: all their pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was seen."""

    setting: Setting
    first_seconds: float
    """From making the loader's iterator to its first batch."""
    batches: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    """Of ``seconds``, in the loader; the rest went into the step."""
    usual_wait: float = 0.0
    """For one batch: the median."""
    longest_wait: float = 0.0
    cpu_seconds: float = 0.0
    """Of the process and its workers, in ``seconds``."""
    epochs: int = 0
    """How many began in the stretch."""
    restart_seconds: float = 0.0
    """Of ``seconds``, from the end of an epoch to the next one's first batch."""
    rows: int = 0
    """Of one batch; 0: it has no first dimension."""
    bytes: int = 0
    """Of one batch."""
    worker_threads: int = 0
    """The most that one worker had."""
    memory: tuple[MemoryPoint, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def per_batch(self) -> float:
        """Seconds from batch to batch."""
        return self.seconds / self.batches

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds


class EmptyLoader(Exception):
    """It gave no batch at all."""


@dataclass(slots=True)
class _Feed:
    """Batches without end, an epoch after the other; told of each."""

    loader: DataLoader[Any]
    told: Callable[[str], None]
    epoch: int = 0
    of_epoch: int = 0
    shortest: int | None = None
    """Batches of an epoch that ended."""
    restarting: float = 0.0
    _batches: Iterator[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._batches = iter(self.loader)

    def next(self) -> Any:
        """The next batch."""
        began = time.monotonic()
        batch = next(self._batches, self)
        if batch is self:
            if not self.of_epoch:
                raise EmptyLoader
            self.epoch, self.shortest, self.of_epoch = self.epoch + 1, self.of_epoch, 0
            self.told(f"beginning epoch {self.epoch + 1}")
            self._batches = iter(self.loader)
            batch = next(self._batches, self)
            if batch is self:
                raise EmptyLoader
            self.restarting += time.monotonic() - began
        self.of_epoch += 1
        self.told(f"batch {self.of_epoch} of epoch {self.epoch + 1}")
        return batch


def measure(
    make: Callable[[], DataLoader[Any]],
    request: Request,
    step: Callable[[Any], Any] | None,
    told: Callable[[str], None],
) -> Window:
    """Run a loader for a while.

    Args:
        make: makes the loader.
        step: the training step, for ``request.step``.
        told: is told of each thing that happens, so that somebody else sees when nothing does.

    Raises:
        EmptyLoader: it has no batch.
        Exception: what the loader or the step raises.
    """
    told("starting the loader")
    began = time.monotonic()
    feed = _Feed(make(), told)
    first = feed.next()
    first_seconds = time.monotonic() - began
    try:
        if request.digests:
            digests = _digests(first, feed, request.digests)
            return Window(setting=request.setting, first_seconds=first_seconds, digests=digests)
        return _stretch(feed, request, step, first, first_seconds)
    finally:
        # The workers end with the iterator, and a loader with persistent ones holds it itself.
        told(CLOSING)
        del feed
        gc.collect()


def _stretch(
    feed: _Feed,
    request: Request,
    step: Callable[[Any], Any] | None,
    first: Any,
    first_seconds: float,
) -> Window:
    unit = _warm_up(feed, request, step)
    meter = _Meter(request)
    cpu, restarted, epoch = _cpu_seconds(), feed.restarting, feed.epoch
    began, count, waits = time.monotonic(), 0, []
    while True:
        asked = time.monotonic()
        batch = feed.next()
        waits.append(time.monotonic() - asked)
        if request.step and step is not None:
            step(batch)
        count += 1
        spent = time.monotonic() - began
        meter.look(count, spent)
        whole = feed.of_epoch == feed.shortest if unit is None else count % unit == 0
        half = spent >= request.seconds / 2 and not request.memory
        enough = count >= request.batches and half
        if (whole and (enough or spent >= request.seconds)) or (
            spent >= request.seconds * _LONGEST and count > 1
        ):
            break
    device_done()
    return Window(
        setting=request.setting,
        first_seconds=first_seconds,
        batches=count,
        seconds=time.monotonic() - began,
        wait_seconds=sum(waits),
        usual_wait=median(waits),
        longest_wait=max(waits),
        cpu_seconds=_cpu_seconds() - cpu,
        epochs=feed.epoch - epoch,
        restart_seconds=feed.restarting - restarted,
        rows=rows(first),
        bytes=sum(len(b) for b in contents(first)),
        worker_threads=max(map(_threads, _workers()), default=0),
        memory=tuple(meter.points),
    )


def _warm_up(feed: _Feed, request: Request, step: Callable[[Any], Any] | None) -> int | None:
    """Take the first batches; how many make a unit of the stretch, None: an epoch."""
    burst = max(request.setting.num_workers, 1)
    began, count = time.monotonic(), 1
    while count < _BURSTS_BEFORE * burst or count % burst:
        batch = feed.next()
        if feed.epoch:
            break
        if request.step and step is not None:
            step(batch)
        count += 1
        if time.monotonic() - began > request.seconds * _LONGEST / 2:
            break
    device_done()
    if feed.shortest is None and (length := _length(feed.loader)) is not None:
        if length > max(request.batches, _LONGEST * burst):
            return burst
        feed.shortest = length
    if feed.shortest is None:
        return burst
    while feed.of_epoch != feed.shortest:  # to the end of the epoch that goes on
        feed.next()
    return None


class _Meter:
    """Looks at the workers' memory now and then."""

    def __init__(self, request: Request) -> None:
        self._every = request.seconds / _MEMORY_POINTS if request.memory else float("inf")
        self._next = 0.0
        self.points: list[MemoryPoint] = []

    def look(self, batches: int, spent: float) -> None:
        """Called after each batch."""
        if self._every == float("inf") or spent < self._next:
            return
        self._next = spent + self._every
        seen = [m for m in map(memory_of, _workers() or [os.getpid()]) if m is not None]
        self.points.append(
            MemoryPoint(
                batches=batches,
                private=sum(m.private - m.shared for m in seen),
                rss=sum(m.rss - m.shared for m in seen),
            )
        )


def _length(loader: DataLoader[Any]) -> int | None:
    """Batches of an epoch, if the loader knows it: the user's ``__len__`` may do anything."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _digests(first: Any, feed: _Feed, count: int) -> tuple[str, ...]:
    """Of the first batches of one epoch."""
    digests = [digest(first)]
    while len(digests) < count:
        batch = feed.next()
        if feed.epoch:
            break
        digests.append(digest(batch))
    return tuple(digests)


def _workers() -> list[int]:
    return [p.pid for p in multiprocessing.active_children() if p.pid is not None]


def _cpu_seconds() -> float:
    """Of this process and its workers, those that ended included."""
    times = os.times()
    ours = times.user + times.system + times.children_user + times.children_system
    return ours + sum(map(_cpu_seconds_of, _workers()))


def _cpu_seconds_of(pid: int) -> float:
    words = _told(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS if words else 0.0


def _threads(pid: int) -> int:
    words = _told(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[17]) if words else 0


def _told(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # a worker that ended
        return ""


def cuda_started() -> bool:
    """Whether this process uses a GPU; asking does not make it."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started


def device_done() -> None:
    """Wait until the GPU has done what it was given, if there is one in use."""
    if cuda_started():
        torch.cuda.synchronize()

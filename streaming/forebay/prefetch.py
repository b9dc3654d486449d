"""Prefetching: one thread makes batches ahead of the trainer, a few and no more."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forebay.intake import Stopped
from forebay.supply import Failures, Progress
from forebay.tensors import Batch


@dataclass(slots=True, kw_only=True)
class Ready:
    """A batch waiting for the trainer, and what its delivery means; without a batch, progress."""

    batch: Batch | None
    progress: Progress | None
    release: Callable[[], None]
    """Gives the room of the delivered slices back."""
    failures: Failures = ()
    event_times: NDArray[np.float64] | None = None
    """Event times of the rows that have one, seconds since the epoch, rising."""
    newest: Mapping[str, float] = field(default_factory=dict)
    """The last event time of each split, seconds since the epoch."""


@dataclass(slots=True)
class _End:
    error: BaseException | None = None


class Prefetcher:
    """Runs ``produce`` in a thread, at most ``depth`` batches ahead of ``get``.

    Args:
        produce: gives what the trainer is to get, in order; ends, or raises ``Stopped`` once
            ``stopping`` is true.
        depth: batches that may wait; progress without a batch takes no place.
    """

    def __init__(self, produce: Callable[[Prefetcher], Iterator[Ready]], depth: int) -> None:
        self._produce, self._depth = produce, depth
        self._ready: deque[Ready] = deque()
        self._batches = 0
        self._end: _End | None = None
        self._stop = False
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._waited = 0.0
        self._since: float | None = None
        self._thread = threading.Thread(target=self._run, name="forebay-batch", daemon=True)
        self._thread.start()

    def empty(self) -> bool:
        """Whether nothing waits for the trainer."""
        return not self._ready

    @property
    def batches(self) -> int:
        """Batches that are ready now."""
        return self._batches

    @property
    def waited_for_room_seconds(self) -> float:
        """Time in which it waited for room, a wait that goes on included. Any thread."""
        waited, since = self._waited, self._since
        return waited if since is None else waited + time.monotonic() - since

    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop

    def get(self) -> Ready | None:
        """The next one; blocks. None at the end. It stays the next one until ``drop``.

        Raises:
            Exception: what ``produce`` raised, after everything it gave before.
        """
        with self._lock:
            while not self._ready and self._end is None:
                self._filled.wait()
            if self._ready:
                return self._ready[0]
            assert self._end is not None
            if self._end.error is not None:
                raise self._end.error
            return None

    def drop(self) -> None:
        """Say that what ``get`` gave is dealt with."""
        with self._lock:
            if self._ready.popleft().batch is not None:
                self._batches -= 1
                self._emptied.notify()

    def stop(self) -> None:
        """Ask the thread to end; ``produce`` may still be waiting for its next slice."""
        with self._lock:
            self._stop = True
            self._emptied.notify_all()

    def join(self) -> None:
        """Wait for the thread's end after ``stop``."""
        self._thread.join()

    def _run(self) -> None:
        end = _End()
        try:
            for ready in self._produce(self):
                self._put(ready)
                del ready
        except Stopped:
            pass  # the loader is being closed: nobody waits for more
        except BaseException as e:  # raised again in get(), on the trainer's thread
            end.error = e
        with self._lock:
            self._end = end
            self._filled.notify_all()

    def _put(self, ready: Ready) -> None:
        self._since = began = time.monotonic()
        with self._lock:
            while self._batches >= self._depth and ready.batch is not None and not self._stop:
                self._emptied.wait()
            # In this order a reader on another thread misses the wait for a moment, and never
            # counts it twice.
            self._since = None
            self._waited += time.monotonic() - began
            if self._stop:
                raise Stopped
            self._batches += ready.batch is not None
            self._ready.append(ready)
            self._filled.notify()

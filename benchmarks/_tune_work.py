"""What the topologies of ``tune.py`` name: rows, a stage that waits for a store, and a trainer."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _sources import MadeSource
from forebay.columns import Columns

ROW_SECONDS, AT_ONCE, STEP_SECONDS = 0.004, 12, 0.012
_SLOW_EVERY, _TIMES_SLOWER = 40, 25


class _Store:
    """Answers so many requests at once at full speed; more of them share that speed out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0

    def ask(self, seconds: float) -> None:
        """Wait for an answer that takes so long where nobody else asks."""
        with self._lock:
            self._asked += 1
            crowd = max(1.0, self._asked / AT_ONCE)
        time.sleep(seconds * crowd)
        with self._lock:
            self._asked -= 1


_store = _Store()


def source(partitions: int, slice_rows: int) -> MadeSource:
    """The source type ``made``."""
    return MadeSource(make=_rows, partitions=partitions, slice_rows=slice_rows)


def _rows(split: int, offsets: NDArray[np.int64]) -> Columns:
    """Rows of 8 bytes, each its own address."""
    return {"row": offsets * 16 + split}


def fetch(columns: Columns) -> Columns:
    """Ask a store for each row."""
    _store.ask(ROW_SECONDS * len(columns["row"]))
    return dict(columns)


def jumpy(columns: Columns) -> Columns:
    """The same, but some rows take much longer: what prefetch can hide."""
    slow = np.asarray(columns["row"]) // 16 % _SLOW_EVERY == 0
    _store.ask(ROW_SECONDS / 2 * float(np.where(slow, _TIMES_SLOWER, 1).sum()))
    return dict(columns)


def train(loader: Any) -> None:
    """Steps of a device that works behind the host, which is at most one step ahead of it: a host
    that wakes up late on a busy machine does not slow it down."""
    done_at = time.monotonic()
    for _ in loader:
        begins_at = max(done_at, time.monotonic())
        done_at = begins_at + STEP_SECONDS
        time.sleep(max(0.0, begins_at - time.monotonic()))

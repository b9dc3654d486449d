"""How much of the time the interpreter's lock is taken: by how late a thread wakes up.

A thread that sleeps needs the lock to go on. If stages hold it, as pure Python code does, waking
up takes a switch interval and more; stages that release it, as decoders do, cost it nothing. Time
in which the thread waited for a CPU, not for the lock, is the kernel's to tell and is left out.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from threading import get_native_id

_NAP_SECONDS = 0.001
_NAPS = 30
# Of the switch interval: with several threads at it the lock changes hands once in an interval, and
# a thread that wakes up in between may be lucky and wait for the rest of it only.
_LATE = 0.1


class LockProbe:
    """Takes short naps and looks how late they end. Used by one thread."""

    def __init__(self) -> None:
        self._late: deque[bool] = deque(maxlen=_NAPS)

    def nap(self) -> None:
        """Sleep for a millisecond, and remember whether the lock was taken then."""
        began, queued = time.perf_counter(), _queued_seconds()
        time.sleep(_NAP_SECONDS)
        late = time.perf_counter() - began - _NAP_SECONDS - (_queued_seconds() - queued)
        self._late.append(late > _LATE * sys.getswitchinterval())

    def share(self) -> float | None:
        """Share of the last naps that had to wait for the lock; None after too few of them."""
        if len(self._late) < _NAPS / 3:
            return None
        return sum(self._late) / len(self._late)


def _queued_seconds() -> float:
    """Time that this thread waited for a CPU; 0 where the kernel does not tell."""
    try:
        text = Path(f"/proc/self/task/{get_native_id()}/schedstat").read_text()
        return int(text.split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0

"""Memory of processes as the kernel counts it: what several share is shared out among them (PSS).

The sum of the resident sizes of a trainer and its workers counts what they share once for each; the
sum of their proportional sizes is what they take from the machine. The kernel walks through all
pages of a process to tell it, about 10 ms for each GiB, and as long holds up whoever maps or unmaps
memory there: it is asked seldom.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

_PROC = Path("/proc")
_EVERY_SECONDS = 10.0
_MOST_OF_THE_TIME = 0.01
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one process, or of several together; bytes."""

    pss: int
    """Its own pages, and its share of those that it has in common with others."""
    anonymous: int
    """The part of ``pss`` that the program allocated."""
    shared: int
    """The part of ``pss`` in shared memory: ``/dev/shm``, where loader workers put tensors."""
    file: int
    """The part of ``pss`` that is mapped from files: libraries, data; the kernel may drop it."""
    rss: int
    """All its pages, whoever else has them, too."""
    private: int
    """Its own pages alone: what would be free if it ended."""

    def __add__(self, other: Memory) -> Memory:
        return Memory(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS})


_FIELDS = fields(Memory)


def memory_of(pid: int, proc: Path = _PROC) -> Memory | None:
    """What one process has now; None if it is gone, not ours, or the kernel does not tell."""
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    found = {name: int(kib) * _KIB for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    if "Pss" not in found:
        return None  # a process that just ended has no memory
    return Memory(
        pss=found["Pss"],
        anonymous=found.get("Pss_Anon", 0),
        shared=found.get("Pss_Shmem", 0),
        file=found.get("Pss_File", 0),
        rss=found.get("Rss", 0),
        private=found.get("Private_Clean", 0) + found.get("Private_Dirty", 0),
    )


def memory_of_all(pids: Iterable[int], proc: Path = _PROC) -> Memory | None:
    """What several processes have together, those left out that are gone; None if all are."""
    known = [m for m in (memory_of(pid, proc) for pid in pids) if m is not None]
    return sum(known[1:], known[0]) if known else None


def family(pid: int, proc: Path = _PROC) -> list[int]:
    """The process and all that it started, and that these started, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents(proc):
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:
        found.extend(sorted(children.get(member, ())))
    return found


def _parents(proc: Path) -> Iterable[tuple[int, int]]:
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            try:
                # The program's name stands in brackets, and may hold blanks and brackets itself.
                rest = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            yield int(folder.name), int(rest[1])


class PssWatch:
    """The memory of this process and its children, read so seldom that it costs next to nothing.

    Used by one thread.

    Args:
        every: seconds between two readings, at least; more where a reading takes long, so that no
            more than a hundredth of the time goes into it.
        clock: seconds.
    """

    def __init__(
        self, every: float = _EVERY_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._clock = every, clock
        self._next = clock()
        self._last: int | None = None

    def look(self) -> int | None:
        """Bytes, as last read; None where the kernel does not tell."""
        began = self._clock()
        if began >= self._next:
            seen = memory_of_all(family(os.getpid()))
            self._last = None if seen is None else seen.pss
            took = self._clock() - began
            self._next = began + max(self._every, took / _MOST_OF_THE_TIME)
        return self._last

"""What the kernel tells of this process: memory, CPU time, threads. None where it does not."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from forebay.observe.snapshot import ProcessSeen

_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_seen(cpus: float | None, gil: float | None, pss: int | None = None) -> ProcessSeen:
    """This process now. Cheap: ``pss`` is what ``PssWatch`` read last."""
    times = os.times()
    return ProcessSeen(
        rss_bytes=_rss(),
        pss_bytes=pss,
        cpu_seconds=times.user + times.system,
        cpu_wait_seconds=_queued_seconds(),
        threads=_threads(),
        cpus=cpus,
        gil=gil,
    )


def _rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _queued_seconds() -> float | None:
    """Time that the threads that live waited for a CPU while they could have run."""
    queued: list[int] = []
    try:
        for path in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(ProcessLookupError, FileNotFoundError):  # a thread that just ended
                queued.append(int(path.read_text().split()[1]))
    except (OSError, ValueError, IndexError):
        return None
    return sum(queued) / 1e9 if queued else None


def _threads() -> int | None:
    try:
        found = re.search(r"^Threads:\s+(\d+)", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return None
    return None if found is None else int(found[1])

"""What the kernel tells of this process: memory, CPU time, threads. None where it does not."""

from __future__ import annotations

import os
import re
from pathlib import Path

from forebay.observe.snapshot import ProcessSeen

_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_seen(cpus: float | None, gil: float | None) -> ProcessSeen:
    """This process now. Cheap: PSS is not read."""
    times = os.times()
    return ProcessSeen(
        rss_bytes=_rss(),
        cpu_seconds=times.user + times.system,
        threads=_threads(),
        cpus=cpus,
        gil=gil,
    )


def _rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _threads() -> int | None:
    try:
        found = re.search(r"^Threads:\s+(\d+)", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return None
    return None if found is None else int(found[1])

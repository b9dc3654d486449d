"""What the kernel tells of this process: memory, CPU time, threads. None where it does not."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from forebay.observe.snapshot import ProcessSeen

_STATUS = re.compile(r"^(VmRSS|Threads):\s+(\d+)", re.M)


def process_seen(cpus: float | None, gil: float | None, pss: int | None = None) -> ProcessSeen:
    """This process now. Cheap: ``pss`` is what ``PssWatch`` read last."""
    times, (rss, threads) = os.times(), _rss_and_threads()
    return ProcessSeen(
        rss_bytes=rss,
        pss_bytes=pss,
        cpu_seconds=times.user + times.system,
        cpu_wait_seconds=_queued_seconds(),
        threads=threads,
        cpus=cpus,
        gil=gil,
    )


def _rss_and_threads() -> tuple[int | None, int | None]:
    """Both of one reading: each asks for the interpreter's lock anew, and it may be taken."""
    try:
        status = dict(_STATUS.findall(Path("/proc/self/status").read_text()))
    except OSError:
        status = {}
    rss, threads = status.get("VmRSS"), status.get("Threads")
    return None if rss is None else int(rss) << 10, None if threads is None else int(threads)


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

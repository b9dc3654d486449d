"""How many CPUs this process may use: affinity and the cgroup's quota, not the machine's count."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_share(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """CPUs' worth of time this process may use, at least a fraction of one.

    The lower of the affinity mask and the quota of the cgroup (v2 ``cpu.max``, v1
    ``cpu.cfs_quota_us``).
    """
    return min(float(_affinity()), _quota(cgroup))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(cgroup: Path) -> float:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return float("inf") if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):  # no cgroup v2 here
        pass
    try:
        quota_us = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else float("inf")
    except (OSError, ValueError):  # no cgroup v1 either: no quota
        return float("inf")

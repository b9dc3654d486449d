"""What the machine gives this process: CPUs, memory, disks, limits. None where it does not tell."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forebay.cpus import cpu_share

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_KIB = 1024
_NO_LIMIT = 1 << 60
"""The first version of cgroups writes "no limit" as a number, the largest whole page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusSeen:
    """The processors."""

    share: float
    """CPUs' worth of time that this process may use, by affinity and cgroup."""
    machine: int | None
    """CPUs of the machine."""
    model: str | None
    load: float | None
    """Processes that run or want to, on the machine, over the last minute."""
    throttled_periods: int | None
    """Periods in which the cgroup used up its quota and had to wait, since it was made."""
    periods: int | None
    throttled_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySeen:
    """Bytes."""

    total: int | None
    available: int | None
    limit: int | None
    """The cgroup's; None if it sets none."""
    used_of_limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSeen:
    """A folder's file system; bytes."""

    path: str
    kind: str | None
    """``ext4``, ``overlay``, ``nfs4``, ``tmpfs``, …"""
    free: int
    total: int


def cpus_seen(proc: Path = _PROC, cgroup: Path = _CGROUP) -> CpusSeen:
    """The processors now."""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _text(proc / "cpuinfo"), re.M)
    periods, throttled, seconds = _throttling(proc, cgroup)
    return CpusSeen(
        share=cpu_share(cgroup),
        machine=os.cpu_count(),
        model=None if model is None else model[1].strip(),
        load=_load(proc),
        throttled_periods=throttled,
        periods=periods,
        throttled_seconds=seconds,
    )


def memory_seen(proc: Path = _PROC, cgroup: Path = _CGROUP) -> MemorySeen:
    """Memory of the machine and of the cgroup now."""
    text = _text(proc / "meminfo")
    of = {name: int(kib) * _KIB for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    limit, used = _memory_limit(proc, cgroup)
    return MemorySeen(
        total=of.get("MemTotal"),
        available=of.get("MemAvailable"),
        limit=limit,
        used_of_limit=used,
    )


def disk_seen(path: str | os.PathLike[str], proc: Path = _PROC) -> DiskSeen | None:
    """The file system that a folder is on; None if there is no such folder."""
    try:
        real = os.path.realpath(path)
        seen = os.statvfs(real)
    except OSError:
        return None
    size = seen.f_frsize
    return DiskSeen(
        path=os.fspath(path),
        kind=_file_system(real, proc),
        free=seen.f_bavail * size,
        total=seen.f_blocks * size,
    )


def open_files_limit() -> int | None:
    """How many files this process may have open; None: any number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def driver_version(proc: Path = _PROC) -> str | None:
    """The NVIDIA driver's, without asking the driver."""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", _text(proc / "driver/nvidia/version"))
    return None if found is None else found[1]


def gpu_models(proc: Path = _PROC) -> dict[str, str]:
    """The names of the NVIDIA devices by UUID, as the driver tells without being asked."""
    models: dict[str, str] = {}
    for path in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        told = dict(re.findall(r"^([\w ]+):\s*(.+?)\s*$", _text(path), re.M))
        if "GPU UUID" in told and "Model" in told:
            models[told["GPU UUID"]] = told["Model"]
    return models


def _load(proc: Path) -> float | None:
    words = _text(proc / "loadavg").split()
    return float(words[0]) if words else None


def _throttling(proc: Path, cgroup: Path) -> tuple[int | None, int | None, float | None]:
    """Periods, those that were throttled, and seconds; of the second version, then the first."""
    for folder in _folders(proc, cgroup, "cpu"):
        told = dict(re.findall(r"^(\w+) (\d+)$", _text(folder / "cpu.stat"), re.M))
        if "nr_periods" in told:
            micros = float(told.get("throttled_usec", 0)) / 1e6
            nanos = float(told.get("throttled_time", 0)) / 1e9
            return int(told["nr_periods"]), int(told.get("nr_throttled", 0)), micros + nanos
    return None, None, None


def _memory_limit(proc: Path, cgroup: Path) -> tuple[int | None, int | None]:
    """The lowest limit of this cgroup and those above it, and what is used of it."""
    found: list[tuple[int, int | None]] = []
    for folder in _folders(proc, cgroup, "memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_file)
            if limit is not None and limit < _NO_LIMIT:
                found.append((limit, _number(folder / used_file)))
    return min(found, key=lambda f: f[0], default=(None, None))


def _folders(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Where a controller keeps this process's files, from its own cgroup up to the first.

    In a container the path that the kernel tells may be the host's, and not there: the first is
    the container's own then.
    """
    for line in _text(proc / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names == "":
            root = cgroup
        elif controller in names.split(","):
            root = cgroup / controller
        else:
            continue
        own = root / path.lstrip("/")
        while own != root:
            yield own
            own = own.parent
        yield root


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _file_system(real: str, proc: Path) -> str | None:
    """The type of the mount with the longest path above ``real``; the last one lies on top."""
    best, kind = -1, None
    for line in _text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mounted = before.split()[4].replace("\\040", " ")
        above = mounted == "/" or real == mounted or real.startswith(mounted + "/")
        if above and len(mounted) >= best:
            best, kind = len(mounted), after.split()[0]
    return kind


def _text(path: Path) -> str:
    """What a file of the kernel says; nothing if it is not there or not ours to read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

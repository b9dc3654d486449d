"""What a measurement was made with: code, versions, machine, settings, data. Holds no secret.

for label, value in environment(topology).rows(): ...
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml

from forebay.diagnose.machine import (
    CpusSeen,
    DiskSeen,
    MemorySeen,
    cpus_seen,
    disk_seen,
    driver_version,
    gpu_models,
    memory_seen,
    open_files_limit,
)
from forebay.nvml import GpuSeen, GpuWatch
from forebay.topology import Topology, redacted
from forebay.topology.secret import is_secret

_DISTRIBUTIONS = (
    "forebay",
    "torch",
    "numpy",
    "pyarrow",
    "confluent-kafka",
    "deltalake",
    "ray",
    "opencv-python-headless",
    "simplejpeg",
    "nvidia-ml-py",
)
_VARIABLES = re.compile(
    r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|DEVICE_ORDER)"
    r"|PYTORCH_(CUDA_)?ALLOC_CONF|PYTHON(GIL|MALLOC|UNBUFFERED|DONTWRITEBYTECODE)"
    r"|MALLOC_\w+|LD_PRELOAD|TOKENIZERS_PARALLELISM|NCCL_\w+|RANK|LOCAL_RANK|WORLD_SIZE"
)
_ADDRESSES = frozenset({"config", "storage_options"})
"""Options that say how to get at the data, not which."""
_GIT_SECONDS = 5.0
_GPU_SECONDS = 3.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The state of the working folder's repository."""

    id: str
    dirty: bool
    """Whether files differ from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """All of it at one moment; None: not known, or not there."""

    at: float
    """Seconds since the epoch."""
    host: str
    kernel: str
    commit: Commit | None
    command: str
    versions: Mapping[str, str | None]
    cpus: CpusSeen
    memory: MemorySeen
    shared_memory: DiskSeen | None
    """``/dev/shm``, through which loader workers hand over tensors."""
    disks: tuple[DiskSeen, ...]
    """Of the working folder, and of temporary files."""
    gpus: tuple[GpuSeen, ...]
    gpu_models: Mapping[str, str]
    """By UUID."""
    gpu_trouble: str
    """Why nothing is known of any."""
    open_files: int | None
    variables: Mapping[str, str]
    """Of the environment, those that change how fast things go."""
    data: Mapping[str, str]
    """The topology's sources by name, each with its share of the mix."""

    def rows(self) -> list[tuple[str, str]]:
        """For a table: label and value, a dash where it is not known."""
        return [
            ("commit", _shown(self.commit and self.commit.id + " (changed)" * self.commit.dirty)),
            ("command", self.command),
            ("host", f"{self.host}, {self.kernel}"),
            *((name, _shown(v)) for name, v in self.versions.items()),
            *_cpu_rows(self.cpus),
            *_memory_rows(self.memory),
            ("/dev/shm", _disk(self.shared_memory)),
            *((f"disk of {d.path}", _disk(d)) for d in self.disks),
            *self._gpu_rows(),
            ("open files", "no limit" if self.open_files is None else f"{self.open_files:,}"),
            *self.variables.items(),
            *((f"data: {name}", what) for name, what in self.data.items()),
        ]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    def _gpu_rows(self) -> list[tuple[str, str]]:
        if not self.gpus:
            return [("GPUs", self.gpu_trouble or "-")]
        return [
            (
                f"GPU {i}",
                f"{self.gpu_models.get(g.uuid, 'model not known')}, {size(g.memory_total)}, "
                f"{g.uuid}",
            )
            for i, g in enumerate(self.gpus)
        ]


def environment(topology: Topology | None = None) -> Environment:
    """Look around. Takes a moment (git, NVML); starts and changes nothing."""
    secrets = topology.secrets if topology is not None else ()
    gpus, trouble = _gpus()
    return Environment(
        at=time.time(),
        host=platform.node(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        commit=commit_of(Path.cwd()),
        command=command_line(sys.argv, secrets),
        versions=_versions(),
        cpus=cpus_seen(),
        memory=memory_seen(),
        shared_memory=disk_seen("/dev/shm"),
        disks=tuple(d for d in map(disk_seen, (".", tempfile.gettempdir())) if d is not None),
        gpus=gpus,
        gpu_models=gpu_models(),
        gpu_trouble=trouble,
        open_files=open_files_limit(),
        variables={
            name: redacted(value, secrets)
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name)
        },
        data={} if topology is None else data_mix(topology),
    )


def commit_of(folder: Path) -> Commit | None:
    """The commit that is checked out there; None without git, or outside of a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Commit(id=commit.strip(), dirty=bool(changed))


def command_line(arguments: Sequence[str], secrets: Iterable[str] = ()) -> str:
    """How the program was called, ``***`` in place of all that may be a secret."""
    shown: list[str] = []
    hide = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_option = argument.startswith("-")
        if hide and not is_option:
            argument = "***"
        elif equals and is_secret(name.lstrip("-")):
            argument = f"{name}=***"
        hide = is_option and not equals and is_secret(name.lstrip("-"))
        shown.append(_LOGIN.sub("***", redacted(argument, secrets)))
    return " ".join(shown)


def data_mix(topology: Topology) -> dict[str, str]:
    """The sources that a topology reads by name, and of a mix each one's share.

    As the file says it: what came from the environment stays ``${NAME}``.
    """
    text = Path(topology.file).read_text(encoding="utf-8")
    tree = yaml.load(text, Loader=yaml.BaseLoader)  # all values as the text that they are
    return dict(_sources(tree.get("source"), "source", None))


def size(count: int | None) -> str:
    """Bytes for people; a dash if they are not known."""
    if count is None:
        return "-"
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.3g} {_UNITS[unit]}" if number < 1000 else f"{number:.0f} {_UNITS[unit]}"


def _sources(node: Any, name: str, share: float | None) -> Iterable[tuple[str, str]]:
    if not isinstance(node, dict):
        return
    members = {k: v for k, v in node.items() if isinstance(v, dict) and "type" in v}
    if isinstance(node.get("sources"), dict):
        members |= node["sources"]
    weights = {k: float(w) for k, w in (node.get("weights") or {}).items()}
    for member, inner in members.items():
        of_this = weights.get(member, 0.0) / sum(weights.values()) if weights else 1.0
        part = of_this * (1.0 if share is None else share) if weights else share
        yield from _sources(inner, member if name == "source" else f"{name}.{member}", part)
    if members:
        return
    options = ", ".join(
        f"{k}={_LOGIN.sub('***', str(v))}"
        for k, v in node.items()
        if k not in _ADDRESSES and k != "type" and not is_secret(k)
    )
    said = f"{node.get('type', '?')} {options}".rstrip()
    yield name, said if share is None else f"{said} ({share:.0%} of the rows)"


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions |= {name: _version(name) for name in _DISTRIBUTIONS}
    # A connector's library, which the framework never imports: known if something did.
    client = sys.modules.get("confluent_kafka")
    versions["librdkafka"] = client.libversion()[0] if client is not None else None
    versions["cuda"] = torch.version.cuda
    versions["nvidia driver"] = driver_version()
    return versions


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _gpus() -> tuple[tuple[GpuSeen, ...], str]:
    """The devices, looked at once, and what kept them from being looked at."""
    watch = GpuWatch(_GPU_SECONDS)
    watch.start()
    until = time.monotonic() + _GPU_SECONDS
    while not watch.seen() and not watch.trouble and time.monotonic() < until:
        time.sleep(0.01)
    seen, trouble = tuple(watch.seen().values()), watch.trouble
    watch.stop()
    watch.join()
    return seen, trouble


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one that is stuck
        return None
    return done.stdout


def _cpu_rows(cpus: CpusSeen) -> list[tuple[str, str]]:
    throttled = "-"
    if cpus.periods is not None:
        throttled = f"{cpus.throttled_periods} of {cpus.periods} periods"
        throttled += f", {cpus.throttled_seconds:.1f} s"
    return [
        ("CPUs", f"{cpus.share:g} of {_shown(cpus.machine)}, {_shown(cpus.model)}"),
        ("load", _shown(cpus.load)),
        ("throttled by the cgroup", throttled),
    ]


def _memory_rows(memory: MemorySeen) -> list[tuple[str, str]]:
    limit = "none"
    if memory.limit is not None:
        limit = f"{size(memory.limit)}, {size(memory.used_of_limit)} of it used"
    return [
        ("memory", f"{size(memory.available)} of {size(memory.total)} available"),
        ("memory limit", limit),
    ]


def _disk(disk: DiskSeen | None) -> str:
    if disk is None:
        return "-"
    return f"{size(disk.free)} of {size(disk.total)} free, {_shown(disk.kind)}"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)

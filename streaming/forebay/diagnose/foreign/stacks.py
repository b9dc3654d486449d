"""Where the processes of a loader are when nothing comes of them: their stacks, and their states.

Each process writes its Python stacks to a file of its own when a signal asks for them; that works
also while it holds the interpreter's lock, or waits for one that nobody will give back.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

_SIGNAL = signal.SIGRTMIN + 9
_LOOK_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.M)
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a disk or the network", "T": "is stopped"}
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_LIBRARIES = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parent) + os.sep,
    "<frozen",
)
_INSTALLED = re.compile(r"/(site|dist)-packages/")
_LOOP, _FETCH = "torch/utils/data/_utils/worker.py", "torch/utils/data/dataloader.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One process at the moment in which nothing came."""

    pid: int
    worker: int | None
    """Its number among the loader's workers; None: the main process."""
    state: str
    """What the kernel says that it does, in words."""
    cpu: float
    """CPUs that it used while it was looked at."""
    frames: tuple[str, ...]
    """Its main thread's stack, ``file:line in function``, the innermost first."""

    @property
    def idle(self) -> bool:
        """Whether it waits for work, or the main one for a worker, as far as its stack tells."""
        return not self._own() and any(_LOOP in f or _FETCH in f for f in self.frames)

    @property
    def place(self) -> str:
        """The innermost place in code that is not Python's or torch's."""
        return (self._own() or list(self.frames) or ["a place that it does not tell"])[0]

    def _own(self) -> list[str]:
        return [f for f in self.frames if not _of_library(f)]


@dataclass(frozen=True, slots=True)
class StackInit:
    """A ``worker_init_fn`` that lets the worker's stack be asked for, and goes on to the user's."""

    folder: str
    then: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        tells_stacks(Path(self.folder), worker_id)
        if self.then is not None:
            self.then(worker_id)


def tells_stacks(folder: Path, worker: int | None = None) -> None:
    """From now on this process writes its stacks when ``states`` asks for them."""
    name = f"{os.getpid()}.{'main' if worker is None else worker}"
    file = (folder / name).open("w")
    faulthandler.register(_SIGNAL, file=file, all_threads=True)
    _kept.append(file)


_kept: list[object] = []
"""Files must stay open as long as the handler may write to them."""


def states(folder: Path, pids: Sequence[int]) -> list[ProcessState]:
    """Look at these processes for half a second; those that told of themselves, and live."""
    files = {int(f.name.partition(".")[0]): f for f in folder.iterdir()}
    asked = [pid for pid in pids if pid in files]
    before = {pid: cpu_seconds(pid) for pid in asked}
    sizes = {pid: files[pid].stat().st_size for pid in asked}
    for pid in asked:
        with suppress(ProcessLookupError):
            os.kill(pid, _SIGNAL)
    time.sleep(_LOOK_SECONDS)
    found: list[ProcessState] = []
    for pid in asked:
        state = _state(pid)
        if state is None:
            continue
        worker = files[pid].name.partition(".")[2]
        text = files[pid].read_text(errors="replace")[sizes[pid] :]
        found.append(
            ProcessState(
                pid=pid,
                worker=None if worker == "main" else int(worker),
                state=_STATES.get(state, f"is in state {state}"),
                cpu=(cpu_seconds(pid) - before[pid]) / _LOOK_SECONDS,
                frames=_main_thread(text),
            )
        )
    return found


def cpu_seconds(pid: int) -> float:
    """What a process used so far, all its threads; 0 if it is gone."""
    words = _stat(pid)
    return (int(words[11]) + int(words[12])) / _TICKS if words else 0.0


def _of_library(frame: str) -> bool:
    """Whether a frame is Python's, torch's or ours, not of another package or the user's."""
    if frame.startswith(_LIBRARIES):
        return True
    return frame.startswith(_PYTHON) and not _INSTALLED.search(frame)


def _state(pid: int) -> str | None:
    words = _stat(pid)
    return words[0] if words and words[0] not in "ZX" else None


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _main_thread(text: str) -> tuple[str, ...]:
    """The thread that was told last, as faulthandler tells the main one; without what a forked
    worker has below its loop from the process that it was forked from."""
    threads = re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.M)
    frames = _FRAME.findall(threads[-1])
    shown = [f"{file}:{line} in {function}" for file, line, function in frames]
    loop = next((n for n, f in enumerate(frames) if f[0].endswith(_LOOP)), len(shown))
    return tuple(shown[: loop + 1])

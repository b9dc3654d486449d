"""A trainer's own log of the records it trained, step by step: the evidence of a count.

A step counts if no later run resumed from before it: after a crash the trainer goes back to its
checkpoint, and the steps since then are trained anew on other parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import orjson


class RunLog:
    """Appends to the log of one training job; one process at a time writes it.

    A line is in the kernel's hands when the call returns, so it outlives a SIGKILL of the
    process (not a crash of the machine).

    Args:
        path: the log, of this run and of all earlier ones.
        resumed_at: the step of the checkpoint that this run goes on from; 0 at the start.
    """

    def __init__(self, path: str | os.PathLike[str], resumed_at: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _cut_half_line(self._fd)
        self._write({"resumed": resumed_at})

    def step(self, step: int, ids: Iterable[int]) -> None:
        """Say that the records with these ids were trained in this step, the first being 1."""
        self._write({"step": step, "ids": list(ids)})

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._fd, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def kept_ids(path: str | os.PathLike[str]) -> list[int]:
    """The ids of every step that counts, in the order they were trained, repeats included."""
    steps: dict[int, list[int]] = {}
    for line in Path(path).read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # the writer was killed in the middle of it
        entry = orjson.loads(line)
        if "resumed" in entry:
            steps = {step: ids for step, ids in steps.items() if step <= entry["resumed"]}
        else:
            steps[entry["step"]] = entry["ids"]
    return [i for step in sorted(steps) for i in steps[step]]


def _cut_half_line(fd: int) -> None:
    """Drop what a killed writer left of its last line, and go to the end."""
    end = os.lseek(fd, 0, os.SEEK_END)
    tail = os.pread(fd, end, 0)
    kept = tail.rfind(b"\n") + 1
    os.ftruncate(fd, kept)
    os.lseek(fd, kept, os.SEEK_SET)

"""Finds the record that kills its process: what a worker was at is written down before it is done.

The note lies in a file on the node's memory disk, so it outlives the worker. A parcel that killed a
worker is run record by record the next time; a record at which a worker died twice is not run
again. One death alone proves nothing: a preempted node and an innocent record look the same.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

_PREFIX = "forebay-attempts"
_START = "start"
DEATHS = 2
# A trainer that is killed can remove nothing, and its workers die with it.
_OLD_SECONDS = 600.0


class Culprit(NamedTuple):
    """A record at which workers died."""

    slice_index: int
    offset: int


class Attempts:
    """The attempts on one parcel. Used by one worker, in one thread."""

    def __init__(self, prefix: Path, number: int) -> None:
        self._path = prefix.with_name(f"{prefix.name}-{number}")
        self._before = self._read()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write(_START)

    @property
    def earlier(self) -> int:
        """How many workers died on this parcel."""
        return sum(line == _START for line in self._before)

    def at(self, slice_index: int, offset: int, stage: str) -> None:
        """Say what is done next."""
        self._write([slice_index, offset, stage])

    def culprits(self) -> Mapping[Culprit, str]:
        """The records that are not to be run again, each with the stage it was in."""
        lines = [*self._before, _START]
        last = [a for a, b in pairwise(lines) if b == _START and a != _START]
        deaths = Counter(Culprit(i, offset) for i, offset, _ in last)
        stages = {Culprit(i, offset): stage for i, offset, stage in last}
        return {c: stages[c] for c, n in deaths.items() if n >= DEATHS}

    def done(self) -> None:
        """Forget the attempts: the parcel is through."""
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _write(self, line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _read(self) -> list[Any]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]


class Loading:
    """The time in which a worker loads the stages, written down until it is over.

    Whoever dies in it leaves a file that nobody has locked.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._path = prefix.with_name(f"{prefix.name}-loading-{uuid.uuid4().hex}")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    @property
    def deaths(self) -> int:
        """How many workers of this run died in it on this node since one came through."""
        return sum(1 for _ in self._dead())

    def done(self) -> None:
        """This worker came through: what killed those before it was something else."""
        for path in self._dead():
            path.unlink(missing_ok=True)
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def _dead(self) -> Iterator[Path]:
        for path in self._prefix.parent.glob(f"{self._prefix.name}-loading-*"):
            if path != self._path and _is_free(path):
                yield path


def _is_free(path: Path) -> bool:
    """Whether no living process has locked a file."""
    try:
        file = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def prefix_of(run: str) -> Path:
    """What the files of a run begin with: in memory if the node has such a disk."""
    memory = Path("/dev/shm")
    root = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return root / f"{_PREFIX}-{run}"


def forget_all(prefix: Path) -> None:
    """Remove what killed workers left on this node."""
    for left in prefix.parent.glob(f"{prefix.name}-*"):
        left.unlink(missing_ok=True)


def forget_old(prefix: Path) -> None:
    """Remove what killed runs left on this node.

    What a living run has there for so long is not missed: a record that kills takes one more life.
    """
    for left in prefix.parent.glob(f"{_PREFIX}-*"):
        _remove_old(left)


def _remove_old(path: Path) -> None:
    try:
        if time.time() - path.stat().st_mtime > _OLD_SECONDS:
            path.unlink()
    except OSError:  # another user's, or removed meanwhile
        return

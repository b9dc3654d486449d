"""Finds the record that kills its process: what a worker is at is written down before it is done.

Each worker has a file on the node's memory disk, locked while it lives. A file that nobody has
locked tells what its worker died of, whatever became of the pool, the parcel or the host since.
Rows at which a worker died are run record by record the next time; a record at which workers died
twice is not run again. One death alone proves nothing: a preempted node looks the same.

Where memory is short Ray kills all workers of a node at once. So only one of them runs records
that are suspected: the others would be found dead at innocent ones.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

DEATHS = 2
_PREFIX = "forebay-attempts"
_LOADING, _WAITING = "loading", "waiting"
# A trainer that is killed can remove nothing, and its workers die with it.
_OLD_SECONDS = 600.0


class Rows(NamedTuple):
    """Rows of a split: those with offsets from ``start`` on, before ``stop``."""

    split: str
    start: int
    stop: int


class Record(NamedTuple):
    """A record, which may be several rows."""

    split: str
    offset: int


@dataclass(frozen=True, slots=True)
class Death:
    """What the file of a dead worker tells."""

    path: Path
    last: Any = None
    """The last that it wrote."""
    rows: Sequence[Rows] = ()
    """The parcel that it had."""
    record: Record | None = None
    """The record that it was at, when it ran them one by one."""
    stage: str = ""

    def touches(self, parcel: Collection[Rows]) -> bool:
        """Whether it may have died of something in a parcel."""
        if self.record is not None:
            split, offset = self.record
            return any(r.split == split and r.start <= offset < r.stop for r in parcel)
        return any(
            r.split == mine.split and r.start < mine.stop and mine.start < r.stop
            for r in parcel
            for mine in self.rows
        )


class Attempts:
    """What one worker is at, and what others of its run died of on this node.

    Used by one thread; a worker begins by loading the stages.

    Args:
        prefix: what the files of the run begin with.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._path = prefix.with_name(f"{prefix.name}-worker-{uuid.uuid4().hex}")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._deaths: list[Death] = []
        self._write(_LOADING)

    @property
    def deaths_loading(self) -> int:
        """How many workers died while they loaded the stages, since one came through."""
        return sum(death.last == _LOADING for death in self._dead())

    def loaded(self) -> None:
        """This worker came through: what killed those before it was something else."""
        for death in self._dead():
            if death.last in (_LOADING, None):
                death.path.unlink(missing_ok=True)
        os.ftruncate(self._file, 0)

    def begin(self, parcel: Sequence[Rows]) -> None:
        """Say which rows are run next."""
        self._deaths = [death for death in self._dead() if death.touches(parcel)]
        os.ftruncate(self._file, 0)
        self._write(parcel)

    @property
    def earlier(self) -> int:
        """How many workers died on rows of this parcel."""
        return sum(death.last != _WAITING for death in self._deaths)

    @property
    def culprits(self) -> Mapping[Record, str]:
        """The records that are not to be run again, each with the stage it was in."""
        blamed = {death.record: death.stage for death in self._deaths if death.record is not None}
        times = Counter(death.record for death in self._deaths)
        return {record: stage for record, stage in blamed.items() if times[record] >= DEATHS}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other worker of the run is in here on this node."""
        self._write(_WAITING)
        path = self._prefix.with_name(f"{self._prefix.name}-alone")
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def at(self, record: Record, stage: str) -> None:
        """Say which record is run next, and in which stage."""
        self._write([*record, stage])

    def done(self) -> None:
        """The parcel is through: forget those who died on it."""
        for death in self._deaths:
            death.path.unlink(missing_ok=True)
        os.ftruncate(self._file, 0)

    def _write(self, line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def _dead(self) -> Iterator[Death]:
        for path in self._prefix.parent.glob(f"{self._prefix.name}-worker-*"):
            if path != self._path and _is_free(path):
                yield _death(path)


def _death(path: Path) -> Death:
    try:
        written = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:  # another worker is through with that parcel
        written = []
    # The last line may be half a line.
    lines = [json.loads(line) for line in written if line.endswith(b"\n")]
    if not lines or lines[0] == _LOADING:
        return Death(path, lines[0] if lines else None)
    rows, last = [Rows(*r) for r in lines[0]], lines[-1]
    if len(lines) == 1 or last == _WAITING:
        return Death(path, last, rows)
    split, offset, stage = last
    return Death(path, last, rows, Record(split, offset), stage)


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
    """Remove what workers left on this node."""
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
        if time.time() - path.stat().st_mtime > _OLD_SECONDS and _is_free(path):
            path.unlink()
    except OSError:  # another user's, or removed meanwhile
        return

"""A file of snapshots, a line of JSON each, for whoever looks while the job runs or after.

A reader sees whole lines only, also of a job that was killed while it wrote. The file is bounded:
once full it becomes ``<path>.1``, in place of the one that was, and a new one begins.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from forebay.errors import ConfigError
from forebay.observe.snapshot import Snapshot

_log = logging.getLogger("forebay.observe")
_BLOCK = 256 << 10


class StateFile:
    """An output of a ``Monitor``. Appends; the lines of runs before are kept.

    A disk that is full costs the lines that do not fit, and nothing else.

    Args:
        path: the file; its folder is made. Each rank needs one of its own.
        max_bytes: about how large it gets. With the one before, twice that lies on the disk.

    Raises:
        ConfigError: it cannot be written, or another process writes it.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int = 64 << 20) -> None:
        self._path, self._max_bytes = Path(path), max_bytes
        self._failed = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _opened(self._path)
            _cut_half_line(self._fd)
        except OSError as e:
            raise ConfigError(f"the state file {path} cannot be written: {e}{_way_out(e)}") from e

    def write(self, snapshot: Snapshot) -> None:
        """Append it."""
        line = msgspec.json.encode(snapshot) + b"\n"
        try:
            self._make_room(len(line))
            self._append(line)
        except OSError as e:
            if not self._failed:
                _log.warning("the state file %s lacks lines from now on: %s", self._path, e)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _make_room(self, size: int) -> None:
        end = _end(self._fd)
        if end == 0 or end + size <= self._max_bytes:
            return
        self._path.replace(_before(self._path))
        full, self._fd = self._fd, _opened(self._path)
        os.close(full)

    def _append(self, line: bytes) -> None:
        end = _end(self._fd)
        if os.write(self._fd, line) < len(line):
            os.ftruncate(self._fd, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_last(path: str | os.PathLike[str]) -> Snapshot | None:
    """The newest snapshot of a state file; None if there is none yet.

    Raises:
        ConfigError: it is no state file, or cannot be read.
    """
    return next(_newest_first(Path(path)), None)


def read_snapshots(path: str | os.PathLike[str], since: float = 0.0) -> list[Snapshot]:
    """The snapshots after the wall-clock time ``since``, oldest first, those of the last run only.

    Reads from the end of the file as far back as needed: asked each second it costs the new lines.

    Raises:
        ConfigError: it is no state file, or cannot be read.
    """
    found: list[Snapshot] = []
    for snapshot in _newest_first(Path(path)):
        if snapshot.at <= since or (found and not _same_run(snapshot, found[-1])):
            break
        found.append(snapshot)
    return found[::-1]


def _same_run(a: Snapshot, b: Snapshot) -> bool:
    return (a.job.host, a.job.pid, a.job.began) == (b.job.host, b.job.pid, b.job.began)


def _newest_first(path: Path) -> Iterator[Snapshot]:
    read: set[int] = set()
    for part in (path, _before(path)):
        yield from _of_part(part, read)


def _of_part(part: Path, read: set[int]) -> Iterator[Snapshot]:
    try:
        with part.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode in read:
                return  # it was full and got its other name since we opened it
            read.add(inode)
            for line in _lines_from_the_end(file):
                yield _parsed(line, part)
    except FileNotFoundError:
        return
    except OSError as e:
        raise ConfigError(f"the state file {part} cannot be read: {e}") from e


def _parsed(line: bytes, path: Path) -> Snapshot:
    try:
        return Snapshot.from_json(msgspec.json.decode(line))
    except (ValueError, msgspec.DecodeError) as e:
        raise ConfigError(f"{path} is no state file of a job: {e}") from e


def _lines_from_the_end(file: BinaryIO) -> Iterator[bytes]:
    """The lines that have an end, the last first."""
    at, tail, ended = file.seek(0, os.SEEK_END), b"", False
    while at > 0:
        begin = max(0, at - _BLOCK)
        file.seek(begin)
        head, *lines = (file.read(at - begin) + tail).split(b"\n")
        at = begin
        if lines and not ended:
            lines.pop()  # it is being written, or was when its writer was killed
            ended = True
        tail = head if ended else b""
        yield from reversed(lines)
    if ended:
        yield tail


def _opened(path: Path) -> int:
    """The file for appending, by this process alone: two would rename it under each other."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _way_out(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return " (another process writes it: give each rank a file of its own)"
    return ""


def _end(fd: int) -> int:
    return os.lseek(fd, 0, os.SEEK_END)


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _cut_half_line(fd: int) -> None:
    """Drop what a killed writer left of its last line."""
    end = at = _end(fd)
    while at > 0:
        begin = max(0, at - _BLOCK)
        newline = os.pread(fd, at - begin, begin).rfind(b"\n")
        if newline >= 0:
            at = begin + newline + 1
            break
        at = begin
    if at < end:
        os.ftruncate(fd, at)

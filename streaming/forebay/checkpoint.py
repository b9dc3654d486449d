"""Checkpoints that survive a kill: written whole or not at all, checked when read, one kept back.

    checkpoint.save("run/state.json", loader.state_dict())
    state = checkpoint.load("run/state.json")              # None: there is none yet

``save`` and ``load`` keep plain JSON (a data state alone); ``save_torch`` and ``load_torch`` keep
whatever ``torch.save`` does, so that model and data state go into one file together. Beside
``state.json`` lies ``state.json.previous``, the one before; it is read where the newest is damaged.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch

from forebay.errors import StateError

_log = logging.getLogger(__name__)

_VERSION = 1
_MARK = b"blake2b:"
_DIGEST_BYTES = 16
_TRAILER = len(_MARK) + 2 * _DIGEST_BYTES
_ZIP_END = (
    b"PK\x05\x06"  # the end record of a zip file; 22 bytes, the last two its comment's length
)

T = TypeVar("T")


class _Damaged(Exception):
    """The file is not what was written."""


def save(
    path: str | os.PathLike[str], payload: Mapping[str, Any], *, run: str | None = None
) -> None:
    """Store ``payload`` as JSON; when this returns, it is on the disk.

    Args:
        path: the file; its folder is made if missing.
        payload: plain JSON values.
        run: the name of the run that this belongs to; ``load`` refuses it for another.

    Raises:
        StateError: the file cannot be written (disk full, no permission, another process is
            writing it), or ``payload`` is no plain JSON. What was stored before is untouched.
    """
    try:
        content = {"version": _VERSION, "run": run, "payload": dict(payload)}
        body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as e:
        raise StateError(f"{path}: the state is no plain JSON: {e}. Use save_torch.") from e
    _replace(Path(path), lambda f: f.write(body + _MARK + _digest(body) + b"\n"))


def load(path: str | os.PathLike[str], *, run: str | None = None) -> dict[str, Any] | None:
    """The newest undamaged payload, or None if there is no checkpoint.

    A damaged newest file is reported as an error in the log, and the previous one is used.

    Raises:
        StateError: neither file can be read, or the checkpoint is of another version or run.
    """

    def parse(file: Path) -> dict[str, Any]:
        content = json.loads(_verified_json(file.read_bytes()))
        if content["version"] != _VERSION:
            raise StateError(
                f"{file} has format version {content['version']!r}, this Forebay reads "
                f"{_VERSION}. Resume with the Forebay that wrote it."
            )
        if run is not None and content["run"] not in (None, run):
            raise StateError(
                f"{file} belongs to the run {content['run']!r}, this one is {run!r}. Give each "
                "run a checkpoint path of its own."
            )
        payload: dict[str, Any] = content["payload"]
        return payload

    return _newest(Path(path), parse)


def save_torch(path: str | os.PathLike[str], obj: Any) -> None:
    """Store ``obj`` as ``torch.save`` does; ``torch.load`` can read the file, too.

    The checksum is the zip file's comment. ``obj`` is not changed and nothing of it is copied.

    Raises:
        StateError: the file cannot be written; what was stored before is untouched.
    """
    _replace(Path(path), lambda f: _write_torch(f, obj))


def load_torch(
    path: str | os.PathLike[str], *, map_location: Any = "cpu", weights_only: bool = True
) -> Any:
    """The newest undamaged object, or None if there is no checkpoint.

    Args:
        path: the file given to ``save_torch``.
        map_location: where tensors go, as for ``torch.load``.
        weights_only: only tensors and plain values; a file from elsewhere runs no code.

    Raises:
        StateError: neither file can be read.
    """

    def parse(file: Path) -> Any:
        with file.open("rb") as f:
            _verify_torch(f)
            f.seek(0)
            return torch.load(f, map_location=map_location, weights_only=weights_only)

    return _newest(Path(path), parse)


def previous(path: str | os.PathLike[str]) -> Path:
    """Where the checkpoint before the newest is kept."""
    p = Path(path)
    return p.with_name(p.name + ".previous")


@contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the checkpoint at ``path`` for this process: two runs never write one state.

    An OS lock on ``<path>.lock``: it ends with the process, however that ends.

    Raises:
        StateError: another process holds it; names the process.
    """
    target = Path(path).absolute()
    lock = target.with_name(target.name + ".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        fd = _open_locked(lock)
    except OSError as e:
        raise StateError(f"cannot lock the checkpoint {target}: {_reason(e)}") from e
    if fd is None:
        raise StateError(
            f"the checkpoint {target} is in use by {_holder(lock)}. Stop that run, or give this "
            "one a checkpoint path of its own."
        )
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode(), 0)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(fd)


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write beside ``path``, make it durable, then put it in its place.

    The old file becomes the previous one only after the new one stands, so that at every
    instant at least one whole checkpoint has its proper name.
    """
    temporary, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = _open_locked(temporary)
        if fd is None:
            raise StateError(f"another process is writing the checkpoint {path} at this moment")
        with os.fdopen(fd, "wb") as f:
            try:
                f.truncate(0)
                write(f)
                f.flush()
                os.fsync(f.fileno())
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            old.unlink(missing_ok=True)
            _link(path, old)
            temporary.replace(path)
            _sync_folder(path.parent)
        if old.exists():
            old.replace(previous(path))
    except OSError as e:
        raise StateError(
            f"cannot write the checkpoint {path}: {_reason(e)}. The one before is untouched."
        ) from e


def _link(path: Path, old: Path) -> None:
    """Keep the file at ``path`` under a second name, where there is one."""
    with suppress(FileNotFoundError):
        try:
            os.link(path, old)
        except PermissionError:
            # A file system without hard links. For an instant only the previous one has its
            # name, and load() reads that.
            path.replace(previous(path))


def _open_locked(path: Path) -> int | None:
    """Open and lock the file that now has this name; None if another process has it locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and lock its holder may have renamed or removed the file.
            if _same_file(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _same_file(fd: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _newest(path: Path, parse: Callable[[Path], T]) -> T | None:
    problems: list[str] = []
    for file in (path, previous(path)):
        try:
            value = parse(file)
        except FileNotFoundError:
            continue
        except StateError:
            raise
        except Exception as e:  # a damaged file can make any parser raise anything
            problems.append(f"{file}: {_reason(e)}")
            continue
        for problem in problems:
            _log.error(
                "the newest checkpoint is damaged, going on from the one before: %s", problem
            )
        return value
    if problems:
        raise StateError(
            f"no checkpoint can be read ({'; '.join(problems)}). Restore one from a backup, or "
            "remove them to start from the beginning."
        )
    return None


def _verified_json(data: bytes) -> bytes:
    body, trailer = data[: -_TRAILER - 1], data[-_TRAILER - 1 :]
    if not data:
        raise _Damaged("the file is empty")
    if not trailer.startswith(_MARK):
        raise _Damaged("it is cut off, or no checkpoint of Forebay")
    if trailer[len(_MARK) :] != _digest(body) + b"\n":
        raise _Damaged("its checksum does not match its content")
    return body


class _Hashing(io.RawIOBase):
    """Passes what is written on to a file, and hashes all but the last two bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._held = b""
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        block = memoryview(data).cast("B")
        try:
            self._file.write(block)
        except OSError as e:
            self.failure = e
            raise
        tail = self._held + bytes(block[-2:])
        if len(block) >= 2:
            self._hash.update(self._held)
            self._hash.update(block[:-2])
        else:
            self._hash.update(tail[:-2])
        self._held = tail[-2:]
        return len(block)

    def writable(self) -> bool:
        return True

    def digest(self) -> bytes:
        return self._hash.hexdigest().encode()


def _write_torch(file: BinaryIO, obj: Any) -> None:
    out = _Hashing(file)
    try:
        torch.save(obj, cast(IO[bytes], out))
    except RuntimeError:
        # torch hides a full disk behind an error of its own about positions.
        if out.failure is not None:
            raise out.failure from None
        raise
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", _TRAILER) + _MARK + out.digest())


def _verify_torch(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    if size < _TRAILER + 22:
        raise _Damaged("the file is empty" if size == 0 else "it is cut off")
    file.seek(size - _TRAILER - 22)
    end = file.read()
    comment = struct.pack("<H", _TRAILER) + _MARK
    if end[:4] != _ZIP_END or end[20 : 20 + len(comment)] != comment:
        raise _Damaged("it is cut off, or no checkpoint of Forebay")
    file.seek(0)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    left = size - _TRAILER - 2
    while left and (block := file.read(min(left, 1 << 20))):
        digest.update(block)
        left -= len(block)
    if end[22 + len(_MARK) :] != digest.hexdigest().encode():
        raise _Damaged("its checksum does not match its content")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest().encode()


def _holder(lock: Path) -> str:
    try:
        return lock.read_text() or "another process"
    except OSError:
        return "another process"


def _reason(e: Exception) -> str:
    if isinstance(e, OSError) and e.strerror:
        return e.strerror
    return str(e) or type(e).__name__

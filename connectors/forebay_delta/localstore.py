"""A table in a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from forebay.errors import SourceError
from forebay_delta.paths import local_path, scheme_of, split_root
from forebay_delta.storage import Entry, Store


class LocalStore:
    """Files by the operating system; holds nothing open, so a forked process may use it too."""

    local = True

    def __init__(self, root: Path, elsewhere: Callable[[str], Store]) -> None:
        """`elsewhere` opens what an absolute path with another scheme names."""
        self.uri = str(root)
        self._root = os.path.abspath(root)  # noqa: PTH100 - `resolve` would follow links
        self._elsewhere = elsewhere

    def get(self, path: str) -> bytes:
        """See ``Store.get``."""
        with self._named_errors(path), open(self._full(path), "rb", 0) as file:  # noqa: PTH123
            return file.read()

    def get_many(self, paths: Iterable[str]) -> Iterator[bytes]:
        """One after the other: a local read is faster than handing it to a thread."""
        return (self.get(path) for path in paths)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ``Store.get_range``."""
        with self._named_errors(path), Path(self._full(path)).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def exists(self, path: str) -> bool:
        """See ``Store.exists``."""
        with self._named_errors(path):
            return Path(self._full(path)).is_file()

    def list(self, prefix: str) -> list[Entry]:
        """See ``Store.list``."""
        try:
            with self._named_errors(prefix), os.scandir(self._full(prefix)) as found:
                return [entry for each in found if (entry := _entry(each))]
        except FileNotFoundError:
            return []

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """See ``Store.open``. No memory map: a file that is cut short would end the process."""
        del size
        with self._named_errors(path):
            return pa.OSFile(self._full(path), "r")

    def at(self, log_path: str) -> tuple[Store, str]:
        """See ``Store.at``. An absolute path is kept: joining it to the root leaves it as it is."""
        if scheme_of(log_path) == "":
            return self, unquote(log_path)
        path = local_path(log_path)
        if path is not None:
            return self, str(path)
        bucket, name = split_root(log_path)
        return self._elsewhere(bucket), unquote(name)

    def open_data(self, log_path: str, size: int | None = None) -> pa.NativeFile:
        """See ``Store.open_data``."""
        store, path = self.at(log_path)
        return store.open(path, size)

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path)  # noqa: PTH118 - thousands of commits are read

    @contextmanager
    def _named_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(f"no file {self._full(path)}") from error
        except OSError as error:
            raise SourceError(
                f"{self.uri}: {path!r} cannot be read: {error}. "
                "Check that this process may read the folder and that its disk is well."
            ) from error


def _entry(found: os.DirEntry[str]) -> Entry | None:
    """None for what is no file, and for a file that was removed since it was listed."""
    try:
        if not found.is_file():
            return None
        about = found.stat()
    except FileNotFoundError:
        return None
    return Entry(found.name, about.st_size, about.st_mtime_ns // 1_000_000)

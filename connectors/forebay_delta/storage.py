"""What a table's files are read through: one small contract for folders and object stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

StorageOptions: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]] | None
"""Options by the names that deltalake uses, or a function that gives fresh ones."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as a listing has it."""

    name: str
    """Without its folder."""
    size: int
    modified_ms: int


class Store(Protocol):
    """The files of one table. May be used by several threads at a time.

    A path is relative to the table's root and is taken literally; only a `log_path` is decoded.
    Every method that reads raises FileNotFoundError if the file is absent, and SourceError, which
    names the table and the way out, where the store cannot be reached or refuses.
    """

    @property
    def uri(self) -> str:
        """The table's root as messages show it: never with credentials."""

    @property
    def local(self) -> bool:
        """Whether it is a folder of this machine, and so may be read in a forked process."""

    def get(self, path: str) -> bytes:
        """The whole file: one request."""

    def get_many(self, paths: Iterable[str]) -> Iterator[bytes]:
        """The files, in the order of `paths`; several at a time where a request takes long."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the end of the file: one request."""

    def exists(self, path: str) -> bool:
        """Whether the file is there: one HEAD."""

    def list(self, prefix: str) -> list[Entry]:
        """The files directly under `prefix`, in no order; empty if there is none."""

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """The file for random access.

        An object store that is told the `size`, which the log knows, is not asked for it.
        """

    def at(self, log_path: str) -> tuple[Store, str]:
        """The store of a file that an action names, and its path there.

        A `log_path` is percent-encoded once; it is relative to the table, or absolute with a
        scheme (``file:/x``, ``s3://b/x``) or without one (``/x``).
        """

    def open_data(self, log_path: str, size: int | None = None) -> pa.NativeFile:
        """``open`` for a path as an action has it."""

"""A table in an object store: S3, Google Cloud Storage, Azure, or what speaks like them."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar
from urllib.parse import unquote

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from forebay.errors import SourceError
from forebay_delta.paths import local_path, scheme_of, split_root, without_credentials
from forebay_delta.storage import Entry, StorageOptions, Store
from forebay_delta.storageoptions import Options, connect, sort_options

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Requests that are under way at a time where many small files are read: each waits for its
# round trip, not for the processor.
PARALLEL_GETS = 16

# S3 answers 400 to a token that has expired; the other codes mean what they say.
_REFUSED = re.compile(r"status code: 40[013]\b")


class ObjectStore:
    """Files by obstore. The client is made anew when keys were refused and a function gives some.

    Not for forked processes: obstore has threads of its own.
    """

    local = False

    def __init__(
        self,
        uri: str,
        storage_options: StorageOptions,
        elsewhere: Callable[[str], Store],
    ) -> None:
        """`elsewhere` opens what an absolute path outside this table's bucket names."""
        self._address = uri.rstrip("/")
        self.uri = without_credentials(self._address)
        self._given = storage_options
        self._elsewhere = elsewhere
        self._lock = threading.Lock()
        self._client = _Client(self._address, self.uri, storage_options)

    def get(self, path: str) -> bytes:
        """See ``Store.get``."""
        return self._ask(path, lambda remote: bytes(remote.get(path).bytes()))

    def get_many(self, paths: Iterable[str]) -> Iterator[bytes]:
        """See ``Store.get_many``. Its threads end with it, also where it is left early."""
        with ThreadPoolExecutor(PARALLEL_GETS, thread_name_prefix="forebay-get") as pool:
            yield from _ahead(pool, self.get, paths)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ``Store.get_range``."""
        return self._ask(
            path, lambda remote: bytes(remote.get_range(path, start=start, length=length))
        )

    def exists(self, path: str) -> bool:
        """See ``Store.exists``."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Bytes of the file; None if it is not there: one HEAD."""
        try:
            return self._ask(path, lambda remote: remote.head(path)["size"])
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[Entry]:
        """See ``Store.list``."""
        found = self._ask(prefix, lambda remote: remote.list_with_delimiter(prefix)["objects"])
        return [
            Entry(
                name=each["path"].rpartition("/")[2],
                size=each["size"],
                modified_ms=int(each["last_modified"].timestamp() * 1000),
            )
            for each in found
        ]

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """See ``Store.open``: ranged reads, see ``RangedFile`` for how many."""
        known = self.size(path) if size is None else size
        if known is None:
            raise FileNotFoundError(f"no file {self.uri}/{path}")
        return pa.PythonFile(RangedFile(self, path, known), mode="r")

    def at(self, log_path: str) -> tuple[Store, str]:
        """See ``Store.at``."""
        scheme = scheme_of(log_path)
        if scheme == "" and not log_path.startswith("/"):
            return self, unquote(log_path)
        if local_path(log_path) is not None and scheme:
            return self._elsewhere("/"), str(local_path(log_path))
        bucket, path = split_root(self._address if scheme == "" else log_path)
        return self._elsewhere(bucket), unquote(log_path.lstrip("/") if scheme == "" else path)

    def open_data(self, log_path: str, size: int | None = None) -> pa.NativeFile:
        """See ``Store.open_data``."""
        store, path = self.at(log_path)
        return store.open(path, size)

    def _ask(self, path: str, call: Callable[[obstore.store.ObjectStore], T]) -> T:
        """Asks the store, and once more with fresh keys if it refused and there may be some."""
        client = self._client
        try:
            return client.ask(path, call)
        except _RefusedError as refused:
            if not callable(self._given):
                raise refused.as_source_error() from refused
        client = self._renewed(client)
        try:
            return client.ask(path, call)
        except _RefusedError as refused:
            raise refused.as_source_error() from refused

    def _renewed(self, refused: _Client) -> _Client:
        """A client with fresh keys; one that another thread has made meanwhile will do."""
        with self._lock:
            if self._client is refused:
                logger.warning("%s: keys were refused; asking for fresh ones", self.uri)
                self._client = _Client(self._address, self.uri, self._given)
            return self._client


class _RefusedError(Exception):
    """The store refused the keys. Stays in this module: callers get a SourceError."""

    def as_source_error(self) -> SourceError:
        return SourceError(
            f"{self}. Check the keys in storage_options and that they may get and list (without "
            "the right to list, S3 says that a missing file is forbidden); for keys that expire, "
            "give a function that returns fresh storage_options."
        )


class _Client:
    """One obstore client, and its errors in our words."""

    def __init__(self, address: str, shown: str, given: StorageOptions) -> None:
        values: Mapping[str, str] = (given() if callable(given) else given) or {}
        self._uri = shown
        self._options: Options = sort_options(values, shown)
        self._remote = connect(address, self._options, shown)

    def ask(self, path: str, call: Callable[[obstore.store.ObjectStore], T]) -> T:
        try:
            return call(self._remote)
        except FileNotFoundError:
            raise FileNotFoundError(f"no file {self._uri}/{path}") from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise _RefusedError(self._why(path, error)) from None
        except (BaseError, OSError, ValueError) as error:
            if _REFUSED.search(str(error)):
                raise _RefusedError(self._why(path, error)) from None
            raise SourceError(
                f"{self._why(path, error)}. Check the address, the network, and "
                "'AWS_ENDPOINT_URL' and the region, if they are in use; an endpoint without TLS "
                "(http://) needs AWS_ALLOW_HTTP=true."
            ) from None

    def _why(self, path: str, error: Exception) -> str:
        """What the server said; behind it obstore adds a dump of its own structures."""
        said, _, body = str(error).partition("\n\nDebug source")[0].partition("<")
        code = re.search(r"<?Code>([^<]*)</Code>", body)
        why = self._options.shown(f"{said} {code[1] if code else ''}").strip(" :.\n")
        return f"{self._uri}: {path!r} cannot be read: {why}"


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[str], bytes], paths: Iterable[str]
) -> Iterator[bytes]:
    """The results in order, with a bounded number of calls ahead of the one that is awaited."""
    waiting = iter(paths)
    running = deque(pool.submit(function, path) for path in islice(waiting, PARALLEL_GETS))
    while running:
        yield running.popleft().result()
        running.extend(pool.submit(function, path) for path in islice(waiting, 1))


class RangedFile(io.RawIOBase):
    """A file of a known size, read by ranges.

    The end of a Parquet file, where its footer is, is kept once it was read, and a small file
    is fetched whole: it costs one request instead of three. Everything else is read as asked:
    the Parquet reader joins ranges itself (``pre_buffer``, ``buffer_size``).
    """

    WHOLE = 1 << 20
    TAIL = 1 << 16

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        self._store, self._path, self._size = store, path, size
        self._position = 0
        self._tail = b""
        self._tail_start = 0 if size <= self.WHOLE else size - self.TAIL

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._position, 0)
        length = left if size is None or size < 0 else min(size, left)
        data = self._fetch(self._position, length) if length else b""
        self._position += len(data)
        return data

    def _fetch(self, start: int, length: int) -> bytes:
        if start < self._tail_start:
            return self._store.get_range(self._path, start, length)
        if not self._tail:
            self._tail = self._store.get_range(
                self._path, self._tail_start, self._size - self._tail_start
            )
        begin = start - self._tail_start
        return self._tail[begin : begin + length]

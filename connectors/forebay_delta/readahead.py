"""Files that are read ahead, by a few threads, within a bound on bytes.

A file is read piece by piece and in order, by one thread at a time; several files at once keep
the cores and the object store busy. No thread waits: a file whose pieces are not wanted yet has
simply no task running.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from forebay.columns import nbytes
from forebay_delta.datafile import FileScan, Piece


class Ahead:
    """One file on its way. Its fields are guarded by the lock of the readahead."""

    def __init__(self, group: str, open_scan: Callable[[], FileScan]) -> None:
        self.group = group
        """Files of one group are given in order; the first of each can always go on."""
        self.num_rows: int | None = None
        """Physical rows; None until it was opened."""
        self.error: BaseException | None = None
        """Why it cannot be read further; the pieces before are good."""
        self._open_scan = open_scan
        self._scan: FileScan | None = None
        self._pieces: Iterator[Piece] | None = None
        self.ready: deque[tuple[Piece, int]] = deque()
        self.busy = self.read = False

    def advance(self) -> Piece | None:
        """Read the next piece; None at the end. One thread at a time."""
        if self._pieces is None:
            self._scan = self._open_scan()
            self.num_rows = self._scan.num_rows
            self._pieces = iter(self._scan)
        return next(self._pieces, None)

    def close(self) -> None:
        """Close the file. Not while ``advance`` runs."""
        if self._scan is not None:
            self._scan.close()


class Readahead:
    """Reads the files that were added, those added first before the others."""

    def __init__(self, threads: int, max_bytes: int) -> None:
        self._threads, self._max_bytes = threads, max_bytes
        self._pool: ThreadPoolExecutor | None = None
        self._changed = threading.Condition()
        self._files: list[Ahead] = []
        self._bytes, self._running, self._closed = 0, 0, False

    def add(self, ahead: Ahead) -> None:
        """Read this file, too."""
        with self._changed:
            self._files.append(ahead)
            self._pump()

    def __len__(self) -> int:
        return len(self._files)

    def next(self, ahead: Ahead) -> Piece | None:
        """The next piece of a file, or None if there is none now; see ``ended``."""
        with self._changed:
            if not ahead.ready:
                return None
            piece, size = ahead.ready.popleft()
            self._bytes -= size
            self._pump()
            return piece

    def ended(self, ahead: Ahead) -> bool:
        """Whether every piece was given, or the rest cannot be read."""
        with self._changed:
            return ahead.read and not ahead.ready

    def remove(self, ahead: Ahead) -> None:
        """Forget a file."""
        with self._changed:
            self._changed.wait_for(lambda: not ahead.busy)
            self._bytes -= sum(size for _, size in ahead.ready)
            ahead.ready.clear()
            ahead.close()
            self._files.remove(ahead)
            self._pump()

    def wait(self, awaited: Collection[Ahead], timeout: float) -> None:
        """Wait until one of these files has a piece or was read to its end.

        Files behind them may have many pieces by then: those wake nobody up.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(a.ready or a.read for a in awaited), timeout)

    def close(self) -> None:
        """End the threads, close the files."""
        with self._changed:
            self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        for ahead in self._files:
            ahead.close()
        self._files.clear()

    def _pump(self) -> None:
        """Start what may be started. Called with the lock held."""
        first: set[str] = set()
        for ahead in self._files:
            leads = ahead.group not in first
            first.add(ahead.group)
            if self._running >= self._threads or self._closed:
                return
            room = self._bytes < self._max_bytes or (leads and not ahead.ready)
            if room and not ahead.busy and not ahead.read:
                ahead.busy = True
                self._running += 1
                self._submit(ahead)

    def _submit(self, ahead: Ahead) -> None:
        if self._pool is None:
            # Made here, in the process and at the time of the first read.
            self._pool = ThreadPoolExecutor(self._threads, "forebay-delta")
        self._pool.submit(self._advance, ahead)

    def _advance(self, ahead: Ahead) -> None:
        piece, error = None, None
        try:
            piece = ahead.advance()
        except BaseException as e:  # raised again where the file is taken from
            error = e
        size = 0 if piece is None else nbytes(piece.columns) + piece.rows.nbytes
        with self._changed:
            ahead.busy = False
            ahead.error = error
            ahead.read = piece is None
            if piece is not None:
                ahead.ready.append((piece, size))
                self._bytes += size
            self._running -= 1
            self._pump()
            self._changed.notify_all()

"""Files that are read ahead: who waits for what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.delta_files import field, metadata, write

from forebay_delta.actions import DataFile
from forebay_delta.datafile import FileScan
from forebay_delta.projection import Projection
from forebay_delta.readahead import Ahead, Readahead
from forebay_delta.store import open_store

NUMBERS = Projection(metadata(field("x", "long")))


@pytest.fixture
def readahead() -> Iterator[Readahead]:
    made = Readahead(threads=2, max_bytes=1 << 20)
    yield made
    made.close()


def test_pieces_of_a_later_file_do_not_wake_who_waits_for_the_first(
    tmp_path: Path, readahead: Readahead
) -> None:
    file, may_open = write(tmp_path, pa.table({"x": [1, 2, 3]})), threading.Event()
    first = Ahead("a", lambda: _opened_after(may_open, tmp_path, file))
    later = Ahead("a", lambda: FileScan(open_store(tmp_path), file, NUMBERS))
    readahead.add(first)
    readahead.add(later)
    readahead.wait([later], 60)
    waiter = threading.Thread(target=readahead.wait, args=([first], 60))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive() and readahead.next(first) is None
    may_open.set()
    waiter.join(60)
    assert not waiter.is_alive() and readahead.next(first) is not None


def _opened_after(event: threading.Event, folder: Path, file: DataFile) -> FileScan:
    event.wait(20)
    return FileScan(open_store(folder), file, NUMBERS)

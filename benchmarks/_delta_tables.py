"""The Delta tables that the benchmarks read: made once, by deltalake, under ``.cache/bench``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import WriterProperties, write_deltalake

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "bench" / "delta"
_SEED = 7


def numeric_table(*, files: int, rows: int, columns: int) -> Path:
    """``files`` times ``rows`` rows of float32 columns ``c00``, ``c01``, ...; snappy."""

    def tables() -> Iterator[pa.Table]:
        random = np.random.default_rng(_SEED)
        for _ in range(files):
            values = random.standard_normal((columns, rows), np.float32)
            yield pa.table({f"c{i:02}": column for i, column in enumerate(values)})

    return _made(
        f"numeric-{files}x{rows}x{columns}", tables, WriterProperties(compression="SNAPPY")
    )


def blob_table(*, files: int, rows: int, payload: int) -> Path:
    """``files`` times ``rows`` rows of an ``id`` and a ``payload`` of about so many bytes.

    Each file is one row group: that of a single file of 20,000 rows of 30 KB has 600 MB.
    """

    def tables() -> Iterator[pa.Table]:
        random = np.random.default_rng(_SEED)
        for number in range(files):
            sizes = random.integers(payload * 9 // 10, payload * 11 // 10, rows)
            ids = np.arange(number * rows, (number + 1) * rows)
            yield pa.table({"id": ids, "payload": [random.bytes(size) for size in sizes]})

    properties = WriterProperties(compression="UNCOMPRESSED", max_row_group_size=max(rows, 1))
    return _made(f"blobs-{files}x{rows}x{payload}", tables, properties)


def _made(
    name: str, tables: Callable[[], Iterator[pa.Table]], properties: WriterProperties
) -> Path:
    """A table with a file for each of ``tables``; whole or not there at all."""
    root = FOLDER / name
    if root.exists():
        return root
    print(f"making {root} (once)", file=sys.stderr, flush=True)
    unfinished = root.with_name(f"{name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for table in tables():
        write_deltalake(
            unfinished, table, mode="append", writer_properties=properties, target_file_size=1 << 40
        )
    unfinished.rename(root)
    return root

"""The demo's writer: a process that appends to a Delta table, updates its rows and compacts it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import orjson
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from numpy.typing import NDArray

from forebay.demo.leash import end_with_parent
from forebay_delta.demo.pictures import pictures
from forebay_delta.demo.task import Order, key_of

_DISTINCT = 400
_HISTORY_COMMITS = 4
_LIVE_ROWS = 200
"""Rows of an append while the training runs."""
_UPDATED_ROWS = 50
_UPDATE_EVERY = 3
_UPDATE_AMONG = 1_000
"""Updates hit the newest rows, so that few files are rewritten."""
_COMPACT_EVERY = 10
_FILE_BYTES = 4 << 20


class Written(msgspec.Struct):
    """What was committed so far; each commit prints it as a line of JSON."""

    rows: int = 0
    updates: int = 0
    commits: int = 0
    compactions: int = 0


class Writer:
    """Commits to one table, and keeps the journal of it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._rng = np.random.default_rng(order.seed)
        images, self._labels = pictures(self._rng, _DISTINCT)
        self._images = [image.tobytes() for image in images]
        self._revisions = np.zeros(order.first + order.rows, np.int64)
        self._next = order.first
        self._written = Written()
        self._table: DeltaTable | None = None
        self._before = 0
        """Commits of the table before this writer's."""

    def history(self) -> None:
        """A few large commits, compacted: what a table looks like before the training begins."""
        for rows in np.array_split(np.arange(self._order.rows), _HISTORY_COMMITS):
            self._append(len(rows))
        self._compact()

    def live(self, per_second: float) -> None:
        """Small commits at a steady rate, with updates and compactions between them."""
        self._table = DeltaTable(self._order.table)
        self._before = self._table.version() + 1
        for commit, rows in enumerate(self._paced(per_second), 1):
            self._append(rows)
            if commit % _UPDATE_EVERY == 0:
                self._update()
            if commit % _COMPACT_EVERY == 0:
                self._compact()

    def _paced(self, per_second: float) -> Iterator[int]:
        """The rows of each append, when it is due."""
        began, given = time.monotonic(), 0
        while given < self._order.rows:
            rows = min(_LIVE_ROWS, self._order.rows - given)
            given += rows
            time.sleep(max(0.0, began + given / per_second - time.monotonic()))
            yield rows

    def _append(self, count: int) -> None:
        ids = np.arange(self._next, self._next + count)
        self._next += count
        write_deltalake(
            self._table or self._order.table,
            self._rows(ids),
            mode="append",
            configuration=None if self._table else {"delta.enableChangeDataFeed": "true"},
        )
        self._table = self._table or DeltaTable(self._order.table)
        self._written.rows += count
        self._committed(ids)

    def _rows(self, ids: NDArray[np.int64]) -> pa.Table:
        at = self._rng.integers(_DISTINCT, size=len(ids))
        return pa.table(
            {
                "id": ids,
                "revision": self._revisions[ids],
                "label": self._labels[at],
                "image": pa.array([self._images[i] for i in at], pa.binary()),
            }
        )

    def _update(self) -> None:
        """Give some rows a new version."""
        among = np.arange(max(0, self._next - _UPDATE_AMONG), self._next)
        ids = self._rng.choice(among, min(_UPDATED_ROWS, len(among)), replace=False)
        listed = ", ".join(map(str, ids.tolist()))
        assert self._table is not None
        done = self._table.update({"revision": "revision + 1"}, predicate=f"id IN ({listed})")
        if done["num_updated_rows"] != len(ids):
            raise SystemExit(f"{len(ids)} rows were to be updated, the table says {done}")
        self._revisions[ids] += 1
        self._written.updates += len(ids)
        self._committed(ids)

    def _compact(self) -> None:
        assert self._table is not None
        self._table.optimize.compact(target_size=_FILE_BYTES)
        self._table.create_checkpoint()
        self._written.compactions += 1
        self._tell()

    def _committed(self, ids: NDArray[np.int64]) -> None:
        """Note the versions of rows that are in the table now."""
        with Path(self._order.journal).open("ab") as journal:
            journal.write(orjson.dumps(key_of(ids, self._revisions[ids]).tolist()) + b"\n")
        self._tell()

    def _tell(self) -> None:
        assert self._table is not None
        self._written.commits = self._table.version() + 1 - self._before
        print(msgspec.json.encode(self._written).decode(), flush=True)


def write(order: Order) -> None:
    """Write what is ordered."""
    writer = Writer(order)
    if order.per_second is None:
        writer.history()
    else:
        writer.live(order.per_second)


if __name__ == "__main__":
    end_with_parent()
    write(msgspec.json.decode(sys.argv[1], type=Order))

"""A few rows that are very slow: who has to wait for them?

Of 4,000 rows, 2 % take 100 times as long as the others (100 ms and 1 ms), the same ones, drawn by
chance, for every contender. The work is a sleep, so it holds neither the GIL nor a core, four
workers share it, and the clock tells the truth on a busy machine, too. Rows grow from 1 kB to
150 kB on the way, as pictures do. Ideal is the time that the sleeps took, as measured, divided by
four: sleeps that overshoot are nobody's fault here.

* ``forebay arrival`` is the one with a target: at most 1.25 times the ideal.
* ``forebay split`` keeps the order of each split: rows wait behind a slow one, but work goes on as
  long as the window (``max_bytes``) has room.
* ``DataLoader``: the same rows, as many workers, in order, as it comes; ``DataLoader unordered``:
  with ``in_order=False``. A batch is made by one worker there, so a slow row delays all others.

All with batches of 32 and of 8 rows and otherwise their defaults. The ratio is total time / ideal
in ``arrival`` order, the median of the rounds, for the worse of the batch sizes. Time to the first
batch is part of the total; imports are not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from _report import report, table
from _rounds import Result, give, in_process, interleaved, median
from _sources import MadeSource
from forebay import Pipeline
from forebay.columns import Columns
from forebay.engine import Order

TARGET = 1.25
ROWS, BATCHES, WORKERS, PARTITIONS = 4_000, (32, 8), 4, 4
FAST_SECONDS, TIMES_SLOWER = 0.001, 100
ROW_BYTES, PICTURE_BYTES = 1_000, 150_000
SLOW = np.random.default_rng(7).random(ROWS) < 0.02


def work(row: int) -> float:
    """Be busy with a row; returns the seconds that took."""
    began = time.perf_counter()
    time.sleep(FAST_SECONDS * (TIMES_SLOWER if SLOW[row] else 1))
    return time.perf_counter() - began


def decode(columns: Columns) -> Columns:
    """The same for some rows: what a stage does."""
    rows = np.asarray(columns["row"])
    seconds = np.array([work(int(row)) for row in rows])
    return {
        "row": rows,
        "seconds": seconds,
        "picture": np.zeros((len(rows), PICTURE_BYTES), np.uint8),
    }


def raw_rows(split: int, offsets: NDArray[np.int64]) -> Columns:
    """Rows as they come from a broker, numbered over all splits."""
    rows = offsets * PARTITIONS + split
    return {"row": rows, "value": np.zeros((len(rows), ROW_BYTES), np.uint8)}


@dataclass(frozen=True)
class Rows(Dataset[dict[str, Any]]):
    """The same rows as items."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"row": row, "seconds": work(row), "picture": np.zeros(PICTURE_BYTES, np.uint8)}


def forebay(batch: int, order: Order) -> Iterable[Any]:
    """Our loader."""
    source = MadeSource(make=raw_rows, rows=ROWS // PARTITIONS, partitions=PARTITIONS)
    return Pipeline(source).map(decode).batch(batch).loader(order=order, workers=WORKERS)


def dataloader(batch: int, in_order: bool) -> Iterable[Any]:
    """A torch DataLoader."""
    return DataLoader(Rows(), batch_size=batch, num_workers=WORKERS, in_order=in_order)


LOADERS: dict[str, Callable[[int], Iterable[Any]]] = {
    "forebay arrival": partial(forebay, order="arrival"),
    "forebay split": partial(forebay, order="split"),
    "DataLoader": partial(dataloader, in_order=True),
    "DataLoader unordered": partial(dataloader, in_order=False),
}
CONTENDERS = [f"{name}/{batch}" for batch in BATCHES for name in LOADERS]


def contend(contender: str) -> Result:
    """Seconds for all rows, and the seconds of work they were."""
    torch.set_num_threads(1)
    name, _, batch_size = contender.partition("/")
    began = time.perf_counter()
    rows, worked, first, last = 0, 0.0, 0.0, 0.0
    for batch in LOADERS[name](int(batch_size)):
        first = first or time.perf_counter() - began
        rows += len(batch["row"])
        worked += float(batch["seconds"].sum())
        last = time.perf_counter() - began
    if rows != ROWS:
        raise RuntimeError(f"{contender} gave {rows} rows, not {ROWS}")
    ideal = worked / WORKERS
    return {"seconds": last, "ideal": ideal, "ratio": last / ideal, "first": first}


def main() -> int:
    """Run all contenders, print the table and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        give(contend(options.contender))
        return 0
    results = interleaved(
        CONTENDERS, options.rounds, lambda name: in_process(__file__, "--contender", name)
    )
    rows = [
        {
            "contender": name.partition("/")[0],
            "batch": int(name.partition("/")[2]),
            "seconds": median(rounds, "seconds"),
            "ideal": median(rounds, "ideal"),
            "total / ideal": median(rounds, "ratio"),
            "first batch, s": median(rounds, "first"),
        }
        for name, rounds in results.items()
    ]
    slow = int(SLOW.sum())
    table(rows, f"{ROWS:,} rows, {slow} of them {TIMES_SLOWER} times slower, {WORKERS} workers")
    ratio = max(median(results[f"forebay arrival/{batch}"], "ratio") for batch in BATCHES)
    return report("slow_rows", ratio, TARGET, ratio <= TARGET, {"contenders": rows})


if __name__ == "__main__":
    sys.exit(main())

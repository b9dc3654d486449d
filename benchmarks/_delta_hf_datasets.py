"""Rows a second of Hugging Face datasets, streaming a table's files with torch format.

Run by ``delta_numeric`` in an environment of its own: ``FOLDER BATCH``. Each way reads a sample,
after a first batch that is not counted.

* ``loader``: ``DataLoader(dataset, batch_size=...)``, as its documentation has it; in batches of
  512, since it takes row by row.
* ``iter``: ``dataset.iter(batch_size=...)``.
* ``batch``: ``dataset.batch(...)``, which leaves the rows in Arrow until a batch is full.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it

from datasets import load_dataset  # type: ignore[import-not-found,unused-ignore]
from torch.utils.data import DataLoader

_ROWS = {"loader": 2_000, "iter": 100_000, "batch": 1_000_000}


def ways(folder: str, size: int) -> Iterator[tuple[str, Iterable[Mapping[str, Any]]]]:
    """Each way with its batches."""
    files = sorted(str(path) for path in Path(folder).glob("*.parquet"))

    def streamed() -> Any:
        made = load_dataset("parquet", data_files=files, split="train", streaming=True)
        return made.with_format("torch")

    yield "loader", DataLoader(streamed(), batch_size=512)
    yield "iter", streamed().iter(batch_size=size)
    yield "batch", DataLoader(streamed().batch(size), batch_size=None)


def rate(batches: Iterable[Mapping[str, Any]], rows: int) -> float:
    """Rows a second over at least so many rows, behind the first batch."""
    iterator = iter(batches)
    next(iterator)
    found, began = 0, time.perf_counter()
    while found < rows:
        found += len(next(iter(next(iterator).values())))
    return found / (time.perf_counter() - began)


if __name__ == "__main__":
    rates = {
        name: rate(batches, _ROWS[name]) for name, batches in ways(sys.argv[1], int(sys.argv[2]))
    }
    print("@result " + json.dumps(rates), flush=True)
    os._exit(0)  # its generators complain when Python tidies up

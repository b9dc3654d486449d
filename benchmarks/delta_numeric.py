"""A Delta table of numbers to torch batches: 10 M rows of 20 float32, 16 files, snappy, 0.9 GB.

Every contender gives a dict of 20 tensors for each 8,192 rows, in a process of its own, all of
them in every round, and the table is in the page cache. Counted are the wall seconds of the loop
over its batches, the second time that a process reads the table, by each contender's best round
(what else runs on the machine only ever adds), and the peak of resident memory above what the
imports take, which are the same for all; of that the median.

* ``bare``: ``ParquetFile.iter_batches``, memory map, Arrow's threads, no copy into tensors: what
  any reader in Python pays at least. It knows no log, no position and no bound.
* ``forebay``: ``Pipeline(DeltaSource(...)).batch(8192).loader()``.
* ``dataset``: ``DeltaTable.to_pyarrow_dataset().to_batches()``. ``dataset, tuned``: with Arrow's
  own file system and one fragment and one batch read ahead; for information.
* ``datasets``: Hugging Face's, streaming the same files with torch format, a sample of them, in an
  environment of its own under ``.cache/bench``; behind a ``DataLoader``, and by its own ``iter``,
  the faster of which counts. ``datasets, batch`` never makes rows; for information.

The ratio is the worst of (ours / theirs) / target, so at least 1 is asked for. Targets of rows a
second: bare 0.8, dataset 1.5, datasets 20. Of memory: at most 0.6 of dataset's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from _delta_read import bare, batches_of, datasets_python, end_with, forebay, measured
from _delta_tables import numeric_table
from _peers import run_with
from _report import report, table
from _rounds import Result, in_process, interleaved, median

FILES, ROWS, COLUMNS = 16, 625_000, 20
BATCH = 8192
SPEED = {"bare": 0.8, "dataset": 1.5, "datasets": 20.0}
MEMORY = 0.6
PEER = "datasets"


def dataset(root: Path, batch_rows: int) -> Iterator[Mapping[str, Any]]:
    """What users write."""
    for batch in DeltaTable(root).to_pyarrow_dataset().to_batches(batch_size=batch_rows):
        yield from batches_of(batch, batch_rows)


def tuned_dataset(root: Path, batch_rows: int) -> Iterator[Mapping[str, Any]]:
    """What users write who know all of Arrow's settings."""
    files = SubTreeFileSystem(str(root), LocalFileSystem())
    batches = DeltaTable(root).to_pyarrow_dataset(filesystem=files)
    for batch in batches.to_batches(batch_size=batch_rows, batch_readahead=1, fragment_readahead=1):
        yield from batches_of(batch, batch_rows)


CONTENDERS: dict[str, Callable[[Path, int], Iterator[Mapping[str, Any]]]] = {
    "bare": lambda root, rows: bare(root, rows, read_rows=1 << 16),
    "forebay": forebay,
    "dataset": dataset,
    "dataset, tuned": tuned_dataset,
}


def main() -> int:
    """Measure, print the table and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--no-datasets", action="store_true", help="leave Hugging Face's out")
    parser.add_argument("--contend", nargs=2, metavar=("NAME", "ROOT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, folder = options.contend
        end_with(measured(lambda: CONTENDERS[name](Path(folder), options.batch)))
    root = numeric_table(files=FILES, rows=ROWS, columns=COLUMNS)
    python = None if options.no_datasets else datasets_python()

    def once(name: str) -> Result:
        if python is not None and name == PEER:
            script = Path(__file__).with_name("_delta_hf_datasets.py")
            return run_with(python, script, root, options.batch, timeout=600)
        result = in_process(__file__, "--contend", name, root, "--batch", options.batch)
        if result["rows"] != FILES * ROWS:
            raise RuntimeError(f"{name}: {result['rows']} rows instead of {FILES * ROWS}")
        return result

    results = interleaved([*CONTENDERS, *([PEER] if python else [])], options.rounds, once)
    return conclude(results, options.batch)


def conclude(results: Mapping[str, list[Result]], batch_rows: int) -> int:
    """The table and the line."""
    rates = {name: FILES * ROWS / min(r["seconds"] for r in results[name]) for name in CONTENDERS}
    if peer := results.get(PEER):
        best = {way: max(r[way] for r in peer) for way in peer[0]}
        rates |= {PEER: max(best["loader"], best["iter"]), "datasets, batch": best["batch"]}
    peaks = {name: median(results[name], "peak_mb") for name in CONTENDERS}
    bases = {name: median(results[name], "base_mb") for name in CONTENDERS}
    ratios = {name: rates["forebay"] / rate for name, rate in rates.items()}
    rows = [
        {
            "contender": name,
            "M rows/s": rate / 1e6,
            "forebay is x": ratios[name],
            "target": SPEED.get(name),
            "peak MB": peaks.get(name),
            "imports MB": bases.get(name),
            "CPU s": min((r["cpu_seconds"] for r in results[name]), default=None)
            if name in CONTENDERS
            else None,
        }
        for name, rate in rates.items()
    ]
    table(rows, f"{FILES * ROWS:,} rows of {COLUMNS} float32, batches of {batch_rows:,}")
    worst = {name: ratios[name] / target for name, target in SPEED.items() if name in ratios}
    worst["memory"] = MEMORY * peaks["dataset"] / peaks["forebay"]
    ratio = min(worst.values())
    figures = {
        "ours_over_theirs_over_target": worst,
        "rows_per_second": rates,
        "ratios": ratios,
        "targets": {**SPEED, "memory": MEMORY},
        "peak_mb": peaks,
        "imports_mb": bases,
        "skipped": [] if peer else ["Hugging Face datasets"],
    }
    return report("delta_numeric", ratio, 1.0, ratio >= 1.0, figures)


if __name__ == "__main__":
    sys.exit(main())

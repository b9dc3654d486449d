"""A Delta table of payloads to batches of 256: 20,000 rows of about 30 KB, 0.6 GB, uncompressed.

Every contender gives a tensor of ids and a list of ``bytes`` for each 256 rows, in a process of
its own, all of them in every round, and the table is in the page cache. Counted are the wall
seconds of the loop over its batches, the second time that a process reads the table, by each
contender's best round.

* ``bare``: ``ParquetFile.iter_batches``, memory map, Arrow's threads; of 8 files.
* ``forebay``: ``Pipeline(DeltaSource(...)).batch(256).loader()``; of the same files.
* ``dataset``: ``DeltaTable.to_pyarrow_dataset().to_batches()``; for information.

Then the same rows as one file with **one row group of 600 MB**, read by a trainer that pauses for
two seconds after its fourth batch, so that all that may be read ahead is. Shown is the peak of
resident memory above what the imports take. The bound that is stated:

* ``max_bytes`` of the loader and ``readahead_bytes`` of the source, 64 MiB each: 134 MB;
* one slice of the source, 4 MiB, beyond each of the two: 8 MB;
* four batches, the trainer's, the two that wait and the one in the making, which hold their
  payloads a second time, as ``bytes``: 31 MB;
* what reading takes first of all, whatever it reads, and what malloc and Arrow's allocator keep of
  memory that was given back, in heaps for each thread: 256 MB, as in ``memory``.

The ratio is the worse of rows a second, ours over bare's over 0.8, and of the bound over the peak:
at least 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from _delta_read import MB, bare, batches_of, end_with, forebay, measured
from _delta_tables import blob_table
from _report import report, table
from _rounds import Result, in_process, interleaved, median

ROWS, PAYLOAD, FILES, BATCH = 20_000, 30_000, 8, 256
SPEED = 0.8
MAX_BYTES = 64 << 20
BOUND = (MAX_BYTES + (64 << 20) + 2 * (4 << 20) + 4 * BATCH * PAYLOAD) / MB + 256
PAUSE_AFTER, PAUSE_SECONDS = 4, 2.0


def dataset(root: Path) -> Iterator[Mapping[str, Any]]:
    """What users write."""
    for batch in DeltaTable(root).to_pyarrow_dataset().to_batches(batch_size=BATCH):
        yield from batches_of(batch, BATCH)


def paused(batches: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The batches of a trainer that stops for a while."""
    for number, batch in enumerate(batches):
        if number == PAUSE_AFTER:
            time.sleep(PAUSE_SECONDS)
        yield batch


CONTENDERS: dict[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    "bare": lambda root: bare(root, BATCH, read_rows=BATCH),
    "forebay": lambda root: forebay(root, BATCH),
    "dataset": dataset,
}
LARGE: dict[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    "forebay, one row group": lambda root: paused(forebay(root, BATCH, MAX_BYTES)),
    "dataset, one row group": lambda root: paused(dataset(root)),
}


def main() -> int:
    """Measure, print the tables and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contend", nargs=2, metavar=("NAME", "ROOT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, folder = options.contend
        end_with(measured(lambda: (CONTENDERS | LARGE)[name](Path(folder))))
    many = blob_table(files=FILES, rows=ROWS // FILES, payload=PAYLOAD)
    one = blob_table(files=1, rows=ROWS, payload=PAYLOAD)

    def once(name: str) -> Result:
        result = in_process(__file__, "--contend", name, one if name in LARGE else many)
        if result["rows"] != ROWS:
            raise RuntimeError(f"{name}: {result['rows']} rows instead of {ROWS}")
        return result

    results = interleaved(list(CONTENDERS), options.rounds, once)
    results |= interleaved(list(LARGE), min(options.rounds, 3), once)
    return conclude(results)


def conclude(results: Mapping[str, list[Result]]) -> int:
    """The tables and the line."""
    rates = {name: ROWS / min(r["seconds"] for r in results[name]) for name in CONTENDERS}
    peaks = {name: max(r["peak_mb"] for r in of) for name, of in results.items()}
    bases = {name: median(of, "base_mb") for name, of in results.items()}
    ratios = {name: rates["forebay"] / rate for name, rate in rates.items()}
    speed = [
        {
            "contender": name,
            "rows/s": rate,
            "MB/s": rate * PAYLOAD / MB,
            "forebay is x": ratios[name],
            "target": SPEED if name == "bare" else None,
            "CPU s": min(r["cpu_seconds"] for r in results[name]),
            "peak MB": peaks[name],
            "imports MB": bases[name],
        }
        for name, rate in rates.items()
    ]
    table(speed, f"{ROWS:,} rows of {PAYLOAD:,} bytes in {FILES} files, batches of {BATCH}")
    memory = [
        {
            "contender": name,
            "peak MB": peaks[name],
            "bound MB": BOUND if name.startswith("forebay") else None,
            "imports MB": bases[name],
            "first batch s": min(r["first_seconds"] for r in results[name]),
        }
        for name in LARGE
    ]
    table(memory, f"The same in one row group of {ROWS * PAYLOAD / MB:.0f} MB; the trainer pauses")
    worst = {
        "bare": ratios["bare"] / SPEED,
        "bound": BOUND / peaks["forebay, one row group"],
    }
    figures = {
        "ours_over_theirs_over_target": worst,
        "rows_per_second": rates,
        "ratios": ratios,
        "targets": {"bare": SPEED},
        "peak_mb": peaks,
        "imports_mb": bases,
        "bound_mb": BOUND,
    }
    ratio = min(worst.values())
    return report("delta_blobs", ratio, 1.0, ratio >= 1.0, figures)


if __name__ == "__main__":
    sys.exit(main())

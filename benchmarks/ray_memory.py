"""Whether a run on Ray takes no more memory the longer it lasts.

A trainer eats 200 records a second of 30 kB, which a stage on two workers inflates to 150 kB, for
five minutes, on a Ray of its own. Every few seconds the proportional set size (PSS, in which a page
that n processes share counts 1/n in each) of every process is read:

* **trainer**: this process.
* **host, reader, workers**: the actors of the run.
* **Ray's actors**: those of Ray Data and Ray's agents, which any data set has.
* **Ray's servers**: the raylet with the object store, the GCS, and what belongs to them.

What is no shared memory, which the object store is, is a process's own. Its growth is the least of
the last quarter of the run less the least of the second quarter, by the minutes between: what an
allocator takes and gives back is no growth, what never comes back is.

The ratio is the growth of what trainer, host, reader and workers have of their own, together, over
2 MB a minute: at most 1. What Ray's own processes grow by is shown, and is not ours to change.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from _report import report, table
from _rounds import Result, give, in_process
from _sources import PacedSource
from forebay import Pipeline
from forebay.columns import Columns
from forebay.ray import RayEngine

ALLOWED = 2.0
MB = 1e6
RATE, RECORD_BYTES, INFLATED, BATCH, SLICE_ROWS = 200, 30_000, 5, 50, 10
SAMPLE_SECONDS = 2.0
RAY = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 200 << 20}
TRAINER, SERVERS, ACTORS = "trainer", "Ray's servers", "Ray's actors"
TITLES = {"ray::Host": "host", "ray::Reading": "reader", "ray::MapWorker": "workers"}
OURS, OTHERS = (TRAINER, *TITLES.values()), (ACTORS, SERVERS)


def records(split: int, offsets: NDArray[np.int64]) -> Columns:
    """Records of 30 kB, every page of them written to."""
    return {"value": np.full((len(offsets), RECORD_BYTES), 7, np.uint8)}


def inflate(columns: Columns) -> Columns:
    """What a decoder does to memory: five bytes out for each byte in."""
    return {"picture": np.repeat(np.asarray(columns["value"]), INFLATED, axis=1)}


def contend(seconds: float) -> Result:
    """Megabytes of each kind of process, sample by sample, and when they were taken."""
    source = PacedSource(make=records, slice_rows=SLICE_ROWS, rate=RATE)
    engine = RayEngine(num_cpus=1, init=RAY)
    pipeline = Pipeline(source).map(inflate).batch(BATCH)
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    at: list[float] = []
    rows, began, due = 0, 0.0, 0.0
    with pipeline.loader(engine=engine, workers=2, max_bytes=32 << 20) as loader:
        for batch in loader:
            now = time.monotonic()
            began = began or now
            rows += batch.rows
            if now >= due:
                due = now + SAMPLE_SECONDS
                at.append(now - began)
                for kind, size in sizes().items():
                    samples[kind].append(size)
            if now - began > seconds:
                break
    return {"at": at, "samples": samples, "rows per s": rows / (time.monotonic() - began)}


def sizes() -> dict[str, tuple[float, float]]:
    """Megabytes of each kind of process now, and of those the ones that are no shared memory."""
    sums = dict.fromkeys((*OURS, *OTHERS), (0.0, 0.0))
    sums[TRAINER] = of_process(os.getpid())
    for kind, whole, own in others():
        before = sums[kind]
        sums[kind] = before[0] + whole, before[1] + own
    return sums


def others() -> Iterator[tuple[str, float, float]]:
    """Of each process below this one its kind, its PSS and the part that is its own."""
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
            pss, own = of_process(process.pid)
        except (psutil.Error, OSError):  # it ended meanwhile
            continue
        yield kind_of(title), pss, own


def kind_of(title: str) -> str:
    """What a process is, by what it calls itself."""
    for start, kind in TITLES.items():
        if title.startswith(start):
            return kind
    return ACTORS if title.startswith("ray::") else SERVERS


def of_process(pid: int) -> tuple[float, float]:
    """Megabytes of a process, and of those the ones that are no shared memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(size) for name, size, *_ in (line.split() for line in lines)}
    return kilobytes["Pss:"] * 1024 / MB, kilobytes["Pss_Anon:"] * 1024 / MB


def row(kind: str, at: NDArray[Any], sizes: NDArray[Any]) -> dict[str, Any]:
    """What the table shows of one kind of process."""
    whole, own = sizes.T
    return {
        "process": kind,
        "at a quarter": float(whole[at >= at[-1] / 4][0]),
        "at the end": float(whole[-1]),
        "peak": float(whole.max()),
        "its own at the end": float(own[-1]),
        "its own, MB a minute": growth(at, own),
    }


def growth(at: NDArray[Any], own: NDArray[Any]) -> float:
    """Megabytes a minute."""
    second, last = (own[(at >= at[-1] * k / 4) & (at <= at[-1] * (k + 1) / 4)] for k in (1, 3))
    return float((last.min() - second.min()) / (at[-1] / 2 / 60))


def main() -> int:
    """Run, print the table and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--quick", action="store_true", help="one minute: too short to tell much")
    parser.add_argument("--contender", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        give(contend(options.contender))
        return 0
    seconds = 60.0 if options.quick else options.seconds
    result = in_process(__file__, "--contender", seconds, timeout=seconds + 300)
    samples = {kind: np.array(values) for kind, values in result["samples"].items()}
    at = np.array(result["at"])
    samples["ours"] = np.sum([samples[kind] for kind in OURS], axis=0)
    rows = [row(kind, at, values) for kind, values in samples.items()]
    table(rows, f"PSS, MB; {seconds:g} s at {result['rows per s']:.0f} rows a second")
    ratio = rows[-1]["its own, MB a minute"] / ALLOWED
    figures = {"seconds": seconds, "rows per s": result["rows per s"], "rows": rows}
    return report("ray_memory", ratio, 1.0, ratio <= 1.0, figures)


if __name__ == "__main__":
    sys.exit(main())

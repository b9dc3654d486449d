"""JPEG payloads (500x375, about 30 KB) to batches of 64 pictures, 224x224x3 uint8, on 2 workers.

Every contender decodes with the same two calls (simplejpeg, then a bilinear resize by OpenCV) and
runs in a process of its own, all of them in every round. What counts is the CPU seconds of a
picture, with those of worker processes: the median over the rounds.

* **bare loop**: the two calls in a loop, into one array for each batch; nothing can be cheaper.
* **forebay**: ``Pipeline(...).decode(decode.jpeg(...)).batch(64)``, from rows in memory to tensors,
  with dead letters and positions as always.
* **DataLoader**: torch's, 2 worker processes, a map-style dataset, the default collate.
* **SPDL**: its thread pipeline, an item for each picture, stacked to arrays. In an environment of
  its own, which is made under ``.cache/bench``. *SPDL, by batch* gets 64 pictures in one call, as
  its users may write it; for information.

The ratio is DataLoader's CPU for a picture over ours: at least 1.3. Further, SPDL's over ours must
be at least 1.0, and the bare loop's at least 0.8.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from _jpegs import BATCH, SIDE, decode_batch, decode_one, measured, read_files, write_files
from _peers import NotMade, environment
from _report import report, table
from _rounds import Result, give, in_process, interleaved, median
from _sources import MadeSource
from forebay import Pipeline, decode
from forebay.columns import Columns

TARGETS = {"DataLoader": 1.3, "SPDL": 1.0, "bare loop": 0.8}
FILES = 256
SPDL = ("spdl-core==0.8.0",)
SAME = ("numpy", "opencv-python-headless", "simplejpeg")
HERE = Path(__file__).resolve().parent


def bare_loop(files: Sequence[bytes], count: int, workers: int) -> Result:
    """The decode function in a loop, on one thread."""
    return measured(_decoded(files), count)


def _decoded(files: Sequence[bytes]) -> Iterator[NDArray[np.uint8]]:
    endless = cycle(files)
    while True:
        yield decode_batch(list(islice(endless, BATCH)))


def forebay(files: Sequence[bytes], count: int, workers: int) -> Result:
    """A pipeline as users write it."""
    payloads = np.array(files, dtype=object)

    def records(partition: int, offsets: NDArray[np.int64]) -> Columns:
        return {"offset": offsets, "value": payloads[offsets % len(payloads)]}

    pipeline = Pipeline(MadeSource(make=records, partitions=4, slice_rows=256))
    pipeline = pipeline.decode(decode.jpeg("value", size=(SIDE, SIDE)))
    with pipeline.batch(BATCH).loader(workers=workers) as loader:
        return measured(loader, count)


class Files(Dataset[torch.Tensor]):
    """A map-style dataset without end."""

    def __init__(self, files: Sequence[bytes], rows: int) -> None:
        self._files, self._rows = files, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(decode_one(self._files[index % len(self._files)]))


def dataloader(files: Sequence[bytes], count: int, workers: int) -> Result:
    """torch's DataLoader; its workers' CPU seconds are counted while they live."""
    rows = BATCH * (count + 1000)
    return measured(DataLoader(Files(files, rows), BATCH, num_workers=workers), count, _cpu_of_all)


def _cpu_of_all() -> float:
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


CONTENDERS = {"bare loop": bare_loop, "forebay": forebay, "DataLoader": dataloader}
PEERS = {"SPDL": "image", "SPDL, by batch": "batch"}


def spdl_python() -> Path:
    """The Python of an environment with SPDL and our versions of all else."""
    wanted = [*SPDL, *(f"{name}=={version(name)}" for name in SAME)]
    try:
        return environment("spdl", wanted)
    except NotMade as e:
        raise SystemExit(f"SPDL, {e}") from e


def run_one(name: str, archive: str, count: int, workers: int) -> None:
    """What the process of one contender does."""
    if name in PEERS:
        script, python = str(HERE / "_spdl_decode.py"), str(spdl_python())
        arguments = [python, script, archive, PEERS[name], str(workers), str(count)]
        os.execv(python, arguments)
    give(CONTENDERS[name](read_files(Path(archive)), count, workers))


def main() -> int:
    """Measure, print the table and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=60, help="measured in each round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs=2, metavar=("NAME", "ARCHIVE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        name, archive = options.only
        run_one(name, archive, options.batches, options.workers)
        return 0
    spdl_python()
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "jpegs.npz"
        size = write_files(archive, FILES)
        flags = ("--batches", options.batches, "--workers", options.workers)

        def once(name: str) -> Result:
            return in_process(__file__, "--only", name, archive, *flags)

        results = interleaved([*CONTENDERS, *PEERS], options.rounds, once)
    return conclude(results, size, options.workers)


def conclude(results: Mapping[str, list[Result]], size: float, workers: int) -> int:
    """The table and the line."""
    cpu = {name: median(rounds, "cpu_ms") for name, rounds in results.items()}
    wall = {name: median(rounds, "wall_ms") for name, rounds in results.items()}
    ratios = {name: cpu[name] / cpu["forebay"] for name in cpu}
    rows: list[dict[str, Any]] = [
        {
            "contender": name,
            "CPU ms/picture": cpu[name],
            "forebay is x": ratios[name],
            "target": TARGETS.get(name),
            "wall ms/picture": wall[name],
            "pictures/s": 1000 / wall[name],
        }
        for name in cpu
    ]
    table(rows, f"JPEGs of {size / 1000:.0f} KB to 224x224, batches of {BATCH}, {workers} workers")
    ok = all(ratios[name] >= target for name, target in TARGETS.items())
    figures = {"cpu_ms": cpu, "wall_ms": wall, "ratios": ratios, "targets": TARGETS, "bytes": size}
    return report("decode", ratios["DataLoader"], TARGETS["DataLoader"], ok, figures)


if __name__ == "__main__":
    sys.exit(main())

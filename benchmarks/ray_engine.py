"""JPEG payloads (500x375, about 30 KB) decoded to 224x224x3 uint8: on Ray, by threads, by Ray Data.

Every contender decodes with the same two calls (simplejpeg, then a bilinear resize by OpenCV) and
runs in a process of its own, in every round.

* **forebay on ray**: ``loader(engine=RayEngine())``, 2 workers.
* **ray data**: what its users write: ``ray.data.range`` of rows that name files, read and decoded
  in ``map_batches`` by 2 tasks at a time, taken with ``iter_torch_batches``. It has no positions,
  and it ends; nothing of it could be resumed.
* **forebay on threads**: the default engine, 2 threads; for information.

Throughput is in pictures a second after a warm-up. The driver's CPU is that of the training process
alone, in milliseconds for each MB of decoded pixels. Ages are from the moment a row is read to that
in which the trainer has it: at full speed, where they tell what is kept in queues, and of the two
Forebay engines at 200 pictures a second, where nothing queues.

The ratio is our throughput on Ray over Ray Data's: at least 1.0. Also required: both ages at full
speed are below those of Ray Data.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from _jpegs import BATCH, SIDE, decode_batch, read_files, write_files
from _report import report, table
from _rounds import Result, give, in_process, interleaved, median
from _sources import MadeSource, PacedSource
from forebay import Engine, Pipeline, ThreadEngine
from forebay.columns import Columns
from forebay.ray import RayEngine

WORKERS, FILES, WARM_UP = 2, 64, 20
RATE = 200
MB = BATCH * SIDE * SIDE * 3 / 1e6
ON_RAY, ON_THREADS, RAY_DATA = "forebay on ray", "forebay on threads", "ray data"


_FILES: dict[Path, list[bytes]] = {}


def files_of(path: Path) -> Sequence[bytes]:
    """The files, read once in each process."""
    if path not in _FILES:
        _FILES[path] = read_files(path)
    return _FILES[path]


@dataclass(frozen=True)
class Payloads:
    """The rows of a source: files in turn, and the moment each was read."""

    path: Path

    def __call__(self, split: int, offsets: NDArray[np.int64]) -> Columns:
        files = files_of(self.path)
        value = np.empty(len(offsets), object)
        value[:] = [files[o % len(files)] for o in offsets]
        return {"value": value, "read_at": np.full(len(offsets), time.time())}


def decoded(columns: Columns) -> Columns:
    """The stage."""
    return {"image": decode_batch(list(columns["value"])), "read_at": columns["read_at"]}


def engine_of(name: str) -> Engine:
    """The engine of one of our contenders."""
    return RayEngine() if name == ON_RAY else ThreadEngine()


def our_batches(name: str, path: Path) -> Iterator[Any]:
    """Pictures as fast as they come."""
    source = MadeSource(make=Payloads(path), slice_rows=64, partitions=4)
    pipeline = Pipeline(source).map(decoded).batch(BATCH)
    return iter(pipeline.loader(engine=engine_of(name), workers=WORKERS))


def ray_data_batches(path: Path) -> Iterator[Any]:
    """The same by Ray Data alone."""
    rows = ray.data.range(1 << 20, override_num_blocks=(1 << 20) // 1024)
    images = rows.map_batches(partial(_of_ids, path), batch_size=BATCH, concurrency=WORKERS)
    return iter(images.iter_torch_batches(batch_size=BATCH))


def _of_ids(path: Path, rows: dict[str, NDArray[np.int64]]) -> dict[str, Any]:
    files = files_of(path)
    read_at = np.full(len(rows["id"]), time.time())
    return {"image": decode_batch([files[i % len(files)] for i in rows["id"]]), "read_at": read_at}


def throughput(batches: Iterable[Any], count: int) -> Result:
    """Pictures a second, the CPU of this process for each MB, and ages."""
    steps, ages = iter(batches), Ages()
    for _ in range(WARM_UP):
        next(steps)
    used, began = time.process_time(), time.perf_counter()
    for _ in range(count):
        ages.add(next(steps))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    figures = {"pictures_s": count * BATCH / seconds, "driver_ms_mb": used * 1000 / (count * MB)}
    return {**figures, **ages.figures("")}


class Ages:
    """How old rows were when the trainer had them."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, batch: Any) -> None:
        """The rows of a batch that the trainer has now."""
        self._seconds += list(time.time() - np.asarray(batch["read_at"]))

    def figures(self, when: str) -> Result:
        """In milliseconds."""
        p50, p99 = np.percentile(self._seconds, [50, 99]) * 1e3
        return {f"{when}p50_ms": float(p50), f"{when}p99_ms": float(p99)}


def latency(name: str, path: Path, seconds: float) -> Result:
    """Milliseconds from the read to the trainer, at ``RATE`` rows a second."""
    source = PacedSource(make=Payloads(path), slice_rows=10, rate=RATE)
    loader = Pipeline(source).map(decoded).batch(10).loader(engine=engine_of(name), workers=WORKERS)
    began, ages = 0.0, Ages()
    for batch in loader:
        now = time.time()
        began = began or now
        if now - began > seconds / 2:  # a worker that starts late holds its first slices up
            ages.add(batch)
        if now - began > seconds:
            break
    loader.close()
    return ages.figures("paced_")


def contend(name: str, path: Path, count: int, seconds: float) -> None:
    """One contender, in this process."""
    if name != ON_THREADS:
        ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    if name == RAY_DATA:
        give(throughput(ray_data_batches(path), count))
    else:
        result = throughput(our_batches(name, path), count)
        give({**result, **latency(name, path, seconds)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the latency run")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        contend(options.contender, options.files, options.batches, options.seconds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "files.npz"
        write_files(path, FILES)
        arguments = ("--files", path, "--batches", options.batches, "--seconds", options.seconds)
        results = interleaved(
            [ON_RAY, RAY_DATA, ON_THREADS],
            options.rounds,
            lambda name: in_process(__file__, "--contender", name, *arguments),
        )
    return told(results)


def told(results: dict[str, list[Result]]) -> int:
    """Print the table and the verdict."""
    keys = ("pictures_s", "driver_ms_mb", "p50_ms", "p99_ms", "paced_p50_ms", "paced_p99_ms")
    figures = {
        name: {k: median(rounds, k) for k in keys if k in rounds[0]}
        for name, rounds in results.items()
    }
    table([{"contender": name, **dict.fromkeys(keys), **f} for name, f in figures.items()])
    ratio = figures[ON_RAY]["pictures_s"] / figures[RAY_DATA]["pictures_s"]
    younger = all(figures[ON_RAY][k] < figures[RAY_DATA][k] for k in ("p50_ms", "p99_ms"))
    return report("ray_engine", ratio, 1.0, ratio >= 1.0 and younger, figures)


if __name__ == "__main__":
    sys.exit(main())

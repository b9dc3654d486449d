"""What readers of Delta tables are measured by: seconds and memory of a loop over their batches."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.dlpack import from_dlpack

from _peers import environment_if_any
from _rounds import Result, give
from forebay import Pipeline
from forebay_delta import DeltaSource

MB = 1_000_000
DATASETS = ("datasets==5.2.0",)
_SAME = ("numpy", "pyarrow", "torch")


def measured(read: Callable[[], Iterable[Mapping[str, Any]]]) -> Result:
    """Read to the end, twice; megabytes are of resident memory, ``base_mb`` from the imports.

    Seconds are those of the second time: a job runs for hours, and pays only once for memory that
    the kernel has never given it before. The peak is that of both times. It is the kernel's, reset
    here, and counts pages of mapped files, too.
    """
    base = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in read():
        pass
    cpu, wall = _cpu_seconds(), time.perf_counter()
    rows, first = 0, None
    for batch in read():
        first = first or time.perf_counter() - wall
        rows += len(next(iter(batch.values())))
    wall = time.perf_counter() - wall
    return {
        "rows": rows,
        "seconds": wall,
        "first_seconds": first,
        "cpu_seconds": _cpu_seconds() - cpu,
        "base_mb": base,
        "peak_mb": _resident("VmHWM") - base,
    }


def end_with(result: Result) -> NoReturn:
    """Give the result and end at once: deltalake's file system aborts when Python tidies up."""
    give(result)
    sys.stdout.flush()
    os._exit(0)


def bare(root: Path, batch_rows: int, read_rows: int) -> Iterator[Mapping[str, Any]]:
    """Parquet files one after the other, through a memory map, decoded by Arrow's threads."""
    for path in sorted(root.glob("*.parquet")):
        with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            for batch in file.iter_batches(read_rows, use_threads=True):
                yield from batches_of(batch, batch_rows)


def batches_of(batch: pa.RecordBatch, rows: int) -> Iterator[Mapping[str, Any]]:
    """Torch tensors over the memory of numbers, ``bytes`` of all else."""
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield {name: _values(part.column(i)) for i, name in enumerate(part.schema.names)}


def _values(column: Any) -> Any:
    numbers = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    return from_dlpack(column) if numbers else column.to_pylist()


def forebay(root: Path, batch_rows: int, max_bytes: int = 256 << 20) -> Iterator[Mapping[str, Any]]:
    """The table as a job reads it, with positions as always."""
    pipeline = Pipeline(DeltaSource(str(root), until="latest"))
    with pipeline.batch(batch_rows).loader(max_bytes=max_bytes) as loader:
        yield from loader


def datasets_python() -> Path | None:
    """The Python of an environment with Hugging Face datasets and our versions of all else."""
    wanted = [*DATASETS, *(f"{name}=={version(name)}" for name in _SAME)]
    return environment_if_any("hf-datasets", wanted, "datasets")


def _resident(what: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024 / MB
    raise RuntimeError(f"the kernel does not say {what}: this benchmark needs Linux")


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

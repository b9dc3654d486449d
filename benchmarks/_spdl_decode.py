"""SPDL's thread pipeline around the same decode function; runs in its own environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from _jpegs import BATCH, decode_batch, decode_one, measured, read_files
from _rounds import give


def pipeline(files: Sequence[bytes], per: str, workers: int) -> Any:
    """Decode each picture as an item, or a batch of them in one call."""
    source: PipelineBuilder[Any, Any] = PipelineBuilder().add_source(cycle(files))
    if per == "image":
        steps = source.pipe(decode_one, concurrency=workers).aggregate(BATCH).pipe(np.stack)
    else:
        steps = source.aggregate(BATCH).pipe(decode_batch, concurrency=workers)
    return steps.add_sink(4).build(num_threads=workers)


def batches(files: Sequence[bytes], per: str, workers: int) -> Iterator[Any]:
    """Batches without end."""
    running = pipeline(files, per, workers)
    with running.auto_stop():
        yield from running


def main() -> None:
    """Arguments: archive, "image" or "batch", workers, batches."""
    archive, per, workers, count = sys.argv[1:]
    give(measured(batches(read_files(Path(archive)), per, int(workers)), int(count)))


if __name__ == "__main__":
    main()

"""What it costs to give a ready batch of 19 MB to the trainer: our threads, a DataLoader worker.

The batch is a fresh ``uint8 [128, 224, 224, 3]``, made by copying one that lies ready: the copy
stands for the write that a decoder would do anyway. The trainer reads a byte of every page of
each batch. The cost of the hand-over is all CPU time of a contender, its processes and threads
together, less that of a plain loop that makes and reads the same batches without handing them to
anybody; so page faults on memory that a contender uses anew, pickling, shared memory, queues and
switches of thread are all counted, for each alike. Start-up is not: counting begins after some
batches and ends before the last ones.

* ``whole``: the source, or the dataset, gives the batch as one array. This is the one with a
  target: ours at most 1/5 of the DataLoader's, with one worker and with two. Kept alive by
  nobody, it cannot be sent twice for the price of once.
* ``rows``: it gives rows, and they are put together by the contender: slices of 8 rows in ours,
  items and ``default_collate`` in the DataLoader, whose worker stacks them in shared memory
  directly. The plain loop stacks, too. For information: here the DataLoader saves a copy.

The ratio is ours / DataLoader's, the worse of one worker and two, by medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from _report import report, table
from _rounds import Result, give, in_process, interleaved, median
from _sources import MadeSource
from forebay import Pipeline
from forebay.columns import Columns

TARGET = 1 / 5
SHAPE = (128, 224, 224, 3)
ROWS_IN_SLICE = 8
SKIPPED = 16  # batches at either end: start-up, and what is ready when counting ends
CONTENDERS = [
    f"{form}/{name}"
    for form in ("whole", "rows")
    for name in ("plain", "forebay", "DataLoader 1", "DataLoader 2")
]


@dataclass(frozen=True)
class Whole(Dataset[torch.Tensor]):
    """Ready batches, one array each."""

    batches: int

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(READY.copy())


@dataclass(frozen=True)
class Rows(Dataset[NDArray[np.uint8]]):
    """Ready rows, to be put together."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> NDArray[np.uint8]:
        row: NDArray[np.uint8] = READY[i % len(READY)]
        return row


READY = np.arange(np.prod(SHAPE), dtype=np.uint8).reshape(SHAPE)


def plain(form: str, batches: int) -> Iterator[torch.Tensor]:
    """The work that is not hand-over."""
    for _ in range(batches):
        yield torch.from_numpy(READY.copy() if form == "whole" else np.stack(list(READY)))


def forebay(form: str, batches: int) -> Iterator[torch.Tensor]:
    """Our loader, with its defaults."""
    if form == "whole":
        source = MadeSource(make=whole_batch, rows=batches * len(READY), slice_rows=len(READY))
    else:
        source = MadeSource(make=ready_rows, rows=batches * len(READY), slice_rows=ROWS_IN_SLICE)
    with Pipeline(source).batch(len(READY)).loader() as loader:
        for batch in loader:
            yield batch["image"]


def whole_batch(split: int, offsets: NDArray[np.int64]) -> Columns:
    """A fresh batch."""
    return {"image": READY.copy()}


def ready_rows(split: int, offsets: NDArray[np.int64]) -> Columns:
    """Rows where they lie; putting them together copies them."""
    at = int(offsets[0]) % len(READY)
    return {"image": READY[at : at + len(offsets)]}


def dataloader(workers: int) -> Callable[[str, int], Iterable[torch.Tensor]]:
    """A torch DataLoader."""

    def batches_of(form: str, batches: int) -> Iterable[torch.Tensor]:
        if form == "whole":
            return DataLoader(Whole(batches), batch_size=None, num_workers=workers)
        rows: Dataset[Any] = Rows(batches * len(READY))
        return DataLoader(rows, batch_size=len(READY), num_workers=workers)

    return batches_of


MAKERS: dict[str, Callable[[str, int], Iterable[torch.Tensor]]] = {
    "plain": plain,
    "forebay": forebay,
    "DataLoader 1": dataloader(1),
    "DataLoader 2": dataloader(2),
}


def contend(contender: str, batches: int) -> Result:
    """CPU and wall milliseconds a batch."""
    torch.set_num_threads(1)
    form, name = contender.split("/")
    read = 0
    begin = end = (0.0, 0.0)
    for i, batch in enumerate(MAKERS[name](form, batches + 2 * SKIPPED)):
        if i == SKIPPED:
            begin = cpu_and_wall()
        if i == SKIPPED + batches:
            end = cpu_and_wall()
        read += int(batch.view(-1)[1::4096].sum())
    if read == 0 or end == (0.0, 0.0):
        raise RuntimeError(f"{contender} gave too few batches")
    cpu, wall = ((b - a) * 1000 / batches for a, b in zip(begin, end, strict=True))
    return {"cpu_ms": cpu, "wall_ms": wall}


def cpu_and_wall() -> tuple[float, float]:
    """CPU seconds of this process and its living children, and a clock."""
    children = psutil.Process().children(recursive=True)
    times = [child.cpu_times() for child in children]
    return time.process_time() + sum(t.user + t.system for t in times), time.perf_counter()


def main() -> int:
    """Run all contenders, print the table and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100, help="counted in each round")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        give(contend(options.contender, options.batches))
        return 0
    results = interleaved(
        CONTENDERS,
        options.rounds,
        lambda name: in_process(__file__, "--contender", name, "--batches", options.batches),
    )
    return conclude(results)


def conclude(results: dict[str, list[Result]]) -> int:
    """The table and the line."""
    total = {name: median(results[name], "cpu_ms") for name in CONTENDERS}
    cost = {name: cpu - total[name.split("/")[0] + "/plain"] for name, cpu in total.items()}
    rows = [
        {
            "batch": name.split("/")[0],
            "given by": name.split("/")[1],
            "cpu ms": total[name],
            "hand-over cpu ms": None if name.endswith("plain") else cost[name],
            "wall ms": median(results[name], "wall_ms"),
            "ours / its": None if "Data" not in name else ratio_to(cost, name),
        }
        for name in CONTENDERS
    ]
    table(rows, f"one batch of {READY.nbytes / 1e6:.1f} MB, medians")
    ratio = max(ratio_to(cost, f"whole/DataLoader {n}") for n in (1, 2))
    return report(
        "handover", ratio, TARGET, ratio <= TARGET, {"cpu_ms": total, "handover_ms": cost}
    )


def ratio_to(cost: dict[str, float], peer: str) -> float:
    """Our cost over the peer's; a cost below what can be told from noise counts as that."""
    least = 0.1  # ms: the plain loop itself varies by more between rounds
    return max(cost[peer.split("/")[0] + "/forebay"], least) / max(cost[peer], least)


if __name__ == "__main__":
    sys.exit(main())

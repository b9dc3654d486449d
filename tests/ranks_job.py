"""A job of three ranks on gloo for tests: ``python -m tests.ranks_job PORT RANK FILE``.

Rank 1 comes late to each step, as its data does. Rank 2 ends first. Rank 0 writes what it saw.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from forebay import Pipeline
from forebay.loader import Loader
from forebay.observe.ddp import measure_communication
from forebay.observe.monitor import Monitor
from forebay.observe.ranks import of_job
from forebay.observe.snapshot import RankSeen
from forebay.testing import MemorySource

RANKS = 3
_dist: Any = dist


def main(port: int, rank: int, file: Path) -> None:
    store = _dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    seen: dict[str, Any] = {}
    loader = endless(late=rank == 1)
    with Monitor(loader, interval=0.2, ranks=of_job(), gpus=False) as monitor, loader:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        seen["equal"] = same_gradients()
        batches = iter(loader)
        seen["communicated"] = communicated(loader, batches, rank)
        train_until(batches, lambda: rank_one_starves(monitor))
        seen["ranks"] = [[r.rank, r.starved] for r in ranks(monitor)]
        dist.barrier()
        if rank == 2:
            return  # the others train on
        while 2 in {r.rank for r in ranks(monitor)}:
            time.sleep(0.02)
        seen["left"] = [r.rank for r in ranks(monitor)]
        store.set(f"done {rank}", "")
        store.wait([f"done {r}" for r in range(2)], timedelta(seconds=60))
    file.write_text(json.dumps(seen))


def endless(late: bool) -> Loader:
    def made(columns: Any) -> Any:
        time.sleep(0.05 if late else 0.0)
        return columns

    rows = MemorySource({"a": list(range(5_000))})
    return Pipeline(rows).map(made, workers=1).batch(7).loader(rank=0, world_size=1)


def train_until(batches: Iterator[Any], done: Any) -> None:
    """Steps of all ranks together, until all are done."""
    for _ in batches:
        open_ = torch.tensor([0.0 if done() else 1.0])
        dist.all_reduce(open_)
        if not open_.item():
            return


def ranks(monitor: Monitor) -> tuple[RankSeen, ...]:
    history = monitor.history()
    return history[-1].ranks if history else ()


def rank_one_starves(monitor: Monitor) -> bool:
    found = {r.rank: r.starved or 0.0 for r in ranks(monitor)}
    return len(found) == RANKS and found[1] > 0.2 + max(found[0], found[2])


def same_gradients() -> bool:
    """Whether a model learns the same, bit by bit, with the hook and without."""
    plain, hooked = learned(None), learned(endless(late=False))
    return all(torch.equal(a, b) for a, b in zip(plain, hooked, strict=True))


def learned(loader: Loader | None) -> list[torch.Tensor]:
    model = _model()
    if loader is not None:
        measure_communication(model, loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(8, 64, generator=numbers)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def communicated(loader: Loader, batches: Iterator[Any], rank: int) -> float | None:
    """What the clock was told while rank 1 came late to each of a few steps."""
    model = _model()
    measure_communication(model, loader)
    for _ in range(5):
        next(batches)
        time.sleep(0.1 if rank == 1 else 0.0)
        model(torch.rand(8, 64)).mean().backward()
    return loader.stats().steps.communication


def _model() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

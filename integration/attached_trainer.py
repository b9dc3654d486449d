"""Training loops that attach to a Ray cluster; each writes down the rows that it was given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ray.train import get_context

from forebay import Engine, Loader, Pipeline
from forebay.columns import Columns
from forebay.ray import RayEngine
from forebay.testing import MemorySource

SPLITS, ROWS_PER_SPLIT = 4, 300
ROWS = list(range(SPLITS * ROWS_PER_SPLIT))


def same(columns: Columns) -> Columns:
    return columns


def source() -> MemorySource:
    """Splits such that two ranks own as many each."""
    return MemorySource({f"t-{i}": ROWS[i::SPLITS] for i in range(SPLITS)})


def loader(engine: Engine, **options: Any) -> Loader:
    return Pipeline(source()).map(same).batch(50).loader(engine=engine, workers=1, **options)


def train(folder: Path, rank: int, **options: Any) -> None:
    """Train to the end of the data, attached to the cluster of RAY_ADDRESS or of this process."""
    rows = [r for b in loader(RayEngine(num_cpus=0.5), **options) for r in b["value"].tolist()]
    (folder / f"rank-{rank}").write_text(json.dumps(rows))


def train_worker(config: dict[str, Any]) -> None:
    """A worker of Ray Train."""
    train(Path(config["folder"]), get_context().get_world_rank())


def endless(engine: Engine) -> Loader:
    """A loader that never comes to an end."""
    rows = MemorySource({"a": range(200_000)}, bounded=False)
    return Pipeline(rows).map(same).batch(50).loader(engine=engine, workers=1)


def train_for_ever(address: str, say: Any) -> None:
    """Train until somebody ends this process; say so once it does."""
    for step, _ in enumerate(endless(RayEngine(address=address, num_cpus=0.5))):
        if step == 0:
            say.send("trains")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(Path(sys.argv[1]), dist.get_rank())
    dist.destroy_process_group()

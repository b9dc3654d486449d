"""Train on a Delta table first, then on the topic from where the table ends; kill it, go on.

Every click is trained once, wherever it comes from and however often the training is killed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from forebay import Loader, Pipeline, decode
from forebay.checkpoint import load_torch, save_torch
from forebay.hybrid import ByOffset
from forebay.runlog import RunLog, kept_ids
from forebay_delta import DeltaSource
from forebay_kafka import KafkaSource

SCHEMA = {"id": "int64", "features": pa.list_(pa.float32(), 8), "clicked": "int64"}


def loader(broker: str, table: str, until: str | None) -> Loader:
    """Batches of 64 clicks: ``features`` [64, 8] float32, ``clicked`` [64] and ``id`` [64]."""
    history = DeltaSource(table, until="latest", columns=["value", "_split", "_offset"])
    live = KafkaSource("clicks", {"bootstrap.servers": broker}, until=until)
    return (
        Pipeline(history)
        .chain(live, handover=ByOffset(offset="_offset", split="{_split}"), columns=["value"])
        .decode(decode.json("value", schema=SCHEMA))
        .batch(64)
        .loader()
    )


def main(given: argparse.Namespace) -> None:
    """Train until the data ends, saving model and position together every 10 steps."""
    model = nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = load_torch(given.checkpoint) or {"step": 0}
    step = saved["step"]
    log = RunLog(given.log, resumed_at=step)
    origins: Counter[str] = Counter()
    with loader(given.broker, given.table, given.until) as batches:
        if step:
            model.load_state_dict(saved["model"])
            optimiser.load_state_dict(saved["optimiser"])
            batches.load_state_dict(saved["data"])
        for batch in batches:
            loss = train(model, optimiser, batch)
            step += 1
            log.step(step, batch["id"].tolist())
            origins.update(split.partition(":")[0] for split, _ in batch.origins)
            if step % 10 == 0:
                save(given.checkpoint, step, model, optimiser, batches)
            if step % 50 == 0:
                print(f"step {step}: loss {loss:.3f}, this run read {dict(origins)}", flush=True)
        save(given.checkpoint, step, model, optimiser, batches)
    log.close()
    report(kept_ids(given.log))


def train(model: nn.Module, optimiser: torch.optim.Optimizer, batch: dict[str, Any]) -> float:
    """One step; returns its loss."""
    scores = model(batch["features"]).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(scores, batch["clicked"].float())
    optimiser.zero_grad()
    torch.autograd.backward(loss)
    optimiser.step()
    return loss.item()


def save(
    path: Path, step: int, model: nn.Module, optimiser: torch.optim.Optimizer, batches: Loader
) -> None:
    """Model and data position in one file, replaced in one step."""
    saved = {
        "step": step,
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "data": batches.state_dict(),
    }
    save_torch(path, saved)


def report(ids: list[int]) -> None:
    """Count over all runs, from the log: ids are numbered through."""
    times = Counter(ids)
    missing = max(times, default=-1) + 1 - len(times)
    repeated = sum(times.values()) - len(times)
    print(f"trained {len(times):,} clicks: {missing:,} missing, {repeated:,} repeated")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("broker", help="host:port")
    arguments.add_argument("--table", default="clicks-table", help="the folder of the Delta table")
    arguments.add_argument("--until", choices=["latest"], help="end with what is there now")
    arguments.add_argument("--checkpoint", type=Path, default=Path("backfill.pt"))
    arguments.add_argument("--log", type=Path, default=Path("backfill.log"))
    main(arguments.parse_args())

"""Train a click model from a Kafka topic; stop it, kill it, start it again: it goes on exactly.

forebay dev-broker --port 9092 --topic clicks:4      # in one terminal
python examples/clicks/produce.py localhost:9092     # in another: 20,000 clicks
python examples/clicks/train.py localhost:9092       # in a third; kill it, start it again
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from forebay import Loader, Pipeline, decode
from forebay.checkpoint import load_torch, save_torch
from forebay_kafka import KafkaSource

FEATURES = 8


def loader(broker: str, until: str | None, order: str) -> Loader:
    """Batches of 64 clicks: ``features`` [64, 8] float32 and ``clicked`` [64] int64."""
    source = KafkaSource("clicks", {"bootstrap.servers": broker}, until=until)
    schema = {"features": pa.list_(pa.float32(), FEATURES), "clicked": "int64", "id": "int64"}
    return (
        Pipeline(source).decode(decode.json("value", schema=schema)).batch(64).loader(order=order)
    )


def main(broker: str, path: Path, until: str | None, order: str, log: Path | None) -> None:
    """Train until the data ends, saving model and position together every 10 steps."""
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    with loader(broker, until, order) as batches:
        if (saved := load_torch(path)) is not None:
            step = resume(saved, model, optimiser, batches, path)
        for batch in batches:
            loss = train(model, optimiser, batch)
            step += 1
            if log is not None:
                with log.open("a") as lines:
                    lines.write(f"{step} {loss:.9f}\n")
            if step % 10 == 0:
                save(path, step, model, optimiser, batches)
                print(f"step {step}: loss {loss:.3f}", flush=True)
        save(path, step, model, optimiser, batches)


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


def resume(
    saved: dict[str, Any],
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batches: Loader,
    path: Path,
) -> int:
    """Go on from a checkpoint; without a data position it would train seen records again."""
    if "data" not in saved:
        raise SystemExit(
            f"{path} has no data position: resuming would train on seen records again. "
            "Use a checkpoint with one, or remove it to start anew."
        )
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    batches.load_state_dict(saved["data"])
    step: int = saved["step"]
    return step


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Train a click model from a Kafka topic.")
    arguments.add_argument("broker", help="host:port")
    arguments.add_argument("--checkpoint", type=Path, default=Path("clicks.pt"))
    arguments.add_argument("--until", choices=["latest"], help="end with what is there now")
    arguments.add_argument("--order", default="split", help="deterministic: equal at every run")
    arguments.add_argument("--log", type=Path, help="append the loss of every step to this file")
    given = arguments.parse_args()
    main(given.broker, given.checkpoint, given.until, given.order, given.log)

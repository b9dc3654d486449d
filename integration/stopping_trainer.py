"""A trainer on Ray that ends in one way or another: ``stopping_trainer.py WAY [ADDRESS]``."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from forebay import Pipeline
from forebay.columns import Columns
from forebay.ray import RayEngine
from forebay.testing import MemorySource

ROWS = 200_000
"""More than are ever trained."""
FILES = "files: "
SMALL = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 << 20}


@dataclass(frozen=True)
class Telling:
    """An engine that prints what the files of its run begin with."""

    engine: RayEngine

    def start(self, plan: Any) -> Any:
        feed = self.engine.start(plan)
        print(f"{FILES}{feed._setup.attempts}", flush=True)
        return feed


def takes_a_moment(columns: Columns) -> Columns:
    time.sleep(0.002 * len(columns["value"]))
    return columns


def main(way: str, address: str | None = None) -> None:
    """Train a few steps, and end; or go on until a signal ends it."""
    engine = RayEngine(address=address, num_cpus=0.5, init={} if address else SMALL)
    source = MemorySource({"a": range(ROWS)})
    pipeline = Pipeline(source).map(takes_a_moment).batch(16)
    loader = pipeline.loader(engine=Telling(engine), workers=2, max_bytes=1 << 20)
    for step, _ in enumerate(loader):
        if step == 30:
            print("training", flush=True)
        if step == 60 and way in ("break", "close"):
            break
    if way == "close":
        loader.close()
        print("closed", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

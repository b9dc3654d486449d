"""Does ``forebay tune`` find in a minute what an exhaustive search finds?

Two topologies that someone left at one worker and a prefetch of one. The stages wait for a store
that answers 12 requests at once, 4 ms a row: sleeps, which hold neither the GIL nor a core, so
that the clock tells the truth on a busy machine, too.

* ``drain``: the pipeline alone. Workers help up to about 12.
* ``train``: a training step of 12 ms for 16 rows on a device that works behind the host, and rows
  of which some take 25 times as long.

For each, ``forebay tune`` runs as a user would run it. Then every setting of a grid
(workers 1 to 32, prefetch 1 to 8, by doubling) is timed, and the best three are timed again in
turns with what tune chose: that is the hand-tuned best. The ratio is the rows/s of the choice /
those of the best, medians of the rounds, for the worse of the topologies; at least 0.9 is aimed
at, with at most 60 seconds of tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from _report import report, table
from forebay.compare.orders import Order
from forebay.compare.tuning import Setting
from forebay.compare.worker import Worker

TARGET, MOST_SECONDS = 0.9, 60
GRID = [Setting(w, p) for w in (1, 2, 4, 8, 16, 32) for p in (1, 2, 4, 8)]
SOURCE = "source: {type: made, partitions: 4, slice_rows: 64}\n"
TAIL = "batch: 16\nloader: {workers: 1, prefetch: 1}\n"
TOPOLOGIES: dict[str, str] = {
    "drain": f"{SOURCE}stages: [{{map: '_tune_work:fetch'}}]\n{TAIL}",
    "train": f"{SOURCE}stages: [{{map: '_tune_work:jumpy'}}]\n{TAIL}train: _tune_work:train\n",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=1.5, help="seconds that a run is timed")
    parser.add_argument("--only", choices=list(TOPOLOGIES))
    args = parser.parse_args()
    modes = [m for m in TOPOLOGIES if args.only in (None, m)]
    with tempfile.TemporaryDirectory() as folder:
        _install_source(Path(folder))
        found = {mode: _shown(mode, Path(folder), args.rounds, args.window) for mode in modes}
    table([{"topology": mode, **figures} for mode, figures in found.items()])
    worst = min(figures["ratio"] for figures in found.values())
    slowest = max(figures["tuning_seconds"] for figures in found.values())
    ok = worst >= TARGET and slowest <= MOST_SECONDS
    return report("tune", worst, TARGET, ok, found)


def _install_source(folder: Path) -> None:
    """Make a package with the source type ``made``, found by whoever looks into ``folder``."""
    info = folder / "forebay_bench-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forebay-bench\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[forebay.sources]\nmade = _tune_work:source\n")
    sys.path[:0] = [str(folder), str(Path(__file__).parent)]


def _shown(mode: str, folder: Path, rounds: int, window: float) -> dict[str, Any]:
    topology = folder / f"{mode}.yaml"
    topology.write_text(TOPOLOGIES[mode])
    began = time.monotonic()
    chosen, gain, tried = _tuned(topology)
    took = time.monotonic() - began
    with Worker() as worker:

        def rate(setting: Setting) -> float:
            order = Order(
                topology=str(topology),
                changes=setting.changes,
                mode="train" if mode == "train" else "drain",
                warmup_seconds=0.5,
                seconds=window,
            )
            return worker.measure(order).rows_per_second

        grid = {setting: rate(setting) for setting in GRID}
        finalists = sorted(grid, key=lambda s: grid[s], reverse=True)[:3]
        turns: dict[Setting, list[float]] = {s: [] for s in {*finalists, chosen}}
        for _ in range(rounds):
            for setting, rates in turns.items():
                rates.append(rate(setting))
    best = max(finalists, key=lambda s: median(turns[s]))
    return {
        "ratio": median(turns[chosen]) / median(turns[best]),
        "chosen": "{}, {}".format(*chosen),
        "best": "{}, {}".format(*best),
        "rows_per_second": median(turns[chosen]),
        "as_left": grid[Setting(1, 1)],
        "gain_claimed": gain,
        "trials": tried,
        "tuning_seconds": took,
    }


def _tuned(topology: Path) -> tuple[Setting, float, int]:
    """What ``forebay tune`` says: the setting, the gain that it claims, and its trials."""
    command = [sys.executable, "-m", "forebay.cli", "tune", str(topology), "--json"]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"forebay tune failed: {done.stderr[-2000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    gain = said["gain"]["value"] if said["better"] else 1.0
    return Setting(said["workers"], said["prefetch"]), gain, said["trials"]


if __name__ == "__main__":
    sys.exit(main())

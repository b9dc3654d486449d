"""Real threads, a real trainer, and four things that go wrong: what does the autoscaler do?

A topic of our making is read by the loader; the stage sleeps (10 ms a row), so threads help and the
machine's load does not matter; the trainer sleeps, too. The pool may have 1 to 12 threads. In turn:

1. quiet: 100 rows/s arrive, the trainer could take 500;
2. burst: 500 rows/s for 20 s, five times the load;
3. slow trainer: four times slower, lag grows;
4. hung worker: one thread hangs in the stage; its row must come all the same;
5. broker gone: nothing arrives and no end is told for 10 s.

Listed is every decision with its reason. The ratio is the starved share in the last 5 s of the
burst, less what arrivals make unavoidable. Also required: no growth in the slow trainer's phase, no
shrinking while the broker is gone, the hung worker replaced, every row once, two changes of
direction at most for each phase.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from _report import report, table
from forebay import Pipeline, Slice, Split, ThreadEngine
from forebay.autoscale import Autoscaling, Guards
from forebay.columns import Columns
from forebay.loader import Loader
from forebay.state import Position
from forebay.tensors import Batch

ROW_SECONDS, MOST, TARGET = 0.010, 12, 0.10
BATCH = 10
PHASES = {"quiet": 15, "burst": 20, "slow trainer": 40, "hung worker": 25, "broker gone": 10}


@dataclass
class World:
    """What happens to the topic, the stage and the trainer."""

    rate: float = 100.0
    step_seconds: float = BATCH / 500
    told: bool = True
    hang: threading.Event = field(default_factory=threading.Event)
    hung: int = 0
    arrived: float = 0.0
    at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> int:
        """Rows that arrived until now."""
        with self.lock:
            now = time.monotonic()
            self.arrived += self.rate * (now - self.at)
            self.at = now
            return int(self.arrived)

    def change(self, rate: float) -> None:
        """Another number of rows a second from now on."""
        self.end()
        self.rate = rate


WORLD = World()


class Topic:
    """A source of one split that grows as the world says."""

    bounded = False

    def splits(self) -> list[Split]:
        return [Split(id="topic/0", group="topic", number=0)]

    def open(self, positions: Mapping[str, Position], owns: Any) -> Tail:
        return Tail()


class Tail:
    """Reads it."""

    def __init__(self) -> None:
        self._next = 0

    def positions(self) -> Mapping[str, Position]:
        return {"topic/0": Position(0, base=0)}

    def poll(self, timeout: float) -> Slice | None:
        end = min(WORLD.end(), self._next + 50)
        if end <= self._next or not WORLD.told:
            time.sleep(min(timeout, 0.01))
            return None
        offsets = np.arange(self._next, end, dtype=np.int64)
        start, self._next = self._next, end
        columns: Columns = {"row": offsets}
        return Slice(
            split="topic/0", columns=columns, offsets=offsets, start=start, next_offset=end
        )

    def pause(self, splits: Collection[str]) -> None: ...

    def finished_splits(self) -> Collection[str]:
        return ()

    def ends(self) -> Mapping[str, int]:
        return {"topic/0": WORLD.end()} if WORLD.told else {}

    def close(self) -> None: ...


def decode(columns: Columns) -> Columns:
    """Work that waits; hangs once when told to."""
    with WORLD.lock:
        hangs, WORLD.hung = WORLD.hung > 0, max(WORLD.hung - 1, 0)
    if hangs:
        WORLD.hang.wait(300)
    time.sleep(ROW_SECONDS * len(columns["row"]))
    return columns


def enter(phase: str) -> None:
    """Let a phase begin."""
    if phase == "burst":
        WORLD.change(500)
    elif phase == "slow trainer":
        WORLD.change(200)
        WORLD.step_seconds = 4 * BATCH / 500
    elif phase == "hung worker":
        WORLD.change(100)
        WORLD.step_seconds, WORLD.hung = BATCH / 500, 1
    elif phase == "broker gone":
        WORLD.change(0)
        WORLD.told = False


def train(
    loader: Loader, batches: Iterator[Batch]
) -> tuple[dict[str, tuple[float, float]], list[int], float]:
    """Train through all phases; their times, the rows, and the starved share at the burst's end."""
    spans: dict[str, tuple[float, float]] = {}
    seen: list[int] = []
    waited_at, starved = (0.0, 0.0), 0.0
    for phase, seconds in PHASES.items():
        enter(phase)
        began = time.time()
        while (passed := time.time() - began) < seconds:
            if phase == "burst" and passed < seconds - 5:
                waited_at = (time.time(), loader.stats().wait_seconds)
            if phase == "broker gone":
                time.sleep(0.1)  # next() would wait as long as nothing comes
                continue
            seen += next(batches)["row"].tolist()
            time.sleep(WORLD.step_seconds)
        if phase == "burst":
            at, waited = waited_at
            starved = (loader.stats().wait_seconds - waited) / (time.time() - at)
        spans[phase] = (began, time.time())
    return spans, seen, starved


def main() -> int:
    """Run the phases, list the decisions, print the line."""
    guards = Guards(patience=8, cool_down=4)
    of = Pipeline(Topic()).map(decode, workers=(1, MOST)).batch(BATCH)
    engine = ThreadEngine(hung_seconds=3.0)
    with of.loader(autoscale=Autoscaling(guards=guards), engine=engine) as loader:
        batches = iter(loader)  # a loop that is forgotten ends the run, and its counts
        spans, seen, starved = train(loader, batches)
        taken = [t for t in loader.decisions() if not t.holds]
        session = loader._session
        replaced = 0 if session is None else session.feed.pools()["stages"].replaced
        WORLD.hang.set()
    began = next(iter(spans.values()))[0]
    rows = [
        {
            "second": t.at - began,
            "phase": next((k for k, (a, b) in spans.items() if a <= t.at < b), "-"),
            "workers": f"{t.before} to {t.workers}",
            "reason": t.reason,
        }
        for t in taken
    ]
    table(rows, "decisions")
    grew = [r for r, t in zip(rows, taken, strict=True) if t.workers > t.before]
    shrank = [r for r, t in zip(rows, taken, strict=True) if t.workers < t.before]
    flips = sum((a.workers > a.before) != (b.workers > b.before) for a, b in pairwise(taken))
    repeated = len(seen) - len(set(seen))
    missing = len(set(range(max(seen) + 1)) - set(seen))
    settled = {r["second"] for r in grew if r["phase"] == "slow trainer" and _late(r, spans, began)}
    ok = (
        starved <= TARGET
        and not settled
        and not [r for r in shrank if r["phase"] == "broker gone"]
        and replaced == 1
        and repeated == 0
        and flips <= 2 * len(PHASES)
    )
    figures = {
        "decisions": rows,
        "flips": flips,
        "replaced": replaced,
        "repeated": repeated,
        "not_seen_yet": missing,
        "rows": len(seen),
        "grew_in_slow_trainer_phase": len(settled),
    }
    return report("autoscale_live", starved, TARGET, ok, figures)


def _late(row: Mapping[str, Any], spans: Mapping[str, tuple[float, float]], began: float) -> bool:
    """Not in the first seconds of a phase, in which the figures are still those of before."""
    return bool(row["second"] > spans[row["phase"]][0] - began + 3)


if __name__ == "__main__":
    sys.exit(main())

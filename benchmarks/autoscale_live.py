"""Real workers, a real trainer, and four things that go wrong: what does the autoscaler do?

A topic of our making is read by the loader; the stage sleeps (10 ms a row), so workers help and the
machine's load does not matter; the trainer sleeps, too. The pool may have 1 to 12 workers: threads,
and then actors of a real Ray on this machine (``--engine`` for one of them). In turn:

1. quiet: 100 rows/s arrive, the trainer could take 500;
2. burst: 500 rows/s for 20 s, five times the load;
3. slow trainer: four times slower, lag grows;
4. hung worker: one worker hangs in the stage; its rows must come all the same;
5. broker gone: nothing arrives and no end is told for 10 s.

Listed is every decision with its reason. The ratio is the starved share in the last 5 s of the
burst, of the engine that starves more. Also required: no growth in the slow trainer's phase, no
shrinking while the broker is gone, the hung worker replaced, every row once, two changes of
direction at most for each phase.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray

from _report import report, table
from forebay import Engine, Pipeline, Slice, Split, ThreadEngine
from forebay.autoscale import Autoscaling, Guards, Taken
from forebay.columns import Columns
from forebay.loader import Loader
from forebay.ray import RayEngine
from forebay.state import Position
from forebay.tensors import Batch

ROW_SECONDS, MOST, TARGET = 0.010, 12, 0.10
BATCH = 10
HUNG_SECONDS = 3.0
PHASES = {"quiet": 20, "burst": 20, "slow trainer": 40, "hung worker": 30, "broker gone": 10}
# Ray's workers start within some seconds; the figures of a phase are still those of before.
SETTLE_SECONDS = {"threads": 3, "ray": 6}


@dataclass(frozen=True)
class World:
    """What happens to the topic and the stage, told by files: they may be in other processes."""

    folder: Path

    def say(self, changes: Sequence[tuple[float, float]], *, told: bool) -> None:
        """From each moment on so many rows a second arrive; whether the end is told."""
        new = self.folder / "new"
        new.write_text(json.dumps({"changes": changes, "told": told}))
        new.rename(self.folder / "world")

    def end(self) -> tuple[int, bool]:
        """Rows that arrived until now, and whether that is told."""
        world = json.loads((self.folder / "world").read_text())
        moments = [*world["changes"], (time.time(), 0.0)]
        rows = sum(rate * max(b - a, 0.0) for (a, rate), (b, _) in pairwise(moments))
        return int(rows), bool(world["told"])

    def hang_once(self) -> None:
        """Let the next worker hang that looks."""
        (self.folder / "hang").touch()

    def hangs(self) -> bool:
        """Whether this worker is the one; only one is told so."""
        try:
            (self.folder / "hang").unlink()
        except FileNotFoundError:
            return False
        return True

    def let_go(self) -> None:
        """Let those that hang go on: a thread cannot be killed."""
        (self.folder / "over").touch()

    @property
    def over(self) -> bool:
        """Whether nobody needs to hang any more."""
        return (self.folder / "over").exists()


@dataclass(frozen=True)
class Topic:
    """A source of one split that grows as the world says."""

    world: World
    bounded: bool = False

    def splits(self) -> list[Split]:
        return [Split(id="topic/0", group="topic", number=0)]

    def open(self, positions: Mapping[str, Position], owns: Any) -> Tail:
        return Tail(self.world, positions)


class Tail:
    """Reads it."""

    def __init__(self, world: World, positions: Mapping[str, Position]) -> None:
        self._world = world
        self._at = positions.get("topic/0", Position(0, base=0))
        self._next = self._at.offset

    def positions(self) -> Mapping[str, Position]:
        return {"topic/0": self._at}

    def poll(self, timeout: float) -> Slice | None:
        arrived, told = self._world.end()
        end = min(arrived, self._next + 50)
        if end <= self._next or not told:
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
        end, told = self._world.end()
        return {"topic/0": end} if told else {}

    def close(self) -> None: ...


@dataclass(frozen=True)
class Decode:
    """Work that waits; hangs once when told to."""

    world: World

    def __call__(self, columns: Columns) -> Columns:
        if self.world.hangs():
            while not self.world.over:
                time.sleep(0.1)
        time.sleep(ROW_SECONDS * len(columns["row"]))
        return columns


class Run:
    """One run through all phases."""

    def __init__(self, loader: Loader, world: World, engine: str) -> None:
        self.loader, self.world, self.engine = loader, world, engine
        self.step_seconds = BATCH / 500
        self.rates: list[tuple[float, float]] = [(time.time(), 100.0)]
        self.spans: dict[str, tuple[float, float]] = {}
        self.seen: list[int] = []
        self.starved = 0.0
        self.replaced = 0
        world.say(self.rates, told=True)

    def go(self) -> None:
        """Train through the phases; the first begins with the first batch."""
        batches = iter(self.loader)  # a loop that is forgotten ends the run, and its counts
        self._step(batches)
        for phase, seconds in PHASES.items():
            self._enter(phase)
            began = time.time()
            while time.time() < began + seconds:
                self._measure(phase, time.time() - began)
                if phase == "broker gone":
                    time.sleep(0.1)  # next() would wait as long as nothing comes
                else:
                    self._step(batches)
            self.spans[phase] = (began, time.time())
        self.replaced = sum(p.replaced for p in self.loader.pools().values())

    def _step(self, batches: Iterator[Batch]) -> None:
        self.seen += next(batches)["row"].tolist()
        time.sleep(self.step_seconds)

    def _enter(self, phase: str) -> None:
        rate = {"burst": 500.0, "slow trainer": 200.0, "hung worker": 100.0, "broker gone": 0.0}
        self.rates.append((time.time(), rate.get(phase, 100.0)))
        self.step_seconds = (4 if phase == "slow trainer" else 1) * BATCH / 500
        self.world.say(self.rates, told=phase != "broker gone")
        if phase == "hung worker":
            self.world.hang_once()

    def _measure(self, phase: str, passed: float) -> None:
        """The starved share of the last 5 s of the burst."""
        if phase != "burst":
            return
        waited = self.loader.stats().wait_seconds
        if passed < PHASES["burst"] - 5:
            self._waited_at = (time.time(), waited)
        else:
            at, before = self._waited_at
            self.starved = (waited - before) / max(time.time() - at, 1e-3)

    def phase_of(self, at: float) -> str:
        """The phase of a moment."""
        return next((k for k, (a, b) in self.spans.items() if a <= at < b), "-")

    def is_settled(self, at: float) -> bool:
        """Not in the first seconds of a phase, in which the figures are those of before."""
        phase = self.phase_of(at)
        return phase != "-" and at > self.spans[phase][0] + SETTLE_SECONDS[self.engine]


def verdict(run: Run, taken: Sequence[Taken]) -> tuple[bool, dict[str, Any]]:
    """Whether it went as it should, and the figures."""
    began = run.spans["quiet"][0]
    rows = [
        {
            "second": t.at - began,
            "phase": run.phase_of(t.at),
            "workers": f"{t.before} to {t.workers}",
            "reason": t.reason,
        }
        for t in taken
    ]
    table(rows, f"decisions, {run.engine}")
    grew = [t for t in taken if t.workers > t.before and run.phase_of(t.at) == "slow trainer"]
    late = [t for t in grew if run.is_settled(t.at)]
    shrank = [t for t in taken if t.workers < t.before and run.phase_of(t.at) == "broker gone"]
    flips = sum((a.workers > a.before) != (b.workers > b.before) for a, b in pairwise(taken))
    figures = {
        "decisions": rows,
        "starved": run.starved,
        "flips": flips,
        "replaced": run.replaced,
        "repeated": len(run.seen) - len(set(run.seen)),
        "missing": len(set(range(max(run.seen) + 1)) - set(run.seen)),
        "rows": len(run.seen),
        "grew_in_slow_trainer_phase": len(late),
        "shrank_while_the_broker_was_gone": len(shrank),
    }
    exact = figures["repeated"] == figures["missing"] == 0
    calm = not late and not shrank and flips <= 2 * len(PHASES)
    return exact and calm and run.replaced == 1 and run.starved <= TARGET, figures


@contextmanager
def engines(name: str) -> Iterator[Engine]:
    """The engine; for Ray with a cluster of this machine that is as large as the pool."""
    if name == "threads":
        yield ThreadEngine(hung_seconds=HUNG_SECONDS)
        return
    context = ray.init(
        num_cpus=MOST + 1, include_dashboard=False, log_to_driver=False, object_store_memory=300e6
    )
    try:
        address = context.address_info["gcs_address"]
        yield RayEngine(address=address, hung_seconds=HUNG_SECONDS)
    finally:
        ray.shutdown()


def measured(name: str) -> tuple[bool, dict[str, Any]]:
    """Run the phases on an engine."""
    guards = Guards(patience=8, cool_down=4)
    with engines(name) as engine, tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        of = Pipeline(Topic(world)).map(Decode(world), workers=(1, MOST)).batch(BATCH)
        with of.loader(autoscale=Autoscaling(guards=guards), engine=engine) as loader:
            run = Run(loader, world, name)
            run.go()
            taken = [t for t in loader.decisions() if not t.holds]
            world.let_go()
    return verdict(run, taken)


def main() -> int:
    """Run it on each engine, list the decisions, print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=["threads", "ray", "both"], default="both")
    chosen = parser.parse_args().engine
    found = {k: measured(k) for k in ("threads", "ray") if chosen in (k, "both")}
    starved = max(figures["starved"] for _, figures in found.values())
    figures = {k: f for k, (_, f) in found.items()}
    return report("autoscale_live", starved, TARGET, all(ok for ok, _ in found.values()), figures)


if __name__ == "__main__":
    sys.exit(main())

"""Runs with a known fault, and healthy ones: what the doctor is to find.

Nearly all of it sleeps, so that the truth is known whatever else the machine does: a step of the
whole pipeline takes as long as the slowest of source, stages, hand-over and trainer, and without
one of them as long as the slowest of the rest.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _sources import MadeReader, MadeSource, PacedSource
from forebay import Pipeline
from forebay.columns import Columns
from forebay.diagnose.experiments import Part
from forebay.engine import Order
from forebay.observe.limits import Cause
from forebay.observe.snapshot import RankSeen
from forebay.slice import Slice
from forebay.source import Owns
from forebay.state import Position
from forebay.stepclock import DeviceTimeline
from forebay.tensors import Batch
from forebay.testing import FakeDevice
from forebay.topology import Topology, Training

ROWS = 16
"""Of a batch."""
Train = Callable[[Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, and the truth about it."""

    name: str
    topology: Topology
    cause: Cause
    says: str = ""
    """What the sentence must have in it, in small letters."""
    shares: Mapping[Part, float] | None = None
    """None: how fast it is depends on the machine."""
    timeline: DeviceTimeline | None = None
    around: Callable[[], Any] = nullcontext
    """What goes on meanwhile."""
    healthy: bool = False
    times: float = 1.0
    """How much longer its phases must be than others', as what matters is rare."""
    ranks: tuple[RankSeen, ...] = ()
    """What other ranks tell: not seen by experiments, which are of one rank."""


def truth(
    *,
    source: float = 0.0,
    stages: float = 0.0,
    handover: float = 0.0,
    copy: float = 0.0,
    communication: float = 0.0,
    host: float = 0.0,
    pause: float = 0.0,
    compute: float = 0.0,
) -> dict[Part, float]:
    """The shares of a step, of which each part takes so many milliseconds by itself."""
    frozen = compute + communication + host
    no_stages = max(handover, frozen + copy)
    no_source = max(stages, no_stages)
    full = max(source, no_source)
    parts: dict[Part, float] = {
        "source": full - no_source,
        "stages": no_source - no_stages,
        "handover": no_stages - frozen - copy,
        "copy": copy,
        "communication": communication,
        "host": host,
        "pause": pause,
        "compute": compute,
    }
    return {part: value / (full + pause) for part, value in parts.items()}


# -- sources ---------------------------------------------------------------------------------------


def numbers(split: int, offsets: NDArray[np.int64]) -> Columns:
    """One column, of the offsets."""
    return {"id": offsets.copy()}


def plenty(partitions: int = 4) -> MadeSource:
    """As much as anybody wants, at once."""
    return MadeSource(make=numbers, partitions=partitions, slice_rows=ROWS, rows=1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource(MadeSource):
    """Records that come at a rate, while it lives, and can be read as soon as they are there."""

    rate: float
    born: list[float] = field(default_factory=list)
    """The moment; empty before."""

    @contextmanager
    def living(self) -> Iterator[None]:
        """Records come from here on."""
        self.born[:] = [time.monotonic()]
        yield

    @property
    def bounded(self) -> bool:
        return False

    @property
    def end(self) -> int:
        """Records of each split so far."""
        return int((time.monotonic() - self.born[0]) * self.rate)

    def open(self, positions: Mapping[str, Position], owns: Owns) -> LiveReader:
        return LiveReader(self, MadeSource.open(self, positions, owns).positions())


class LiveReader(MadeReader):
    """Reads a ``LiveSource``."""

    _source: LiveSource

    def ends(self) -> Mapping[str, int]:
        return dict.fromkeys(self._next, self._source.end)

    def _slice(self, name: str) -> Slice | None:
        s = super()._slice(name)
        if s is None or s.next_offset <= self._source.end:
            return s
        there = max(self._source.end - s.start, 0)
        self._next[name] = s.start + there
        return s.head(there) if there else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSlowSource(MadeSource):
    """One of its splits takes ``seconds`` for each slice, as one on a bad disk does."""

    seconds: float

    def open(self, positions: Mapping[str, Position], owns: Owns) -> OneSlowReader:
        return OneSlowReader(self, MadeSource.open(self, positions, owns).positions())


class OneSlowReader(MadeReader):
    """Reads a ``OneSlowSource``, and does not wait for the slow one meanwhile."""

    _source: OneSlowSource

    def __init__(self, source: OneSlowSource, positions: Mapping[str, Position]) -> None:
        super().__init__(source, positions)
        self._due = time.monotonic() + source.seconds

    def _slice(self, name: str) -> Slice | None:
        if name.endswith("/0"):
            if time.monotonic() < self._due:
                return None
            self._due += self._source.seconds
        return super()._slice(name)


# -- stages ----------------------------------------------------------------------------------------


def sleeping(milliseconds: float) -> Callable[[Columns], Columns]:
    """A stage that takes so long for each row, and needs no CPU."""

    def stage(columns: Columns) -> Columns:
        time.sleep(milliseconds / 1e3 * len(columns["id"]))
        return columns

    return stage


def hashing(rounds: int) -> Callable[[Columns], Columns]:
    """A stage that takes CPU time for each row, and releases the interpreter's lock."""

    def stage(columns: Columns) -> Columns:
        for value in columns["id"]:
            hashlib.pbkdf2_hmac("sha256", b"pass", value.tobytes(), rounds)
        return columns

    return stage


def counting(turns: int) -> Callable[[Columns], Columns]:
    """A stage in pure Python."""

    def stage(columns: Columns) -> Columns:
        for _ in range(len(columns["id"])):
            n = 0
            for i in range(turns):
                n += i * i
        return columns

    return stage


def poisonous(milliseconds: float, every: int) -> Callable[[Columns], Columns]:
    """A stage of which one row in ``every`` takes so long, and all others next to nothing."""

    def stage(columns: Columns) -> Columns:
        slow = int((np.asarray(columns["id"]) % every == 0).sum())
        time.sleep(slow * milliseconds / 1e3)
        return columns

    return stage


def batching(milliseconds: float, every: int = 1) -> Callable[[Columns, Any], Columns]:
    """A function on whole batches that takes so long for one in ``every``."""
    count = [0]

    def function(columns: Columns, rng: Any) -> Columns:
        count[0] += 1
        if count[0] % every == 0:
            time.sleep(milliseconds / 1e3)
        return columns

    return function


# -- trainers --------------------------------------------------------------------------------------


def step(milliseconds: float) -> Train:
    """A step on the host, or one that waits for its device."""

    def train(loader: Any) -> None:
        for _ in loader:
            time.sleep(milliseconds / 1e3)

    return train


def on_device(
    device: FakeDevice, milliseconds: float, *, host: float = 0.0, item: bool = False
) -> Train:
    """A step that the host launches, in ``host`` milliseconds, and with ``item`` waits for."""

    def train(loader: Any) -> None:
        for _ in loader:
            time.sleep(host / 1e3)
            device.launch(milliseconds / 1e3)
            if item:
                device.synchronize()

    return train


def pausing(milliseconds: float, name: str, pause: float, every: int) -> Train:
    """Steps, and after each ``every`` of them a pause."""

    def train(loader: Any) -> None:
        for i, _ in enumerate(loader):
            time.sleep(milliseconds / 1e3)
            if i % every == 0:
                with loader.pause(name):
                    time.sleep(pause / 1e3)

    return train


def exchanging(milliseconds: float, communication: float) -> Train:
    """Steps with so much time in the exchange of gradients that nothing hides."""

    def train(loader: Any) -> None:
        for _ in loader:
            time.sleep((milliseconds + communication) / 1e3)
            loader.step_clock.add_communication(communication / 1e3)

    return train


# -- around ----------------------------------------------------------------------------------------


@contextmanager
def slow_copies(milliseconds: float) -> Iterator[None]:
    """Batches take so long to be copied to the device."""
    fast = Batch.to

    def slow(self: Batch, *args: Any, **options: Any) -> Batch:
        time.sleep(milliseconds / 1e3)
        return fast(self, *args, **options)

    Batch.to = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        Batch.to = fast  # type: ignore[method-assign]


def _burn() -> None:
    while True:
        hashlib.pbkdf2_hmac("sha256", b"pass", b"salt", 100_000)


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Other processes that take all the CPU time they get."""
    spawn = multiprocessing.get_context("spawn")
    burners = [spawn.Process(target=_burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


# -- cases -----------------------------------------------------------------------------------------


def topology(
    train: Train | None,
    *stages: tuple[str, Callable[[Columns], Columns]],
    source: MadeSource | None = None,
    batch_fn: Callable[[Columns, Any], Columns] | None = None,
    workers: int = 2,
    prefetch: int = 2,
    order: Order = "split",
    **options: Any,
) -> Topology:
    """A topology as a file would give it."""
    pipeline = Pipeline(source or plenty())
    for name, fn in stages:
        pipeline = pipeline.map(fn, name=name)
    pipeline = pipeline.batch(ROWS)
    if batch_fn is not None:
        pipeline = pipeline.map_batch(batch_fn)
    return Topology(
        file="bench",
        pipeline=pipeline,
        loader_options={"workers": workers, "prefetch": prefetch, "order": order, **options},
        train=None if train is None else Training(function=train),
    )


def cases() -> list[Case]:
    """All of them, the faults first."""
    return [*_of_sources(), *_of_stages(), *_of_batches(), *_of_trainers(), *_healthy()]


def _of_sources() -> Sequence[Case]:
    slow = PacedSource(make=numbers, slice_rows=ROWS, rate=ROWS / 0.040, rows=1 << 40)
    bursts = PacedSource(make=numbers, slice_rows=8 * ROWS, rate=ROWS / 0.035, rows=1 << 40)
    live = LiveSource(make=numbers, slice_rows=ROWS, rate=ROWS / 0.040)
    one = OneSlowSource(
        make=numbers, partitions=4, slice_rows=ROWS // 4, rows=1 << 40, seconds=0.040
    )
    return [
        Case(
            name="slow source",
            topology=topology(step(20), ("decode", sleeping(1)), source=slow),
            cause="source",
            says="reading",
            shares=truth(source=40, stages=8, compute=20),
        ),
        Case(
            name="a store that answers in bursts",
            topology=topology(step(20), source=bursts),
            cause="source",
            says="reading",
            shares=truth(source=35, compute=20),
            times=2.0,
        ),
        Case(
            name="a topic with nothing more in it",
            topology=topology(step(15), ("decode", sleeping(0.5)), source=live),
            cause="source",
            says="producer",
            shares=truth(source=40, stages=4, compute=15),
            around=live.living,
        ),
        Case(
            name="one slow split among four",
            topology=topology(step(20), source=one, order="deterministic"),
            cause="source",
            shares=truth(source=40, compute=20),
            times=2.0,
        ),
    ]


def _of_stages() -> Sequence[Case]:
    return [
        Case(
            name="slow decode, one worker",
            topology=topology(step(20), ("decode", sleeping(2)), workers=1),
            cause="stages",
            says="'decode'",
            shares=truth(stages=32, compute=20),
        ),
        Case(
            name="slow decode, two workers",
            topology=topology(step(12), ("decode", sleeping(5)), workers=2),
            cause="stages",
            says="all 2 workers",
            shares=truth(stages=40, compute=12),
        ),
        Case(
            name="one slow stage of three",
            topology=topology(
                step(15), ("parse", sleeping(0.5)), ("decode", sleeping(4)), ("crop", sleeping(0.5))
            ),
            cause="stages",
            says="'decode'",
            shares=truth(stages=40, compute=15),
        ),
        Case(
            name="decode that needs more CPUs than there are",
            topology=topology(step(5), ("decode", hashing(8000))),
            cause="stages",
            says="'decode'",
        ),
        Case(
            name="neighbours that take the CPUs",
            topology=topology(step(10), ("decode", hashing(3000))),
            cause="stages",
            says="'decode'",
            around=lambda: neighbours(4),
        ),
        Case(
            name="a stage that holds the interpreter's lock",
            topology=topology(step(10), ("parse", counting(60_000))),
            cause="gil",
            says="'parse'",
            times=3.0,
        ),
        Case(
            name="one row in 32 takes 60 ms",
            topology=topology(step(15), ("decode", poisonous(60, 32)), workers=1),
            cause="stages",
            says="'decode'",
            shares=truth(stages=30, compute=15),
            times=3.0,
        ),
    ]


def _of_batches() -> Sequence[Case]:
    return [
        Case(
            name="slow function on batches",
            topology=topology(step(20), batch_fn=batching(35)),
            cause="handover",
            says="putting batches together",
            shares=truth(handover=35, compute=20),
        ),
        Case(
            name="too few batches kept ready",
            topology=topology(step(20), batch_fn=batching(130, every=10), prefetch=1),
            cause="handover",
            says="unevenly",
        ),
        Case(
            name="slow copies",
            topology=topology(step(20), device="cpu"),
            cause="copy",
            shares=truth(copy=15, compute=20),
            around=lambda: slow_copies(15),
        ),
    ]


def _of_trainers() -> Sequence[Case]:
    launching, waiting = FakeDevice(), FakeDevice()
    return [
        Case(
            name="slow step",
            topology=topology(step(40), ("decode", sleeping(1))),
            cause="compute",
            shares=truth(stages=8, compute=40),
        ),
        Case(
            name="launches slower than the device",
            topology=topology(on_device(launching, 10, host=25)),
            cause="host",
            shares=truth(host=15, compute=10),
            timeline=launching.timeline,
        ),
        Case(
            name="item() in each step",
            topology=topology(on_device(waiting, 15, host=15, item=True)),
            cause="host",
            shares=truth(host=15, compute=15),
            timeline=waiting.timeline,
        ),
        Case(
            name="checkpoint pauses",
            topology=topology(pausing(15, "checkpoint", 50, every=5)),
            cause="pause",
            says="checkpoint",
            shares=truth(pause=10, compute=15),
        ),
        Case(
            name="evaluation pauses",
            topology=topology(pausing(20, "evaluation", 30, every=2)),
            cause="pause",
            says="evaluation",
            shares=truth(pause=15, compute=20),
        ),
        Case(
            name="slow exchange of gradients",
            topology=topology(exchanging(20, 15)),
            cause="communication",
            shares=truth(communication=15, compute=20),
        ),
        Case(
            name="a peer that starves",
            topology=topology(exchanging(20, 15)),
            cause="peer",
            says="rank 1",
            ranks=(_starving(1, 0.42),),
        ),
    ]


def _starving(rank: int, share: float) -> RankSeen:
    """What a rank tells that waits for data so much of the time."""
    return RankSeen(
        rank=rank,
        starved=share,
        copy=0.0,
        compute=1 - share,
        communication=0.0,
        other=0.0,
        at=time.time(),
    )


def _healthy() -> Sequence[Case]:
    ahead = FakeDevice()
    stages = ("decode", sleeping(2))
    return [
        Case(
            name="an asynchronous device, busy while the host waits",
            topology=topology(on_device(ahead, 20), ("decode", sleeping(2.2))),
            cause="compute",
            shares=truth(stages=17.6, compute=20),
            timeline=ahead.timeline,
            healthy=True,
        ),
        Case(
            name="stages just fast enough",
            topology=topology(step(25), stages),
            cause="compute",
            shares=truth(stages=16, compute=25),
            healthy=True,
        ),
        Case(
            name="uneven batches, enough of them ready",
            topology=topology(step(20), batch_fn=batching(100, every=10), prefetch=10),
            cause="compute",
            healthy=True,
        ),
        Case(
            name="slow rows that others overtake",
            topology=topology(step(25), ("decode", poisonous(40, 32)), order="arrival"),
            cause="compute",
            healthy=True,
        ),
        Case(
            name="nobody trains",
            topology=topology(None, stages),
            cause="draining",
            healthy=True,
        ),
    ]

"""What happens to a simulated run: arrivals, a trainer, pools, and what goes wrong."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from forebay.autoscale.observation import Observation
from forebay.errors import ConfigError

Curve: TypeAlias = Callable[[float], float]
"""A value over the seconds of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModel:
    """One pool of a scenario."""

    row_seconds: Curve
    """Mean time that one worker needs for a row."""
    start_seconds: float = 2.0
    """From asking for a worker until it works."""
    workers: int = 6
    """In the beginning; they are asked for at second 0."""
    least: int = 1
    most: int = 32
    cpu: float = 1.0
    """CPUs that a worker takes while it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run to simulate. Rates are rows a second."""

    name: str
    seconds: float
    arrival: Curve
    demand: Curve
    """What the trainer takes while it does not wait."""
    pools: Mapping[str, PoolModel]
    reading: Curve = field(default=lambda second: math.inf)
    """What the source gives at most: an outage, one hot partition."""
    backlog: float = 0.0
    """Rows that wait when it begins."""
    spread: float = 0.3
    """Standard deviation of the service times, by their mean."""
    cpus: float | None = None
    """What the workers of all pools can take at once; None: as much as asked for."""
    hangs: Sequence[float] = ()
    """When a worker hangs."""
    hung_seconds: float = 30.0
    """Until the engine replaces it and its row is run once more."""
    unknown: Sequence[tuple[float, float]] = ()
    """When no metric of the source is to be had."""
    window: int = 256
    """Rows between the source and the trainer at most."""
    batch: int = 8
    interval: float = 1.0
    """Seconds between two decisions of our policies."""
    price: float = 0.01
    """What a second of one worker costs, in seconds of a starved trainer."""
    disturbances: int = 1
    """Changes that may each be answered by a change of direction, and one back."""

    def is_unknown(self, second: float) -> bool:
        """Whether the source tells nothing now."""
        return any(a <= second < b for a, b in self.unknown)

    def priced(self, price: float) -> Scenario:
        """The same, with another price of a worker-second."""
        return replace(self, price=price)


def constant(value: float) -> Curve:
    """Always the same."""
    return lambda second: value


def steps(*points: tuple[float, float]) -> Curve:
    """From each second on another value; before the first, that of the first."""
    seconds, values = [at for at, _ in points], [value for _, value in points]
    return lambda second: values[max(bisect.bisect_right(seconds, second) - 1, 0)]


def wave(mean: float, swing: float, period: float) -> Curve:
    """Up and down like days and nights, beginning at the lowest."""
    return lambda second: mean - swing * math.cos(2 * math.pi * second / period)


def scenarios() -> dict[str, Scenario]:
    """The scenarios that come with Forebay, by name."""
    decode = {"decode": PoolModel(row_seconds=constant(0.1))}
    fast_trainer = constant(100.0)
    found = [
        Scenario(
            name="steady",
            seconds=900,
            arrival=constant(40.0),
            demand=constant(60.0),
            pools=decode,
        ),
        Scenario(
            name="diurnal",
            seconds=1800,
            arrival=wave(50.0, 40.0, 900),
            demand=constant(120.0),
            pools=decode,
            disturbances=4,
        ),
        Scenario(
            name="burst",
            seconds=900,
            arrival=steps((0, 30.0), (300, 150.0), (320, 30.0)),
            demand=fast_trainer,
            pools=decode,
        ),
        Scenario(
            name="hot-partition",
            seconds=900,
            arrival=steps((0, 40.0), (300, 90.0)),
            demand=fast_trainer,
            reading=steps((0, math.inf), (300, 50.0)),
            pools=decode,
        ),
        Scenario(
            name="broker-outage",
            seconds=900,
            arrival=steps((0, 50.0), (300, 0.0), (360, 350.0), (370, 50.0)),
            demand=constant(80.0),
            reading=steps((0, math.inf), (300, 0.0), (360, math.inf)),
            unknown=[(300, 360)],
            pools=decode,
        ),
        Scenario(
            name="slow-trainer",
            seconds=1200,
            arrival=constant(80.0),
            demand=steps((0, 100.0), (400, 25.0), (800, 100.0)),
            pools={"decode": PoolModel(row_seconds=constant(0.1), workers=9)},
            disturbances=2,
        ),
        Scenario(
            name="hung-worker",
            seconds=600,
            arrival=constant(40.0),
            demand=constant(60.0),
            hangs=[200.0, 400.0],
            pools=decode,
            disturbances=2,
        ),
        Scenario(
            name="metric-loss",
            seconds=900,
            arrival=constant(55.0),
            demand=constant(80.0),
            unknown=[(200, 260), (500, 620)],
            pools=decode,
            disturbances=2,
        ),
        Scenario(
            name="fast-neighbour",
            seconds=300,
            arrival=constant(1000.0),
            demand=constant(1000.0),
            backlog=20_000,
            pools={
                "read": PoolModel(
                    row_seconds=constant(0.17), start_seconds=1.0, workers=1, most=128
                ),
                "infer": PoolModel(
                    row_seconds=constant(0.21), start_seconds=8.0, workers=1, most=128
                ),
            },
            cpus=128,
            window=512,
            interval=5.0,
            price=0.001,
        ),
    ]
    return {scenario.name: scenario for scenario in found}


def recorded(name: str, observations: Sequence[Observation]) -> Scenario:
    """The scenario of a recorded run: its arrivals, trainer and service rates, as they were seen.

    Raises:
        ConfigError: it never told a service rate, or what the trainer takes.
    """
    first, last = observations[0], observations[-1]
    arrivals = [(o.at - first.at, o.arrival) for o in observations]
    demands = [(o.at - first.at, o.trainer.demand) for o in observations]
    return Scenario(
        name=name,
        seconds=last.at - first.at,
        arrival=_known(arrivals, "arrivals"),
        demand=_known(demands, "what the trainer takes"),
        pools={k: _recorded_pool(k, observations) for k in last.pools},
        backlog=next((o.lag for o in observations if o.lag is not None), 0.0),
        cpus=last.cpus,
        unknown=_gaps(arrivals),
        interval=max((last.at - first.at) / (len(observations) - 1), 0.1),
    )


def _recorded_pool(name: str, observations: Sequence[Observation]) -> PoolModel:
    began = observations[0].at
    seen = [(o.at - began, o.pools[name]) for o in observations if name in o.pools]
    rate = _known([(at, p.rate or None) for at, p in seen], f"the service rate of pool {name}")
    first = seen[0][1]
    return PoolModel(
        row_seconds=lambda second: 1.0 / rate(second),
        workers=max(first.workers, 1),
        least=first.least,
        most=max(p.most or 4 * p.size for _, p in seen),
        cpu=next((p.cpu for _, p in reversed(seen) if p.cpu), 1.0),
    )


def _known(points: Sequence[tuple[float, float | None]], what: str) -> Curve:
    known = [(at, value) for at, value in points if value is not None]
    if not known:
        raise ConfigError(
            f"the trace never says {what}: record a run with a training function, and for longer "
            "than its start"
        )
    return steps(*known)


def _gaps(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float]]:
    """Where nothing was known; not in the beginning, when nothing is known of any run."""
    begun = next((i for i, (_, value) in enumerate(points) if value is not None), 0)
    rest = points[begun:]
    return [(at, after) for (at, value), (after, _) in pairwise(rest) if value is None]

"""The policies that come with Forebay: by the trainer's hunger, by the lag, or fixed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forebay.autoscale.decision import Decision
from forebay.autoscale.observation import Observation, PoolSeen
from forebay.autoscale.sizing import capacity, sizes
from forebay.errors import ConfigError

# Where no pool is the bottleneck and the trainer starves, no more can be done than is read now.
_FLOW_HEADROOM = 1.25
# A device that is busy for so much of the time does not starve, whatever the host's clock says.
_FULLY_BUSY = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """As many workers as keep the trainer fed, and no more.

    What is wanted is the least of what the trainer can eat and what there is: arrivals, and the
    lag over ``catch_up_seconds``. Pools grow only while the trainer starves and data waits and a
    pool is the bottleneck. They shrink where fewer workers would do. Whatever is not known, and a
    source from which nothing arrives, means hold.
    """

    starved_above: float = 0.03
    """Share of waiting below which the trainer counts as the limit."""
    busy_above: float = 0.95
    """Share of work above which a pool counts as a bottleneck."""
    headroom: float = 1.05
    """Capacity over what is wanted: work does not come evenly."""
    catch_up_seconds: float = 30.0

    def decide(self, observation: Observation) -> Sequence[Decision]:
        """What each pool should have."""
        o = observation
        starved, demand = o.trainer.starved, o.trainer.demand
        unknown = _unknown(o)
        if unknown or starved is None or demand is None:
            return _hold(o, unknown or "how much the trainer waits or takes is not known")
        supply = _supply(o, self.catch_up_seconds)
        if supply <= 0:
            return _hold(o, "nothing waits and nothing arrives: the source is quiet or gone")
        flow = next(iter(o.pools.values())).throughput
        starving_for_data = starved >= self.starved_above and not self._has_bottleneck(o)
        if starving_for_data and flow == 0:
            return _hold(o, "the trainer waits, and nothing is read: the source is gone or stuck")
        want = min(demand, supply)
        if starving_for_data and flow is not None:
            want = min(want, flow * _FLOW_HEADROOM)
        aims = _aims(o, want, self.headroom, demand)
        rising = any(aims[k] > p.size for k, p in o.pools.items())
        refusal = self._refusal(o, starved) if rising else ""
        return [self._for(o, k, p, aims, want, refusal) for k, p in o.pools.items()]

    def _for(
        self,
        o: Observation,
        name: str,
        pool: PoolSeen,
        aims: Mapping[str, int],
        want: float,
        refusal: str,
    ) -> Decision:
        aim = aims[name]
        limit = _cpu_limit(o, aims, want) or _price_limit(pool, aim, want)
        if aim > pool.size:
            if refusal:
                return Decision(name, pool.size, f"hold: {refusal}")
            why = f"the trainer starves {_percent(o.trainer.starved)} of the time, {_work(o, want)}"
            return Decision(name, aim, f"{why}: {_each(pool)} and {pool.size} are too few{limit}")
        if aim < pool.size:
            frees = not refusal and _crowded(o, aims)
            why = f"frees CPU for {frees}" if frees else f"{_work(o, want)}, {aim} are enough"
            return Decision(name, aim, f"{why}: {_each(pool)}{limit}", urgent=bool(frees))
        return Decision(name, aim, f"hold: {_work(o, want)}, {aim} are right{limit}")

    def _refusal(self, o: Observation, starved: float) -> str:
        """Why no pool may grow now; empty if they may."""
        if starved < self.starved_above:
            return f"the trainer is the limit, it starves {_percent(starved)} of the time"
        if busy := _busy_device(o):
            return busy
        if not self._has_bottleneck(o):
            return "no pool is the bottleneck, the trainer waits for the source"
        return _no_use(o)

    def _has_bottleneck(self, o: Observation) -> bool:
        return any(_is_bottleneck(p, self.busy_above) for p in o.pools.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """As many workers as keep up with the source and bring the lag to nothing in some time.

    Where the trainer cannot eat that much, as many as it can: lag that only the trainer can
    work off is no reason to grow.
    """

    headroom: float = 1.05
    catch_up_seconds: float = 30.0

    def decide(self, observation: Observation) -> Sequence[Decision]:
        """What each pool should have."""
        o = observation
        unknown = _unknown(o)
        if unknown:
            return _hold(o, unknown)
        supply = _supply(o, self.catch_up_seconds)
        if supply <= 0:
            return _hold(o, "nothing waits and nothing arrives: the source is quiet or gone")
        demand, starved = o.trainer.demand, o.trainer.starved
        want = supply if demand is None else min(supply, demand)
        aims = _aims(o, want, self.headroom, max(want, demand or 0.0))
        decisions = []
        for name, pool in o.pools.items():
            aim, refusal = aims[name], ""
            if aim > pool.size:
                fed = starved is None or starved <= 0
                refusal = "the trainer does not wait, or it is not known" if fed else ""
                refusal = refusal or _busy_device(o) or _no_use(o)
            size = pool.size if refusal else aim
            reason = f"hold: {refusal}" if refusal else f"{_work(o, want)}: {_each(pool)}"
            decisions.append(Decision(name, size, reason))
        return decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The same number of workers, whatever happens; without one, the number there is."""

    workers: int | None = None
    pools: Mapping[str, int] = field(default_factory=dict)
    """For single pools."""

    def decide(self, observation: Observation) -> Sequence[Decision]:
        """What each pool should have."""
        return [
            Decision(k, self.pools.get(k, self.workers or p.size), "fixed")
            for k, p in observation.pools.items()
        ]


NAMED: Mapping[str, type[Starvation] | type[Lag] | type[Fixed]] = {
    "starvation": Starvation,
    "lag": Lag,
    "fixed": Fixed,
}


def named(name: str) -> Starvation | Lag | Fixed:
    """A policy by its name, with its defaults.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in NAMED:
        raise ConfigError(f"there is no autoscale policy {name!r}: they are {', '.join(NAMED)}")
    return NAMED[name]()


def _unknown(o: Observation) -> str:
    """Which input that every policy needs is not known; empty if all are."""
    if not o.sources:
        return "no source has told how far it reaches"
    for name, source in o.sources.items():
        if not (_is_number(source.lag) and _is_number(source.arrival)):
            what = "arrival rate" if _is_number(source.lag) else "lag"
            return f"the {what} of {name} is not known"
    for name, pool in o.pools.items():
        if not pool.rate:
            return f"pool {name} has not finished anything yet, its rate is not known"
    return ""


def _is_number(value: float | None) -> bool:
    """A metric that some system computed can be NaN: that is not known, too."""
    return value is not None and math.isfinite(value)


def _hold(o: Observation, reason: str) -> list[Decision]:
    return [Decision(k, p.size, f"hold: {reason}") for k, p in o.pools.items()]


def _supply(o: Observation, catch_up_seconds: float) -> float:
    """Rows a second that there are for some time to come."""
    return (o.arrival or 0.0) + (o.lag or 0.0) / catch_up_seconds


def _aims(o: Observation, want: float, headroom: float, demand: float) -> dict[str, int]:
    """Workers of each pool for a rate, less those that cost more than the starving they save."""
    rates = {k: p.rate for k, p in o.pools.items() if p.rate}
    found = sizes(o.pools, rates, want, cpus=o.cpus, headroom=headroom)
    return {k: _worth(o, k, found[k], want * headroom / rates[k], demand / rates[k]) for k in found}


def _worth(o: Observation, name: str, workers: int, needed: float, whole: float) -> int:
    """Less the workers whose part in feeding the trainer costs more than it saves.

    Args:
        needed: workers for what is wanted, as a fraction.
        whole: workers that feed the trainer without a pause, as a fraction.
    """
    least = max(o.pools[name].least, 1)
    if 1.0 / whole < o.price:
        return least
    last = min(needed - (workers - 1), 1.0) / whole
    return workers - 1 if workers > least and last < o.price else workers


def _is_bottleneck(pool: PoolSeen, busy_above: float) -> bool:
    return pool.queued > pool.workers or (pool.busy is not None and pool.busy >= busy_above)


def _busy_device(o: Observation) -> str:
    """Why a trainer that waits does not starve all the same; empty if it may.

    It waits in ``next()``, as the host sees it, and has given its device work for longer.
    """
    busy = o.trainer.device_busy
    if busy is None or busy < _FULLY_BUSY:
        return ""
    return (
        f"the trainer waits {_percent(o.trainer.starved)} of the time, but its device is busy "
        f"{_percent(busy)} of it (NVML): it is the limit"
    )


def _no_use(o: Observation) -> str:
    """Why more workers would not help, as far as this process can tell; empty if they might."""
    if o.gil is not None and o.gil >= 0.7:
        return (
            f"the stages hold the interpreter's lock {_percent(o.gil)} of the time, so more "
            "threads cannot help: use functions that release it, or another engine"
        )
    used = sum((p.cpu or 0.0) * p.workers * (p.busy or 0.0) for p in o.pools.values())
    if o.cpus is not None and used >= 0.95 * o.cpus:
        return f"all of the {o.cpus:.1f} CPUs that may be used are busy"
    return ""


def _cpu_limit(o: Observation, aims: Mapping[str, int], want: float) -> str:
    """A word on CPUs where they, and not what is wanted, decide the sizes."""
    able = min(aims[k] * (p.rate or 0.0) for k, p in o.pools.items())
    used = sum(aims[k] * (p.cpu or 1.0) for k, p in o.pools.items())
    if o.cpus is None or able >= want or used < 0.9 * o.cpus:
        return ""
    return f"; more than {o.cpus:.1f} CPUs can run would not help"


def _price_limit(pool: PoolSeen, aim: int, want: float) -> str:
    """A word on the price where that, and not what is wanted, decides the size."""
    most = aim if pool.most is None else pool.most
    if (aim + 1) * (pool.rate or 0.0) > want or aim >= most:
        return ""
    return "; more would cost more than the starving that they save (price)"


def _crowded(o: Observation, aims: Mapping[str, int]) -> str:
    """The pool that gets the CPUs another one gives up; empty if there is room for all."""
    growing = [k for k, p in o.pools.items() if aims[k] > p.size]
    if not growing or o.cpus is None:
        return ""
    needed = sum(max(aims[k], p.size) * (p.cpu or 1.0) for k, p in o.pools.items())
    return growing[0] if needed > o.cpus else ""


def _work(o: Observation, want: float) -> str:
    arrival, lag = o.arrival or 0.0, o.lag or 0.0
    takes = o.trainer.demand
    eats = "" if takes is None else f", the trainer takes {takes:,.0f} rows/s"
    return f"{want:,.0f} rows/s wanted ({arrival:,.0f} arrive, {lag:,.0f} wait{eats})"


def _each(pool: PoolSeen) -> str:
    able = capacity(pool)
    return "a worker's rate is not known" if able is None else f"a worker does {pool.rate:,.0f}"


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share:.0%}"

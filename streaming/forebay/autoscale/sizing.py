"""How many workers each pool needs for a rate: arithmetic, without opinions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from forebay.autoscale.observation import PoolSeen

_EPSILON = 1e-9
# A rate next to nothing asks for workers without end.
_MOST = 100_000


def capacity(pool: PoolSeen) -> float | None:
    """Rows a second that a pool can do with all workers that it has or gets."""
    return None if pool.rate is None else pool.rate * pool.size


def sizes(
    pools: Mapping[str, PoolSeen],
    rates: Mapping[str, float],
    rate: float,
    *,
    cpus: float | None,
    headroom: float,
) -> dict[str, int]:
    """The least workers of each pool that do ``rate`` rows a second, or as near as CPUs allow.

    Pools in a row share the CPUs in proportion to the time a row takes in each: one faster than
    its neighbour gains nothing. A pool at its bound holds the others back, too.

    Args:
        rates: rows a second of one worker, by pool.
        headroom: how much more than ``rate`` is aimed at, as a factor.
    """
    reachable = min(
        [rate * headroom, *(p.most * rates[k] for k, p in pools.items() if p.most is not None)]
    )
    each = {k: p.cpu or 1.0 for k, p in pools.items()}
    if cpus is not None:
        seconds_a_row = sum(each[k] / rates[k] for k in pools)
        if reachable * seconds_a_row > cpus:
            return _within(pools, rates, each, cpus)
    return {
        k: _bounded(p, math.ceil(min(reachable / rates[k] - _EPSILON, _MOST)))
        for k, p in pools.items()
    }


def _within(
    pools: Mapping[str, PoolSeen],
    rates: Mapping[str, float],
    each: Mapping[str, float],
    cpus: float,
) -> dict[str, int]:
    """The best that a number of CPUs can do: every whole worker to the slowest pool."""
    share = cpus / sum(each[k] / rates[k] for k in pools)
    found = {
        k: _bounded(p, math.floor(min(share / rates[k] + _EPSILON, _MOST)))
        for k, p in pools.items()
    }
    left = cpus - sum(found[k] * each[k] for k in pools)
    while True:
        slowest = min(pools, key=lambda k: found[k] * rates[k])
        grown = _bounded(pools[slowest], found[slowest] + 1)
        if each[slowest] > left + _EPSILON or grown == found[slowest]:
            return found
        found[slowest], left = grown, left - each[slowest]


def _bounded(pool: PoolSeen, workers: int) -> int:
    least = max(pool.least, 1)
    return max(least, workers if pool.most is None else min(workers, pool.most))

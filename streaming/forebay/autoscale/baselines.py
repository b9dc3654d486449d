"""What others do, to compare with: by CPU use, by lag, by Ray's queue; each as it is documented.

They are controllers of the simulator, not policies to run: each comes with the interval and the
patience that it has where it is at home.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from forebay.autoscale.decision import Decision, Policy
from forebay.autoscale.loop import Scaler
from forebay.autoscale.observation import Observation, PoolSeen
from forebay.autoscale.observer import Observer, Sample
from forebay.autoscale.policies import Fixed, Lag, Starvation
from forebay.autoscale.scenario import Scenario
from forebay.autoscale.settings import Autoscaling
from forebay.autoscale.simulate import Controller


class Ours:
    """A policy of ours with everything around it, as it runs in a loader."""

    def __init__(self, settings: Autoscaling) -> None:
        self._scaler = Scaler(settings)

    def steps(self, sample: Sample) -> Sequence[Decision]:
        """What the loop would do."""
        return self._scaler.decide(sample)[1]


class PodAutoscaler:
    """The Kubernetes horizontal pod autoscaler: every 15 s, size by use over its target.

    Within a tenth of the target nothing is done. It doubles at most, or adds four; it shrinks to
    the most that was wanted in five minutes. Without a metric it holds.
    """

    def __init__(self) -> None:
        self._observer = Observer()
        self._next = 0.0
        self._wanted: dict[str, deque[tuple[float, int]]] = {}

    def steps(self, sample: Sample) -> Sequence[Decision]:
        """New sizes, four times a minute."""
        seen = self._observer.observe(sample)
        if sample.at < self._next:
            return []
        self._next = sample.at + 15.0
        return [self._stabilised(sample.at, k, p, seen) for k, p in seen.pools.items()]

    def _stabilised(self, now: float, name: str, pool: PoolSeen, seen: Observation) -> Decision:
        want, reason = self.wanted(pool, seen)
        kept = self._wanted.setdefault(name, deque())
        kept.append((now, want))
        while kept[0][0] < now - 300:
            kept.popleft()
        want = max(size for _, size in kept) if want < pool.size else want
        want = min(want, max(2 * pool.size, pool.size + 4))
        return Decision(name, _bounded(pool, want), reason)

    def wanted(self, pool: PoolSeen, seen: Observation) -> tuple[int, str]:
        """By the share of the time that the workers work; 70 % is aimed at."""
        if pool.busy is None or abs(pool.busy / 0.7 - 1) <= 0.1:
            return pool.size, "use is about right, or not known"
        # Workers that start count as idle, as unready pods do when growing.
        return math.ceil(max(pool.workers, 1) * pool.busy / 0.7), f"use is {pool.busy:.0%}"


class LagScaler(PodAutoscaler):
    """KEDA's Kafka scaler on top of that: as many workers as lag over a threshold.

    The threshold is ten seconds of one worker's work, which is kind: its default is 10 records.
    """

    def wanted(self, pool: PoolSeen, seen: Observation) -> tuple[int, str]:
        """By the lag alone."""
        if seen.lag is None or not pool.rate:
            return pool.size, "lag is not known"
        want = seen.lag / (10 * pool.rate)
        if abs(want / max(pool.size, 1) - 1) <= 0.1:
            return pool.size, "lag is about right"
        return math.ceil(want), f"lag is {seen.lag:,.0f}"


class RayData:
    """Ray Data 2.60's own: each pool by its tasks in flight and its queue, and nothing else.

    Above 1.75 tasks a worker it takes the size that brings it there at once. At half a task it
    gives up one worker, ten seconds after the last growth at the earliest.
    """

    def __init__(self) -> None:
        self._grew: dict[str, float] = {}
        self._observer = Observer()

    def steps(self, sample: Sample) -> Sequence[Decision]:
        """New sizes, whenever asked."""
        seen = self._observer.observe(sample)
        return [self._sized(sample, k, p) for k, p in seen.pools.items()]

    def _sized(self, sample: Sample, name: str, pool: PoolSeen) -> Decision:
        working = (pool.busy or 0.0) * pool.workers
        in_flight = working + min(pool.queued, pool.workers)
        use = in_flight / max(pool.workers, 1)
        if use >= 1.75:
            want = max(math.ceil((working + pool.queued) / 1.75), pool.size)
            self._grew[name] = sample.at
        elif use <= 0.5 and sample.at >= self._grew.get(name, -math.inf) + 10:
            want = pool.size - 1
        else:
            want = pool.size
        return Decision(name, _bounded(pool, self._afforded(sample, pool, want)), f"{use:.2f}")

    @staticmethod
    def _afforded(sample: Sample, pool: PoolSeen, want: int) -> int:
        if sample.cpus is None:
            return want
        others = sum(p.workers + p.starting for p in sample.pools.values()) - pool.size
        return max(min(want, int(sample.cpus) - others), 1)


def ours(policy: Policy) -> Callable[[Scenario], Controller]:
    """Makes a controller of one of our policies, or of a user's."""

    def make(scenario: Scenario) -> Controller:
        return Ours(Autoscaling(policy=policy, interval=scenario.interval, price=scenario.price))

    return make


CONTENDERS: dict[str, Callable[[Scenario], Controller]] = {
    "starvation": ours(Starvation()),
    "lag": ours(Lag()),
    "fixed": ours(Fixed()),
    "cpu-use": lambda scenario: PodAutoscaler(),
    "lag-only": lambda scenario: LagScaler(),
    "ray-data": lambda scenario: RayData(),
}


def _bounded(pool: PoolSeen, workers: int) -> int:
    least = max(pool.least, 1)
    return max(least, workers if pool.most is None else min(workers, pool.most))

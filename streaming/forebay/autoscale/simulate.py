"""A run in virtual time: the pools, the window and the trainer, with a policy that sizes them.

Events, not steps: every row takes its own time on a worker, workers take theirs to start, and a
minute passes in milliseconds. The same seed gives the same run, to the last row.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forebay.autoscale.decision import Decision
from forebay.autoscale.observer import Sample
from forebay.autoscale.scenario import PoolModel, Scenario
from forebay.engine import PoolStats

_SOURCE_SECONDS = 0.1
_READY_BATCHES = 2
_PENDING_SECONDS = 1.0


class Controller(Protocol):
    """What sizes the pools of a simulated run. Remembers what it likes."""

    def steps(self, sample: Sample) -> Sequence[Decision]:
        """What to do now; asked once every interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The run at the moment of a decision."""

    at: float
    lag: int
    starved: float
    """Share of the time since the point before."""
    workers: dict[str, int]
    capacity: float
    """Rows a second that the workers could do, of the slowest pool."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a run went."""

    scenario: str
    price: float
    rows: int = 0
    starved_seconds: float = 0.0
    worker_seconds: float = 0.0
    flips: int = 0
    changes: list[tuple[float, Decision]] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Starved seconds, worker-seconds at their price, and changes of direction: less is
        better."""
        return self.starved_seconds + self.price * self.worker_seconds + self.flips


def simulate(scenario: Scenario, controller: Controller, *, seed: int = 0) -> Outcome:
    """Run a scenario to its end."""
    return _Run(scenario, controller, seed).run()


class _Pool:
    """Workers with a queue before them."""

    def __init__(self, model: PoolModel) -> None:
        self.model = model
        self.queued = self.live = self.starting = self.working = 0
        self.target = 0
        self.rows, self.busy_seconds, self.replaced = 0, 0.0, 0
        self.direction = 0

    @property
    def size(self) -> int:
        return self.live + self.starting

    def stats(self, scenario: Scenario) -> PoolStats:
        return PoolStats(
            workers=self.live,
            starting=self.starting,
            busy_seconds=self.busy_seconds,
            cpu_seconds=None if scenario.cpus is None else self.busy_seconds * self.model.cpu,
            queued_slices=self.queued,
            rows=self.rows,
            least=self.model.least,
            most=self.model.most,
            replaced=self.replaced,
        )


class _Run:
    """A world that goes from event to event."""

    def __init__(self, scenario: Scenario, controller: Controller, seed: int) -> None:
        self._scenario, self._controller = scenario, controller
        self._random = random.Random(seed)
        self._pools = {k: _Pool(model) for k, model in scenario.pools.items()}
        self._line = list(self._pools.values())
        self._sigma = math.sqrt(math.log1p(scenario.spread**2))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = self._counted_at = 0.0
        self._arrived, self._read, self._allowed = scenario.backlog, 0, 0.0
        self._ready = self._taken = self._batches = 0
        self._waits_since: float | None = 0.0
        self._starved, self._starved_before = 0.0, 0.0
        self._hangs = sorted(scenario.hangs)
        self._outcome = Outcome(scenario=scenario.name, price=scenario.price)

    def run(self) -> Outcome:
        for pool in self._line:
            self._resize(pool, pool.model.workers)
        self._later(0.0, self._give)
        self._later(self._scenario.interval, self._decide)
        while self._events and self._events[0][0] <= self._scenario.seconds:
            self._now, _, event = heapq.heappop(self._events)
            self._count_workers()
            event()
        self._now = self._scenario.seconds
        self._count_workers()
        self._outcome.starved_seconds = self._starved_until_now()
        self._outcome.rows = self._taken
        return self._outcome

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), event))

    def _count_workers(self) -> None:
        passed, self._counted_at = self._now - self._counted_at, self._now
        self._outcome.worker_seconds += passed * sum(pool.size for pool in self._line)
        for pool in self._line:
            pool.busy_seconds += passed * pool.working

    # -- the source ----------------------------------------------------------------------------

    def _give(self) -> None:
        self._arrived += max(self._scenario.arrival(self._now), 0.0) * _SOURCE_SECONDS
        self._allowed = self._scenario.reading(self._now) * _SOURCE_SECONDS + self._allowed % 1.0
        self._admit()
        self._later(_SOURCE_SECONDS, self._give)

    def _admit(self) -> None:
        in_flight = self._read - self._taken
        room = min(self._scenario.window - in_flight, int(self._arrived) - self._read)
        rows = max(int(min(room, self._allowed)), 0)
        self._allowed = self._allowed - rows if math.isfinite(self._allowed) else self._allowed
        self._read += rows
        self._line[0].queued += rows
        self._work(0)

    # -- the pools -----------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        """Give queued rows to workers that are free."""
        pool = self._line[index]
        while pool.queued and pool.working < pool.live:
            pool.queued -= 1
            pool.working += 1
            seconds = self._service_seconds(pool)
            if self._hangs and self._hangs[0] <= self._now and pool.live > 1:
                self._hangs.pop(0)
                pool.replaced += 1
                seconds += self._scenario.hung_seconds
            self._later(seconds, lambda: self._finish(index))

    def _service_seconds(self, pool: _Pool) -> float:
        mean = pool.model.row_seconds(self._now)
        return mean * self._random.lognormvariate(-(self._sigma**2) / 2, self._sigma)

    def _finish(self, index: int) -> None:
        pool = self._line[index]
        pool.working -= 1
        pool.rows += 1
        if pool.size > pool.target:
            pool.live -= 1
        if index + 1 < len(self._line):
            self._line[index + 1].queued += 1
            self._work(index + 1)
        else:
            self._ready += 1
            self._feed()
        self._work(index)

    def _resize(self, pool: _Pool, workers: int) -> None:
        pool.target = min(max(workers, pool.model.least), pool.model.most)
        for _ in range(pool.target - pool.size):
            pool.starting += 1
            self._later(pool.model.start_seconds, lambda: self._started(pool))
        idle = pool.live - pool.working
        pool.live -= max(min(pool.size - pool.target, idle), 0)

    def _started(self, pool: _Pool) -> None:
        if pool.size > pool.target:
            pool.starting -= 1  # not wanted any more
            return
        cpus = self._scenario.cpus
        taken = sum(p.live * p.model.cpu for p in self._line) + pool.model.cpu
        if cpus is not None and taken > cpus + 1e-9:
            self._later(_PENDING_SECONDS, lambda: self._started(pool))
            return
        pool.starting -= 1
        pool.live += 1
        self._work(self._line.index(pool))

    # -- the trainer ---------------------------------------------------------------------------

    def _feed(self) -> None:
        """Let a trainer that waits have the batch that is ready."""
        if self._waits_since is None or self._ready < self._scenario.batch:
            return
        self._starved += self._now - self._waits_since
        self._waits_since = None
        self._ready -= self._scenario.batch
        self._taken += self._scenario.batch
        self._batches += 1
        self._later(self._scenario.batch / self._scenario.demand(self._now), self._stepped)
        self._admit()

    def _stepped(self) -> None:
        self._waits_since = self._now
        self._feed()

    def _starved_until_now(self) -> float:
        waits = 0.0 if self._waits_since is None else self._now - self._waits_since
        return self._starved + waits

    # -- deciding ------------------------------------------------------------------------------

    def _decide(self) -> None:
        decisions = self._controller.steps(self._sample())
        for d in decisions:
            pool = self._pools[d.pool]
            change = d.workers - pool.target
            if change:
                self._count_flip(pool, 1 if change > 0 else -1)
                self._outcome.changes.append((self._now, d))
                self._resize(pool, d.workers)
        self._note()
        self._later(self._scenario.interval, self._decide)

    def _count_flip(self, pool: _Pool, direction: int) -> None:
        self._outcome.flips += pool.direction == -direction
        pool.direction = direction

    def _sample(self) -> Sample:
        known = not self._scenario.is_unknown(self._now)
        end = int(self._arrived)
        full = _READY_BATCHES * self._scenario.batch
        return Sample(
            at=self._now,
            ends={"trace/0": end} if known else {},
            behind={"trace/0": end - self._taken} if known else {},
            pools={k: pool.stats(self._scenario) for k, pool in self._pools.items()},
            batches=self._batches,
            rows=self._taken,
            starved_seconds=self._starved_until_now(),
            ready=min(self._ready / full, 1.0),
            cpus=self._scenario.cpus,
        )

    def _note(self) -> None:
        starved = self._starved_until_now()
        rates = [pool.live / pool.model.row_seconds(self._now) for pool in self._line]
        self._outcome.points.append(
            Point(
                at=self._now,
                lag=int(self._arrived) - self._taken,
                starved=min((starved - self._starved_before) / self._scenario.interval, 1.0),
                workers={k: pool.live for k, pool in self._pools.items()},
                capacity=min(rates),
            )
        )
        self._starved_before = starved

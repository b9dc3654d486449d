"""Between what a policy says and what is done: bounds, steps, patience, and no flapping."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from forebay.autoscale.decision import Decision
from forebay.autoscale.observation import Observation, PoolSeen
from forebay.errors import ConfigError

_BUSY = 0.8
# Workers that have not started after so long are not waited for: a cluster may have no room.
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """How fast sizes may change. Times are in seconds."""

    grow: float = 4.0
    """The most by which a pool grows in one step, as a factor; always at least by 2 workers."""
    shrink: float = 0.5
    """The least that is left of a pool in one step, as a factor."""
    patience: float = 30.0
    """A pool shrinks to the most that was wanted in this time, once it is over."""
    cool_down: float = 15.0
    """After a step in one direction none in the other; start-up time comes on top."""
    band: float = 0.1
    """Share of a pool below which shrinking it is not worth a change."""
    futile_gain: float = 0.2
    """Of the throughput that more workers should bring; with less, more are not tried again."""
    futile_seconds: float = 300.0
    """For this long, twice as long each time."""

    def __post_init__(self) -> None:
        if not (self.grow > 1 and 0 < self.shrink < 1):
            raise ConfigError(
                f"grow must be above 1 and shrink between 0 and 1, not {self.grow}, {self.shrink}"
            )
        for name in ("patience", "cool_down", "band", "futile_gain", "futile_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be 0 or more, not {getattr(self, name)}")


@dataclass(slots=True)
class _Trial:
    """A growth whose effect is not known yet."""

    size: int
    throughput: float


@dataclass(slots=True)
class _History:
    """What happened to a pool."""

    wanted: deque[tuple[float, int]] = field(default_factory=deque)
    live: deque[tuple[float, int]] = field(default_factory=deque)
    changed_at: float = -math.inf
    grew: bool = False
    starting_until: float = -math.inf
    began: float | None = None
    trial: _Trial | None = None
    futile_until: float = -math.inf
    futile_times: int = 0


class Governor:
    """Turns what a policy wants into steps. Remembers; the policy does not.

    Args:
        guards: how fast sizes may change.
        settle_seconds: time until the figures show what a step did.
    """

    def __init__(self, guards: Guards, settle_seconds: float) -> None:
        self._guards, self._settle = guards, settle_seconds
        self._histories: dict[str, _History] = {}

    def settle(self, o: Observation, decisions: Sequence[Decision]) -> list[Decision]:
        """The steps to take now, one for each decision about a pool that exists."""
        return [
            self._step(o, o.pools[d.pool], _bounded(o.pools[d.pool], d))
            for d in decisions
            if d.pool in o.pools
        ]

    def _step(self, o: Observation, pool: PoolSeen, d: Decision) -> Decision:
        h = self._histories.setdefault(d.pool, _History())
        h.began = o.at if h.began is None else h.began
        if pool.starting and o.at < h.changed_at + _START_SECONDS:
            h.starting_until = o.at
        self._remember(h, o.at, d.workers)
        self._judge(h, o, pool)
        if d.workers > pool.size:
            return self._grown(h, o, pool, d)
        if d.workers < pool.size:
            return self._shrunk(h, o, pool, d)
        return d

    def _remember(self, h: _History, now: float, workers: int) -> None:
        h.wanted.append((now, workers))
        while h.wanted[0][0] < now - self._guards.patience:
            h.wanted.popleft()

    def _judge(self, h: _History, o: Observation, pool: PoolSeen) -> None:
        """Whether the last growth brought anything, once its workers have worked for a while.

        Only a pool that is busy is judged: an idle one waits for others, which may be growing.
        """
        worked = self._worked(h, o.at, pool)
        trial = h.trial
        if trial is None or worked <= trial.size or pool.throughput is None:
            return
        h.trial = None
        gain = pool.throughput / trial.throughput - 1
        if gain >= self._guards.futile_gain * (worked / trial.size - 1):
            h.futile_times = 0
        elif pool.busy is not None and pool.busy >= _BUSY:
            h.futile_until = o.at + self._guards.futile_seconds * 2**h.futile_times
            h.futile_times += 1

    def _worked(self, h: _History, now: float, pool: PoolSeen) -> int:
        """How many workers there were all the time since the figures settled."""
        h.live.append((now, pool.workers))
        while len(h.live) > 1 and h.live[1][0] <= now - self._settle:
            h.live.popleft()
        return min(workers for _, workers in h.live)

    def _grown(self, h: _History, o: Observation, pool: PoolSeen, d: Decision) -> Decision:
        if o.at < h.futile_until:
            return _held(pool, d, "the last workers it got brought next to nothing")
        if not h.grew and o.at < h.changed_at + self._guards.cool_down:
            return _held(pool, d, "cooling down after the pool was made smaller")
        most = max(int(pool.size * self._guards.grow), pool.size + 2)
        if h.trial is None and pool.throughput:
            h.trial = _Trial(pool.workers, pool.throughput)
        h.changed_at, h.grew = o.at, True
        return replace(d, workers=min(d.workers, most))

    def _shrunk(self, h: _History, o: Observation, pool: PoolSeen, d: Decision) -> Decision:
        assert h.began is not None
        guards = self._guards
        if d.urgent and pool.size - d.workers < guards.band / 2 * pool.size:
            return _held(pool, d, "too little to be worth a change")
        if not d.urgent:
            aim = max(workers for _, workers in h.wanted)
            if aim >= pool.size or o.at < h.began + guards.patience:
                return _held(pool, d, "not for long enough yet")
            if pool.size - aim < guards.band * pool.size:
                return _held(pool, d, "too little to be worth a change")
            if h.grew and o.at < max(h.changed_at, h.starting_until) + guards.cool_down:
                return _held(pool, d, "cooling down after the pool was made larger")
            d = replace(d, workers=max(aim, math.ceil(pool.size * guards.shrink)))
        h.changed_at, h.grew, h.trial = o.at, False, None
        return d


def _bounded(pool: PoolSeen, d: Decision) -> Decision:
    """Within the pool's bounds, and never to nothing."""
    least = max(pool.least, 1)
    workers = max(least, d.workers if pool.most is None else min(d.workers, pool.most))
    if workers == d.workers:
        return d
    return replace(d, workers=workers, reason=f"{d.reason}; bounds allow {workers}")


def _held(pool: PoolSeen, d: Decision, why: str) -> Decision:
    return Decision(d.pool, pool.size, f"hold: {why} ({d.reason})")

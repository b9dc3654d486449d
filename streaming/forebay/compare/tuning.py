"""The search for workers and prefetch: a climb from what the topology has, by short runs.

Both change how fast rows come, and nothing about the rows. The best of the climb are run in turns
with where it began, so that chance does not choose, and only a gain beyond the noise is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple, Protocol, TypeAlias

from forebay.compare.orders import Inputs, Mode, Order, Run
from forebay.errors import ConfigError
from forebay.statistics import Estimate, ratio
from forebay.topology import Topology
from forebay.topology.engines import DEFAULT
from forebay.training import Stop, Stopper

GAIN = 0.05
"""A step of the climb must bring so much more, as a share."""
_AS_GOOD, _IN_REACH = 0.95, 0.85
_MOST_PREFETCH, _MOST_ROUNDS, _LEAST_ROUNDS, _FINALISTS = 16, 8, 3, 3
# A climb and its rounds are seldom more trials than this. Of the time of each, this part is timed
# and this part is warm-up; opening and closing take the rest.
_TRIALS, _TIMED, _WARMUP = 22, 0.6, 0.2
_SHORTEST, _LONGEST, _LONGEST_WARMUP = 0.3, 5.0, 0.5


class Setting(NamedTuple):
    """What is tuned. The smaller, the cheaper."""

    workers: int
    prefetch: int

    @property
    def changes(self) -> Mapping[str, str]:
        """Of the topology, in YAML, by path. Nothing resizes a pool that is being measured."""
        return {
            "loader.workers": str(self.workers),
            "loader.prefetch": str(self.prefetch),
            "loader.autoscale": "null",
        }

    @property
    def yaml(self) -> str:
        """The lines to put into the topology."""
        return f"loader:\n  workers: {self.workers}\n  prefetch: {self.prefetch}\n"


Rate: TypeAlias = Callable[[Setting], float]
"""Rows a second of a setting. Raises TimeUp when there is no time for more."""


class TimeUp(Exception):
    """The search has had its time."""


class Runner(Protocol):
    """Runs orders, in one process: a ``Worker``."""

    def scout(self, order: Order, batches: int) -> Inputs:
        """See ``measuring.scout``. Raises RunFailed."""

    def measure(self, order: Order) -> Run:
        """See ``measuring.measure``. Raises RunFailed."""


class Trial(NamedTuple):
    """One run of a setting."""

    setting: Setting
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the search came to."""

    mode: Mode
    before: Setting
    chosen: Setting
    """``found``, or ``before`` if that was not shown to be faster."""
    found: Setting
    """The cheapest that is as good as the best."""
    gain: Estimate | None
    """How many times as fast ``found`` is as ``before``; None: it is that."""
    trials: tuple[Trial, ...]
    seconds: float
    interrupted: bool = False
    """Whether it was ended early; then nothing is claimed."""

    @property
    def better(self) -> bool:
        """Whether a gain was shown."""
        return self.chosen != self.before


def tune(
    topology: Topology,
    runner: Runner,
    *,
    seconds: float,
    before: Setting,
    most_workers: int,
    stopper: Stopper,
    drain: bool = False,
    tell: Callable[[Trial], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search for about so many seconds; a round that has begun is ended.

    Args:
        before: what the topology has.
        stopper: ends it early.
        drain: leave the training function out, and look how fast the pipeline alone can be.
        tell: called with each trial as it ends.

    Raises:
        ConfigError: the engine is not in this process.
        RunFailed: the topology cannot be run.
        Stop: it was ended before anything was measured.
    """
    if topology.engine != DEFAULT:
        raise ConfigError(
            f"tune looks for the workers of the engine {DEFAULT!r}, and {topology.file} runs on "
            f"{topology.engine!r}, whose pools are sized while it runs: see 'loader.autoscale'"
        )
    mode: Mode = "drain" if drain or topology.train is None else "train"
    turns: Mapping[Setting, Sequence[float]] = {}
    with stopper.waiting():
        search = _Search(topology.file, mode, runner, seconds, tell, clock)
        try:
            tried = climb(search.rate, before, most_workers)
            turns = search.turns(finalists(tried, before), before)
        except Stop:
            if not search.trials:
                raise
            search.interrupted = True
    stopper.finish()
    found = cheapest({s: median(rates) for s, rates in turns.items()}) if turns else before
    gain = None if found == before else ratio(turns[found], turns[before], paired=True)
    shown = gain is not None and gain.low > 1 and gain.value >= 1 + GAIN
    return Tuned(
        mode=mode,
        before=before,
        chosen=found if shown else before,
        found=found,
        gain=gain,
        trials=tuple(search.trials),
        seconds=clock() - search.began,
        interrupted=search.interrupted,
    )


def climb(rate: Rate, start: Setting, most_workers: int) -> dict[Setting, float]:
    """The settings that were tried, and what they gave.

    Workers are doubled for as long as it helps, and one time more; where it does not help at all
    they are halved for as long as it does not hurt. Then prefetch is doubled, in the same way.
    """
    tried: dict[Setting, float] = {}

    def seen(setting: Setting) -> float:
        if setting not in tried:
            tried[setting] = rate(setting)
        return tried[setting]

    with suppress(TimeUp):  # what was tried until then is what is known
        best = _up(seen, start, _more_workers(start, most_workers))
        if best == start:
            best = _down(seen, start)
        _up(seen, best, _more_prefetch(best))
    return tried


def cheapest(rates: Mapping[Setting, float]) -> Setting:
    """The cheapest that is as good as the best."""
    enough = _AS_GOOD * max(rates.values())
    return min(setting for setting, rate in rates.items() if rate >= enough)


def finalists(tried: Mapping[Setting, float], before: Setting) -> list[Setting]:
    """Those that may be the best, by one short run of each, or as good and cheaper."""
    within = _IN_REACH * max(tried.values(), default=0.0)
    near = sorted(s for s, rate in tried.items() if rate >= within and s != before)
    chosen = cheapest(tried) if tried else before
    best = sorted(near, key=lambda s: (s != chosen, -tried[s]))
    return best[:_FINALISTS]


def _more_workers(start: Setting, most: int) -> Iterator[Setting]:
    setting = start
    while setting.workers < most:
        setting = setting._replace(workers=min(2 * setting.workers, most))
        yield setting


def _more_prefetch(start: Setting) -> Iterator[Setting]:
    setting = start
    while setting.prefetch < _MOST_PREFETCH:
        setting = setting._replace(prefetch=min(2 * setting.prefetch, _MOST_PREFETCH))
        yield setting


def _up(rate: Rate, start: Setting, steps: Iterator[Setting]) -> Setting:
    """The best of the steps, until two in a row brought nothing: one may have been unlucky."""
    best, misses = start, 0
    reached = rate(start)
    for setting in steps:
        value = rate(setting)
        if value > reached * (1 + GAIN):
            best, reached, misses = setting, value, 0
        else:
            misses += 1
        if misses == 2:
            break
    return best


def _down(rate: Rate, start: Setting) -> Setting:
    """The fewest workers that are as good."""
    best = start
    while best.workers > 1:
        fewer = best._replace(workers=best.workers // 2)
        if rate(fewer) < _AS_GOOD * rate(start):
            break
        best = fewer
    return best


@dataclass(slots=True)
class _Search:
    """Runs settings within the time that there is."""

    topology: str
    mode: Mode
    runner: Runner
    seconds: float
    tell: Callable[[Trial], None]
    clock: Callable[[], float]
    trials: list[Trial] = field(default_factory=list)
    began: float = 0.0
    window: float = 0.0
    """Seconds that each trial is timed."""
    warmup: float = 0.0
    """Seconds before that."""
    interrupted: bool = False
    _inputs: Inputs | None = None
    _spent: float = 0.0
    """On trials, all together."""

    def __post_init__(self) -> None:
        self.began = self.clock()
        first = self.runner.scout(Order(topology=self.topology), 1)
        self._inputs = replace(first, stops=None)
        left = self.seconds - (self.clock() - self.began)
        each = left / _TRIALS
        self.window = min(max(_TIMED * each, _SHORTEST), _LONGEST)
        self.warmup = min(_WARMUP * each, _LONGEST_WARMUP)

    def rate(self, setting: Setting) -> float:
        """Of one trial; leaves time for the trials that compare the end with the beginning."""
        if self.trials and not self._has_time_for(_LEAST_ROUNDS * (_FINALISTS + 1) + 1):
            raise TimeUp
        return self._run(setting).rows_per_second

    def turns(self, others: Sequence[Setting], before: Setting) -> dict[Setting, list[float]]:
        """The rates of all of them, round by round; nothing if there are no others.

        There are as many rounds as there is time for, within bounds. Their number is not up to
        what they give, or chance would have more than one go.
        """
        rates: dict[Setting, list[float]] = {s: [] for s in (before, *others)} if others else {}
        contenders = list(rates)
        for i in range(_MOST_ROUNDS if others else 0):
            if i >= _LEAST_ROUNDS and not self._has_time_for(len(contenders)):
                break
            at = i % len(contenders)
            for setting in [*contenders[at:], *contenders[:at]]:
                rates[setting].append(self._run(setting).rows_per_second)
        return rates

    def _has_time_for(self, trials: int) -> bool:
        left = self.seconds - (self.clock() - self.began)
        return left >= trials * self._spent / len(self.trials)

    def _run(self, setting: Setting) -> Run:
        began = self.clock()
        order = Order(
            topology=self.topology,
            changes=setting.changes,
            mode=self.mode,
            inputs=self._inputs,
            warmup_seconds=self.warmup,
            seconds=self.window,
        )
        run = self.runner.measure(order)
        self._spent += self.clock() - began
        trial = Trial(setting, run)
        self.trials.append(trial)
        self.tell(trial)
        return run


def setting_of(topology: Topology, default_workers: int) -> Setting:
    """What a topology has now: of a range of workers, the most."""
    options = topology.loader_options
    workers = options.get("workers") or topology.pipeline.workers or default_workers
    most = workers if isinstance(workers, int) else workers[1]
    return Setting(int(most), int(options.get("prefetch") or 2))

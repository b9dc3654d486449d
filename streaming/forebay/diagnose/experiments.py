"""From phases to shares: what a step takes with less and less of the pipeline, and the differences.

A step of the whole pipeline takes as long as the slowest of what works side by side, and what is
left when the source is taken away is what the source cost, beside the rest. So it goes on: without
stages, then with one frozen batch, which leaves the trainer itself. The trainer's own time is then
parted by its step clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Literal, TypeAlias

import numpy as np

from forebay.diagnose.phases import KINDS, Kind, Phase
from forebay.statistics import LEVEL, Estimate, estimate, quantile

Part: TypeAlias = Literal[
    "source", "stages", "handover", "copy", "communication", "host", "pause", "compute"
]
PARTS: tuple[Part, ...] = (
    "source", "stages", "handover", "copy", "communication", "host", "pause", "compute",
)  # fmt: skip
DATA: tuple[Part, ...] = ("source", "stages", "handover")
"""What the trainer waits for when it waits for data."""
QUANTILES = (0.5, 0.95, 0.99)
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all phases together say."""

    rounds: int
    """Whole ones: each kind had its turn."""
    steps: int
    """Of the whole pipeline, in all rounds."""
    rows: int
    """In these."""
    per_step: Mapping[Kind, Estimate]
    """Seconds of a step, named pauses left out."""
    intervals: Mapping[Part, Estimate]
    """Shares of a step of the whole pipeline, pauses included; their values add up to 1."""
    each: Sequence[Mapping[Part, float]] = ()
    """The same, of each round."""

    @property
    def shares(self) -> Mapping[Part, float]:
        """The values of ``intervals``."""
        return {part: e.value for part, e in self.intervals.items()}

    @property
    def rows_a_second(self) -> float:
        """Of the whole pipeline, by the time that a step is said to take."""
        return self.rows / self.steps / self.per_step["full"].value

    @property
    def starved(self) -> float:
        """The share in which the trainer waits for data."""
        return sum(self.shares[part] for part in DATA)

    def shown(self, parts: Sequence[Part]) -> float:
        """What these parts take at least, together, as far as the rounds agree."""
        sums = [sum(shares[part] for part in parts) for shares in self.each]
        found = estimate(sums)
        return found.low if found.known else found.value


class TooShort(ValueError):
    """Not one whole round was measured."""


def measured(phases: Sequence[Phase], paused: Mapping[str, float]) -> Measured:
    """The shares, by the medians over the rounds.

    Args:
        paused: seconds of named pauses a step, over all steps: rare ones fall into few phases, and
            belong to all.

    Raises:
        TooShort: there is no round in which each kind had its turn.
    """
    rounds = _rounds(phases)
    if not rounds:
        raise TooShort("not one round of experiments was finished")
    pause = sum(paused.values())
    times = [_Times.of(r) for r in rounds]
    each = [_shares(t, pause) for t in times]
    return Measured(
        rounds=len(rounds),
        steps=sum(r["full"].steps for r in rounds),
        rows=sum(r["full"].rows for r in rounds),
        per_step={k: estimate([r[k].per_step for r in rounds]) for k in KINDS},
        intervals=_intervals(times, pause),
        each=tuple(each),
    )


def percentiles(phases: Sequence[Phase]) -> dict[str, dict[str, Estimate]]:
    """Seconds of steps and of waits of the whole pipeline, as the host saw them, by quantile."""
    full = [p for p in phases if p.kind == "full"]
    seen = {
        "step": [s for p in full for s in p.step_seconds],
        "wait": [s for p in full for s in p.wait_seconds],
    }
    return {
        name: {f"p{100 * q:.0f}": quantile(values, q) for q in QUANTILES}
        for name, values in seen.items()
        if values
    }


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of a step, by kind, and what the step clock knows of them."""

    full: float
    no_source: float
    no_stages: float
    frozen: float
    copy: float
    communication: float
    host: float

    @classmethod
    def of(cls, by_kind: Mapping[Kind, Phase]) -> _Times:
        own = by_kind["frozen"].parts
        named = sum(own.pauses.values())
        return cls(
            full=by_kind["full"].per_step,
            no_source=by_kind["no source"].per_step,
            no_stages=by_kind["no stages"].per_step,
            frozen=by_kind["frozen"].per_step,
            copy=(by_kind["no stages"].parts.copy or 0.0) / by_kind["no stages"].steps,
            communication=(own.communication or 0.0) / by_kind["frozen"].steps,
            host=max((own.other or 0.0) - named, 0.0) / by_kind["frozen"].steps,
        )

    @classmethod
    def middle(cls, times: Sequence[_Times]) -> _Times:
        return cls(*(median(getattr(t, f) for t in times) for f in cls.__slots__))


def _shares(t: _Times, pause: float) -> dict[Part, float]:
    """The parts of a step. Less work never takes longer: where it seems so that is noise."""
    no_source = min(t.no_source, t.full)
    no_stages = min(t.no_stages, no_source)
    frozen = min(t.frozen, no_stages)
    copy = min(t.copy, no_stages - frozen)
    communication = min(t.communication, frozen)
    host = min(t.host, frozen - communication)
    seconds: dict[Part, float] = {
        "source": t.full - no_source,
        "stages": no_source - no_stages,
        "handover": no_stages - frozen - copy,
        "copy": copy,
        "communication": communication,
        "host": host,
        "pause": pause,
        "compute": frozen - communication - host,
    }
    whole = t.full + pause
    return {part: s / whole for part, s in seconds.items()}


def _intervals(times: Sequence[_Times], pause: float) -> dict[Part, Estimate]:
    """The shares by the medians over the rounds, and between which they lie if the rounds are drawn
    again and again: so that a share lies within its interval, which the median of the rounds' own
    shares need not."""
    n, shares = len(times), _shares(_Times.middle(times), pause)
    if n == 1:
        return {part: Estimate(share, -inf, inf, n) for part, share in shares.items()}
    drawn = np.random.default_rng(0).integers(0, n, (_RESAMPLES, n)).tolist()
    again = [_shares(_Times.middle([times[i] for i in draw]), pause) for draw in drawn]
    found = {}
    for part, share in shares.items():
        tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        low, high = np.quantile([s[part] for s in again], tails).tolist()
        found[part] = Estimate(share, min(low, share), max(high, share), n)
    return found


def _rounds(phases: Sequence[Phase]) -> list[dict[Kind, Phase]]:
    rounds: dict[int, dict[Kind, Phase]] = {}
    for phase in phases:
        rounds.setdefault(phase.round, {})[phase.kind] = phase
    return [r for r in rounds.values() if r.keys() == set(KINDS)]

"""What a comparison says of each variant: better, worse, wrong, or that nothing was shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.compare.orders import Mode, Run
from forebay.compare.rounds import Outcome, Results
from forebay.statistics import Estimate, estimate, ratio, shown

Judgement: TypeAlias = Literal[
    "baseline", "better", "worse", "no difference shown", "WRONG", "failed"
]
_MODES: tuple[Mode, Mode] = ("drain", "train")
_FOR_MINUTES, _BACK_MINUTES = 30, 5
FOR_INTERVAL = 4
"""So many rounds give an interval of a median. Fewer, resampled, give no more than their least and
their most, between which the true one lies in half of all cases (two) or three quarters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured of a variant in one mode; None: not known."""

    rows_per_second: Estimate
    ratio: Estimate
    """To the baseline's, round by round."""
    cpu_seconds_per_row: Estimate
    cpu_ratio: Estimate | None
    step_p95_seconds: Estimate | None
    starved: Estimate | None
    first_batch_seconds: Estimate | None
    staged_bytes: int | None
    pss_bytes: int | None
    """The most that was seen in any run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A variant with its figures, and what they come to."""

    outcome: Outcome
    judgement: Judgement
    why: str
    drain: Figures | None = None
    train: Figures | None = None

    @property
    def name(self) -> str:
        """Of the variant."""
        return self.outcome.variant.name

    @property
    def decisive(self) -> Figures | None:
        """What the judgement is on: the training where there is one."""
        return self.train or self.drain


def judge(results: Results) -> list[Judged]:
    """The verdict on every variant, the baseline first."""
    return [_judged(results, outcome) for outcome in results.outcomes]


def rollout(judged: Judged, baseline: Judged) -> list[str]:
    """When to keep a better variant, and when to go back: in words, with what was measured."""
    ours, before = judged.decisive, baseline.decisive
    if judged.judgement != "better" or ours is None or before is None:
        return []
    speed = ours.rows_per_second
    least = speed.low if speed.known else speed.value
    keep = [f"it trains at least {shown(least)} rows/s for each rank"]
    back = [f"it trains less than {shown(before.rows_per_second.value)} rows/s, as before"]
    if ours.starved is not None and before.starved is not None:
        most = ours.starved.high if ours.starved.known else ours.starved.value
        keep.append(f"starvation is at most {_share(most)}")
        back.append(f"starvation is above {_share(before.starved.value)}, as before")
    keep.append("freshness p95 is no higher than on the ranks that run as before")
    back.append("freshness p95 is more than 10 % above that of the day before")
    if ours.pss_bytes is not None:
        back.append(f"a rank takes more than {_mib(int(1.2 * ours.pss_bytes))} of memory")
    back.append("dead letters come at a higher rate than before")
    rate = "rate(forebay_rows_total[5m])"
    return [
        f"Roll out to one rank, or one job, first. Go on if for {_FOR_MINUTES} min "
        f"{', '.join(keep[:-1])}, and {keep[-1]}.",
        f"Roll back if for {_BACK_MINUTES} min {', or '.join(back)}.",
        f"These are forebay_starvation_ratio, {rate} and forebay_freshness_seconds of the run's "
        "metrics. The figures are of this machine: measure the first two there before the change.",
    ]


def _judged(results: Results, outcome: Outcome) -> Judged:
    drain, train = (_figures(results, outcome, mode) for mode in _MODES)
    judgement, why = _verdict(results, outcome, train or drain)
    return Judged(outcome=outcome, judgement=judgement, why=why, drain=drain, train=train)


def _verdict(results: Results, outcome: Outcome, figures: Figures | None) -> tuple[Judgement, str]:
    least = results.matrix.settings.least
    if outcome.failure is not None:
        return "failed", outcome.failure
    if outcome.difference is not None and not outcome.difference.same:
        return "WRONG", f"other rows than the baseline: {outcome.difference}"
    if outcome.unsteady:
        return "WRONG", "it gave other rows in one round than in another"
    if outcome is results.baseline:
        return "baseline", "the topology as the file has it"
    assert figures is not None
    what = "training" if results.matrix.trains else "reading"
    times = f"{what} goes at {_times(figures.ratio)} the baseline's rows/s"
    cheaper = _cheaper(figures)
    if not figures.ratio.known:
        return "no difference shown", f"{times}, in too few rounds to know the noise"
    if not figures.ratio.excludes(1.0):
        return "no difference shown", f"{times}: runs of one setting differ as much{cheaper}"
    if abs(figures.ratio.value - 1) < least:
        return "no difference shown", f"{times}: less than the {_share(least)} that matter{cheaper}"
    return ("better" if figures.ratio.value > 1 else "worse"), f"{times}{cheaper}"


def _cheaper(figures: Figures) -> str:
    """A word on the CPU time, where a difference of it is shown."""
    cpu = figures.cpu_ratio
    if cpu is None or not cpu.excludes(1.0) or abs(cpu.value - 1) < 0.05:
        return ""
    return f"; it takes {_times(cpu)} the CPU time for a row"


def _figures(results: Results, outcome: Outcome, mode: Mode) -> Figures | None:
    runs = outcome.runs.get(mode, [])
    before = results.baseline.runs.get(mode, [])[: len(runs)]
    if not runs or outcome.failure is not None:
        return None
    seed = results.matrix.settings.seed
    speed, base = _all(runs, "rows_per_second"), _all(before, "rows_per_second")
    cpu, base_cpu = _all(runs, "cpu_seconds_per_row"), _all(before, "cpu_seconds_per_row")
    return Figures(
        rows_per_second=_estimated(speed, seed),
        ratio=ratio(speed, base, paired=True, seed=seed),
        cpu_seconds_per_row=_estimated(cpu, seed),
        cpu_ratio=ratio(cpu, base_cpu, paired=True, seed=seed) if min(base_cpu) > 0 else None,
        step_p95_seconds=_maybe(runs, "step_p95_seconds", seed),
        starved=_maybe(runs, "starved", seed),
        first_batch_seconds=_maybe(runs, "first_batch_seconds", seed),
        staged_bytes=max(
            (r.staged_bytes for r in runs if r.staged_bytes is not None), default=None
        ),
        pss_bytes=max((r.pss_bytes for r in runs if r.pss_bytes is not None), default=None),
    )


def _all(runs: Sequence[Run], name: str) -> list[float]:
    return [float(getattr(run, name)) for run in runs]


def _maybe(runs: Sequence[Run], name: str, seed: int) -> Estimate | None:
    values = [getattr(run, name) for run in runs]
    return None if None in values else _estimated(values, seed)


def _estimated(values: Sequence[float], seed: int) -> Estimate:
    """The median, with an interval if there are enough values for one."""
    e = estimate(values, seed=seed)
    return e if e.n >= FOR_INTERVAL else Estimate(e.value, -math.inf, math.inf, e.n)


def _times(ratio_: Estimate) -> str:
    if not ratio_.known:
        return f"{ratio_.value:.2f} times"
    return f"{ratio_.value:.2f} times ({ratio_.low:.2f} to {ratio_.high:.2f})"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"

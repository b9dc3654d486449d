"""Figures with their uncertainty: how far a number measured again would be off.

>>> estimate([10.0, 11.0, 12.0, 10.5, 11.5])
Estimate(value=11.0, low=10.0, high=12.0, n=5)
>>> ratio([20.0, 22.0, 24.0], [10.0, 11.0, 12.0], paired=True).value
2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Statistic: TypeAlias = Literal["median", "mean"]
Floats: TypeAlias = NDArray[np.float64]
LEVEL = 0.95
_RESAMPLES, _AT_ONCE, _LEAST_PAIRS = 2000, 1 << 20, 3
# Student's t: between minus and plus so many standard errors lie 95 of 100 means, by degrees of
# freedom from 1 on.
# fmt: off
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
)
# fmt: on
_STATISTICS: dict[str, Callable[..., Any]] = {"median": np.median, "mean": np.mean}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and the interval that holds the true one in 95 of 100 cases.

    Of a single value nothing is known about the spread: the interval is then infinite. Few values
    give an interval that is as wide as they lie apart, and no better: five hold the true median
    in 94 of 100 cases, three in 75.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def known(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def excludes(self, x: float) -> bool:
        """Whether ``x`` lies outside of the interval: a difference from ``x`` is shown."""
        return not self.low <= x <= self.high

    def to_json(self) -> dict[str, float | int | None]:
        """As plain JSON, which knows no infinity: None stands for it."""
        low, high = (self.low, self.high) if self.known else (None, None)
        return {"value": self.value, "low": low, "high": high, "n": self.n}

    def __str__(self) -> str:
        if not self.known:
            return shown(self.value)
        return f"{shown(self.value)} ({shown(self.low)} to {shown(self.high)})"


def estimate(values: Sequence[float], statistic: Statistic = "median", seed: int = 0) -> Estimate:
    """The statistic of ``values`` with its 95 % interval, by the percentile bootstrap.

    Args:
        values: independent measurements of one thing.
        seed: the same seed gives the same interval.

    Raises:
        ValueError: there are no values, or some are not finite.
    """
    array, fold = _checked(values), _STATISTICS[statistic]
    value = float(fold(array))
    if len(array) == 1:
        return Estimate(value, -math.inf, math.inf, 1)
    low, high = _middle(_resampled(array, fold, np.random.default_rng(seed)))
    return Estimate(value, low, high, len(array))


def ratio(
    a: Sequence[float],
    b: Sequence[float],
    *,
    paired: bool = False,
    statistic: Statistic = "median",
    seed: int = 0,
) -> Estimate:
    """How many times ``b`` is ``a``, with its 95 % interval.

    Args:
        paired: ``a[i]`` and ``b[i]`` were measured next to each other: the ratio is that of the
            pairs, so that what slowed both down does not count. The interval is at least that of
            Student's t on the logarithms: of few pairs that are equal the bootstrap alone tells
            7 of 100 (five pairs), or 24 (three), to differ. Of two pairs nothing is known.

    Raises:
        ValueError: no values, not finite ones, or one of ``b`` is not above 0; or they are paired
            but differ in number.
    """
    above, below = _checked(a), _checked(b)
    if (below <= 0).any():
        raise ValueError("a ratio needs values above 0 to divide by")
    if paired:
        if len(above) != len(below):
            raise ValueError(f"{len(above)} and {len(below)} values are no pairs")
        return _widened(estimate((above / below).tolist(), statistic, seed), above / below)
    fold, rng = _STATISTICS[statistic], np.random.default_rng(seed)
    value, n = float(fold(above) / fold(below)), min(len(above), len(below))
    if n == 1:
        return Estimate(value, -math.inf, math.inf, 1)
    low, high = _middle(_resampled(above, fold, rng) / _resampled(below, fold, rng))
    return Estimate(value, low, high, n)


def quantile(values: Sequence[float], q: float) -> Estimate:
    """The ``q`` quantile of ``values`` with its 95 % interval: cheap also for a million of them.

    How many of n values lie below the true quantile is binomial, whatever their distribution:
    the interval lies between the values of these ranks. With few values it ends at the last one.

    Raises:
        ValueError: there are no values, some are not finite, or ``q`` is not between 0 and 1.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile is between 0 and 1, not {q}")
    array = np.sort(_checked(values))
    n, value = len(array), float(np.quantile(array, q))
    if n == 1:
        return Estimate(value, -math.inf, math.inf, 1)
    low, high = _middle(np.random.default_rng(0).binomial(n, q, _RESAMPLES).astype(np.float64))
    first, last = max(math.floor(low) - 1, 0), min(math.ceil(high), n - 1)
    return Estimate(value, float(array[first]), float(array[last]), n)


def shown(value: float) -> str:
    """A number with three significant digits, as people write it."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _widened(e: Estimate, ratios: Floats) -> Estimate:
    """The estimate with Student's interval of the ratios' logarithms within its own."""
    n = len(ratios)
    if n < _LEAST_PAIRS:
        return Estimate(e.value, -math.inf, math.inf, n)
    if (ratios <= 0).any():
        return e
    logs = np.log(ratios)
    reach = _T[min(n - 2, len(_T) - 1)] * float(logs.std(ddof=1)) / math.sqrt(n)
    low, high = math.exp(float(logs.mean()) - reach), math.exp(float(logs.mean()) + reach)
    return Estimate(e.value, min(e.low, low), max(e.high, high), n)


def _checked(values: Sequence[float]) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError("an estimate needs at least one value")
    if not np.isfinite(array).all():
        raise ValueError("an estimate needs finite values")
    return array


def _resampled(array: Floats, fold: Callable[..., Any], rng: np.random.Generator) -> Floats:
    """The statistic of as many values drawn with replacement, again and again; bounded memory."""
    n = len(array)
    rows = max(_AT_ONCE // n, 1)
    parts = [
        fold(array[rng.integers(0, n, (min(rows, _RESAMPLES - done), n))], axis=1)
        for done in range(0, _RESAMPLES, rows)
    ]
    return np.concatenate(parts)


def _middle(values: Floats) -> tuple[float, float]:
    """Between which the middle 95 % lie."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)

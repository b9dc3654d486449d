"""Estimates hold the true value as often as they say, and are the same by the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from forebay.statistics import Estimate, estimate, quantile, ratio, shown

Draw = Callable[[np.random.Generator, int], "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"]
NORMAL: Draw = lambda rng, n: rng.normal(10, 3, n)  # noqa: E731
SKEWED: Draw = lambda rng, n: rng.exponential(2.0, n)  # noqa: E731


def held(truth: float, measure: Callable[[np.random.Generator], Estimate], runs: int) -> float:
    """In what share of the runs the interval holds the true value."""
    estimates = [measure(np.random.default_rng(i)) for i in range(runs)]
    return sum(not e.excludes(truth) for e in estimates) / runs


@pytest.mark.parametrize(("draw", "median"), [(NORMAL, 10.0), (SKEWED, 2 * math.log(2))])
def test_ninety_five_of_a_hundred_intervals_hold_the_true_median(draw: Draw, median: float) -> None:
    share = held(median, lambda rng: estimate(draw(rng, 25).tolist()), 300)
    assert 0.91 <= share <= 0.99


def test_a_mean_is_held_as_well() -> None:
    share = held(2.0, lambda rng: estimate(SKEWED(rng, 60).tolist(), "mean"), 300)
    assert 0.90 <= share <= 0.99


def test_a_quantile_is_held_whatever_the_distribution() -> None:
    truth = -2 * math.log(0.05)
    share = held(truth, lambda rng: quantile(SKEWED(rng, 400).tolist(), 0.95), 300)
    assert 0.93 <= share <= 1.0


def test_five_values_of_one_distribution_are_seldom_told_different() -> None:
    def compare(rng: np.random.Generator, n: int, paired: bool) -> Estimate:
        values = rng.normal(1000, 80, (2, n)).tolist()
        return ratio(values[0], values[1], paired=paired)

    assert held(1.0, lambda rng: compare(rng, 5, False), 300) >= 0.93
    assert held(1.0, lambda rng: compare(rng, 5, True), 300) >= 0.93
    assert held(1.0, lambda rng: compare(rng, 3, True), 300) >= 0.93


def test_pairs_tell_a_difference_that_is_smaller_than_what_slows_both_down() -> None:
    busy = np.random.default_rng(0).uniform(1, 3, 8)
    slow, fast = (100 / busy).tolist(), (110 / busy).tolist()
    assert ratio(fast, slow, paired=True).low == pytest.approx(1.1)
    assert not ratio(fast, slow).excludes(1.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [5.0, 7.0, 8.0, 13.0, 2.0, 9.0]
    assert estimate(values, "mean", seed=3) == estimate(values, "mean", seed=3)
    assert estimate(values, "mean", seed=3) != estimate(values, "mean", seed=4)


def test_of_one_value_no_interval_is_known() -> None:
    alone = estimate([4.0])
    assert not alone.known
    assert not alone.excludes(1e9)
    assert alone.to_json() == {"value": 4.0, "low": None, "high": None, "n": 1}
    assert str(alone) == "4"


def test_two_pairs_tell_nothing_of_the_noise() -> None:
    assert not ratio([9.0, 9.1], [1.0, 1.1], paired=True).excludes(1.0)
    assert ratio([9.0, 9.1, 9.2], [1.0, 1.1, 1.0], paired=True).excludes(1.0)


def test_many_values_are_resampled_in_bounded_memory() -> None:
    many = np.random.default_rng(0).normal(10, 3, 5_000).tolist()
    assert estimate(many).low < 10 < estimate(many).high
    assert quantile(many, 0.5).value == estimate(many).value


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_nothing_is_estimated_from_what_is_no_number(values: list[float]) -> None:
    with pytest.raises(ValueError, match="an estimate needs"):
        estimate(values)


def test_ratios_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        ratio([1.0, 2.0], [1.0], paired=True)
    with pytest.raises(ValueError, match="above 0"):
        ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile([1.0], 95)


def test_numbers_are_shown_with_three_digits() -> None:
    assert [shown(v) for v in (12345.6, 0.12345, -3.0, math.inf)] == ["12,346", "0.123", "-3", "-"]
    assert str(Estimate(1.5, 1.25, 2.0, 5)) == "1.5 (1.25 to 2)"

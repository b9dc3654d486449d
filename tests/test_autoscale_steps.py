"""From what is wanted to what is done: steps, patience, and no flapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from forebay import ConfigError
from forebay.autoscale import Decision, Guards, Observation, PoolSeen
from forebay.autoscale.governor import Governor


class Pool:
    """A pool that does what it is told at once, and a clock."""

    def __init__(self, workers: int, guards: Guards | None = None, gain: float = 1.0) -> None:
        self.seen = PoolSeen(workers=workers, throughput=10.0 * workers, busy=1.0, most=64)
        self.governor = Governor(guards or Guards(), settle_seconds=4.0)
        self.gain, self.now = gain, 0.0
        self.reason = ""

    def want(self, *workers: int, urgent: bool = False) -> list[int]:
        """The sizes after each second in which so many workers were wanted."""
        return [self._second(n, urgent) for n in workers]

    def _second(self, wanted: int, urgent: bool) -> int:
        o = Observation(at=self.now, pools={"decode": self.seen})
        (step,) = self.governor.settle(o, [Decision("decode", wanted, "asked", urgent)])
        self.now += 1.0
        self.reason = step.reason
        grown = self.gain * (step.workers - self.seen.workers)
        done = (self.seen.throughput or 0.0) + 10.0 * grown
        self.seen = replace(self.seen, workers=step.workers, throughput=done)
        return step.workers


def directions(sizes: Sequence[int]) -> int:
    """Changes of direction."""
    moves = [b - a for a, b in pairwise(sizes) if a != b]
    return sum((a > 0) != (b > 0) for a, b in pairwise(moves))


def test_growing_is_done_at_once_in_steps_of_four_times_at_most() -> None:
    assert Pool(1).want(20, 20, 20, 20) == [4, 16, 20, 20]


def test_shrinking_waits_until_less_was_wanted_for_long_enough() -> None:
    pool = Pool(16)
    assert pool.want(*[4] * 30) == [16] * 30
    assert "not for long enough" in pool.reason
    assert pool.want(4, 4, 4) == [8, 4, 4]


def test_a_pool_shrinks_to_the_most_that_was_wanted_meanwhile() -> None:
    pool = Pool(16)
    pool.want(*[4] * 20, 9, *[4] * 9)
    assert pool.want(4) == [9]


def test_wishes_that_come_and_go_change_nothing() -> None:
    pool = Pool(8)
    assert set(pool.want(*[4, 8] * 60)) == {8}


def test_wishes_that_swing_beyond_do_not_make_it_flap() -> None:
    pool = Pool(8)
    assert directions(pool.want(*[4, 12] * 100)) == 0


def test_after_it_grew_a_pool_does_not_shrink_before_its_workers_have_worked() -> None:
    pool = Pool(8, Guards(patience=2, cool_down=15))
    pool.want(16)
    assert set(pool.want(*[4] * 14)) == {16}
    assert pool.want(4, 4) == [8, 4]


def test_start_up_time_comes_on_top_of_the_cool_down() -> None:
    pool = Pool(8, Guards(patience=2, cool_down=15))
    pool.want(16)
    pool.seen = replace(pool.seen, workers=8, starting=8)
    pool.want(*[16] * 20)
    pool.seen = replace(pool.seen, workers=16, starting=0)
    assert set(pool.want(*[4] * 14)) == {16}


def test_workers_that_find_no_room_to_start_are_not_waited_for_for_ever() -> None:
    pool = Pool(8, Guards(patience=2, cool_down=15))
    pool.want(16)
    pool.seen = replace(pool.seen, workers=8, starting=8)
    for _ in range(80):
        (size,) = pool.want(4)
        pool.seen = replace(pool.seen, workers=min(size, 8), starting=max(size - 8, 0))
    assert size == 4


def test_what_makes_room_for_another_pool_is_done_at_once() -> None:
    assert Pool(83).want(57, urgent=True) == [57]


def test_a_small_difference_is_not_worth_a_change() -> None:
    pool = Pool(40)
    assert set(pool.want(*[38] * 60)) == {40}
    assert "too little to be worth" in pool.reason


def test_growth_that_brings_nothing_is_not_tried_again_for_a_while() -> None:
    pool = Pool(2, Guards(grow=1.1), gain=0.0)
    sizes = pool.want(*[32] * 60)
    assert max(sizes) == sizes[8] < 16
    assert "the last workers it got brought next to nothing" in pool.reason
    assert pool.want(*[32] * 300)[-1] > max(sizes)


def test_a_pool_that_waits_for_another_is_not_judged_by_its_throughput() -> None:
    pool = Pool(2, Guards(grow=1.1), gain=0.0)
    pool.seen = replace(pool.seen, busy=0.3)
    assert pool.want(*[32] * 60)[-1] == 32


def test_growth_that_helps_goes_on() -> None:
    assert Pool(2, Guards(grow=1.5)).want(*[32] * 60)[-1] == 32


def test_bounds_hold_whatever_a_policy_says() -> None:
    pool = Pool(4)
    assert max(pool.want(*[1000] * 10)) == 64
    assert min(pool.want(*[0] * 200)) == 1


def test_guards_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="grow must be above 1"):
        Guards(grow=1.0)
    with pytest.raises(ConfigError, match="patience must be 0 or more"):
        Guards(patience=-1)

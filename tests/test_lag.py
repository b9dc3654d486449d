"""How far splits are behind, and whether they keep up: what a watch says of what it has seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forebay.observe.lag import LagWatch
from forebay.observe.snapshot import SplitSeen
from forebay.options import SplitStats

NOW = 1_800_000_000.0
A, B = "kafka:clicks/0", "kafka:clicks/1"


class Job:
    """A job that is looked at once a second; what it does in a second is told by the test."""

    def __init__(self, **splits: SplitStats) -> None:
        self.splits: dict[str, SplitStats] = {f"kafka:clicks/{k[1:]}": s for k, s in splits.items()}
        self.batches, self.waited, self.at = 1, 0.0, NOW
        self.watch = LagWatch()
        self.said: dict[str, set[str | None]] = defaultdict(set)

    def look(self) -> Mapping[str, SplitSeen]:
        return self.watch.look(self.at, self.splits, self.batches, self.waited)

    def set(self, split: str, **changed: Any) -> None:
        self.splits[split] = replace(self.splits[split], **changed)

    def produce(self, split: str, n: int) -> None:
        self.set(split, end=(self.splits[split].end or 0) + n)

    def deliver(self, split: str, n: int) -> None:
        s = self.splits[split]
        at = s.delivered + n if s.end is None else min(s.end, s.delivered + n)
        self.set(split, delivered=at, fetched=max(at, s.fetched or 0))

    def run(
        self, seconds: int, each: Callable[[int], None] = lambda _: None, *, trains: bool = True
    ) -> Mapping[str, SplitSeen]:
        """Let seconds pass; the trainer takes a batch in each, or nothing at all."""
        for second in range(seconds):
            self.at += 1
            self.batches += trains
            each(second)
            seen = self.look()
            for name, split in seen.items():
                self.said[name].add(split.state)
        return seen


def stats(delivered: int = 0, end: int | None = 0, **more: Any) -> SplitStats:
    return SplitStats(delivered=delivered, **{"end": end, "fetched": delivered, **more})


def moves(job: Job, split: str, *, produced: int, delivered: int) -> Callable[[int], None]:
    def each(_: int) -> None:
        job.produce(split, produced)
        job.deliver(split, delivered)

    return each


# Records


def test_each_of_the_three_lags_has_a_place_of_its_own_to_be_behind() -> None:
    job = Job(_0=stats(100, 1000, fetched=500, saved=50))
    seen = job.look()[A]
    assert (seen.lag_fetched, seen.lag_records, seen.lag_checkpointed) == (500, 900, 950)


def test_what_was_overtaken_is_lag_and_the_position_is_before_it() -> None:
    seen = Job(_0=stats(100, 100, pending=7, low=40, saved=90, saved_pending=3)).look()[A]
    assert (seen.lag_records, seen.lag_checkpointed, seen.position) == (7, 13, 40)


def test_an_end_that_is_older_than_the_position_is_no_negative_lag() -> None:
    job = Job(_0=stats(105, 100, fetched=120, saved=101))
    seen = job.look()[A]
    assert (seen.lag_fetched, seen.lag_records, seen.lag_checkpointed) == (0, 0, 0)
    assert (seen.lag_seconds, seen.state) == (0.0, "OK")


def test_a_fast_consumer_whose_end_is_heard_of_seldom_never_has_a_negative_lag() -> None:
    job, lags = Job(_0=stats()), []

    def each(second: int) -> None:
        job.set(A, delivered=1000 * second, fetched=1000 * second + 500)
        if second % 10 == 0:
            job.set(A, end=1000 * second + 700)
        lags.append(job.look()[A].lag_records)

    job.run(60, each)
    assert min(x for x in lags if x is not None) == 0


@pytest.mark.parametrize("end", [None, -1, -1001])
def test_what_is_not_known_is_none_and_never_a_number(end: int | None) -> None:
    seen = Job(_0=stats(0, end, fetched=None)).look()[A]
    assert seen == SplitSeen(source="kafka:clicks", position=0)


def test_an_empty_split_is_not_behind() -> None:
    seen = Job(_0=stats(0, 0)).look()[A]
    assert (seen.lag_records, seen.lag_seconds, seen.state) == (0, 0.0, "OK")


# Seconds


def test_a_record_has_been_there_since_the_end_passed_it() -> None:
    job = Job(_0=stats(10, 10))
    job.run(50)
    job.produce(A, 1)
    assert job.look()[A].lag_seconds == 0.0
    assert job.run(100)[A].lag_seconds == 100.0


def test_of_a_steady_stream_the_oldest_record_is_as_old_as_those_behind_it_took_to_come() -> None:
    job = Job(_0=stats())
    job.run(600, lambda _: job.produce(A, 100))
    job.set(A, delivered=59_000)
    assert job.look()[A].lag_seconds == pytest.approx(10, abs=1)
    job.set(A, delivered=30_000)
    assert job.look()[A].lag_seconds == pytest.approx(300, rel=0.02)


def test_records_that_came_in_a_rush_long_ago_are_as_old_as_the_rush() -> None:
    job = Job(_0=stats())
    job.run(100, lambda second: job.produce(A, 1000 if second == 49 else 0))
    job.run(1000)
    job.set(A, delivered=500)
    assert job.look()[A].lag_seconds == pytest.approx(1050, abs=1)


@pytest.mark.parametrize("seed", range(3))
def test_an_old_record_is_dated_to_a_fifth_of_its_age_however_unevenly_records_came(
    seed: int,
) -> None:
    job, ends, rng, most = Job(_0=stats()), [0], np.random.default_rng(seed), 1.0
    for _ in range(5000):
        most = 10 ** rng.uniform(0, 4) if rng.random() < 0.02 else most
        ends.append(ends[-1] + int(rng.integers(0, 1 + int(most))))
        job.set(A, end=ends[-1])
        job.run(1)
    for age in range(1, 4900, 7):
        if ends[5000 - age] < ends[5001 - age]:  # then the next record came in this second
            job.set(A, delivered=ends[5000 - age])
            assert job.look()[A].lag_seconds == pytest.approx(age, rel=0.2, abs=1)


def test_after_months_what_is_young_is_dated_and_what_is_forgotten_is_not() -> None:
    job = Job(_0=stats())
    for every in (3600, 60, 1):
        for _ in range(2000):
            job.at += every
            job.produce(A, 1)
            job.look()
    job.set(A, delivered=5990)
    assert job.look()[A].lag_seconds == pytest.approx(9, abs=1)
    job.set(A, delivered=3000)
    assert job.look()[A].lag_seconds == pytest.approx(1000 * 60 + 2000, rel=0.2)
    job.set(A, delivered=1)
    assert job.look()[A].lag_seconds is None


def test_what_is_remembered_stays_of_one_size() -> None:
    job = Job(_0=stats())
    job.run(1)
    before = job.watch.nbytes
    job.run(500, moves(job, A, produced=5, delivered=4))
    assert job.watch.nbytes == before


def test_a_backlog_of_before_the_first_look_is_as_old_as_the_last_event_at_most() -> None:
    job = Job(_0=stats(100, 1000))
    assert job.look()[A].lag_seconds is None
    job.set(A, event_time=NOW - 3600)
    assert job.look()[A].lag_seconds == 3600.0


def test_an_event_of_the_future_makes_no_negative_lag() -> None:
    job = Job(_0=stats(100, 1000, event_time=NOW + 86_400))
    job.look()
    assert job.run(30)[A].lag_seconds == 30.0


@pytest.mark.parametrize("event_time", [None, -0.001, 0.0])
def test_without_event_times_the_age_of_a_backlog_is_unknown(event_time: float | None) -> None:
    assert Job(_0=stats(1, 9, event_time=event_time)).look()[A].lag_seconds is None


def test_a_backlog_stays_of_unknown_age_however_much_is_remembered_since() -> None:
    job = Job(_0=stats(100, 1000))
    assert job.run(300, lambda _: job.produce(A, 5))[A].lag_seconds is None


def test_of_records_that_were_overtaken_the_oldest_tells_the_time() -> None:
    job = Job(_0=stats())
    job.run(100, lambda _: job.produce(A, 10))
    job.set(A, delivered=1000, pending=10, low=500)
    assert job.look()[A].lag_seconds == pytest.approx(50, abs=1)


def test_clocks_of_producers_do_not_matter_once_the_watch_reaches_back() -> None:
    job = Job(_0=stats(10, 10, event_time=NOW - 1e6))
    job.run(5)
    job.produce(A, 3)
    job.look()
    assert job.run(7)[A].lag_seconds == 7.0


def test_a_wall_clock_that_is_set_back_makes_nothing_younger() -> None:
    job = Job(_0=stats(10, 10))
    job.run(5)
    job.produce(A, 3)
    job.look()
    job.run(7)
    job.at -= 3600
    job.look()
    assert job.run(3)[A].lag_seconds == 10.0


def test_a_log_that_was_cut_is_dated_anew() -> None:
    job = Job(_0=stats(90, 100, event_time=NOW - 50))
    job.run(100)
    job.set(A, delivered=10, end=20)
    job.look()
    assert job.run(5)[A].lag_seconds == 155.0
    job.set(A, end=25, delivered=20)
    job.look()
    assert job.run(5)[A].lag_seconds == 5.0


# States


def states(job: Job) -> tuple[str | None, ...]:
    return tuple(s.state for s in job.look().values())


def test_nothing_is_judged_before_anything_was_given() -> None:
    job = Job(_0=stats(0, 100))
    job.batches = 0
    assert job.run(60, trains=False)[A].state is None


def test_a_split_that_is_read_to_its_end_now_and_then_keeps_up() -> None:
    job = Job(_0=stats())
    seen = job.run(100, moves(job, A, produced=100, delivered=100))
    assert seen[A].state == "OK"


def test_a_backlog_that_shrinks_is_caught_up_with() -> None:
    job = Job(_0=stats(0, 1_000_000))
    assert job.run(100, moves(job, A, produced=90, delivered=100))[A].state == "OK"


def test_a_lag_that_grows_is_behind_also_if_the_end_is_heard_of_seldom() -> None:
    job = Job(_0=stats(0, 1000))

    def each(second: int) -> None:
        job.deliver(A, 90)
        if second % 5 == 4:
            job.produce(A, 500)

    assert job.run(60, each)[A].state == "BEHIND"


def test_a_lag_that_just_stays_is_behind() -> None:
    job = Job(_0=stats(0, 1000))
    assert job.run(30, moves(job, A, produced=100, delivered=100))[A].state == "BEHIND"


def test_a_lag_that_just_stays_is_not_behind_if_all_was_read() -> None:
    job = Job(_0=stats(0, 1000))

    def each(_: int) -> None:
        job.produce(A, 100)
        job.deliver(A, 100)
        job.set(A, fetched=job.splits[A].end)

    assert job.run(30, each)[A].state == "OK"


def test_a_lag_that_goes_up_and_down_around_a_level_is_hardly_ever_taken_for_growth() -> None:
    job, rng, behind = Job(_0=stats(0, 1000)), np.random.default_rng(7), 0

    def each(_: int) -> None:
        job.produce(A, 1000)
        job.deliver(
            A, (job.splits[A].end or 0) - job.splits[A].delivered - int(rng.integers(100, 900))
        )

    for _ in range(500):
        behind += job.run(1, each)[A].state == "BEHIND"
    assert behind <= 10


def test_one_split_that_stands_among_others_that_move_is_stalled() -> None:
    job = Job(_0=stats(0, 1000), _1=stats(0, 10_000))
    job.run(9, moves(job, B, produced=10, delivered=10))
    assert states(job)[0] == "OK"
    job.run(5, moves(job, B, produced=10, delivered=20))
    assert states(job) == ("STALLED", "OK")
    job.deliver(A, 10)
    assert states(job) == ("OK", "OK")


def test_a_split_without_records_among_others_that_move_is_not_stalled() -> None:
    job = Job(_0=stats(7, 7), _1=stats(0, 10_000))
    assert job.run(60, moves(job, B, produced=0, delivered=20))[A].state == "OK"


def test_a_slow_split_whose_record_is_taken_soon_is_never_stalled_nor_stopped() -> None:
    job = Job(_0=stats(7, 7), _1=stats(0, 10_000))
    for _ in range(10):
        job.run(60, moves(job, B, produced=0, delivered=10))
        job.produce(A, 1)
        job.run(3, moves(job, B, produced=0, delivered=10))
        job.deliver(A, 1)
    assert job.said[A] == {"OK"}


def test_splits_that_take_turns_are_not_stalled_while_they_wait_for_theirs() -> None:
    job = Job(**{f"_{i}": stats(0, 10_000) for i in range(50)})
    names = list(job.splits)
    job.run(200, lambda second: job.deliver(names[second % 50], 10))
    assert {state for said in job.said.values() for state in said} == {"OK"}


def test_one_of_many_that_take_turns_is_stalled_after_some_turns_without_it() -> None:
    job = Job(**{f"_{i}": stats(0, 10_000) for i in range(20)})
    names = list(job.splits)
    job.run(40, lambda second: job.deliver(names[second % 20], 10))
    seen = job.run(100, lambda second: job.deliver(names[1 + second % 19], 10))
    assert [name for name, s in seen.items() if s.state == "STALLED"] == names[:1]


def test_positions_that_all_move_at_the_end_of_a_shuffle_window_are_not_stalled() -> None:
    job = Job(_0=stats(0, 10_000), _1=stats(0, 10_000))

    def each(second: int) -> None:
        if second % 40 == 39:
            job.deliver(A, 400)
            job.deliver(B, 300 if second % 80 == 79 else 0)

    job.run(400, each)
    assert (job.said[A], job.said[B]) == ({"OK"}, {"OK"})


def test_a_trainer_that_pauses_stops_all_that_have_more() -> None:
    job = Job(_0=stats(0, 1000), _1=stats(50, 50))
    job.run(20, moves(job, A, produced=10, delivered=10))
    job.run(9, trains=False)
    assert "STOPPED" not in states(job)
    job.run(2, trains=False)
    assert states(job) == ("STOPPED", "OK")
    job.run(1, moves(job, A, produced=10, delivered=10))
    assert states(job)[0] != "STOPPED"


def test_a_trainer_that_pauses_stops_also_what_was_read_to_its_end() -> None:
    job = Job(_0=stats(0, 100))
    job.run(20, lambda _: job.deliver(A, 2))
    job.set(A, fetched=100)
    assert job.run(12, trains=False)[A].state == "STOPPED"


def test_a_trainer_whose_steps_are_long_is_not_stopped() -> None:
    job = Job(_0=stats(0, 10_000))

    def each(second: int) -> None:
        if second % 30 == 29:
            job.batches += 1
            job.deliver(A, 100)

    job.run(60, each, trains=False)  # how long its steps are has to be seen first
    job.said.clear()
    job.run(240, each, trains=False)
    assert job.said[A] == {"OK"}


def waits(job: Job) -> Callable[[int], None]:
    def each(_: int) -> None:
        job.waited += 1

    return each


def test_if_nothing_comes_for_a_trainer_that_waits_all_that_have_more_are_stalled() -> None:
    job = Job(_0=stats(0, 1000), _1=stats(50, 50))
    job.run(20, moves(job, A, produced=10, delivered=10))
    job.run(12, waits(job), trains=False)
    assert states(job) == ("STALLED", "OK")


def test_rows_that_wait_for_their_batch_to_fill_are_no_stall() -> None:
    job = Job(_0=stats(0, 100), _1=stats(0, 100))
    job.run(20, lambda _: job.deliver(A, 2))
    job.set(A, fetched=100)
    job.set(B, fetched=100)
    job.run(100, waits(job), trains=False)
    assert states(job) == ("OK", "OK")


def test_a_loader_that_was_closed_before_its_end_is_stopped_and_one_at_its_end_is_fine() -> None:
    job = Job(_0=stats(0, 1000), _1=stats(0, 60))
    job.run(10, lambda _: job.deliver(A, 2))
    job.run(10, lambda _: job.deliver(B, 6))
    job.run(3600, trains=False)
    assert states(job) == ("STOPPED", "OK")


def test_a_split_that_begins_anew_is_judged_anew() -> None:
    job = Job(_0=stats(0, 1000))
    job.run(30, moves(job, A, produced=100, delivered=90))
    assert states(job) == ("BEHIND",)
    job.set(A, delivered=0, fetched=0, end=100)
    assert states(job) == ("OK",)


def test_while_the_end_is_not_known_the_state_is_not_and_a_stall_needs_time_again() -> None:
    job = Job(_0=stats(7, 7), _1=stats(0, 10_000))
    job.run(20, moves(job, B, produced=0, delivered=10))
    job.set(A, end=None)
    assert job.run(60, moves(job, B, produced=0, delivered=10))[A].state is None
    job.set(A, end=8)
    assert job.run(5, moves(job, B, produced=0, delivered=10))[A].state == "OK"


def test_splits_may_come_and_go() -> None:
    job = Job(_0=stats(0, 1000))
    job.run(20, lambda _: job.deliver(A, 2))
    job.splits = {f"kafka:clicks/{i}": stats(0, 5) for i in range(1, 40)}
    assert set(states(job)) == {"OK"}
    job.splits[A] = stats(40, 1000)
    assert set(job.run(20, lambda _: job.deliver(A, 2))) == set(job.splits)


@pytest.fixture(autouse=True)
def no_warnings_of_numpy() -> Iterator[None]:
    """They would be printed by the monitor's thread, once, in the middle of training."""
    with np.errstate(all="raise"):
        yield

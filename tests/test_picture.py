"""What a dashboard draws of histories: rates, shares, the worst rank, splits by need."""

from __future__ import annotations

from dataclasses import replace

from tests.histories import BEGAN, history, snapshot

from forebay.observe.picture import MOST_SPLITS, Picture, RankPicture, picture
from forebay.observe.points import point
from forebay.observe.snapshot import Snapshot, SplitSeen


def of(*histories: list[Snapshot]) -> Picture:
    return picture(histories, at=BEGAN + 100)


def rank(*snapshots: Snapshot) -> RankPicture:
    return of(list(snapshots)).ranks[0]


def test_rates_are_of_the_last_seconds() -> None:
    seen = rank(*history(30), snapshot(31, rows=30_000), snapshot(35, rows=30_000))
    assert seen.now.rows == 0
    assert rank(*history(30)).now.rows == 1000
    assert rank(*history(30)).trainer.steps_per_second == 10


def test_a_first_snapshot_has_no_rates_and_nothing_unknown_is_zero() -> None:
    seen = rank(snapshot(1))
    assert (seen.now.rows, seen.now.starved, seen.now.fresh_p95, seen.cpu) == (None,) * 4
    assert [s.rows_out for s in seen.stages] == [None, None]
    assert [p.busy for p in seen.pools] == [None]


def test_shares_of_the_time_are_those_that_are_known() -> None:
    now = rank(*history(30, starved=0.25)).now
    assert (now.starved, now.compute, now.communication) == (0.25, 0.65, None)


def test_nobody_starves_where_nobody_trains() -> None:
    drained = [replace(s, job=replace(s.job, has_trainer=False)) for s in history(30)]
    assert rank(*drained).now.starved is None
    assert not rank(*drained).trainer.there


def test_counts_of_two_runs_are_not_subtracted() -> None:
    again = history(2, began=BEGAN + 50)
    assert point([*history(30), again[0]], again[0]).rows is None
    assert point([*history(30), *again], again[1]).rows == 1000


def test_a_stages_share_is_of_all_workers() -> None:
    decode, augment = rank(*history(30)).stages
    assert (decode.rows_in, decode.rows_out, augment.rows_out) == (1000, 1000, 990)
    assert decode.busy is not None
    assert decode.share is not None
    assert round(decode.busy, 3) == 1.4
    assert round(decode.share, 3) == 0.7


def test_the_rank_that_starves_is_looked_at_first() -> None:
    ranks = [history(40, rank=r, world=3, starved=0.4 * (r == 1)) for r in range(3)]
    assert of(*ranks).worst == "clicks/1"


def test_a_rank_that_ended_is_looked_at_last() -> None:
    over = [*history(39, starved=0.5), snapshot(40, starved=0.5, ended="failed")]
    assert of(over, history(40, rank=1, starved=0.0)).worst == "clicks/1"


def test_ranks_of_one_name_are_told_apart() -> None:
    other = [replace(s, job=replace(s.job, host="gpu-2", pid=4)) for s in history(3)]
    assert [r.key for r in of(history(3), other).ranks] == ["clicks/0@gpu-1:17", "clicks/0@gpu-2:4"]


def test_splits_come_by_their_state_then_by_their_lag() -> None:
    shown = of(history(3, splits=60))
    states = [s.state for s in shown.splits]
    lags = [s.lag_records or 0 for s in shown.splits if s.state == "OK"]
    assert list(dict.fromkeys(states)) == ["STALLED", "STOPPED", "BEHIND", "OK"]
    assert lags == sorted(lags, reverse=True)
    assert shown.split_states == {"OK": 30, "BEHIND": 10, "STALLED": 10, "STOPPED": 10}


def test_of_very_many_splits_all_are_counted_and_those_furthest_behind_are_shown() -> None:
    shown = of([snapshot(1, splits=MOST_SPLITS + 6)])
    assert (shown.split_count, len(shown.splits)) == (MOST_SPLITS + 6, MOST_SPLITS)
    assert shown.splits[-1].state == "OK"


def test_what_was_read_is_there_whenever_the_end_was_asked_for() -> None:
    stale = SplitSeen(source="s", position=9, end=5, lag_records=0)
    (row,) = of([replace(snapshot(1), splits={"s/0": stale})]).splits
    assert (row.position, row.end) == (9, 9)


def test_what_is_unsaved_is_beyond_what_was_not_delivered() -> None:
    ends = SplitSeen(source="s", position=5, end=9, lag_records=4, lag_checkpointed=7)
    blind = SplitSeen(source="s", position=5)
    rows = of([replace(snapshot(1), splits={"s/0": ends, "s/1": blind})]).splits
    assert [r.unsaved for r in sorted(rows, key=lambda r: r.name)] == [3, None]

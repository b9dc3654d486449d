"""Epochs of a stream, passes over a bounded source, and what they do to length and state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay import Loader, Pipeline
from forebay.columns import Columns
from forebay.rng import RowRandom
from forebay.testing import MemorySource


def loader(rows: int = 46, size: int = 8, drop_last: bool = False, **options: Any) -> Loader:
    source = MemorySource({"a": list(range(rows))})
    return Pipeline(source).batch(size, drop_last=drop_last).loader(**options)


def values(batches: Any) -> list[Any]:
    return [v for b in batches for v in b["value"].tolist()]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batch_sizes_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    assert [b.rows for b in loader(workers=workers)] == [8, 8, 8, 8, 8, 6]
    assert [b.rows for b in loader(workers=workers, drop_last=True)] == [8, 8, 8, 8, 8]


def test_rows_left_out_by_drop_last_stay_undelivered() -> None:
    first = loader(drop_last=True)
    list(first)
    again = loader()
    again.load_state_dict(first.state_dict())
    assert values(again) == [40, 41, 42, 43, 44, 45]


def test_an_epoch_has_so_many_steps_and_the_next_goes_on_where_it_ended() -> None:
    with loader(steps_per_epoch=2) as of:
        assert len(of) == 2
        epochs = [values(of) for _ in range(4)]
    assert [len(e) for e in epochs] == [16, 16, 14, 0]
    assert [v for epoch in epochs for v in epoch] == list(range(46))


def test_a_loader_without_epochs_has_no_length() -> None:
    with pytest.raises(TypeError, match="steps_per_epoch"):
        len(loader())


def test_a_bounded_source_is_read_once_unless_told_otherwise() -> None:
    of = loader()
    assert len(values(of)) == 46
    assert values(of) == []


def test_each_pass_is_one_loop_and_a_state_at_its_end_starts_the_next() -> None:
    of = loader(passes=2)
    assert values(of) == list(range(46))
    state = of.state_dict()
    assert values(of) == list(range(46))
    assert values(of) == []
    again = loader(passes=2)
    again.load_state_dict(state)
    assert state["pass"] == 1
    assert values(again) == list(range(46))
    assert values(again) == []


@pytest.mark.parametrize("stop", range(7))
def test_a_state_saved_after_any_batch_of_a_pass_leaves_exactly_the_rest(stop: int) -> None:
    first = loader(passes=3)
    batches = iter(first)
    seen = values([next(batches) for _ in range(min(stop, 6))])
    state = first.state_dict()
    first.close()
    again = loader(passes=3)
    again.load_state_dict(state)
    assert seen + values(again) == list(range(46))
    assert values(again) == list(range(46))


def test_random_numbers_differ_between_passes_and_are_the_same_in_a_repeated_one() -> None:
    def noisy(columns: Columns, rng: RowRandom) -> Columns:
        return {"value": rng.uniform()}

    def run() -> list[list[Any]]:
        pipeline = Pipeline(MemorySource({"a": list(range(100))})).map(noisy)
        of = pipeline.batch(16).loader(passes=2, seed=7)
        return [values(of), values(of)]

    first, second = run()
    assert run() == [first, second]
    assert not np.isclose(first, second).any()


def test_epochs_in_committed_mode_rewind_only_once_the_pass_was_committed() -> None:
    of = loader(passes=2, state_of="committed")
    assert len(values(of)) == 46
    assert of.state_dict()["pass"] == 0
    of.commit(6)
    assert of.state_dict()["pass"] == 1


def test_a_resume_inside_a_shuffle_window_keeps_where_the_next_pass_begins() -> None:
    def run() -> Loader:
        source = MemorySource({"a": list(range(46))})
        return Pipeline(source).shuffle(20).batch(8).loader(passes=2)

    first = run()
    seen = values([b for _, b in zip(range(4), first, strict=False)])
    again = run()
    again.load_state_dict(first.state_dict())
    assert sorted(seen + values(again)) == list(range(46))
    assert sorted(values(again)) == list(range(46))


def test_shuffle_windows_that_follow_each_other_are_permuted_differently() -> None:
    pipeline = Pipeline(MemorySource({"a": list(range(40))})).shuffle(20).batch(20)
    first, second = (b["value"] for b in pipeline.loader())
    assert first.tolist() != (second - 20).tolist()

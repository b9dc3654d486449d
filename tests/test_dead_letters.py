"""A record that cannot be processed is removed, kept with its bytes, and counted to a budget."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from forebay import ErrorBudget, ErrorBudgetExceeded, Letter, Loader, Pipeline, Slice
from forebay.columns import Columns
from forebay.deadletter import BudgetMeter
from forebay.testing import MemorySource


class ListSink:
    """Keeps letters in a list; what was flushed is durable."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.durable = 0

    def write(self, letters: Sequence[Letter]) -> None:
        self.letters += letters

    def flush(self) -> None:
        self.durable = len(self.letters)

    def close(self) -> None:
        self.flush()


class Interrupted(ListSink):
    """Ctrl-C comes during the first write."""

    def write(self, letters: Sequence[Letter]) -> None:
        first = not self.letters
        super().write(letters)
        if first:
            raise KeyboardInterrupt


def fussy(columns: Columns) -> Columns:
    """Refuses every value that ends in 3, with all the rows that came with it."""
    if (np.asarray(columns["value"]) % 10 == 3).any():
        raise ValueError("ends in 3")
    return {"doubled": np.asarray(columns["value"]) * 2}


def loader(sink: ListSink, data: Any = range(100), **budget: Any) -> Loader:
    pipeline = Pipeline(MemorySource({"a": list(data)})).map(fussy)
    return pipeline.dead_letters(sink, ErrorBudget(**{"share": 0.2, **budget})).batch(8).loader()


def test_bad_records_are_removed_not_replaced_and_the_good_ones_come_once() -> None:
    sink = ListSink()
    given = [v // 2 for b in loader(sink) for v in b["doubled"].tolist()]
    assert given == [v for v in range(100) if v % 10 != 3]


def test_a_letter_has_the_original_the_place_the_stage_and_the_reason() -> None:
    sink = ListSink()
    list(loader(sink))
    assert [letter.failure.offset for letter in sink.letters] == list(range(3, 100, 10))
    first = sink.letters[0]
    assert (first.split, first.failure.stage) == ("a", "fussy")
    assert first.failure.reason == "ValueError: ends in 3"
    assert first.failure.original == {"value": 3}


def test_letters_are_durable_before_a_state_that_covers_them_is_given() -> None:
    sink = ListSink()
    of = loader(sink)
    next(iter(of))
    assert (len(sink.letters), sink.durable) == (1, 0)
    of.state_dict()
    assert sink.durable == 1


def test_letters_are_durable_at_the_end_of_the_data_though_nobody_asks_for_a_state() -> None:
    sink = ListSink()
    list(loader(sink))
    assert sink.durable == len(sink.letters) == 10


def test_letters_after_the_last_good_row_are_kept_too() -> None:
    sink = ListSink()
    of = loader(sink, [1, 2, 13, 23])
    assert [b.rows for b in of] == [2]
    assert of.state_dict()["splits"]["a"]["offset"] == 4
    assert [letter.failure.original["value"] for letter in sink.letters] == [13, 23]


def test_the_budget_stops_the_run_once_and_names_the_last_failure() -> None:
    with pytest.raises(ErrorBudgetExceeded, match=r"stage 'fussy' on a@\d+: ValueError: ends in 3"):
        list(loader(ListSink(), range(2_000), share=0.05, minimum=500))


def test_the_failure_that_spent_the_budget_is_a_letter_too() -> None:
    sink = ListSink()
    with pytest.raises(ErrorBudgetExceeded) as e:
        list(loader(sink, [*range(1, 3), *[3] * 200], share=0.05, minimum=1))
    assert f"a@{sink.letters[-1].failure.offset}:" in str(e.value)


def test_a_run_of_nothing_but_bad_records_ends_and_does_not_spin() -> None:
    sink = ListSink()
    of = loader(sink, [3] * 10_000)
    with pytest.raises(ErrorBudgetExceeded, match=r"of the last \d+ rows failed"):
        list(of)
    assert sink.letters
    assert of.stats().dead_letters < 200


def test_letters_survive_a_restart_at_any_batch() -> None:
    for stop in range(12):
        sink = ListSink()
        first = loader(sink)
        batches = iter(first)
        for _ in range(stop):
            next(batches)
        state = first.state_dict()
        first.close()
        again = loader(sink)
        again.load_state_dict(state)
        list(again)
        assert {letter.failure.offset for letter in sink.letters} == set(range(3, 100, 10))


def test_ctrl_c_while_a_letter_is_written_loses_no_row() -> None:
    sink = Interrupted()
    with loader(sink) as of:
        batches = iter(of)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        given = [v // 2 for b in batches for v in b["doubled"].tolist()]
    assert given == [v for v in range(100) if v % 10 != 3]
    assert {letter.failure.offset for letter in sink.letters} == set(range(3, 100, 10))


def test_the_budget_is_a_share_of_the_rows_read_whatever_stages_leave_of_them() -> None:
    def one_in_500(columns: Columns) -> Columns:
        if (np.asarray(columns["value"]) % 500 == 3).any():
            raise ValueError("ends in 003 or 503")
        return columns

    pipeline = Pipeline(MemorySource({"a": list(range(100_000))}, slice_rows=500)).map(one_in_500)
    rare = pipeline.filter(lambda c: np.asarray(c["value"]) % 50 == 0, name="rare")
    assert sum(b.rows for b in rare.batch(8).loader()) == 2_000


def test_slices_without_rows_take_no_memory_in_the_budget() -> None:
    meter = BudgetMeter(ErrorBudget())
    empty = Slice(split="a", columns={}, offsets=np.zeros(0, np.int64), start=0, next_offset=1)
    tracemalloc.start()
    for _ in range(20_000):
        meter.count(empty)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100_000


def test_letters_of_every_stage_are_kept() -> None:
    def no_sevens(columns: Columns) -> Columns:
        if (np.asarray(columns["doubled"]) % 20 == 14).any():
            raise ValueError("ends in 7")
        return columns

    sink = ListSink()
    pipeline = Pipeline(MemorySource({"a": list(range(100))})).map(fussy).map(no_sevens)
    list(pipeline.dead_letters(sink, ErrorBudget(share=1.0)).batch(8).loader())
    by_stage = {letter.failure.offset: letter.failure.stage for letter in sink.letters}
    sevens = dict.fromkeys(range(7, 100, 10), "no_sevens")
    assert by_stage == {**dict.fromkeys(range(3, 100, 10), "fussy"), **sevens}


def test_a_burst_of_bad_records_spends_the_budget_however_long_all_was_well() -> None:
    good = [0] * 20_000
    budget = {"share": 0.1, "window": 1_000}
    with pytest.raises(ErrorBudgetExceeded):
        list(loader(ListSink(), [*good, *[3] * 200], **budget))
    rare = [*[3] * 50, *good, *[3] * 50, *good]
    assert sum(b.rows for b in loader(ListSink(), rare, **budget)) == 40_000


def test_closing_makes_letters_durable() -> None:
    sink = ListSink()
    with loader(sink) as of:
        next(iter(of))
        assert sink.durable == 0
    assert sink.durable == len(sink.letters) > 0

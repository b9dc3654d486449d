"""What a stage may return, how offsets follow its rows, and how its mistakes are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay import ConfigError, Pipeline, RowRandom, Slice, StageError
from forebay.columns import Columns, take
from forebay.rng import Run
from forebay.stage import Expand, Filter, FilterRows, Map, MapRows, Stage, run_stages
from forebay.testing import MemorySource


def raw(rows: int = 6, start: int = 10) -> Slice:
    offsets = np.arange(start, start + rows, dtype=np.int64)
    return Slice(
        split="a",
        columns={"value": pa.array(range(rows))},
        offsets=offsets,
        start=start,
        next_offset=start + rows,
        event_times=offsets * 1000,
    )


def run(stage: Stage, s: Slice | None = None) -> Slice:
    return run_stages([stage], s or raw(), Run(seed=1))


def test_a_filter_keeps_offsets_and_event_times_with_their_rows() -> None:
    out = run(Filter("odd", lambda c: pa.array([i % 2 == 1 for i in range(6)])))
    assert out.offsets.tolist() == [11, 13, 15]
    assert out.event_times is not None
    assert out.event_times.tolist() == [11_000, 13_000, 15_000]
    assert (out.start, out.next_offset) == (10, 16)


def test_a_null_in_a_filter_counts_as_false() -> None:
    mask = pa.array([True, None, False, None, True, None])
    assert run(Filter("f", lambda c: mask)).offsets.tolist() == [10, 14]


def test_expanded_rows_share_the_offset_of_their_record() -> None:
    parents = np.array([0, 0, 3, 5, 5, 5])
    out = run(Expand("e", lambda c: (take(c, parents), parents)))
    assert out.offsets.tolist() == [10, 10, 13, 15, 15, 15]


def test_a_slice_cut_inside_a_record_goes_on_with_the_rows_left() -> None:
    parents = np.repeat(np.arange(6), 3)
    out = run(Expand("e", lambda c: (take(c, parents), parents)))
    head, tail = out.head(4), out.tail(4)
    assert (head.next_offset, head.skip) == (11, 1)
    assert (tail.start, tail.lead, len(tail)) == (11, 1, 14)
    assert tail.head(1).skip == 2


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (Map("m", lambda c: take(c, np.array([0]))), "given 6 rows and returned 1"),
        (Map("m", lambda c: [1, 2, 3]), "must return a dict of columns, not list"),  # type: ignore[arg-type,return-value]
        (Map("m", lambda c: {"x": [1] * 6}), "'x' must be a NumPy or Arrow array, not list"),  # type: ignore[dict-item]
        (
            Map("m", lambda c: {"x": np.zeros(6), "y": np.zeros(5)}),
            r"differ in length \(x: 6, y: 5\)",
        ),
        (Expand("e", lambda c: (c, [0, 1])), "returned 6 rows but 2 parents"),
        (Expand("e", lambda c: (c, [5, 4, 3, 2, 1, 0])), "never falling"),
        (Expand("e", lambda c: (c, [0, 1, 2, 3, 4, 6])), "rise from 0 to at most 5"),
    ],
)
def test_a_broken_contract_names_the_stage_the_place_and_the_mistake(
    stage: Stage, words: str
) -> None:
    with pytest.raises(StageError, match=rf"stage '{stage.name}' failed on a@10: .*{words}"):
        run(stage)


def test_a_filter_that_returns_no_booleans_makes_its_rows_dead_letters_with_the_reason() -> None:
    out = run(Filter("f", lambda c: np.zeros(3)))
    assert len(out) == 0
    assert "must return 1 booleans, not float64 of shape (3,)" in out.failures[0].reason


def test_a_later_stage_that_fails_reports_the_record_as_it_came_from_the_source() -> None:
    def double(columns: Columns) -> Columns:
        return {"twice": np.asarray(columns["value"]) * 2}

    def fail(columns: Columns) -> Columns:
        if 6 in np.asarray(columns["twice"]):
            raise RuntimeError("six")
        return columns

    out = run_stages([Map("double", double), Map("fail", fail)], raw(), Run())
    assert out.offsets.tolist() == [10, 11, 12, 14, 15]
    assert [(f.offset, f.stage, f.original) for f in out.failures] == [(13, "fail", {"value": 3})]


def test_row_functions_get_python_values_and_give_columns() -> None:
    out = run(MapRows("m", lambda row: {"x": row["value"] / 2, "label": str(row["value"])}))
    assert out.columns["label"].to_pylist() == list("012345")  # type: ignore[union-attr]
    assert run(FilterRows("f", lambda row: row["value"] > 3)).offsets.tolist() == [14, 15]


def test_a_row_function_may_return_arrays_which_are_stacked() -> None:
    out = run(MapRows("m", lambda row: {"x": np.full((2, 3), row["value"])}))
    assert out.columns["x"].shape == (6, 2, 3)  # type: ignore[union-attr]


def test_random_numbers_of_a_row_do_not_depend_on_the_slice_it_came_in() -> None:
    def noise(columns: Columns, rng: RowRandom) -> Columns:
        return {"n": rng.uniform(size=(2,)), "i": rng.integers(0, 10)}

    whole = run(Map("noise", noise))
    part = run(Map("noise", noise), raw(3, start=12))
    assert np.array_equal(whole.columns["n"][2:5], part.columns["n"])
    assert np.array_equal(whole.columns["i"][2:5], part.columns["i"])


def test_random_numbers_differ_by_seed_pass_stage_split_offset_and_ordinal() -> None:
    def first(run: Run, stage: str, split: str, offset: int) -> float:
        return float(RowRandom(run, stage, split, np.array([offset])).uniform()[0])

    variants = [
        first(Run(0, 0), "s", "a", 0),
        first(Run(1, 0), "s", "a", 0),
        first(Run(0, 1), "s", "a", 0),
        first(Run(0, 0), "t", "a", 0),
        first(Run(0, 0), "s", "b", 0),
        first(Run(0, 0), "s", "a", 1),
        *RowRandom(Run(0, 0), "s", "a", np.array([0, 0])).uniform()[1:],
    ]
    assert len(set(variants)) == len(variants)


def test_random_numbers_look_uniform_and_normal() -> None:
    rng = RowRandom(Run(3), "s", "a", np.arange(20_000))
    uniform, normal = rng.uniform(), rng.normal()
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.std() - 12**-0.5) < 0.01
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    assert np.corrcoef(uniform[:-1], uniform[1:])[0, 1] < 0.03


def test_two_stages_of_one_name_are_refused() -> None:
    pipeline = Pipeline(MemorySource({"a": [1]}))
    with pytest.raises(ConfigError, match="two stages are named 'same'"):
        pipeline.map(lambda c: c, name="same").filter(lambda c: c, name="same")


def test_what_is_no_function_is_refused() -> None:
    not_a_function: Any = "augment"
    with pytest.raises(ConfigError, match="map needs a function, not 'augment'"):
        Pipeline(MemorySource({"a": [1]})).map(not_a_function)

"""A resumed loader goes on exactly where its state was taken, whatever has changed since."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay import ErrorBudget, Loader, Pipeline, merge_states
from forebay.columns import Columns, take
from forebay.rng import RowRandom
from forebay.testing import MemorySource

ANY_SHARE = ErrorBudget(share=1.0)
SPLITS = {
    "a": list(range(100)),
    "b": list(range(1000, 1061)),
    "c": list(range(2000, 2003)),
    "d": [],
}


def values(columns: Columns) -> Any:
    return np.asarray(columns["value"])


def thirds(columns: Columns) -> Any:
    return values(columns) % 3 == 0


def repeated(columns: Columns) -> tuple[Columns, Any]:
    """Each record v becomes v % 4 rows, none at all for multiples of 4."""
    parents = np.repeat(np.arange(len(values(columns))), values(columns) % 4)
    return take(columns, parents), parents


def picky(columns: Columns) -> Columns:
    if any(v % 10 == 7 for v in values(columns)):
        raise ValueError("seven")
    return columns


def noisy(columns: Columns, rng: RowRandom) -> Columns:
    return {"value": values(columns), "noise": rng.uniform()}


PIPELINES = {
    "plain": lambda p: p,
    "filter": lambda p: p.filter(thirds),
    "late": lambda p: p.filter(lambda c: values(c) % 1000 >= 50, name="late"),
    "expand": lambda p: p.expand(repeated),
    "failing": lambda p: p.map(picky),
    "all": lambda p: p.expand(repeated).map(noisy).filter(thirds).map(picky),
}


def loader(pipeline: str, *, size: int = 8, shuffle: int = 0, **options: Any) -> Loader:
    source = MemorySource(SPLITS, slice_rows=options.pop("slice_rows", 7))
    built = PIPELINES[pipeline](Pipeline(source)).batch(size)
    built = built.dead_letters(None, budget=ANY_SHARE)
    if shuffle:
        built = built.shuffle(shuffle, seed=5)
    loader: Loader = built.loader(**options)
    return loader


def rows(batches: Any) -> list[tuple[Any, ...]]:
    return [
        (*origin, v, n)
        for b in batches
        for origin, v, n in zip(
            b.origins, b["value"].tolist(), b.get("noise", b["value"]).tolist(), strict=True
        )
    ]


def stopped_after(batches: int, of: Loader) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """What a loader gave in its first batches, and the state it had then."""
    iterator = iter(of)
    seen = [b for _, b in zip(range(batches), iterator, strict=False)]
    state = json.loads(json.dumps(of.state_dict()))
    of.close()
    return rows(seen), state


def resumed(state: dict[str, Any], of: Loader) -> list[tuple[Any, ...]]:
    of.load_state_dict(state)
    with of:
        return rows(of)


@pytest.mark.parametrize("order", ["split", "arrival", "deterministic"])
@pytest.mark.parametrize("shuffle", [0, 20])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_row_comes_once_whatever_batch_the_run_stops_after(
    pipeline: str, shuffle: int, order: str
) -> None:
    whole = Counter(rows(loader(pipeline)))
    for stop in range(sum(whole.values()) // 8 + 2):
        seen, state = stopped_after(stop, loader(pipeline, shuffle=shuffle, order=order))
        rest = resumed(state, loader(pipeline, shuffle=shuffle, order=order))
        assert Counter(seen + rest) == whole, stop


BOUNDS = st.integers(min_value=1, max_value=12)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """The settings of one run of a chain: anything that may change at a restart."""
    order = draw(st.sampled_from(["split", "arrival", "deterministic"]))
    return {
        "stop": draw(st.integers(min_value=0, max_value=12)),
        "size": draw(BOUNDS),
        "slice_rows": draw(st.sampled_from([1, 3, 7, 64])),
        "workers": draw(st.integers(min_value=1, max_value=4)),
        "shuffle": draw(st.sampled_from([0, 2, 9, 33])),
        "order": order,
    }


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pipeline=st.sampled_from(sorted(PIPELINES)), chain=st.lists(runs(), max_size=5))
def test_a_chain_of_restarts_with_other_settings_each_time_loses_and_repeats_nothing(
    pipeline: str, chain: list[dict[str, Any]]
) -> None:
    seen: list[tuple[Any, ...]] = []
    state: dict[str, Any] | None = None
    for run in chain:
        stop = run.pop("stop")
        of = loader(pipeline, **run)
        if state is not None:
            of.load_state_dict(state)
        got, state = stopped_after(stop, of)
        seen += got
    rest = resumed(state, loader(pipeline)) if state else rows(loader(pipeline))
    assert Counter(seen + rest) == Counter(rows(loader(pipeline)))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=st.integers(1, 3),
    after=st.integers(1, 3),
    stops=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    shuffle=st.sampled_from([0, 25]),
    pipeline=st.sampled_from(["plain", "all"]),
)
def test_ranks_share_the_splits_and_may_change_in_number(
    before: int, after: int, stops: list[int], shuffle: int, pipeline: str
) -> None:
    seen: list[tuple[Any, ...]] = []
    states = []
    for rank in range(before):
        of = loader(pipeline, shuffle=shuffle, rank=rank, world_size=before)
        got, state = stopped_after(stops[rank], of)
        seen += got
        states.append(state)
    started = [s for s, stop in zip(states, stops, strict=False) if stop]
    if len(started) < before:
        return  # a rank that never started knows no position: nothing to merge
    merged = merge_states(states)
    for rank in range(after):
        of = loader(pipeline, shuffle=shuffle, rank=rank, world_size=after)
        seen += resumed(merged, of)
    assert Counter(seen) == Counter(rows(loader(pipeline)))


def test_windows_that_two_ranks_left_open_survive_a_state_after_any_batch() -> None:
    seen: list[tuple[Any, ...]] = []
    states = []
    for rank in range(2):
        got, state = stopped_after(2, loader("plain", shuffle=25, rank=rank, world_size=2))
        seen += got
        states.append(state)
    merged = merge_states(states)
    assert len(merged["open_windows"]) == 2
    for stop in range(1, 10):
        of = loader("plain", shuffle=25, size=3)
        of.load_state_dict(merged)
        got, state = stopped_after(stop, of)
        rest = resumed(state, loader("plain", shuffle=25))
        assert Counter(seen + got + rest) == Counter(rows(loader("plain"))), stop


@pytest.mark.parametrize("shuffle", [0, 20])
def test_the_deterministic_order_is_the_same_for_any_timing_and_across_a_restart(
    shuffle: int,
) -> None:
    def run(**options: Any) -> Loader:
        return loader("all", shuffle=shuffle, order="deterministic", **options)

    whole = rows(run())
    assert rows(run(workers=4, slice_rows=3, prefetch=5)) == whole
    for stop in range(0, len(whole) // 8 + 1, 3):
        seen, state = stopped_after(stop, run(slice_rows=3))
        assert seen + resumed(state, run(workers=1, slice_rows=64)) == whole


def test_what_was_read_beyond_an_open_window_comes_after_it_in_the_order_of_its_split() -> None:
    _, state = stopped_after(1, loader("plain", shuffle=10))
    beyond = {k: p["offset"] for k, p in state["open_windows"][0]["splits"].items()}
    of = loader("plain", slice_rows=1)
    of.load_state_dict(state)
    with of:
        given = rows(of)
    for split in beyond:
        offsets = [row[1] for row in given if row[0] == split and row[1] >= beyond[split]]
        assert offsets == list(range(beyond[split], len(SPLITS[split])))


def test_each_split_keeps_its_own_order_in_split_order() -> None:
    given = rows(loader("all", workers=4))
    for split in SPLITS:
        offsets = [row[1] for row in given if row[0] == split]
        assert offsets == sorted(offsets)

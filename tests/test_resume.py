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

"""Members of mixes for tests, and what came of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from forebay import Loader, MixedSource, Pipeline, Source, mix
from forebay.columns import Columns, take
from forebay.testing import MemorySource

LENGTHS = {"live": [120, 90], "replay": [70, 13, 0], "third": [25]}
WEIGHTS = {"live": 0.6, "replay": 0.3, "third": 0.1}


def member(name: str, lengths: Iterable[int], slice_rows: int = 7, **options: Any) -> MemorySource:
    """Splits named after the member, of so many rows; no two rows of one member are equal."""
    data = {
        f"{name}/{i}": list(range(1_000 * i, 1_000 * i + rows)) for i, rows in enumerate(lengths)
    }
    return MemorySource(data, slice_rows=slice_rows, **options)


def mixture(members: int = 2, slice_rows: int = 7, **options: Any) -> MixedSource:
    """The first so many of ``LENGTHS``, mixed by ``WEIGHTS``."""
    names = list(LENGTHS)[:members]
    sources = {k: member(k, LENGTHS[k], slice_rows) for k in names}
    return mix(sources, {k: WEIGHTS[k] for k in names}, **options)


def repeated(columns: Columns) -> tuple[Columns, Any]:
    """Each value v becomes v % 3 rows, none at all for multiples of 3."""
    values = np.asarray(columns["value"])
    parents = np.repeat(np.arange(len(values)), values % 3)
    return take(columns, parents), parents


def loader(
    source: Source, *, size: int = 8, shuffle: int = 0, expands: bool = False, **options: Any
) -> Loader:
    built = Pipeline(source)
    if expands:
        built = built.expand(repeated)
    if shuffle:
        built = built.shuffle(shuffle, seed=5)
    made: Loader = built.batch(size).loader(**options)
    return made


def rows(batches: Iterable[Any]) -> list[tuple[str, int, int]]:
    """(split, offset, value) of every row."""
    return [
        (*origin, value)
        for b in batches
        for origin, value in zip(b.origins, b["value"].tolist(), strict=True)
    ]


def members(given: Iterable[tuple[str, int, int]]) -> list[str]:
    """The member of each row."""
    return [split.partition("/")[0] for split, _, _ in given]


def counts(given: Iterable[tuple[str, int, int]]) -> Mapping[str, int]:
    """Rows of each member."""
    return Counter(members(given))


def stopped_after(batches: int, of: Loader) -> tuple[list[tuple[str, int, int]], dict[str, Any]]:
    """What a loader gave in its first batches, and the state it had then, through JSON."""
    seen = [b for _, b in zip(range(batches), iter(of), strict=False)]
    state = json.loads(json.dumps(of.state_dict()))
    of.close()
    return rows(seen), state


def resumed(state: dict[str, Any], of: Loader) -> list[tuple[str, int, int]]:
    of.load_state_dict(state)
    with of:
        return rows(of)

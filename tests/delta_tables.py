"""Delta tables for tests: made by deltalake, read by a loader, killed and resumed at any batch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from forebay import Loader, Pipeline
from forebay_delta import DeltaSource


def append(path: Path | str, ids: Iterable[int], **options: Any) -> None:
    """Append rows with these ids, as one commit."""
    rows = list(ids)
    columns = {"id": pa.array(rows, pa.int64()), "text": [f"row {i}" for i in rows]}
    write_deltalake(path, pa.table(columns), mode="append", **options)


def loader(source: DeltaSource, size: int = 7, **options: Any) -> Loader:
    """A loader on the source."""
    return Pipeline(source).batch(size).loader(**options)


def ids(batches: Iterable[Any], column: str = "id") -> list[int]:
    """The ids of all rows, in order."""
    return [i for b in batches for i in b[column].tolist()]


def read(source: DeltaSource, state: Mapping[str, Any] | None = None) -> list[int]:
    """The ids that a bounded source gives."""
    with loader(source) as of:
        if state is not None:
            of.load_state_dict(state)
        return ids(of)


def read_with_kills(source: DeltaSource, seed: int = 0, **options: Any) -> list[int]:
    """The ids that a chain of runs trains, each ended after some batches of some size."""
    dice = random.Random(seed)
    state: Mapping[str, Any] | None = None
    trained: list[int] = []
    while True:
        of = loader(source, size=dice.randint(1, 23), **options)
        if state is not None:
            of.load_state_dict(state)
        for n, batch in enumerate(of, start=dice.randint(-4, 0)):
            trained += batch["id"].tolist()
            state = of.state_dict()
            if n == 0:
                break
        else:
            of.close()
            return trained
        of.close()


def table(path: Path | str) -> DeltaTable:
    """The table as its writer sees it."""
    return DeltaTable(path)

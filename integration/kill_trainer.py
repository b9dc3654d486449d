"""The trainer that the kill tests kill: it logs what it trained, and can die at chosen moments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from integration.mortal import Life, die, train

from forebay import Loader, Pipeline, decode
from forebay.columns import Columns, as_numpy, take
from forebay_kafka import KafkaSource

ROWS_OF = 3
"""A record with id i gives i % 3 rows, numbered ``10 * i`` and on, unless it is filtered out."""


@dataclass(frozen=True, kw_only=True)
class Task(Life):
    """One run of the trainer."""

    bootstrap: str
    topic: str
    batch: int = 16
    shuffle: int = 0
    row_seconds: float = 0.0
    """How long each row takes in the last stage."""
    options: dict[str, Any] = field(default_factory=dict)


def wanted(i: int) -> bool:
    """Whether the record with this id passes the filter."""
    return i % 7 != 0


def rows_of(i: int) -> list[int]:
    """The rows that a record with this id is trained as."""
    return [10 * i + n for n in range(i % ROWS_OF)] if wanted(i) else []


def loader(task: Task) -> Loader:
    """Decode, filter, expand, shuffle, batch."""
    source = KafkaSource(
        task.topic,
        {"bootstrap.servers": task.bootstrap},
        until="latest" if task.dies is None else None,
        slice_rows=50,
        columns=["value"],
    )
    pipeline = (
        Pipeline(source)
        .decode(decode.json("value", schema={"id": "int64", "pad": "string"}))
        .filter(lambda c: as_numpy(c["id"]) % 7 != 0, name="wanted")
        .expand(_expand)
        .map(_deadly(task), name="work")
        .batch(task.batch)
    )
    if task.shuffle:
        pipeline = pipeline.shuffle(task.shuffle, seed=11)
    options = {"workers": 3, "prefetch": 3, **task.options}
    return pipeline.loader(**options)


def run(task: Task) -> None:
    """Train, and perhaps die."""
    train(loader(task), task, lambda batch: batch["row"].tolist())


def _expand(columns: Columns) -> tuple[Columns, Any]:
    ids = as_numpy(columns["id"])
    parents = np.repeat(np.arange(len(ids)), ids % ROWS_OF)
    rows = take(columns, parents)
    first = np.r_[True, parents[1:] != parents[:-1]] if len(parents) else np.zeros(0, bool)
    ordinal = np.arange(len(parents)) - np.maximum.accumulate(
        np.where(first, np.arange(len(parents)), 0)
    )
    return {**rows, "row": as_numpy(rows["id"]) * 10 + ordinal}, parents


def _deadly(task: Task) -> Callable[[Columns], Columns]:
    """A stage that takes some time, and one day does not return."""
    calls = [0]

    def work(columns: Columns) -> Columns:
        calls[0] += 1
        if task.dies == "decode" and calls[0] > task.after:
            die()
        time.sleep(max(0.001, task.row_seconds * len(columns["row"])))
        return columns

    return work

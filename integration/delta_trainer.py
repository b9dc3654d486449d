"""The trainer on a Delta table that the kill tests kill: it logs every row that it trained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from integration.delta_writer import part_of
from integration.mortal import Life, train

from forebay import Loader, Pipeline
from forebay.columns import Columns
from forebay_delta import DeltaSource

WRONG = -1
"""Logged in place of an id whose row came with the columns of another."""


@dataclass(frozen=True, kw_only=True)
class Task(Life):
    """One run of the trainer."""

    uri: str
    storage: Mapping[str, str] = field(default_factory=dict)
    batch: int = 13
    shuffle: int = 0
    shards: int = 1
    start: Any = "snapshot"
    row_seconds: float = 0.0
    """How long each row takes in the stage."""
    options: dict[str, Any] = field(default_factory=dict)


def loader(task: Task) -> Loader:
    """Read, take some time, shuffle, batch."""
    source = DeltaSource(
        task.uri,
        storage_options=dict(task.storage),
        start=task.start,
        until="latest" if task.dies is None else None,
        shards=task.shards,
        poll_seconds=0.02,
        slice_rows=50,
    )
    pipeline = (
        Pipeline(source).map(partial(_worked, task.row_seconds), name="work").batch(task.batch)
    )
    if task.shuffle:
        pipeline = pipeline.shuffle(task.shuffle, seed=11)
    return pipeline.loader(prefetch=3, **task.options)


def run(task: Task) -> None:
    """Train, and perhaps die."""
    train(loader(task), task, _checked)


def _worked(row_seconds: float, columns: Columns) -> Columns:
    time.sleep(row_seconds * len(columns["id"]))
    return columns


def _checked(batch: Mapping[str, Any]) -> list[int]:
    rows = zip(batch["id"].tolist(), batch["text"], batch["part"], strict=True)
    return [i if (text, part) == (f"row {i}", part_of(i)) else WRONG for i, text, part in rows]

"""A trainer that reads a Delta table and then a topic, logs what it trained, and can be killed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.mortal import Life, die_in

from forebay import Loader, Pipeline, checkpoint, decode
from forebay.columns import Columns, as_numpy
from forebay.hybrid import Handover
from forebay.runlog import RunLog
from forebay_delta import DeltaSource
from forebay_kafka import KafkaSource


@dataclass(frozen=True, kw_only=True)
class Task(Life):
    """One run of the trainer; it dies after ``steps``, or runs to the end."""

    bootstrap: str
    topic: str
    handover: Handover
    until: str | None = "latest"
    steps: int | None = None
    """How many steps before it dies by its own hand; None: it runs to the end of the topic."""
    shuffle: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Path:
        return self.folder / "table"


def loader(task: Task) -> Loader:
    """Batches of 16 ids: of the table first, then of the topic."""
    settings = {"bootstrap.servers": task.bootstrap}
    columns = ["topic", "partition", "offset", "timestamp", "value"]
    table = DeltaSource(str(task.table), until="latest", columns=columns)
    topic = KafkaSource(task.topic, settings, until=task.until, columns=columns)
    pipeline = (
        Pipeline(table)
        .chain(topic, handover=task.handover, columns=["value"])
        .decode(decode.json("value", schema={"id": "int64"}))
        .map(_uneven, name="uneven")
        .batch(16)
    )
    if task.shuffle:
        pipeline = pipeline.shuffle(task.shuffle, seed=4)
    return pipeline.loader(workers=4, **task.options)


def _uneven(columns: Columns) -> Columns:
    """Takes up to 20 ms, so that slices overtake each other where they may."""
    time.sleep(int(as_numpy(columns["id"])[0]) % 11 * 0.002)
    return columns


def run(task: Task) -> None:
    """Train from the checkpoint on, save model and data position together after every step."""
    of = loader(task)
    saved = checkpoint.load(task.checkpoint) or {"step": 0, "data": None}
    if saved["data"] is not None:
        of.load_state_dict(saved["data"])
    step = saved["step"]
    log = RunLog(task.log, resumed_at=step)
    if task.steps == 0:
        die_in(task.after)
    for batch in of:
        step += 1
        log.step(step, batch["id"].tolist())
        if task.steps is not None and step - saved["step"] == task.steps:
            die_in(task.after)
        checkpoint.save(task.checkpoint, {"step": step, "data": of.state_dict()})
    of.close()
    log.close()

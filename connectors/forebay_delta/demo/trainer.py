"""The demo's trainer: a small network that learns a table's rows, and each new version of one."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from forebay import Pipeline, decode
from forebay.columns import Columns, as_numpy
from forebay.demo.leash import end_with_parent
from forebay.demo.task import BATCH
from forebay.demo.trainer import train
from forebay_delta import DeltaSource
from forebay_delta.demo.task import SIZE, Task, key_of


def keyed(columns: Columns) -> Columns:
    """Number the versions of rows."""
    ids, revisions = (as_numpy(columns[name]).astype(np.int64) for name in ("id", "revision"))
    return {
        "image": columns["image"],
        "label": as_numpy(columns["label"]).astype(np.int64),
        "id": key_of(ids, revisions),
    }


def pipeline(task: Task) -> Pipeline:
    """From a version of the table and its commits to batches of pictures, labels and ids."""
    source = DeltaSource(
        task.table,
        start={"snapshot": task.snapshot},
        until="latest" if task.until_end else None,
        changes="cdf",
        change_types=("insert", "update_postimage"),
        poll_seconds=0.1,
    )
    return (
        Pipeline(source)
        .decode(decode.raw("image", dtype="uint8", shape=(SIZE, SIZE, 3)))
        .map(keyed)
        .shuffle(256, seed=task.seed)
        .batch(BATCH)
    )


if __name__ == "__main__":
    end_with_parent()
    told = msgspec.json.decode(sys.argv[1], type=Task)
    train(told, pipeline(told).loader(max_bytes=64 << 20, seed=told.seed))

"""The demo's trainer: a small network that learns the pictures as they come in."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from forebay import ErrorBudget, Pipeline, augment, decode
from forebay.columns import Columns, as_numpy
from forebay.demo.leash import end_with_parent
from forebay.demo.task import BATCH
from forebay.demo.trainer import train
from forebay.letterbox import FolderSink
from forebay_kafka import KafkaSource
from forebay_kafka.demo.producer import KEY
from forebay_kafka.demo.task import SIZE, Task


def ids_and_labels(columns: Columns) -> Columns:
    """Read the number and the label out of the keys."""
    keys = np.frombuffer(b"".join(as_numpy(columns["key"]).tolist()), KEY)
    return {"image": columns["value"], "id": keys["id"].copy(), "label": keys["label"].copy()}


def pipeline(task: Task) -> Pipeline:
    """From the demo's topic to batches of pictures, labels and ids."""
    config = {"bootstrap.servers": task.bootstrap}
    source = KafkaSource(task.topic, config, until="latest" if task.until_end else None)
    return (
        Pipeline(source)
        .decode(decode.jpeg("value", size=(SIZE, SIZE)))
        .map(ids_and_labels)
        .map(augment.flip(column="image"))
        .dead_letters(FolderSink(task.dead_letters), ErrorBudget(share=0.05))
        .shuffle(256, seed=task.seed)
        .batch(BATCH)
    )


if __name__ == "__main__":
    end_with_parent()
    told = msgspec.json.decode(sys.argv[1], type=Task)
    train(told, pipeline(told).loader(max_bytes=64 << 20, seed=told.seed))

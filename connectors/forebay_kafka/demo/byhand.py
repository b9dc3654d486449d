"""What the demo compares with: the loop that people write by hand, and its time without data.

It polls the client, decodes in the training thread and collects a batch: correct while nothing
fails, and the model waits whenever a batch is being made.
"""

from __future__ import annotations

import json
import sys
import time

import cv2
import msgspec
import numpy as np
import simplejpeg
import torch
from confluent_kafka import Consumer, Message, TopicPartition
from numpy.typing import NDArray

from forebay.demo.leash import end_with_parent
from forebay.demo.network import Job
from forebay.demo.task import BATCH
from forebay_kafka.demo.producer import KEY
from forebay_kafka.demo.task import SIZE, Task

_SECONDS = 5.0


def train(task: Task) -> None:
    """Train for a few seconds from the first record on, and print how long the model waited."""
    job = Job(task.seed)
    consumer = Consumer(
        {"bootstrap.servers": task.bootstrap, "group.id": "by-hand", "enable.auto.commit": False}
    )
    topics = consumer.list_topics(task.topic, timeout=10).topics
    consumer.assign([TopicPartition(task.topic, p, 0) for p in topics[task.topic].partitions])
    _batch(consumer)  # the first one pays for connecting
    began, waited, steps = time.monotonic(), 0.0, 0
    while (now := time.monotonic()) - began < _SECONDS:
        batch = _batch(consumer)
        if batch is None:
            break  # waiting for the producer is nobody's fault
        waited += time.monotonic() - now
        job.train(*batch)
        steps += 1
    seconds = max(now - began, 1e-3)
    print(json.dumps({"rows": steps * BATCH, "seconds": seconds, "wait_seconds": waited}))
    consumer.close()


def _batch(consumer: Consumer) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The next pictures and labels; None when no more records are there."""
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    while len(images) < BATCH:
        message = consumer.poll(0.5)
        if message is None and images:
            return None
        decoded = None if message is None else _decoded(message)
        if decoded is not None:
            images.append(decoded[0])
            labels.append(decoded[1])
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


def _decoded(message: Message) -> tuple[NDArray[np.uint8], int] | None:
    value, key = message.value(), message.key()
    if value is None or key is None:
        return None
    try:
        image = simplejpeg.decode_jpeg(value, fastdct=True, min_height=SIZE, min_width=SIZE)
    except ValueError:
        return None  # a picture that broke off: by hand, it is simply gone
    resized: NDArray[np.uint8] = cv2.resize(image, (SIZE, SIZE)).astype(np.uint8)
    return resized, int(np.frombuffer(key, KEY)["label"][0])


if __name__ == "__main__":
    end_with_parent()
    train(msgspec.json.decode(sys.argv[1], type=Task))

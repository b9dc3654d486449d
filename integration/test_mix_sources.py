"""A topic and a table in one mix: shares kept, every record once, across restarts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from integration.conftest import Broker
from tests.kafka_client import produce
from tests.topics import Topics

from forebay import Pipeline, decode, mix
from forebay_delta import DeltaSource
from forebay_kafka import KafkaSource

LIVE, REPLAY = 900, 300


def value(i: int) -> bytes:
    return json.dumps({"id": i}).encode()


@pytest.fixture
def pipeline(broker: Broker, make_topic: Topics, tmp_path: Path) -> Pipeline:
    """Ids from 0 in a topic, from 10,000 in a table, mixed three to one."""
    topic = make_topic(3)
    for partition in range(3):
        ids = range(partition, LIVE, 3)
        produce(broker.bootstrap, topic, [value(i) for i in ids], partition=partition)
    for first in range(10_000, 10_000 + REPLAY, 100):
        values = pa.array([value(i) for i in range(first, first + 100)], pa.binary())
        write_deltalake(tmp_path / "replay", pa.table({"value": values}), mode="append")
    settings = {"bootstrap.servers": broker.bootstrap}
    live = KafkaSource(topic, settings, until="latest", columns=["value"], slice_rows=40)
    replay = DeltaSource(str(tmp_path / "replay"), until="latest", slice_rows=40)
    weights = {"live": 0.75, "replay": 0.25}
    mixed = mix({"live": live, "replay": replay}, weights, when_dry="others")
    return Pipeline(mixed).decode(decode.json("value", schema={"id": "int64"})).batch(20)


@pytest.mark.parametrize("order", ["split", "arrival", "deterministic"])
def test_a_topic_and_a_table_are_trained_once_each_by_their_shares(
    pipeline: Pipeline, order: str
) -> None:
    trained: list[int] = []
    state: Mapping[str, Any] | None = None
    ended = False
    while not ended:
        of = pipeline.loader(order=order, max_bytes=20_000)
        if state is not None:
            of.load_state_dict(state)
        ended = True
        for n, batch in enumerate(of):
            trained += batch["id"].tolist()
            state = json.loads(json.dumps(of.state_dict()))
            if n == 7:
                ended = False
                break
        of.close()
    assert Counter(trained) == Counter([*range(LIVE), *range(10_000, 10_000 + REPLAY)])
    if order == "deterministic":  # else a member that is slow for a moment is not waited for
        replayed = sum(i >= 10_000 for i in trained[:800])
        assert abs(replayed - 200) <= 16

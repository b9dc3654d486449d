"""Lag on Apache Kafka: what the dev broker is tested for, and a log that was compacted."""

from __future__ import annotations

import time

import pytest
from integration.apache_kafka import ApacheKafka
from tests.kafka_client import produce, read_all
from tests.kafka_support import GIVE_UP_SECONDS, wait_for
from tests.lag_contract import LagContract, open_transaction, trained
from tests.topics import Topics

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "200",
    "delete.retention.ms": "0",
}


@pytest.mark.kafka
class TestApacheKafka(LagContract):
    @pytest.fixture
    def make_topic(self, apache_kafka: ApacheKafka) -> Topics:
        return Topics(apache_kafka.bootstrap)

    def test_no_lag_is_left_by_a_log_whose_records_were_all_compacted_away(
        self, make_topic: Topics
    ) -> None:
        topic, bootstrap = make_topic(config=COMPACTED), make_topic.bootstrap
        produce(bootstrap, topic, [{"key": b"k%d" % (i % 2), "value": b"v"} for i in range(20)])
        produce(bootstrap, topic, [{"key": key, "value": None} for key in (b"k0", b"k1")])
        time.sleep(0.2)  # what follows must find the segment older than segment.ms
        with open_transaction(bootstrap, topic, [b"never"]) as producer:
            producer.abort_transaction(GIVE_UP_SECONDS)
        wait_for(lambda: not any(read_all(bootstrap, topic).values), "all records are gone")
        with trained(make_topic, topic, tombstones="skip") as it:
            it.await_lag(0, rows=0, end=24)

"""Fixtures for the integration tests: the dev broker, real Apache Kafka, or a broker of yours.

`FOREBAY_TEST_BROKER=host:port` runs every test that takes `broker` against that one only.
`FOREBAY_REQUIRE_KAFKA=1` makes a missing JDK or Maven an error instead of a skip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
from integration.apache_kafka import ApacheKafka, KafkaUnavailable
from integration.local_ray import local_ray
from tests.topics import Topics

from forebay_kafka.devbroker import DevBrokerProcess

OTHER_BROKER = os.environ.get("FOREBAY_TEST_BROKER", "")
KINDS = (
    [pytest.param("other")]
    if OTHER_BROKER
    else [pytest.param("dev"), pytest.param("apache", marks=pytest.mark.kafka)]
)


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker to test against."""

    bootstrap: str
    kind: Literal["dev", "apache", "other"]


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """A running Apache Kafka that all tests share; skips, saying why, where it cannot run."""
    try:
        kafka = ApacheKafka()
    except KafkaUnavailable as missing:
        if os.environ.get("FOREBAY_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(f"Apache Kafka is not tested here: {missing}")
    with kafka:
        yield kafka


@pytest.fixture(scope="session")
def dev_broker() -> Iterator[DevBrokerProcess]:
    """A running dev broker that all tests share."""
    with DevBrokerProcess() as broker:
        yield broker


@pytest.fixture(params=KINDS, scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn."""
    if request.param == "other":
        return Broker(OTHER_BROKER, "other")
    if request.param == "dev":
        return Broker(request.getfixturevalue("dev_broker").bootstrap, "dev")
    return Broker(request.getfixturevalue("apache_kafka").bootstrap, "apache")


@pytest.fixture
def make_topic(broker: Broker) -> Topics:
    """`make_topic(partitions=1, config=None) -> name`, on the broker under test."""
    return Topics(broker.bootstrap)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """The address of a running Ray that all tests share."""
    with local_ray() as address:
        yield address

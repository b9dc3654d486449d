"""Fixtures for the quick tests: the dev broker, in a process that shares no GIL with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.topics import Topics

from forebay_kafka.devbroker import DevBrokerProcess


@pytest.fixture(scope="session")
def dev_broker() -> Iterator[DevBrokerProcess]:
    """One broker for all tests: make topics with `make_topic`; for faults start one of your own."""
    with DevBrokerProcess() as broker:
        yield broker


@pytest.fixture
def make_topic(dev_broker: DevBrokerProcess) -> Topics:
    """`make_topic(partitions=1, config=None) -> name`, on the shared dev broker."""
    return Topics(dev_broker.bootstrap)

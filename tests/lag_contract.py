"""What lag must be on any Kafka broker: nothing once all that can be read was given."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka.cimpl import Producer
from tests.kafka_client import produce
from tests.kafka_support import GIVE_UP_SECONDS, kafka, numbered, transaction, wait_for
from tests.topics import Topics

from forebay import Loader, Pipeline
from forebay.observe.lag import LagWatch
from forebay.observe.snapshot import SplitSeen


class Trained:
    """A loader in use, and how far behind it is as a monitor would see it."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self._watch, self.rows = loader, LagWatch(), 0
        self.lags: list[int | None] = []

    def train(self) -> None:
        for batch in self.loader:
            self.rows += batch.rows

    def split(self, number: int = 0) -> SplitSeen | None:
        stats = self.loader.stats()
        seen = self._watch.look(
            time.time(), self.loader.splits(), stats.batches, stats.wait_seconds
        )
        self.lags += [s.lag_records for s in seen.values()]
        found = [s for name, s in seen.items() if name.endswith(f"/{number}")]
        return found[0] if found else None

    def end(self, number: int) -> int | None:
        seen = self.split(number)
        return None if seen is None else seen.end

    def await_lag(self, lag: int, rows: int, end: int) -> SplitSeen:
        """Wait until so many rows were given, and partition 0 is so far behind this end."""

        def reached() -> bool:
            seen = self.split()
            return (
                self.rows == rows
                and seen is not None
                and (seen.lag_records, seen.end) == (lag, end)
            )

        wait_for(reached, f"a lag of {lag} after {rows} rows; it is {self.split()}")
        seen = self.split()
        assert seen is not None
        return seen


@contextmanager
def trained(make_topic: Topics, topic: str, batch: int = 1, **options: Any) -> Iterator[Trained]:
    """Train on a topic, in a thread, until the test is over."""
    source = kafka(make_topic.bootstrap, topic, until=None, **options)
    it = Trained(Pipeline(source).batch(batch).loader())
    thread = threading.Thread(target=it.train)
    thread.start()
    try:
        yield it
    finally:
        it.loader.close()
        thread.join(GIVE_UP_SECONDS)
        assert not thread.is_alive()


@contextmanager
def open_transaction(bootstrap: str, topic: str, records: list[bytes]) -> Iterator[Producer]:
    """A transaction with records that are written and not committed."""
    settings: Mapping[str, Any] = {"transactional.id": f"{topic}-open", "log_level": 2}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(GIVE_UP_SECONDS)
    producer.begin_transaction()
    for value in records:
        producer.produce(topic, value, key=b"k", partition=0)
    producer.flush(GIVE_UP_SECONDS)
    yield producer


class LagContract:
    """Needs a fixture ``make_topic``."""

    def test_no_lag_is_left_behind_the_marker_of_a_transaction(self, make_topic: Topics) -> None:
        topic = make_topic()
        transaction(make_topic.bootstrap, topic, numbered(5), commit=True)
        with trained(make_topic, topic) as it:
            seen = it.await_lag(0, rows=5, end=6)
            assert (seen.position, seen.lag_fetched, seen.lag_seconds) == (6, 0, 0.0)

    def test_no_lag_is_left_behind_aborted_records(self, make_topic: Topics) -> None:
        topic = make_topic()
        produce(make_topic.bootstrap, topic, numbered(3))
        transaction(make_topic.bootstrap, topic, numbered(50), commit=False)
        with trained(make_topic, topic) as it:
            it.await_lag(0, rows=3, end=54)
            transaction(make_topic.bootstrap, topic, numbered(7), commit=False)
            it.await_lag(0, rows=3, end=62)

    def test_records_behind_an_open_transaction_are_lag_only_once_they_can_be_read(
        self, make_topic: Topics
    ) -> None:
        topic, bootstrap = make_topic(2), make_topic.bootstrap
        with open_transaction(bootstrap, topic, numbered(4)) as producer:
            produce(bootstrap, topic, numbered(2))
            with trained(make_topic, topic) as it:
                it.await_lag(0, rows=0, end=0)
                produce(bootstrap, topic, numbered(1), partition=1)
                wait_for(lambda: it.end(1) == 1, "the brokers were asked again")
                it.await_lag(0, rows=1, end=0)
                producer.commit_transaction(GIVE_UP_SECONDS)
                it.await_lag(0, rows=7, end=7)

    def test_who_reads_open_transactions_is_behind_by_their_records_too(
        self, make_topic: Topics
    ) -> None:
        topic, config = make_topic(), {"isolation.level": "read_uncommitted"}
        with open_transaction(make_topic.bootstrap, topic, numbered(5)) as producer:
            with trained(make_topic, topic, batch=4, config=config) as it:
                it.await_lag(1, rows=4, end=5)
            producer.abort_transaction(GIVE_UP_SECONDS)

    def test_lag_is_a_number_from_zero_up_or_nothing_from_the_first_moment_on(
        self, make_topic: Topics
    ) -> None:
        topic = make_topic(2)
        with trained(make_topic, topic) as it:
            it.await_lag(0, rows=0, end=0)
            produce(make_topic.bootstrap, topic, numbered(40))
            it.await_lag(0, rows=40, end=40)
        assert all(lag is None or lag >= 0 for lag in it.lags)

    def test_lag_is_not_negative_where_the_end_is_asked_for_seldom(
        self, make_topic: Topics
    ) -> None:
        topic = make_topic()
        produce(make_topic.bootstrap, topic, numbered(3))
        with trained(make_topic, topic, lag_seconds=3600, discover_seconds=3600) as it:
            it.await_lag(0, rows=3, end=3)
            produce(make_topic.bootstrap, topic, numbered(40))
            it.await_lag(0, rows=43, end=3)

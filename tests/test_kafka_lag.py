"""Ends of the splits: what the brokers say, also while nothing is fetched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.cimpl import Producer
from tests.kafka_client import produce
from tests.kafka_support import (
    GIVE_UP_SECONDS,
    committed,
    kafka,
    numbered,
    opened,
    slices_of,
    state_after,
    transaction,
    wait_for,
)
from tests.topics import Topics

from forebay.errors import SourceError, SourceStalled
from forebay.state import Position
from forebay.testing import TurnableClock
from forebay_kafka.clienterrors import ErrorLog
from forebay_kafka.lag import News
from forebay_kafka.positions import Identity, Partition
from forebay_kafka.tracks import Track
from forebay_kafka.watchdog import Watchdog

PARTITION = Partition("clicks", 0)


def test_ends_are_known_once_the_reader_is_open(make_topic: Topics) -> None:
    topic = make_topic(2)
    produce(make_topic.bootstrap, topic, numbered(5), partition=1)
    with opened(kafka(make_topic.bootstrap, topic, until=None)) as reader:
        assert reader.ends() == {f"kafka:{topic}/0": 0, f"kafka:{topic}/1": 5}


def test_ends_are_right_while_a_split_is_paused_and_nobody_polls(make_topic: Topics) -> None:
    topic = make_topic()
    with opened(kafka(make_topic.bootstrap, topic, until=None)) as reader:
        reader.poll(0.0)
        reader.pause([f"kafka:{topic}/0"])
        produce(make_topic.bootstrap, topic, numbered(500))
        wait_for(lambda: reader.ends() == {f"kafka:{topic}/0": 500}, "the end is seen")


def test_records_of_an_open_transaction_are_no_lag(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(3))
    settings = {"bootstrap.servers": make_topic.bootstrap, "transactional.id": topic}
    producer = Producer({**settings, "log_level": 2})
    producer.init_transactions(GIVE_UP_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(GIVE_UP_SECONDS)
    with opened(kafka(make_topic.bootstrap, topic, until=None)) as reader:
        assert reader.ends() == {f"kafka:{topic}/0": 3}
        producer.commit_transaction(GIVE_UP_SECONDS)
        slices = slices_of(reader, rows=4)
        assert state_after(reader, slices)[f"kafka:{topic}/0"].offset == 4


def test_no_lag_is_left_behind_a_transaction(make_topic: Topics) -> None:
    topic = make_topic()
    transaction(make_topic.bootstrap, topic, numbered(5), commit=False)
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        position = state_after(reader, slices_of(reader))[f"kafka:{topic}/0"]
        assert reader.ends() == {f"kafka:{topic}/0": position.offset}


def test_positions_are_published_to_a_group_of_their_own(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(5))
    group = f"{topic}-trained"
    with opened(kafka(make_topic.bootstrap, topic, commit_group=group)) as reader:
        reader.publish(state_after(reader, slices_of(reader)))
        wait_for(lambda: committed(make_topic.bootstrap, topic, group) == 5, "it is committed")


def test_nothing_is_published_without_a_group(make_topic: Topics) -> None:
    topic = make_topic()
    with opened(kafka(make_topic.bootstrap, topic)) as reader:
        reader.publish({f"kafka:{topic}/0": Position(3)})
    assert committed(make_topic.bootstrap, topic, "forebay") < 0


@pytest.fixture
def clock() -> TurnableClock:
    return TurnableClock()


@pytest.fixture
def watchdog(clock: TurnableClock) -> Watchdog:
    return Watchdog(30, ErrorLog(str), clock)


def track(next: int = 5) -> Track:
    return Track(PARTITION, Identity("id", "at"), next, None)


def ask_for(
    seconds: int, watchdog: Watchdog, clock: TurnableClock, look: Callable[[], None]
) -> None:
    """Poll every second, and find nothing."""
    for _ in range(seconds):
        clock.turn(1.0)
        watchdog.asked()
        look()


def test_silence_is_an_error_only_where_records_wait(
    watchdog: Watchdog, clock: TurnableClock
) -> None:
    read, waiting = News(ends={PARTITION: 5}), News(ends={PARTITION: 9})
    ask_for(100, watchdog, clock, lambda: watchdog.look([track()], read))
    watchdog.heard(track().split)
    ask_for(29, watchdog, clock, lambda: watchdog.look([track()], waiting))
    with pytest.raises(SourceStalled, match="kafka:clicks/0: records 5 to 8 wait"):
        ask_for(1, watchdog, clock, lambda: watchdog.look([track()], waiting))


def test_time_in_which_nobody_polled_is_no_silence(
    watchdog: Watchdog, clock: TurnableClock
) -> None:
    waiting = News(ends={PARTITION: 9})
    for _ in range(5):
        ask_for(20, watchdog, clock, lambda: watchdog.look([track()], waiting))
        clock.turn(3600)
        watchdog.asked()


def test_refused_access_is_fatal_only_if_it_lasts(watchdog: Watchdog, clock: TurnableClock) -> None:
    refused = track()
    refused.refused_since = clock()
    news = News(ends={PARTITION: 5})
    ask_for(29, watchdog, clock, lambda: watchdog.look([refused], news))
    with pytest.raises(SourceError, match="access has been refused for 30 s"):
        ask_for(1, watchdog, clock, lambda: watchdog.look([refused], news))

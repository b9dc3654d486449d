"""When something is wrong with the brokers: one clear error in time, and nothing left behind."""

from __future__ import annotations

import gc
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
from tests.kafka_client import produce
from tests.kafka_support import (
    all_splits,
    kafka,
    numbered,
    opened,
    read,
    slices_of,
    slices_until,
    values,
    wait_for,
)
from tests.topics import Topics

from forebay.errors import ConfigError, ProcessError, SourceError, SourceStalled
from forebay_kafka import KafkaReader, KafkaSource
from forebay_kafka.devbroker import Code, DevBrokerProcess


@pytest.fixture
def broker() -> Iterator[DevBrokerProcess]:
    """A broker of this test's own, to be ill-treated."""
    with DevBrokerProcess() as own:
        yield own


@pytest.fixture
def topic(broker: DevBrokerProcess) -> str:
    """A topic with the records 0 to 99."""
    name = Topics(broker.bootstrap)()
    produce(broker.bootstrap, name, numbered(100))
    return name


def test_an_unknown_topic_is_an_error_that_names_those_like_it(make_topic: Topics) -> None:
    make_topic.create("pageviews-of-customers")
    with pytest.raises(ConfigError, match="no topic 'pageview-of-customer'") as e:
        read(kafka(make_topic.bootstrap, "pageview-of-customer"))
    assert "'pageviews-of-customers'" in str(e.value)
    assert make_topic.bootstrap in str(e.value)


def test_an_unknown_topic_is_not_made_by_asking_for_it() -> None:
    with DevBrokerProcess(auto_create_partitions=1) as broker:
        for _ in range(2):
            with pytest.raises(ConfigError, match="no topic 'nowhere'"):
                kafka(broker.bootstrap, "nowhere").splits()


def test_an_unreachable_broker_is_an_error_within_ten_seconds() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        source = kafka(address, "clicks", connect_seconds=1)
        with pytest.raises(SourceError, match="Connection refused") as e:
            source.open({}, all_splits)
    assert address in str(e.value)
    assert "cannot be reached" in str(e.value)
    assert KafkaSource("clicks", {"bootstrap.servers": address}).connect_seconds < 10


def test_a_broker_that_goes_away_is_waited_for_and_then_named(
    broker: DevBrokerProcess, topic: str
) -> None:
    with opened(kafka(broker.bootstrap, topic, until=None, stall_seconds=1.5)) as reader:
        slices_of(reader, rows=100)
        broker.kill()
        with pytest.raises(SourceStalled, match="nothing is heard from the brokers"):
            slices_until(reader, lambda s: False)


def test_a_broker_that_pauses_is_waited_for(broker: DevBrokerProcess, topic: str) -> None:
    with opened(kafka(broker.bootstrap, topic, until=None)) as reader:
        slices_of(reader, rows=100)
        broker.faults.pause()
        assert reader.poll(0.3) is None
        broker.faults.resume()
        produce(broker.bootstrap, topic, numbered(5))
        assert values(slices_of(reader, rows=5)) == numbered(5)


def test_ends_are_unknown_while_the_brokers_do_not_tell_them(
    broker: DevBrokerProcess, topic: str
) -> None:
    split = f"kafka:{topic}/0"
    with opened(kafka(broker.bootstrap, topic, until=None, connect_seconds=1)) as reader:
        slices_of(reader, rows=100)
        assert reader.ends() == {split: 100}
        broker.faults.pause()
        wait_for(lambda: reader.ends() == {}, "the end is unknown")
        broker.faults.resume()
        produce(broker.bootstrap, topic, numbered(5))
        wait_for(lambda: reader.ends() == {split: 105}, "the end is known again")


def test_one_partition_without_an_answer_leaves_the_ends_of_the_others_known(
    broker: DevBrokerProcess,
) -> None:
    topics = Topics(broker.bootstrap)
    topic = topics(2)
    with opened(kafka(broker.bootstrap, topic, until=None, discover_seconds=60)) as reader:
        reader.poll(0.0)
        topics.recreate(topic, 1)
        wait_for(lambda: reader.ends() == {f"kafka:{topic}/0": 0}, "one end is unknown")


def test_a_cut_connection_repeats_and_loses_nothing(broker: DevBrokerProcess, topic: str) -> None:
    source = kafka(broker.bootstrap, topic, slice_rows=10, config={"reconnect.backoff.ms": 10})
    with opened(source) as reader:
        first = slices_of(reader, rows=10)
        broker.faults.drop_after("Fetch")
        broker.faults.drop_connections()
        assert values([*first, *slices_of(reader)]) == numbered(100)


def test_access_that_is_lost_for_long_is_fatal(broker: DevBrokerProcess, topic: str) -> None:
    with opened(kafka(broker.bootstrap, topic, until=None, stall_seconds=1.5)) as reader:
        slices_of(reader, rows=100)
        broker.faults.fail("Fetch", Code.TOPIC_AUTHORIZATION_FAILED, times=10_000)
        produce(broker.bootstrap, topic, numbered(5))
        with pytest.raises(SourceError, match=r"access (has been|is) refused"):
            slices_until(reader, lambda s: False)
        assert reader.stats().errors["TOPIC_AUTHORIZATION_FAILED"] > 0


def test_a_topic_that_is_deleted_for_good_is_named(broker: DevBrokerProcess, topic: str) -> None:
    with opened(kafka(broker.bootstrap, topic, until=None, stall_seconds=1.0)) as reader:
        slices_of(reader, rows=100)
        Topics(broker.bootstrap).delete(topic)
        with pytest.raises(SourceError, match=f"topic '{topic}' cannot be read any more"):
            slices_until(reader, lambda s: False)


def test_a_reply_that_is_too_large_is_not_waited_for_in_silence(
    broker: DevBrokerProcess, topic: str
) -> None:
    large = Topics(broker.bootstrap)(config={"max.message.bytes": "9000000"})
    produce(broker.bootstrap, large, [b"x" * 5_000_000], settings={"message.max.bytes": 9_000_000})
    small = {"fetch.max.bytes": 1_000_000, "receive.message.max.bytes": 2_000_000}
    source = kafka(broker.bootstrap, large, config=small, stall_seconds=1.5)
    with pytest.raises(SourceStalled, match="raise it above the largest record"):
        read(source)


def test_large_records_pass_with_the_settings_as_they_are(broker: DevBrokerProcess) -> None:
    large = Topics(broker.bootstrap)(config={"max.message.bytes": "30000000"})
    value = b"x" * 20_000_000
    produce(broker.bootstrap, large, [value], settings={"message.max.bytes": 30_000_000})
    assert values(read(kafka(broker.bootstrap, large))) == [value]


def test_what_was_polled_before_a_failure_is_given_first(
    broker: DevBrokerProcess, topic: str
) -> None:
    source = kafka(broker.bootstrap, topic, until=None, stall_seconds=1.0, slice_rows=100)
    got = []
    with opened(source) as reader, pytest.raises(SourceError):
        while True:
            if (s := reader.poll(0.1)) is not None:
                got.append(s)
                broker.kill()
    assert values(got) == numbered(100)


def test_no_call_hangs_while_the_broker_says_nothing(broker: DevBrokerProcess, topic: str) -> None:
    reader = kafka(broker.bootstrap, topic, until=None).open({}, all_splits)
    slices_of(reader, rows=100)
    broker.faults.pause()

    def call_everything() -> None:
        assert reader.poll(0.2) is None
        assert reader.poll(0.0) is None
        reader.pause([f"kafka:{topic}/0"])
        reader.ends()
        reader.publish(reader.positions())
        reader.close()

    calls = threading.Thread(target=call_everything)
    calls.start()
    calls.join(10)
    assert not calls.is_alive()


def test_closing_leaves_no_thread_and_may_be_repeated(make_topic: Topics) -> None:
    topic = make_topic()
    before = set(threading.enumerate())
    with opened(kafka(make_topic.bootstrap, topic, until=None)) as reader:
        reader.poll(0.1)
        assert {t.name for t in set(threading.enumerate()) - before} == {"forebay-kafka-ends"}
    reader.close()
    assert set(threading.enumerate()) <= before


@pytest.fixture
def no_garbage() -> None:
    """Clients that other tests left: a child that destroyed them would wait for their threads."""
    gc.collect()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_reader_in_a_forked_child_says_so_instead_of_hanging(make_topic: Topics) -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    with opened(kafka(make_topic.bootstrap, make_topic(), until=None)) as reader:
        child = fork.Process(target=poll_in_child, args=(reader, theirs))
        child.start()
        assert ours.poll(20), "the child hangs"
        assert "spawn" in ours.recv()
        child.join(20)
        assert child.exitcode == 0


def poll_in_child(reader: KafkaReader, answer: Connection) -> None:
    try:
        reader.poll(0.1)
    except ProcessError as e:
        reader.close()
        answer.send(str(e))


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_source_that_was_used_in_the_parent_can_be_opened_in_a_forked_child(
    make_topic: Topics,
) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, numbered(10))
    source = kafka(make_topic.bootstrap, topic)
    assert len(source.splits()) == 1
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=read_in_child, args=(source, theirs))
    child.start()
    assert ours.poll(20), "the child hangs"
    assert ours.recv() == numbered(10)
    child.join(20)
    assert child.exitcode == 0


def read_in_child(source: KafkaSource, answer: Connection) -> None:
    answer.send(values(read(source)))

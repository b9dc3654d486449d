"""Faults on demand, seen through an ordinary client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin._config import ConfigResource
from integration.raw_kafka import RawKafka
from tests.kafka_client import produce, read_all, read_to_end, reader
from tests.topics import Topics

from forebay_kafka.devbroker import Code, DevBroker, DevBrokerError, DevBrokerProcess
from forebay_kafka.devbroker.protocol import put_error
from forebay_kafka.devbroker.schemas import FetchResponse


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    with DevBroker() as running:
        yield running


@pytest.fixture
def topic(broker: DevBroker) -> str:
    """A topic with ten records in one batch."""
    name = Topics(broker.bootstrap)()
    produce(broker.bootstrap, name, numbered(10), settings={"linger.ms": 50})
    return name


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def poll_error(consumer: Consumer) -> KafkaError:
    """The first error that a consumer reports, the end of a partition aside."""
    while (error := read_to_end(consumer).error) is None:
        pass
    return error


def commit_offset(topics: Topics, topic: str) -> None:
    with reader(topics.bootstrap, topic) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)


def delete_records(topics: Topics, topic: str) -> None:
    where = TopicPartition(topic, 0, 5)
    topics.admin.delete_records([where])[where].result(10)


def describe_configs(topics: Topics, topic: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    topics.admin.describe_configs([resource])[resource].result(10)


REQUESTS: dict[str, Callable[[Topics, str], object]] = {
    "CreateTopics": lambda topics, topic: topics(),
    "DeleteTopics": lambda topics, topic: topics.delete(topic),
    "DeleteRecords": delete_records,
    "DescribeConfigs": describe_configs,
    "OffsetCommit": commit_offset,
}


def test_a_failed_request_is_answered_with_the_error_and_not_carried_out(
    broker: DevBroker, topic: str
) -> None:
    broker.faults.fail("Produce", Code.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException) as error:
        produce(broker.bootstrap, topic, [b"refused"])
    assert error.value.args[0].code() == Code.TOPIC_AUTHORIZATION_FAILED
    assert read_all(broker.bootstrap, topic).values == numbered(10)


def test_a_client_survives_errors_that_pass(broker: DevBroker, topic: str) -> None:
    broker.faults.fail("Fetch", Code.NOT_LEADER_OR_FOLLOWER, times=3)
    assert read_all(broker.bootstrap, topic).values == numbered(10)


def test_a_lost_authorisation_is_reported_to_the_reader(broker: DevBroker, topic: str) -> None:
    broker.faults.fail("Fetch", Code.TOPIC_AUTHORIZATION_FAILED)
    with reader(broker.bootstrap, topic) as consumer:
        assert poll_error(consumer).code() == Code.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("api", sorted(REQUESTS))
def test_any_kind_of_request_can_fail(broker: DevBroker, topic: str, api: str) -> None:
    broker.faults.fail(api, Code.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException) as error:
        REQUESTS[api](Topics(broker.bootstrap), topic)
    assert error.value.args[0].code() == Code.TOPIC_AUTHORIZATION_FAILED
    assert read_all(broker.bootstrap, topic).values == numbered(10)


def test_an_error_is_that_of_the_partition_not_of_the_whole_answer() -> None:
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData(partition_index=0, error_code=0)
    answer = FetchResponse(error_code=0, responses=[topic(partitions=[part])])
    assert put_error(answer, Code.KAFKA_STORAGE_ERROR)
    assert (answer.error_code, part.error_code) == (Code.NONE, Code.KAFKA_STORAGE_ERROR)


def test_a_delayed_api_answers_all_the_same(broker: DevBroker, topic: str) -> None:
    broker.faults.delay("Fetch", 0.2)
    assert read_all(broker.bootstrap, topic).values == numbered(10)


def test_a_reader_comes_back_after_its_connection_was_cut(broker: DevBroker, topic: str) -> None:
    with reader(broker.bootstrap, topic) as consumer:
        read_to_end(consumer)
        assert broker.faults.drop_connections() > 0
        produce(broker.bootstrap, topic, [b"after"])
        assert read_to_end(consumer).values == [b"after"]


@pytest.mark.parametrize(("idempotent", "copies"), [(True, 1), (False, 2)])
def test_a_lost_answer_makes_a_producer_repeat_itself(
    broker: DevBroker, topic: str, idempotent: bool, copies: int
) -> None:
    broker.faults.drop_after("Produce")
    produce(broker.bootstrap, topic, [b"x"], settings={"enable.idempotence": idempotent})
    assert read_all(broker.bootstrap, topic, 10).values == [b"x"] * copies


def test_a_paused_broker_is_silent_and_loses_nothing(broker: DevBroker, topic: str) -> None:
    with reader(broker.bootstrap, topic) as consumer:
        read_to_end(consumer)
        broker.faults.pause()
        with ThreadPoolExecutor() as pool:
            written = pool.submit(produce, broker.bootstrap, topic, [b"late"])
            assert consumer.poll(1.0) is None
            assert not written.done()
            broker.faults.resume()
            assert written.result() == [10]
        assert read_to_end(consumer).values == [b"late"]


def test_an_answer_that_is_due_in_a_pause_comes_after_it(broker: DevBroker, topic: str) -> None:
    raw = RawKafka(broker.bootstrap)
    with closing(raw), ThreadPoolExecutor() as pool:
        answer = pool.submit(raw.fetch, topic, 10, min_bytes=1, max_wait_ms=500)
        await_requests(broker, "Fetch", 1)
        broker.faults.pause()
        with pytest.raises(FutureTimeoutError):
            answer.result(timeout=1.5)
        broker.faults.resume()
        assert answer.result().error_code == Code.NONE


def test_a_request_that_arrives_in_a_pause_is_carried_out_after_it(
    broker: DevBroker, topic: str
) -> None:
    raw = RawKafka(broker.bootstrap)
    with closing(raw), ThreadPoolExecutor() as pool:
        batch = bytes(raw.fetch(topic, 0).records)
        before = broker.faults.requests()["Produce"]
        broker.faults.pause()
        code = pool.submit(raw.produce, topic, batch)
        await_requests(broker, "Produce", before + 1)
        broker.faults.truncate(topic, 0, to_offset=4)
        broker.faults.resume()
        assert code.result() == Code.NONE
    assert read_all(broker.bootstrap, topic).values == numbered(10)[:4] + numbered(10)


def await_requests(broker: DevBroker, api: str, count: int) -> None:
    while broker.faults.requests().get(api, 0) < count:
        time.sleep(0.01)


def test_a_paused_broker_obeys_until_it_is_cleared(broker: DevBroker, topic: str) -> None:
    broker.faults.pause()
    broker.faults.fail("Fetch", Code.UNKNOWN_SERVER_ERROR, times=1000)
    broker.faults.clear()
    assert read_all(broker.bootstrap, topic).values == numbered(10)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_truncation_cuts_between_any_two_records(broker: DevBroker, codec: str) -> None:
    topic = Topics(broker.bootstrap)()
    settings = {"linger.ms": 50, "compression.type": codec}
    values = [b"same" * 50 + number for number in numbered(20)]
    produce(broker.bootstrap, topic, values, settings=settings)
    broker.faults.truncate(topic, 0, to_offset=13)
    produce(broker.bootstrap, topic, [b"other"])
    read = read_all(broker.bootstrap, topic)
    assert read.values == [*values[:13], b"other"]
    assert [message.leader_epoch() for message in read.messages] == [0] * 13 + [1]


def test_a_reader_that_names_its_epoch_notices_the_truncation(
    broker: DevBroker, topic: str
) -> None:
    broker.faults.truncate(topic, 0, to_offset=4)
    produce(broker.bootstrap, topic, numbered(20))
    with reader(broker.bootstrap, topic, 10, leader_epoch=0) as consumer:
        error = poll_error(consumer)
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "truncation detected at offset 10" in error.str()
    assert "broker end offset is 4" in error.str()


def test_a_reader_at_work_notices_truncation(broker: DevBroker, topic: str) -> None:
    with reader(broker.bootstrap, topic) as consumer:
        read_to_end(consumer)
        broker.faults.truncate(topic, 0, to_offset=4)
        produce(broker.bootstrap, topic, numbered(20))
        assert "truncation detected at offset 10" in poll_error(consumer).str()


def test_a_recreated_topic_is_empty_and_has_the_id_that_was_told(
    broker: DevBroker, topic: str
) -> None:
    admin = Topics(broker.bootstrap).admin
    told = broker.faults.recreate_topic(topic)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(10)
    assert str(described.topic_id) == told
    assert read_all(broker.bootstrap, topic).values == []


def test_a_reader_that_was_overtaken_by_retention_is_told(broker: DevBroker, topic: str) -> None:
    broker.faults.delete_records(topic, 0, before=8)
    assert read_all(broker.bootstrap, topic, 8).values == [b"8", b"9"]
    error = read_all(broker.bootstrap, topic, 3).error
    assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize("kind", [DevBroker, DevBrokerProcess])
def test_a_command_that_cannot_be_obeyed_is_a_clear_error(
    kind: type[DevBroker] | type[DevBrokerProcess],
) -> None:
    with kind() as broker:
        with pytest.raises(DevBrokerError, match="unknown API 'Brew'"):
            broker.faults.fail("Brew", 1)
        with pytest.raises(DevBrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            broker.faults.truncate("nowhere", 0, 5)
        with pytest.raises(DevBrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            broker.faults.recreate_topic("nowhere")
        assert broker.faults.requests() == {}


def test_faults_reach_a_broker_in_another_process() -> None:
    with DevBrokerProcess() as broker:
        topic = Topics(broker.bootstrap)()
        produce(broker.bootstrap, topic, numbered(10))
        broker.faults.delete_records(topic, 0, before=8)
        broker.faults.truncate(topic, 0, to_offset=9)
        assert read_all(broker.bootstrap, topic).values == [b"8"]
        assert broker.faults.requests()["Produce"] >= 1


def test_a_log_cannot_be_truncated_behind_its_end(broker: DevBroker, topic: str) -> None:
    with pytest.raises(DevBrokerError, match="the log holds 0 to 10"):
        broker.faults.truncate(topic, 0, to_offset=11)

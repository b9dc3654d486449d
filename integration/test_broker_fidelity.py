"""What a broker must do for forebay, checked on the dev broker and on Apache Kafka alike.

A check in DIFFERENCES is one that the dev broker fails by design: it must fail there and pass on
Apache Kafka. docs/dev-broker.md lists the same differences, and the last test compares the two.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import Consumer, KafkaException, NewPartitions, Producer
from integration.conftest import Broker
from integration.raw_kafka import RawKafka
from tests.kafka_client import produce, read_all, read_to_end, reader
from tests.topics import Topics

from forebay_kafka.devbroker import Code

DOCS = Path(__file__).resolve().parent.parent / "docs" / "dev-broker.md"
SECONDS = 20.0
NEVER_MS = 120_000  # longer than anybody here waits
T0 = 1_700_000_000_000

EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]

DIFFERENCES = {
    "test_members_of_a_group_share_the_partitions": (
        "no consumer groups: JoinGroup is answered with UNSUPPORTED_VERSION; use assign()"
    ),
    "test_a_member_of_a_new_style_group_gets_partitions": (
        "no consumer groups of the new protocol (KIP-848) either"
    ),
    "test_groups_can_be_listed": "no group administration except for committed offsets",
    "test_settings_can_be_changed": "topic settings are fixed when the topic is created",
    "test_a_compacted_topic_keeps_the_last_record_of_a_key": (
        "cleanup.policy is accepted and shown, but nothing is compacted"
    ),
    "test_records_older_than_retention_ms_are_deleted": (
        "retention.ms is accepted and shown, but only bytes limit a log"
    ),
    "test_a_batch_with_a_wrong_checksum_is_refused": (
        "checksums are verified by the reader (check.crcs=true), not by the broker"
    ),
}


@pytest.fixture(autouse=True)
def differs(request: pytest.FixtureRequest) -> None:
    """On the dev broker a check in the table must fail: a stale entry turns the suite red."""
    if "broker" not in request.fixturenames:
        return
    reason = DIFFERENCES.get(request.node.originalname)
    if reason is not None and request.getfixturevalue("broker").kind == "dev":
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture
def patience(broker: Broker) -> float:
    """Seconds to wait for what, by the table, does not come to pass on the dev broker."""
    return 2.0 if broker.kind == "dev" else SECONDS


@pytest.fixture
def raw(broker: Broker) -> Iterator[RawKafka]:
    kafka = RawKafka(broker.bootstrap)
    yield kafka
    kafka.close()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    found = error.value.args[0]
    assert isinstance(found, KafkaError)
    return found.code()


def end_of(topics: Topics, topic: str, isolation: IsolationLevel) -> int:
    where = TopicPartition(topic, 0)
    asked = topics.admin.list_offsets({where: LATEST}, isolation_level=isolation)
    return int(asked[where].result(SECONDS).offset)


def topic_id(topics: Topics, topic: str) -> str:
    described = topics.admin.describe_topics(TopicCollection([topic]))[topic]
    return str(described.result(SECONDS).topic_id)


def transactional(bootstrap: str, name: str = "", timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name or f"x-{uuid.uuid4().hex[:8]}",
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(SECONDS)
    return producer


def write_transaction(
    producer: Producer, topic: str, values: list[bytes], *, commit: bool = True
) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(SECONDS)
    if commit:
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)


# Topics


def test_a_topic_has_the_partitions_it_was_made_with(make_topic: Topics) -> None:
    topic = make_topic(6)
    found = make_topic.admin.list_topics(topic, timeout=SECONDS).topics[topic]
    assert sorted(found.partitions) == [0, 1, 2, 3, 4, 5]


def test_asking_for_an_unknown_topic_does_not_make_it(make_topic: Topics) -> None:
    for _ in range(2):
        found = make_topic.admin.list_topics("no-such-topic", timeout=SECONDS)
        error = found.topics["no-such-topic"].error
        assert error is not None and error.code() == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_cannot_be_made_twice(make_topic: Topics) -> None:
    topic = make_topic()
    with pytest.raises(KafkaException) as error:
        make_topic.create(topic)
    assert code_of(error) == Code.TOPIC_ALREADY_EXISTS


def test_an_illegal_topic_name_is_refused(make_topic: Topics) -> None:
    with pytest.raises(KafkaException) as error:
        make_topic.create("no spaces")
    assert code_of(error) == Code.INVALID_TOPIC


@pytest.mark.parametrize(
    "setting", [("no.such.key", "1"), ("max.message.bytes", "many"), ("retention.bytes", "x")]
)
def test_a_wrong_setting_is_refused(make_topic: Topics, setting: tuple[str, str]) -> None:
    with pytest.raises(KafkaException) as error:
        make_topic(config=dict([setting]))
    assert code_of(error) == Code.INVALID_CONFIG


def test_two_replicas_are_refused_by_a_single_broker(broker: Broker, make_topic: Topics) -> None:
    if broker.kind == "other":
        pytest.skip("the other broker may be a cluster")
    with pytest.raises(KafkaException) as error:
        make_topic.create("replicated", replicas=2)
    assert code_of(error) == Code.INVALID_REPLICATION_FACTOR


def test_settings_are_shown_as_they_were_made(make_topic: Topics) -> None:
    made = {"retention.ms": "1234567", "cleanup.policy": "compact", "max.message.bytes": "200000"}
    resource = ConfigResource(ConfigResource.Type.TOPIC, make_topic(config=made))
    shown = make_topic.admin.describe_configs([resource])[resource].result(SECONDS)
    assert {key: shown[key].value for key in made} == made
    assert shown["message.timestamp.type"].value == "CreateTime"
    assert shown["message.timestamp.type"].is_default


def test_partitions_can_be_added_but_not_taken_away(make_topic: Topics) -> None:
    topic = make_topic(2)
    make_topic.admin.create_partitions([NewPartitions(topic, 4)])[topic].result(SECONDS)
    found = make_topic.admin.list_topics(topic, timeout=SECONDS).topics[topic]
    assert sorted(found.partitions) == [0, 1, 2, 3]
    with pytest.raises(KafkaException) as error:
        make_topic.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    assert code_of(error) == Code.INVALID_PARTITIONS


def test_a_recreated_topic_is_empty_and_has_another_id(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(5))
    old = topic_id(make_topic, topic)
    make_topic.recreate(topic)
    assert topic_id(make_topic, topic) != old
    assert produce(broker.bootstrap, topic, [b"new"]) == [0]


def test_the_cluster_has_one_id_for_all(make_topic: Topics) -> None:
    described = make_topic.admin.describe_cluster().result(SECONDS)
    listed = make_topic.admin.list_topics(timeout=SECONDS)
    assert described.cluster_id == listed.cluster_id
    assert len(described.cluster_id) >= 16


def test_settings_can_be_changed(make_topic: Topics) -> None:
    topic = make_topic()
    entry = ConfigEntry("retention.ms", "777", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    make_topic.admin.incremental_alter_configs([change])[change].result(SECONDS)


# Records


def test_key_headers_and_timestamp_come_back_as_they_were(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    headers = [("a", b"\x00\xff"), ("a", b"2"), ("n", None)]
    record = {"key": b"k", "value": b"v", "headers": headers, "timestamp": T0}
    produce(broker.bootstrap, topic, [record])
    (message,) = read_all(broker.bootstrap, topic).messages
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", headers)
    assert message.timestamp() == (1, T0)
    assert message.leader_epoch() == 0


def test_null_and_empty_stay_different(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    records = [{"key": b"", "value": None}, {"key": None, "value": b""}]
    produce(broker.bootstrap, topic, records)
    read = read_all(broker.bootstrap, topic)
    assert [(message.key(), message.value()) for message in read.messages] == [
        (b"", None),
        (None, b""),
    ]


def test_a_topic_may_put_its_own_time_on_records(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(broker.bootstrap, topic, [{"value": b"v", "timestamp": T0}] * 3)
    stamps = [message.timestamp() for message in read_all(broker.bootstrap, topic).messages]
    assert [kind for kind, _ in stamps] == [2, 2, 2]
    assert all(stamp > T0 for _, stamp in stamps)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read_and_found_by_time(
    broker: Broker, make_topic: Topics, codec: str
) -> None:
    topic = make_topic()
    records = [{"value": b"%06d" % i * 20, "timestamp": T0 + i} for i in range(300)]
    settings = {"compression.type": codec, "linger.ms": 50}
    produce(broker.bootstrap, topic, records, settings=settings)
    read = read_all(broker.bootstrap, topic)
    assert read.values == [record["value"] for record in records]
    assert read.offsets == list(range(300))
    where = TopicPartition(topic, 0)
    asked = make_topic.admin.list_offsets({where: OffsetSpec.for_timestamp(T0 + 123)})
    assert asked[where].result(SECONDS).offset == 123


def test_a_record_of_twenty_megabytes_is_read_by_small_fetches(
    broker: Broker, make_topic: Topics
) -> None:
    size = 20 << 20
    topic = make_topic(config={"max.message.bytes": str(size + 10_000)})
    value = os.urandom(size)
    settings = {"message.max.bytes": size + 10_000}
    produce(broker.bootstrap, topic, [value, b"after"], settings=settings)
    read = read_all(broker.bootstrap, topic, fetch_message_max_bytes=1 << 20)
    assert read.values == [value, b"after"]


def test_a_record_above_max_message_bytes_is_refused(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic(config={"max.message.bytes": "1000"})
    with pytest.raises(KafkaException) as error:
        produce(broker.bootstrap, topic, [os.urandom(5000)])
    assert code_of(error) == Code.MESSAGE_TOO_LARGE
    assert produce(broker.bootstrap, topic, [b"small"]) == [0]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_whatever_acknowledgement_was_asked(
    broker: Broker, make_topic: Topics, acks: str
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(100), settings={"acks": acks})
    with reader(broker.bootstrap, topic) as consumer:
        read = read_to_end(consumer)
        while len(read.messages) < 100:  # acks=0 returns before the broker has the records
            read.messages += read_to_end(consumer).messages
    assert read.values == numbered(100)


def test_an_idempotent_producer_writes_each_record_once(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    settings = {"enable.idempotence": True, "batch.num.messages": 7}
    produce(broker.bootstrap, topic, numbered(500), settings=settings)
    assert read_all(broker.bootstrap, topic).values == numbered(500)


def test_a_partition_that_does_not_exist_cannot_be_written(
    broker: Broker, make_topic: Topics
) -> None:
    with pytest.raises(KafkaException) as error:
        produce(broker.bootstrap, make_topic(2), [b"x"], partition=2)
    assert code_of(error) == KafkaError._UNKNOWN_PARTITION


def test_a_batch_with_a_wrong_checksum_is_refused(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, [b"one record, so one batch"])
    batch = bytearray(raw.fetch(topic, 0).records)
    batch[-1] ^= 1
    assert raw.produce(topic, bytes(batch)) == Code.CORRUPT_MESSAGE


# Reading


@pytest.mark.parametrize("offset", [0, 7, 19])
def test_reading_starts_at_any_offset_also_inside_a_batch(
    broker: Broker, make_topic: Topics, offset: int
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(20), settings={"linger.ms": 50})
    read = read_all(broker.bootstrap, topic, offset)
    assert read.offsets == list(range(offset, 20))


def test_the_end_of_a_partition_is_reported_at_its_end(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(4))
    with reader(broker.bootstrap, topic) as consumer:
        read_to_end(consumer)
        assert consumer.position([TopicPartition(topic, 0)])[0].offset == 4


def test_a_waiting_fetch_is_answered_when_its_bytes_are_there(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, [b"too few"])
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(raw.fetch, topic, 0, min_bytes=5000, max_wait_ms=NEVER_MS)
        produce(broker.bootstrap, topic, [os.urandom(5000)])
        assert len(answer.result().records) > 5000


def test_an_idle_reader_asks_seldom(broker: Broker, make_topic: Topics) -> None:
    seen: list[int] = []

    def count(statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        seen.append(sum(each["req"].get("Fetch", 0) for each in brokers))

    settings = {"statistics.interval.ms": 500, "stats_cb": count, "fetch.wait.max.ms": 500}
    with reader(broker.bootstrap, make_topic(), settings=settings) as consumer:
        while len(seen) < 5:
            consumer.poll(0.2)
    assert seen[-1] - seen[0] <= 10  # four half seconds of waiting


def test_a_paused_partition_gives_nothing_until_it_is_resumed(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    where = [TopicPartition(topic, 0)]
    produce(broker.bootstrap, topic, numbered(3))
    with reader(broker.bootstrap, topic) as consumer:
        read_to_end(consumer)
        consumer.pause(where)
        produce(broker.bootstrap, topic, [b"more"])
        assert consumer.poll(1.0) is None
        consumer.resume(where)
        assert read_to_end(consumer).values == [b"more"]


def test_a_fetch_keeps_to_its_bytes_but_always_gives_one_batch(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    topic = make_topic()
    for _ in range(4):
        produce(broker.bootstrap, topic, [os.urandom(10_000)])
    assert len(raw.fetch(topic, 0, max_bytes=100).records) > 10_000
    assert 10_000 < len(raw.fetch(topic, 0, max_bytes=25_000).records) <= 25_000
    assert len(raw.fetch(topic, 0).records) > 40_000


def test_a_fetch_tells_the_ends_of_the_log(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(5))
    part = raw.fetch(topic, 2)
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (5, 5, 0)


@pytest.mark.parametrize("offset", [3, 100])
def test_an_offset_outside_the_log_is_an_error(
    broker: Broker, make_topic: Topics, offset: int
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(20))
    delete_before(make_topic, topic, 10)
    error = read_all(broker.bootstrap, topic, offset).error
    assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET


def test_deleted_records_are_gone_and_the_rest_can_be_read(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(20), settings={"linger.ms": 50})
    assert delete_before(make_topic, topic, 13) == 13
    assert read_all(broker.bootstrap, topic).offsets == list(range(13, 20))


def test_records_beyond_the_end_cannot_be_deleted(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(3))
    with pytest.raises(KafkaException) as error:
        delete_before(make_topic, topic, 4)
    assert code_of(error) == Code.OFFSET_OUT_OF_RANGE


def test_a_log_keeps_to_retention_bytes(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic(config={"retention.bytes": "100000", "segment.bytes": "1048576"})
    for _ in range(8):
        produce(broker.bootstrap, topic, [os.urandom(1000) for _ in range(400)])
    where = TopicPartition(topic, 0)
    await_(lambda: earliest(make_topic, where) > 0)
    assert read_all(broker.bootstrap, topic).offsets[-1] == 3199


def delete_before(topics: Topics, topic: str, offset: int) -> int:
    where = TopicPartition(topic, 0, offset)
    return int(topics.admin.delete_records([where])[where].result(SECONDS).low_watermark)


def earliest(topics: Topics, where: TopicPartition) -> int:
    asked = topics.admin.list_offsets({where: EARLIEST})
    return int(asked[where].result(SECONDS).offset)


def await_(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)


# Offsets


def test_offsets_are_found_by_end_and_by_time(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    stamps = [T0 + step for step in (0, 1000, 9000, 3000, 4000)]
    produce(broker.bootstrap, topic, [{"value": b"x", "timestamp": stamp} for stamp in stamps])

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        where = TopicPartition(topic, 0)
        found = make_topic.admin.list_offsets({where: spec})[where].result(SECONDS)
        return found.offset, found.timestamp

    assert offset(EARLIEST)[0] == 0
    assert offset(LATEST)[0] == 5
    assert offset(OffsetSpec.for_timestamp(T0 + 500)) == (1, T0 + 1000)
    assert offset(OffsetSpec.for_timestamp(T0 + 3500)) == (2, T0 + 9000)
    assert offset(OffsetSpec.for_timestamp(T0 + 10_000))[0] == -1
    assert offset(NEWEST) == (2, T0 + 9000)


def test_a_time_is_not_found_among_deleted_records(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    records = [{"value": b"x", "timestamp": T0 + i} for i in range(10)]
    produce(broker.bootstrap, topic, records, settings={"linger.ms": 50})
    delete_before(make_topic, topic, 6)
    where = TopicPartition(topic, 0)
    asked = make_topic.admin.list_offsets({where: OffsetSpec.for_timestamp(T0)})
    assert asked[where].result(SECONDS).offset == 6


def test_a_reader_without_a_group_can_commit_with_metadata(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(3))
    group = f"g-{uuid.uuid4().hex[:8]}"
    with reader(broker.bootstrap, topic, settings={"group.id": group}) as consumer:
        at = TopicPartition(topic, 0, 2, metadata="step=17", leader_epoch=0)
        consumer.commit(offsets=[at], asynchronous=False)
    with reader(broker.bootstrap, topic, settings={"group.id": group}) as consumer:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=SECONDS)
    assert (found.offset, found.metadata, found.leader_epoch) == (2, "step=17", 0)


def test_an_administrator_sees_all_offsets_of_a_group(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic(3)
    group = f"g-{uuid.uuid4().hex[:8]}"
    with reader(broker.bootstrap, topic, settings={"group.id": group}) as consumer:
        at = [TopicPartition(topic, part, 0) for part in (0, 2)]
        consumer.commit(offsets=at, asynchronous=False)
    asked = make_topic.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(SECONDS).topic_partitions
    assert sorted((each.partition, each.offset) for each in found) == [(0, 0), (2, 0)]


def test_members_of_a_group_share_the_partitions(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic(2)
    group = f"g-{uuid.uuid4().hex[:8]}"
    members = [group_member(broker.bootstrap, group, topic) for _ in range(2)]
    try:
        await_(lambda: [polled(member) for member in members] == [1, 1])
    finally:
        for member in members:
            member.close()


def test_a_member_of_a_new_style_group_gets_partitions(
    broker: Broker, make_topic: Topics, patience: float
) -> None:
    topic = make_topic(2)
    group = f"g-{uuid.uuid4().hex[:8]}"
    member = group_member(broker.bootstrap, group, topic, **{"group.protocol": "consumer"})
    try:
        await_(lambda: polled(member) == 2, patience)
    finally:
        member.close()


def group_member(bootstrap: str, group: str, topic: str, **settings: Any) -> Consumer:
    member = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, **settings}
    )
    member.subscribe([topic])
    return member


def polled(member: Consumer) -> int:
    """How many partitions a member holds after a poll; its errors are raised."""
    message = member.poll(0.2)
    if message is not None and message.error() is not None:
        raise KafkaException(message.error())
    return len(member.assignment())


def test_groups_can_be_listed(make_topic: Topics) -> None:
    assert make_topic.admin.list_consumer_groups().result(SECONDS).errors == []


# Transactions


def test_a_commit_marker_takes_an_offset_and_is_never_delivered(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    write_transaction(transactional(broker.bootstrap), topic, numbered(5))
    with reader(broker.bootstrap, topic) as consumer:
        assert read_to_end(consumer).offsets == [0, 1, 2, 3, 4]
        assert consumer.position([TopicPartition(topic, 0)])[0].offset == 6
    assert end_of(make_topic, topic, IsolationLevel.READ_COMMITTED) == 6


def test_aborted_records_are_hidden_and_passed_by(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    write_transaction(transactional(broker.bootstrap), topic, numbered(5), commit=False)
    with reader(broker.bootstrap, topic) as consumer:
        assert read_to_end(consumer).offsets == []
        assert consumer.position([TopicPartition(topic, 0)])[0].offset == 6
    read = read_all(broker.bootstrap, topic, isolation_level="read_uncommitted")
    assert read.values == numbered(5)


def test_commits_and_aborts_of_one_producer_are_told_apart(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    producer = transactional(broker.bootstrap)
    for number, commit in enumerate([True, False, True, False, True]):
        write_transaction(producer, topic, [b"%d" % number] * 2, commit=commit)
    read = read_all(broker.bootstrap, topic)
    assert read.values == [b"0", b"0", b"2", b"2", b"4", b"4"]
    assert read.offsets == [0, 1, 6, 7, 12, 13]


def test_an_open_transaction_holds_back_all_that_follows(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, [b"before"])
    producer = transactional(broker.bootstrap)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(SECONDS)
    produce(broker.bootstrap, topic, [b"behind"])
    assert end_of(make_topic, topic, IsolationLevel.READ_COMMITTED) == 1
    assert end_of(make_topic, topic, IsolationLevel.READ_UNCOMMITTED) == 3
    assert read_all(broker.bootstrap, topic).values == [b"before"]
    producer.abort_transaction(SECONDS)
    assert read_all(broker.bootstrap, topic).values == [b"before", b"behind"]


def test_a_transaction_that_takes_too_long_is_aborted(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    producer = transactional(broker.bootstrap, timeout_ms=1000)
    producer.begin_transaction()
    producer.produce(topic, b"slow", partition=0)
    producer.flush(SECONDS)
    await_(lambda: end_of(make_topic, topic, IsolationLevel.READ_COMMITTED) == 2)
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    assert read_all(broker.bootstrap, topic).values == []


def test_a_producer_is_fenced_by_a_newer_one_of_its_name(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    name = f"x-{uuid.uuid4().hex[:8]}"
    old = transactional(broker.bootstrap, name)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    old.flush(SECONDS)
    new = transactional(broker.bootstrap, name)
    with pytest.raises(KafkaException) as error:
        old.commit_transaction(SECONDS)
    assert code_of(error) == KafkaError._FENCED
    write_transaction(new, topic, [b"new"])
    assert read_all(broker.bootstrap, topic).values == [b"new"]


def test_offsets_sent_to_a_transaction_count_when_it_commits(
    broker: Broker, make_topic: Topics
) -> None:
    topic = make_topic()
    group = f"g-{uuid.uuid4().hex[:8]}"
    producer = transactional(broker.bootstrap)
    with reader(broker.bootstrap, topic, settings={"group.id": group}) as consumer:
        for offset, commit in ((1, True), (2, False)):
            producer.begin_transaction()
            producer.produce(topic, b"out", partition=0)
            at = [TopicPartition(topic, 0, offset)]
            producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), SECONDS)
            if commit:
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=SECONDS)
    assert found.offset == 1


# Leader epochs


def test_the_current_epoch_ends_where_the_log_ends(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(7))
    assert raw.end_of_epoch(topic, 0) == (Code.NONE, 0, 7)


def test_an_epoch_that_never_was_has_no_end(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    assert raw.end_of_epoch(make_topic(), 5) == (Code.NONE, -1, -1)


def test_a_reader_ahead_of_the_leader_epoch_is_told_so(
    broker: Broker, make_topic: Topics, raw: RawKafka
) -> None:
    part = raw.fetch(make_topic(), 0, leader_epoch=5)
    assert part.error_code == Code.UNKNOWN_LEADER_EPOCH


def test_reading_resumes_at_an_offset_with_its_epoch(broker: Broker, make_topic: Topics) -> None:
    topic = make_topic()
    produce(broker.bootstrap, topic, numbered(5))
    with reader(broker.bootstrap, topic, 3, leader_epoch=0) as consumer:
        assert read_to_end(consumer).offsets == [3, 4]


# Cleaning up


def test_a_compacted_topic_keeps_the_last_record_of_a_key(
    broker: Broker, make_topic: Topics, patience: float
) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "200",
    }
    topic = make_topic(config=settings)
    records = [{"key": b"k%d" % (i % 2), "value": b"%d" % i} for i in range(20)]
    produce(broker.bootstrap, topic, records)
    time.sleep(0.2)  # the next record must find the segment older than segment.ms
    produce(broker.bootstrap, topic, [{"key": b"z", "value": b"z"}])
    await_(lambda: read_all(broker.bootstrap, topic).offsets == [18, 19, 20], patience)


def test_records_older_than_retention_ms_are_deleted(
    broker: Broker, make_topic: Topics, patience: float
) -> None:
    topic = make_topic(config={"retention.ms": "1000"})
    produce(broker.bootstrap, topic, [{"value": b"old", "timestamp": T0}] * 5)
    where = TopicPartition(topic, 0)
    await_(lambda: earliest(make_topic, where) == 5, patience)


# The table


def test_the_docs_list_the_same_differences() -> None:
    rows = re.findall(r"^\| `(test_\w+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert dict(rows) == DIFFERENCES

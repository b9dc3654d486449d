"""What a Kafka source may be told: wrong settings are found at once, secrets are never shown."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.cimpl import Producer

from forebay.errors import ConfigError, SourceError
from forebay.source import Reader, Source
from forebay_kafka import KafkaReader, KafkaSink, KafkaSource, properties
from forebay_kafka.config import Settings, check, for_asking, for_reading, for_writing

BROKER = {"bootstrap.servers": "localhost:1"}
SECRETS = {
    "sasl.password": "S3CR3T-1",
    "ssl.key.password": "S3CR3T-2",
    "ssl.keystore.password": "S3CR3T-3",
    "sasl.oauthbearer.client.secret": "S3CR3T-4",
    "sasl.oauthbearer.config": "S3CR3T-5",
    "ssl.key.pem": "S3CR3T-6",
}


def test_a_source_opens_nothing_and_can_be_pickled() -> None:
    before = threading.active_count()
    source = KafkaSource(["a", "b"], BROKER, start={"timestamp": 5})
    assert threading.active_count() == before
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert isinstance(source, Source)
    assert not source.bounded


def test_the_reader_is_what_the_framework_asks_for() -> None:
    reader: type[Reader] = KafkaReader
    assert reader is KafkaReader


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"fetch.wait.max": 5}, "'fetch.wait.max' is not.*'fetch.wait.max.ms'"),
        ({"isolation_level": "read_committed"}, "did you mean 'isolation.level'"),
        ({"max.poll.records": 5}, "slice_rows"),
        ({"sasl.jaas.config": "x"}, "sasl.username and sasl.password"),
        ({"linger.ms": 5}, "for producers"),
        ({"enable.auto.commit": True}, "must stay 'false'.*checkpoint"),
        ({"enable.auto.commit": "true"}, "must stay 'false'"),
        ({"auto.offset.reset": "latest"}, "start='earliest'.*on_gap"),
        ({"group.protocol": "consumer"}, "no group to join"),
        ({"group.instance.id": "a"}, "no effect"),
        ({"enable.auto.offset.store": True}, "must stay 'false'"),
        ({"allow.auto.create.topics": True}, "mistyped topic"),
        ({"max.poll.interval.ms": 5}, "no effect"),
        ({"fetch.wait.max.ms": "ten"}, "fetch.wait.max.ms"),
        ({"fetch.wait.max.ms": 10**9}, "outside allowed range"),
        ({"isolation.level": "dirty"}, 'Invalid value "dirty"'),
        ({"check.crcs": "maybe"}, "true or false"),
        ({"client.id": ["a"]}, "'client.id' must be text"),
        ({"security.protocol": "TLS"}, "one of .*ssl"),
        ({"bootstrap.servers": " "}, "needs 'bootstrap.servers'"),
    ],
)
def test_a_wrong_setting_is_named_with_the_way_out(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as e:
        KafkaSource("clicks", {**BROKER, **config})
    assert "KafkaSource('clicks')" in str(e.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topics": ()}, "at least one topic"),
        ({"topics": "a,b"}, "'a,b' cannot be a topic's name"),
        ({"topics": ["a", "a"]}, "named twice"),
        ({"config": "localhost"}, "must be a mapping"),
        ({"start": "begin"}, "start must be 'earliest'"),
        ({"start": {"timestamp": -1}}, "milliseconds since 1970"),
        ({"start": {"timestamp": "yesterday"}}, "with a time zone"),
        ({"start": {"orders": {0: 1}}}, "'orders', which is not read"),
        ({"start": {"clicks": {0: -1}}}, "offsets from 0 up"),
        ({"start": {"clicks": 5}}, "must be {partition: offset}"),
        ({"until": "earliest"}, "would read nothing"),
        ({"until": 5}, "until must be"),
        ({"columns": ("values",)}, "columns must be some of"),
        ({"columns": ()}, "columns must be some of"),
        ({"on_gap": "skip"}, "'fail', 'earliest', 'latest', not 'skip'"),
        ({"tombstones": "drop"}, "'keep', 'skip'"),
        ({"payload": "list"}, "'auto', 'arrow', 'objects'"),
        ({"slice_rows": 0}, "slice_rows"),
        ({"slice_bytes": True}, "slice_bytes"),
        ({"stall_seconds": 0}, "more than 0 s"),
        ({"commit_group": "a", "config": {**BROKER, "group.id": "b"}}, "differ"),
    ],
)
def test_a_wrong_argument_is_named_with_the_way_out(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        KafkaSource(**{"topics": "clicks", "config": BROKER, **arguments})


def test_any_librdkafka_setting_passes_under_its_own_name() -> None:
    given = {**BROKER, "fetch.wait.max.ms": "7", "client.id": "me", "check.crcs": False}
    settings = check(given, "consumer", "here")
    made = for_reading(settings, "group", lambda error: None)
    assert {k: made[k] for k in given} == given
    assert made["enable.auto.commit"] == "false"
    Consumer({k: v for k, v in made.items() if k not in BROKER}).close()


def test_the_longest_reply_follows_the_longest_fetch() -> None:
    settings = Settings({**BROKER, "fetch.max.bytes": 500 << 20})
    made = for_reading(settings, "group", lambda error: None)
    assert made["receive.message.max.bytes"] == 501 << 20


def test_other_clients_get_only_what_they_understand() -> None:
    both = {**BROKER, "sasl.username": "me"}
    settings = Settings({**both, "fetch.wait.max.ms": 7, "acks": "all"})
    asking = for_asking(settings, lambda error: None)
    assert both.items() <= asking.items()
    assert not {"fetch.wait.max.ms", "acks"} & asking.keys()


@pytest.mark.parametrize(
    ("client", "own"), [(Consumer, properties.CONSUMER), (Producer, properties.PRODUCER)]
)
def test_the_client_knows_every_name_that_we_know(client: Any, own: frozenset[str]) -> None:
    assert [n for n in sorted(own | properties.BOTH) if not is_known(client, n)] == []


def is_known(client: Any, name: str) -> bool:
    try:
        client({"group.id": "x", "log_level": 0, name: "?"})
    except (KafkaException, TypeError) as e:
        return "No such configuration property" not in str(e)
    return True


def test_secrets_are_never_shown() -> None:
    source = KafkaSource("clicks", {**BROKER, **SECRETS})
    sink = KafkaSink("dead", {**BROKER, **SECRETS})
    texts = [repr(source), str(source), repr(source.config), repr(sink), f"{sink.config}"]
    assert not any("S3CR3T" in text for text in texts)
    assert "***" in repr(source)


@pytest.mark.parametrize("key", ["isolation.level", "fetch.wait.max.ms", "no.such.key"])
def test_errors_do_not_show_secrets_either(key: str) -> None:
    with pytest.raises(ConfigError) as e:
        KafkaSource("clicks", {**BROKER, **SECRETS, key: SECRETS["sasl.password"]})
    assert "S3CR3T" not in str(e.value)
    assert e.value.__cause__ is None


def test_a_failing_login_does_not_show_secrets(caplog: pytest.LogCaptureFixture) -> None:
    secure = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    login = {"sasl.username": "me", "sasl.password": "S3CR3T-1"}
    source = KafkaSource("clicks", {**BROKER, **secure, **login}, connect_seconds=0.5)
    with pytest.raises(SourceError) as e:
        source.splits()
    assert "S3CR3T" not in str(e.value) + caplog.text


def test_a_client_that_cannot_be_made_is_a_wrong_setting() -> None:
    wrong = {"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"}
    source = KafkaSource("clicks", {**BROKER, **wrong})
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
        source.splits()


def test_the_producer_waits_for_all_replicas() -> None:
    made = for_writing(Settings(BROKER), lambda error: None)
    assert (made["acks"], made["enable.idempotence"]) == ("all", True)

"""Dead letters in a Kafka topic: the record as it was, and why it failed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kafka_client import produce
from tests.kafka_support import kafka, read, rows_of
from tests.topics import Topics

from forebay.deadletter import Letter, Sink
from forebay.errors import ConfigError, SourceError
from forebay.slice import Failure
from forebay_kafka import KafkaSink
from forebay_kafka.deadletters import read_letters

RECORD: dict[str, Any] = {
    "topic": "clicks",
    "partition": 3,
    "offset": 81234,
    "timestamp": 1_700_000_000_123,
    "timestamp_type": 1,
    "key": b"k",
    "value": b"\xff\x00broken",
    "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
}


def letter(offset: int = 81234, time: float = 1.5, **changes: Any) -> Letter:
    original = {**RECORD, "offset": offset, **changes}
    reason = "ValueError: not JSON: 'ü'"
    failure = Failure(offset=offset, stage="decode", reason=reason, original=original)
    return Letter(split="kafka:clicks/3", failure=failure, time=time)


def config(topics: Topics) -> dict[str, str]:
    return {"bootstrap.servers": topics.bootstrap}


def test_a_letter_comes_back_as_it_was(make_topic: Topics) -> None:
    topic = make_topic()
    sink = KafkaSink(topic, config(make_topic))
    assert isinstance(sink, Sink)
    sent = [letter(), letter(1, value=None, key=None, headers=[]), letter(2, value=b"", extra=2.5)]
    sink.write(sent)
    sink.close()
    assert list(sink.letters()) == sent


def test_the_record_in_the_topic_is_the_original_with_headers_added(make_topic: Topics) -> None:
    topic = make_topic()
    sink = KafkaSink(topic, config(make_topic))
    sink.write([letter()])
    sink.close()
    (row,) = rows_of(read(kafka(make_topic.bootstrap, topic)))
    assert (row["key"], row["value"]) == (RECORD["key"], RECORD["value"])
    assert row["headers"][:2] == RECORD["headers"]
    added = {h["key"]: h["value"].decode() for h in row["headers"][2:]}
    assert added["forebay.split"] == "kafka:clicks/3"
    assert added["forebay.offset"] == "81234"
    assert added["forebay.reason"] == "ValueError: not JSON: 'ü'"


def test_a_dead_letter_of_a_dead_letter_keeps_both_stories(make_topic: Topics) -> None:
    first, second = make_topic(), make_topic()
    write_once(first, make_topic, [letter()])
    (row,) = rows_of(read(kafka(make_topic.bootstrap, first)))
    failure = Failure(offset=0, stage="again", reason="no", original=row)
    again = Letter(split=f"kafka:{first}/0", failure=failure, time=2.0)
    write_once(second, make_topic, [again])
    assert list(read_letters(second, config(make_topic))) == [again]


def write_once(topic: str, topics: Topics, letters: list[Letter]) -> None:
    sink = KafkaSink(topic, config(topics))
    sink.write(letters)
    sink.close()


def test_a_letter_that_was_written_twice_is_read_once(make_topic: Topics) -> None:
    topic = make_topic(2)
    write_once(topic, make_topic, [letter(), letter(7), letter()])
    found = read_letters(topic, config(make_topic))
    assert sorted(x.failure.offset for x in found) == [7, 81234]


def test_a_removed_letter_stays_away_until_it_fails_again(make_topic: Topics) -> None:
    topic = make_topic(3)
    sink = KafkaSink(topic, config(make_topic))
    sink.write([letter(), letter(7), letter(7, time=2.0)])
    sink.flush()
    assert sink.remove([("kafka:clicks/3", 7, "decode"), ("kafka:clicks/3", 99, "decode")]) == 1
    assert [x.failure.offset for x in sink.letters()] == [81234]
    sink.write([letter(7, time=3.0)])
    sink.close()
    assert sorted(x.failure.offset for x in sink.letters()) == [7, 81234]


def test_records_can_be_written_back_as_they_came(make_topic: Topics) -> None:
    topic = make_topic()
    sink = KafkaSink(topic, config(make_topic), annotate=False)
    sink.write([letter()])
    sink.close()
    (row,) = rows_of(read(kafka(make_topic.bootstrap, topic)))
    assert row["headers"] == RECORD["headers"]
    assert (row["key"], row["value"]) == (RECORD["key"], RECORD["value"])


def test_a_letter_that_cannot_be_stored_is_an_error(make_topic: Topics) -> None:
    topic = make_topic(config={"max.message.bytes": "2000"})
    sink = KafkaSink(topic, config(make_topic))
    sink.write([letter(value=b"x" * 10_000)])
    with pytest.raises(SourceError, match=r"max\.message\.bytes"):
        sink.flush()


def test_brokers_that_do_not_answer_are_an_error(make_topic: Topics) -> None:
    sink = KafkaSink("dead", {"bootstrap.servers": "127.0.0.1:1"}, flush_seconds=0.5)
    sink.write([letter()])
    with pytest.raises(SourceError, match=r"1 dead letters .* not acknowledged"):
        sink.flush()


def test_a_record_that_is_no_letter_is_an_error(make_topic: Topics) -> None:
    topic = make_topic()
    produce(make_topic.bootstrap, topic, [b"v"])
    with pytest.raises(SourceError, match=f"kafka:{topic}/0@0 is no dead letter"):
        list(read_letters(topic, config(make_topic)))


@pytest.mark.parametrize("wrong", [{"fetch.wait.max.ms": 5}, {"no.such": 1}, {}])
def test_a_wrong_setting_is_an_error(wrong: dict[str, Any]) -> None:
    brokers = {"bootstrap.servers": "x:1"} if wrong else {}
    with pytest.raises(ConfigError, match=r"KafkaSink\('dead'\)"):
        KafkaSink("dead", {**brokers, **wrong})

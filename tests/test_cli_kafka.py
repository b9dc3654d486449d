"""The command line on Kafka: from a topology to letters in a topic, and back into the stream."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from confluent_kafka.cimpl import Producer
from tests.cli_support import Workshop, workshop_at
from tests.topics import Topics

from forebay import checkpoint
from forebay_kafka.devbroker import DevBrokerProcess

GOOD, BAD = b'{"id": 1}', b'{"id": '


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


def topology(shop: Workshop, broker: DevBrokerProcess, topic: str, dead: str) -> Path:
    return shop.write(
        "t.yaml",
        f"""
        source:
          type: kafka
          topics: {topic}
          config: &client {{bootstrap.servers: "{broker.bootstrap}"}}
          until: latest
        stages:
          - decode: {{json: {{column: value, schema: {{id: int64}}}}}}
        dead_letters: {{type: kafka, topic: {dead}, config: *client}}
        error_budget: {{share: 1.0}}
        batch: 4
        checkpoint: state.json
        """,
    )


def test_dead_letters_go_to_a_topic_and_back_into_the_stream(
    shop: Workshop, dev_broker: DevBrokerProcess, make_topic: Topics
) -> None:
    topic, dead = make_topic(), make_topic()
    producer = Producer({"bootstrap.servers": dev_broker.bootstrap})
    for value in (GOOD, BAD, GOOD):
        producer.produce(topic, value, b"key", headers=[("trace", b"\xff")])
    producer.flush(30)
    file = topology(shop, dev_broker, topic, dead)

    done = shop.forebay("run", file, "--json")
    assert done.code == 0, done.err
    assert (done.events[-1]["rows"], done.events[-1]["dead_letters"]) == (2, 1)
    counts, row = shop.forebay("dlq", "ls", file, "--json").events
    assert (counts["letters"], row["split"], row["offset"]) == (1, f"kafka:{topic}/0", 1)

    raw = file.read_text()
    file.write_text(raw.replace("decode: {json: {column: value, schema: {id: int64}}}",
                                "map: builtins:dict"))  # fmt: skip
    done = shop.forebay("dlq", "replay", "--topology", file, "--to", topic, "--remove-passed")
    assert done.out == f"1 of 1 dead letters pass now, sent to {topic}, removed\n", done.err
    assert shop.forebay("dlq", "ls", file, "--json").events[0]["letters"] == 0

    done = shop.forebay("run", file, "--json")
    assert done.code == 0, done.err
    assert done.events[-1]["rows"] == 1
    state = checkpoint.load(shop.folder / "state.json")
    assert state is not None and state["splits"][f"kafka:{topic}/0"]["offset"] == 4


def test_an_unknown_topic_and_a_broker_that_is_not_there_are_one_clear_error_each(
    shop: Workshop, dev_broker: DevBrokerProcess
) -> None:
    file = topology(shop, dev_broker, "no-such-topic", "dead")
    done = shop.forebay("run", file)
    assert done.code in (2, 3)
    assert "no-such-topic" in done.err and "Traceback" not in done.err
    file.write_text(file.read_text().replace(dev_broker.bootstrap, "127.0.0.1:1"))
    done = shop.forebay("run", file)
    assert done.code == 3
    assert "127.0.0.1:1" in done.err and "Traceback" not in done.err


def test_a_mistyped_client_setting_is_told_with_its_line(
    shop: Workshop, dev_broker: DevBrokerProcess
) -> None:
    file = shop.write(
        "t.yaml",
        """
        source:
          type: kafka
          topics: clicks
          config:
            bootstrap.servers: localhost:1
            enable.auto.commit: true
        batch: 4
        """,
    )
    done = shop.forebay("validate", file)
    assert done.code == 2
    assert done.err.startswith(f"{file}:7:5: source.config.enable.auto.commit: KafkaSource")


def test_a_signal_on_an_idle_topic_saves_the_position_and_exits_with_0(
    shop: Workshop, dev_broker: DevBrokerProcess, make_topic: Topics
) -> None:
    topic = make_topic(2)
    producer = Producer({"bootstrap.servers": dev_broker.bootstrap})
    producer.produce(topic, GOOD, partition=1)
    producer.flush(30)
    file = topology(shop, dev_broker, topic, make_topic())
    file.write_text(file.read_text().replace("until: latest", "").replace("batch: 4", "batch: 1"))
    with shop.start("run", file, "--json", "--interval", "0.1") as run:
        assert run.stdout is not None
        next(line for line in run.stdout if json.loads(line).get("rows") == 1)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=20)
    assert run.returncode == 0, err
    state = checkpoint.load(shop.folder / "state.json")
    assert state is not None
    assert {k: p["offset"] for k, p in state["splits"].items()} == {
        f"kafka:{topic}/0": 0,
        f"kafka:{topic}/1": 1,
    }

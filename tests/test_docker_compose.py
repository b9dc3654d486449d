"""docker-compose.yml has the right form, and the Kafka that the integration tests run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from integration.apache_kafka import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
POM = (ROOT / "integration" / "kafka" / "pom.xml").read_text()
KAFKA: dict[str, Any] = COMPOSE["services"]["kafka"]


def listeners(setting: str) -> dict[str, str]:
    """`NAME://host:port` or `NAME:PROTOCOL` pairs by name."""
    pairs = (pair.split(":", 1) for pair in KAFKA["environment"][setting].split(","))
    return dict(pairs)


def test_there_is_kafka_and_an_s3_server() -> None:
    assert set(COMPOSE["services"]) == {"kafka", "s3"}


@pytest.mark.parametrize("name", ["kafka", "s3"])
def test_every_service_names_its_version_and_tells_whether_it_is_well(name: str) -> None:
    service = COMPOSE["services"][name]
    assert re.fullmatch(r"[\w/-]+:\d+(\.\d+)+", service["image"])
    check = service["healthcheck"]
    assert check["test"][0] == "CMD" and len(check["test"]) > 1
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize(("name", "port"), [("kafka", 9092), ("s3", 8333)])
def test_ports_are_open_to_this_machine_alone(name: str, port: int) -> None:
    assert COMPOSE["services"][name]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_kafka_has_the_version_and_the_settings_of_the_integration_tests() -> None:
    version = re.search(r"<kafka.version>(.+)</kafka.version>", POM)
    assert version is not None
    assert KAFKA["image"] == f"apache/kafka:{version[1]}"
    named = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in SETTINGS.items()}
    assert {key: KAFKA["environment"].get(key) for key in named} == named


def test_kafka_tells_each_client_an_address_that_it_can_reach() -> None:
    environment = KAFKA["environment"]
    own, told = listeners("KAFKA_LISTENERS"), listeners("KAFKA_ADVERTISED_LISTENERS")
    protocols = listeners("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP")
    assert set(protocols) == set(own) == {*told, environment["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert told == {"PLAINTEXT_HOST": "//localhost:9092", "PLAINTEXT": "//kafka:19092"}
    assert environment["KAFKA_INTER_BROKER_LISTENER_NAME"] in told
    assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].endswith(own["CONTROLLER"].lstrip("/"))
    assert KAFKA["healthcheck"]["test"][-1] == "localhost:9092"

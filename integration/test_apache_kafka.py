"""The Apache Kafka of the integration tests survives a kill, and is never missing in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from integration.apache_kafka import ApacheKafka, KafkaUnavailable, jars, java
from tests.kafka_client import produce, read_all
from tests.topics import Topics

ROOT = Path(__file__).resolve().parent.parent
A_TEST = "integration/test_broker_fidelity.py::test_a_topic_cannot_be_made_twice[apache]"


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH and the cache: no java, no mvn, no jars."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_a_test(**more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", A_TEST]
    environment = {**os.environ, **more}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.kafka
@pytest.mark.usefixtures("apache_kafka")  # skips, saying why, where Kafka cannot run
def test_records_survive_a_kill_and_a_restart_on_the_same_port() -> None:
    with ApacheKafka() as kafka:
        topic = Topics(kafka.bootstrap)()
        produce(kafka.bootstrap, topic, [b"a", b"b"])
        before = kafka.bootstrap
        kafka.kill()
        kafka.restart()
        assert kafka.bootstrap == before
        assert read_all(kafka.bootstrap, topic).values == [b"a", b"b"]


@pytest.mark.usefixtures("bare_machine")
def test_a_machine_without_java_is_told_what_is_missing() -> None:
    with pytest.raises(KafkaUnavailable, match=r"no `java` found: .* JDK of version 17 or later"):
        java()


def test_a_java_that_is_too_old_is_named(bare_machine: Path) -> None:
    program(bare_machine / "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    with pytest.raises(KafkaUnavailable, match=r"version 17 or later; .*/java: .*11.0.2"):
        java()


@pytest.mark.usefixtures("bare_machine")
def test_a_machine_without_maven_is_told_what_is_missing() -> None:
    with pytest.raises(KafkaUnavailable, match="no `mvn` found"):
        jars()


def test_what_maven_says_when_it_fails_is_passed_on(bare_machine: Path) -> None:
    program(bare_machine / "mvn", "echo '[ERROR] the network is down'; exit 1")
    with pytest.raises(KafkaUnavailable, match="the network is down"):
        jars()


@pytest.mark.usefixtures("bare_machine")
def test_a_missing_kafka_skips_a_test_and_says_why() -> None:
    run = run_a_test()
    assert run.returncode == 0
    assert "1 skipped" in run.stdout
    assert "Apache Kafka is not tested here: no `java` found" in run.stdout


@pytest.mark.usefixtures("bare_machine")
def test_a_missing_kafka_is_an_error_where_it_is_required() -> None:
    run = run_a_test(FOREBAY_REQUIRE_KAFKA="1")
    assert run.returncode != 0
    assert "no `java` found" in run.stdout

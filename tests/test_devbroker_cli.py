"""`forebay dev-broker` in a terminal: what it says, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from forebay_kafka.devbroker.cli import dev_broker

PROGRAM = "from forebay_kafka.devbroker.cli import dev_broker; dev_broker()"


@contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", "-c", PROGRAM, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_what_it_is_and_ends_with_code_0(number: signal.Signals) -> None:
    with running("--port", "0", "--topic", "clicks:4", "--topic", "one") as process:
        said = lines(process, 5)
        bootstrap = said[0].removeprefix("Kafka dev broker on ")
        topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        found = {name: len(topic.partitions) for name, topic in topics.items()}
        process.send_signal(number)
        assert process.wait(20) == 0
    assert "development only" in said[1] and "nothing on disk" in said[1]
    assert said[3:] == ["Topic clicks: 4 partitions", "Topic one: 1 partition"]
    assert found == {"clicks": 4, "one": 1}


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(dev_broker, ["--port", str(port)])
    assert result.exit_code == 1
    assert f"Error: cannot listen on 127.0.0.1:{port}: Address already in use" in result.output
    assert "Traceback" not in result.output


def test_listening_to_strangers_is_warned_of() -> None:
    with running("--host", "0.0.0.0", "--port", "0") as process:
        lines(process, 3)
        process.terminate()
        _, said = process.communicate(timeout=20)
    assert "Warning: 0.0.0.0 is not a loopback address" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--topic", "clicks:many"], "expected name:partitions, as in clicks:4"),
        (["--topic", "no spaces:1"], "'no spaces' is not a legal topic name"),
        (["--topic", "clicks:0"], "0 partitions; 1 to 10000 are possible"),
        (["--topic", "a", "--topic", "a"], "topic 'a' exists already"),
        (["--host", "no-such-host.invalid"], "there is no such host"),
        (["--retention-bytes", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_one_clear_error(options: list[str], words: str) -> None:
    result = CliRunner().invoke(dev_broker, options)
    assert result.exit_code != 0
    assert words in result.output

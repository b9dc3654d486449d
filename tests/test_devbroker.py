"""The dev broker starts, stops, refuses and cleans up after itself."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from tests.kafka_client import produce, read_all
from tests.topics import Topics

from forebay_kafka.devbroker import DevBroker, DevBrokerError, DevBrokerProcess

Either = type[DevBroker] | type[DevBrokerProcess]
either = pytest.mark.parametrize("kind", [DevBroker, DevBrokerProcess])

PARENT = """
import sys, time
from forebay_kafka.devbroker import DevBrokerProcess
broker = DevBrokerProcess().start()
print(broker.pid, flush=True)
time.sleep(60)
"""


def ssl_hello() -> bytes:
    """The first bytes of a client that speaks TLS."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="b")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


@either
def test_records_written_are_read_back(kind: Either) -> None:
    with kind() as broker:
        topic = Topics(broker.bootstrap)()
        produce(broker.bootstrap, topic, [b"a", b"b"])
        assert read_all(broker.bootstrap, topic).values == [b"a", b"b"]


@either
def test_a_port_in_use_is_one_clear_error(kind: Either) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DevBrokerError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            kind(port=port).start()


@either
def test_an_unknown_host_is_one_clear_error(kind: Either) -> None:
    with pytest.raises(DevBrokerError, match="there is no such host"):
        kind("no-such-host.invalid").start()


@either
def test_a_broker_that_is_not_running_says_so(kind: Either) -> None:
    broker = kind()
    for use in (lambda: broker.bootstrap, broker.faults.requests):
        with pytest.raises(DevBrokerError, match="not running"):
            use()


@either
def test_stopping_twice_and_starting_again_work(kind: Either) -> None:
    broker = kind()
    for _ in range(2):
        broker.start()
        assert AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).brokers
        broker.stop()
        broker.stop()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (ssl_hello(), "closing a connection: the client seems to speak TLS, which the dev broker "),
        (b"GET / HTTP/1.1\r\n\r\n", "closing a connection: a request of 1195725856 bytes"),
    ],
    ids=["tls", "http"],
)
def test_a_client_that_speaks_something_else_is_cut_off_and_told_of(
    sent: bytes, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with DevBroker() as broker:
        host, port = broker.bootstrap.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(sent)
            with contextlib.suppress(ConnectionResetError):  # what it had not read yet
                assert client.recv(1) == b""
    assert expected in caplog.text


def test_a_stopped_broker_leaves_no_thread_and_no_socket() -> None:
    files = psutil.Process().num_fds()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with DevBroker() as broker:
            host, port = broker.bootstrap.split(":")
            with socket.create_connection((host, int(port))):
                broker.faults.requests()
    assert "dev-broker" not in {thread.name for thread in threading.enumerate()}
    assert psutil.Process().num_fds() <= files


def test_the_process_ends_when_it_is_stopped() -> None:
    with DevBrokerProcess() as broker:
        pid = broker.pid
    assert not psutil.pid_exists(pid)


def test_a_killed_process_is_a_clear_error_for_the_next_command() -> None:
    broker = DevBrokerProcess().start()
    os.kill(broker.pid, signal.SIGKILL)
    while psutil.Process(broker.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    with pytest.raises(DevBrokerError, match="ended with code -9"):
        broker.faults.requests()
    broker.stop()


def test_the_process_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        broker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    broker.wait(timeout=20)


def test_topics_are_made_on_first_use_where_that_is_switched_on() -> None:
    with DevBroker(auto_create_partitions=3) as broker:
        produce(broker.bootstrap, "fresh", [b"x"])
        found = Topics(broker.bootstrap).admin.list_topics("fresh", timeout=10)
        assert len(found.topics["fresh"].partitions) == 3


def test_memory_is_bounded_by_retention_bytes() -> None:
    with DevBroker(retention_bytes=100_000) as broker:
        topic = Topics(broker.bootstrap)()
        for _ in range(20):
            produce(broker.bootstrap, topic, [os.urandom(10_000)])
        offsets = read_all(broker.bootstrap, topic).offsets
    assert offsets[-1] == 19
    assert 8 <= len(offsets) <= 10


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10" + b"\xff" * 16])
def test_noise_on_a_connection_closes_that_one_only(noise: bytes) -> None:
    with DevBroker() as broker:
        host, port = broker.bootstrap.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as stranger:
            stranger.sendall(noise)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        assert Topics(broker.bootstrap)()


def test_a_broker_on_all_addresses_names_one_that_its_client_can_reach() -> None:
    with DevBroker("0.0.0.0") as broker:
        port = broker.bootstrap.split(":")[1]
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        (found,) = admin.list_topics(timeout=10).brokers.values()
    assert found.host == "127.0.0.1"

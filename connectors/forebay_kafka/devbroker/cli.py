"""`forebay dev-broker`: the broker in a terminal, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal

import click

from forebay_kafka.devbroker.broker import DEFAULT_RETENTION_BYTES, Broker, DevBrokerError
from forebay_kafka.devbroker.codes import Refusal

STRANGERS = (
    "Warning: {host} is not a loopback address, and this broker has no authentication: "
    "whoever reaches it can read, write and delete everything."
)
WELCOME = """\
Kafka dev broker on {bootstrap}
For development only: a single node that keeps its data in memory and nothing on disk.
Stop it with Ctrl-C; its topics and records are gone then."""


NewTopic = tuple[str, int]


def _new_topics(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[NewTopic, ...]:
    return tuple(_new_topic(value) for value in values)


def _new_topic(value: str) -> NewTopic:
    """`name:partitions`, or `name` for one partition."""
    name, colon, count = value.partition(":")
    if colon and not count.isdigit():
        raise click.BadParameter(f"{value!r}: expected name:partitions, as in clicks:4")
    return name, int(count) if colon else 1


@click.command("dev-broker")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME:PARTITIONS",
    multiple=True,
    callback=_new_topics,
    help="Make a topic at the start; may be repeated.",
)
@click.option(
    "--auto-create",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Make topics with N partitions when they are first asked for.  [default: 0, do not]",
)
@click.option(
    "--retention-bytes",
    type=click.IntRange(1),
    default=DEFAULT_RETENTION_BYTES,
    show_default=True,
    help="Bytes that a partition keeps before its oldest records are deleted.",
)
def dev_broker(
    host: str,
    port: int,
    topics: tuple[NewTopic, ...],
    auto_create: int,
    retention_bytes: int,
) -> None:
    """Run a small Kafka broker for development: one node, in memory, without authentication."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    asyncio.run(_run(host, port, topics, auto_create, retention_bytes))


async def _run(
    host: str,
    port: int,
    topics: tuple[NewTopic, ...],
    auto_create: int,
    retention_bytes: int,
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    broker = Broker(auto_create_partitions=auto_create, retention_bytes=retention_bytes)
    try:
        for name, partitions in topics:
            broker.state.topics.create(name, partitions, {})
        bootstrap = broker.listen(host, port)
    except (DevBrokerError, Refusal) as error:
        raise click.ClickException(str(error)) from error
    if not _is_loopback(host):
        click.echo(STRANGERS.format(host=host), err=True)
    click.echo(WELCOME.format(bootstrap=bootstrap))
    for name, partitions in topics:
        click.echo(f"Topic {name}: {partitions} {'partition' if partitions == 1 else 'partitions'}")
    await stopped.wait()
    await broker.stop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

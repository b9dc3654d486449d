"""``forebay dashboard``: the page of running jobs, served from another process than theirs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

import click

from forebay.cli.common import Options, common_options
from forebay.cli.following import followed, from_environment, says_default
from forebay.errors import ConfigError
from forebay.observe.access import parse_listen
from forebay.observe.serving import Server


@click.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--listen",
    metavar="[HOST]:PORT",
    default=":8420",
    show_default=True,
    help="Where the page is served; without a host on 127.0.0.1 only. Port 0: any that is free.",
)
@click.option(
    "--token",
    metavar="'${NAME}'",
    help="What viewers must know, from an environment variable; needed on other addresses.",
)
@common_options
@click.pass_obj
def dashboard(options: Options, targets: Sequence[str], listen: str, token: str | None) -> None:
    """Serve the dashboard of running jobs until Ctrl-C or SIGTERM.

    TARGET is the address of a job that runs with --dashboard (http://HOST:PORT, with
    ?token=${NAME} where it wants one), or a state file; several are several ranks or jobs.
    """
    board = followed(options, targets)
    host, port = parse_listen(listen)
    server = Server(board, host, port, _token(options, token))
    stopped = _stopped()
    with board, server:
        event = {"event": "serving", "url": server.url, "token": token is not None}
        words = "; open it with /?token=… once" if token else ""
        options.emit(event, f"dashboard at {server.url}{words}")
        stopped.wait()


says_default(dashboard)


def _token(options: Options, token: str | None) -> str | None:
    """From the environment only: what stands on a command line, every user of the machine sees."""
    if token is None:
        return None
    value = from_environment(options, token)
    if value == token:
        raise ConfigError(
            "a token must not stand on the command line, where others see it: set NAME in the "
            "environment and write --token '${NAME}'"
        )
    return value


def _stopped() -> threading.Event:
    """Set by the first SIGTERM or Ctrl-C."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped

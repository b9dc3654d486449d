"""``forebay top``: what running jobs do, in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import click
import msgspec
from rich.console import Console
from rich.live import Live

from forebay.cli.common import Options, common_options
from forebay.cli.following import check_reached, followed, says_default
from forebay.errors import ConfigError
from forebay.observe.board import Board
from forebay.observe.picture import Picture, picture
from forebay.observe.top import drawn, no_such_rank


@click.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option("--rank", metavar="JOB/RANK", help="Look at this rank.  [default: the worst off]")
@click.option(
    "--interval",
    type=click.FloatRange(0.2),
    default=1.0,
    show_default=True,
    help="Seconds between two pictures.",
)
@common_options
@click.pass_obj
def top(
    options: Options, targets: Sequence[str], once: bool, rank: str | None, interval: float
) -> None:
    """Show what running jobs do: the dashboard's picture, in this terminal, until Ctrl-C.

    TARGET is the address of a job that runs with --dashboard (http://HOST:PORT, with
    ?token=${NAME} where it wants one), or a state file; several are several ranks or jobs.
    """
    board = followed(options, targets, interval)
    if once:
        board.refresh()
        check_reached(board)
        _check_rank(_now(board), rank)
        _print(options, board, rank)
        return
    with board, suppress(KeyboardInterrupt):
        if options.json or not Console().is_terminal:
            while True:
                time.sleep(interval)
                _print(options, board, rank)
        _live(board, rank, interval)


says_default(top)


def _now(board: Board) -> Picture:
    return picture([h for h in board.histories() if h], time.time(), board.targets())


def _check_rank(shown: Picture, rank: str | None) -> None:
    """Refuse a rank that is not there.

    Raises:
        ConfigError: names those that are.
    """
    if rank is not None and (why := no_such_rank(shown, rank)):
        raise ConfigError(why)


def _print(options: Options, board: Board, rank: str | None) -> None:
    if options.json:
        click.echo(msgspec.json.encode(_now(board)))
    else:
        Console().print(drawn(_now(board), rank))


def _live(board: Board, rank: str | None, interval: float) -> None:
    with Live(drawn(_now(board), rank), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(drawn(_now(board), rank), refresh=True)

"""How a demo is shown: a table that lives, or lines; and a closing count."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeAlias, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from forebay.demo.runs import Scene

Rows: TypeAlias = "Sequence[tuple[str, str] | None]"
"""Lines of a table, words and a figure; None draws a rule."""


class Ending(Protocol):
    """The closing count of a demo: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def exact(self) -> bool:
        """Whether everything was trained exactly once."""


S = TypeVar("S", bound=Scene)
E = TypeVar("E", bound=Ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(Generic[S, E]):
    """How a demo is told."""

    title: str
    head: str
    """Stands above the live table."""
    exact: str
    """The verdict when all went right."""
    moment: Callable[[S], Rows]
    """The scene as a table; ``of_trainer`` gives the lines that all demos share."""
    line: Callable[[S], str]
    """The scene in a few words."""
    closing: Callable[[E], Rows]
    """What was counted."""


def perform(play: Iterator[E | None], scene: S, words: Words[S, E], *, as_json: bool) -> NoReturn:
    """Show a demo to its end and leave: with 0 if it was exact, else 1.

    Args:
        play: gives None at every change worth showing, and the ending at last.
        as_json: the ending goes to standard output as a line of JSON, all else to standard error.
    """
    console = Console(stderr=as_json)
    show = _live if console.is_terminal else _plain
    ending: E | None = None
    with show(console, scene, words) as refresh:
        for told in play:
            ending = told
            refresh()
    assert ending is not None
    verdict = words.exact if ending.exact else "NOT EXACT"
    head = "counted from the trainer's own log of ids"
    console.print(_table(f"{words.title}: {verdict}", head, words.closing(ending)))
    if as_json:
        click.echo(json.dumps(asdict(ending)))
    sys.exit(0 if ending.exact else 1)


def of_trainer(scene: Scene) -> Rows:
    """What the trainer does, in the lines that all demos share."""
    report = scene.report
    return [
        ("trained (by the trainer's log)", f"{scene.trained:,}"),
        ("trainer killed", f"{scene.kills}x"),
        ("step", number(report.get("step"), ",d")),
        ("lag, records", number(report.get("lag"), ",d")),
        ("ready batches", number(report.get("ready_batches"), "d")),
        ("accuracy", number(report.get("accuracy"), ".1%")),
    ]


def number(value: float | None, form: str) -> str:
    """A figure; a dash if it is unknown."""
    return "-" if value is None else format(value, form)


@contextmanager
def folder_of(given: Path | None) -> Iterator[Path]:
    """The folder of the run: the one that was given, or one that is removed afterwards.

    Raises:
        click.UsageError: the one that was given is not empty.
    """
    if given is not None:
        if given.exists() and any(given.iterdir()):
            raise click.UsageError(f"--folder {given} is not empty: the demo starts anew")
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as made:
        yield Path(made)


def _table(title: str, head: str, rows: Rows, caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, min_width=60)
    table.add_column(head)
    table.add_column(justify="right")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    return table


@contextmanager
def _live(console: Console, scene: S, words: Words[S, E]) -> Iterator[Callable[[], None]]:
    def now() -> Table:
        return _table(words.title, words.head, words.moment(scene), scene.act)

    with Live(now(), console=console, refresh_per_second=8) as live:
        yield lambda: live.update(now())


@contextmanager
def _plain(console: Console, scene: S, words: Words[S, E]) -> Iterator[Callable[[], None]]:
    """A line when something new begins, and one every 5 seconds."""
    said_act, said_at = "", 0.0

    def refresh() -> None:
        nonlocal said_act, said_at
        now = time.monotonic()
        if scene.act != said_act or now - said_at >= 5:
            said_act, said_at = scene.act, now
            console.print(f"{scene.act}: {words.line(scene)}", highlight=False, soft_wrap=True)

    yield refresh

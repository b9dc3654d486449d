"""``forebay demo``: the whole promise in one command."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from forebay_kafka.demo.director import Director, Ending, Scene, Script
from forebay_kafka.demo.pictures import SHAPES


@click.command()
@click.option("--images", default=12_000, show_default=True, help="Pictures to produce.")
@click.option("--kills", default=2, show_default=True, help="How often the trainer is killed.")
@click.option("--rate", default=1_500.0, show_default=True, help="Pictures produced per second.")
@click.option("--seed", type=int, help="Makes the random moments repeatable.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep checkpoint and log here.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON, and no more.")
def demo(
    images: int, kills: int, rate: float, seed: int | None, folder: Path | None, as_json: bool
) -> None:
    """Stream pictures into a training loop, kill it, resume it, and count every record.

    Starts a broker of its own, needs nothing else, and takes about a minute on 2 cores. Exits
    with 0 only if every picture was trained exactly once or is a dead letter.
    """
    seed = random.randrange(2**31) if seed is None else seed
    with _folder(folder) as at:
        script = Script(images=images, kills=kills, per_second=rate, seed=seed, folder=at)
        director = Director(script)
        ending = _play(director, Console(stderr=as_json))
    if as_json:
        click.echo(json.dumps(asdict(ending)))
    sys.exit(0 if ending.exact else 1)


def _play(director: Director, console: Console) -> Ending:
    """Play to the end, showing how it goes."""
    show = _live if console.is_terminal else _plain
    with show(console, director.scene) as refresh:
        for ending in director.play():
            refresh()
            if ending is not None:
                break
    assert ending is not None
    console.print(_closing_table(ending))
    return ending


@contextmanager
def _live(console: Console, scene: Scene) -> Iterator[Callable[[], None]]:
    with Live(_scene_table(scene), console=console, refresh_per_second=8) as live:
        yield lambda: live.update(_scene_table(scene))


@contextmanager
def _plain(console: Console, scene: Scene) -> Iterator[Callable[[], None]]:
    """A line when something new begins, and one every 5 seconds."""
    said_act, said_at = "", 0.0

    def refresh() -> None:
        nonlocal said_act, said_at
        now = time.monotonic()
        if scene.act != said_act or now - said_at >= 5:
            said_act, said_at = scene.act, now
            console.print(
                f"{scene.act}: produced {scene.produced:,}, trained {scene.trained:,}, "
                f"killed {scene.kills}x",
                highlight=False,
            )

    yield refresh


def _scene_table(scene: Scene) -> Table:
    table = Table(title="forebay demo", title_justify="left", caption=scene.act, min_width=60)
    table.add_column("live pictures of " + ", ".join(SHAPES))
    table.add_column(justify="right")
    report = scene.report
    table.add_row("produced", f"{scene.produced:,}")
    table.add_row("trained (by the trainer's log)", f"{scene.trained:,}")
    table.add_row("trainer killed", f"{scene.kills}x")
    table.add_row("step", _number(report.get("step"), ",d"))
    table.add_row("lag, records", _number(report.get("lag"), ",d"))
    table.add_row("ready batches", _number(report.get("ready_batches"), "d"))
    table.add_row("dead letters in this run", _number(report.get("dead_letters"), "d"))
    table.add_row("accuracy", _number(report.get("accuracy"), ".1%"))
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _closing_table(e: Ending) -> Table:
    verdict = "every picture was trained exactly once" if e.exact else "NOT EXACT"
    table = Table(title=f"forebay demo: {verdict}", title_justify="left", min_width=60)
    table.add_column("counted from the trainer's own log of ids")
    table.add_column(justify="right")
    table.add_row("produced", f"{e.produced:,}")
    table.add_row("trained", f"{e.trained:,}")
    table.add_row("dead letters (broken pictures)", f"{e.dead_letters:,}")
    table.add_row("lost", f"{e.lost:,}")
    table.add_row("repeated", f"{e.repeated:,}")
    table.add_row("trainer killed (SIGKILL)", f"{e.kills}x")
    table.add_section()
    table.add_row("pictures a second, loop by hand", f"{e.images_per_second_by_hand:,.0f}")
    table.add_row("pictures a second, forebay", _number(e.images_per_second, ",.0f"))
    table.add_row("starvation, loop by hand", f"{e.starvation_by_hand:.0%}")
    table.add_row("starvation, forebay", _number(e.starvation, ".0%"))
    table.add_section()
    table.add_row("accuracy at the end", f"{e.accuracy:.0%}")
    table.add_row("seconds", f"{e.seconds:,.0f}")
    return table


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """The folder of the run: the one that was given, or one that is removed afterwards."""
    if given is not None:
        if given.exists() and any(given.iterdir()):
            raise click.UsageError(f"--folder {given} is not empty: the demo starts anew")
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as made:
        yield Path(made)

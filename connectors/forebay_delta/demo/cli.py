"""``forebay demo delta``: a table that changes while a model trains on it, counted exactly."""

from __future__ import annotations

import random
from pathlib import Path

import click

from forebay.demo.show import Rows, Words, folder_of, number, of_trainer, perform
from forebay_delta.demo.director import DeltaScene, Director, Ending, Script


@click.command()
@click.option("--rows", default=24_000, show_default=True, help="Rows to write.")
@click.option("--kills", default=2, show_default=True, help="How often the trainer is killed.")
@click.option("--rate", default=600.0, show_default=True, help="Rows appended per second.")
@click.option("--seed", type=int, help="Makes the random moments repeatable.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep table and checkpoint here.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON, and no more.")
def demo(
    rows: int, kills: int, rate: float, seed: int | None, folder: Path | None, as_json: bool
) -> None:
    """Train on a Delta table that a writer appends to, updates and compacts meanwhile.

    The trainer reads the first half of the rows as a whole version of the table and then follows
    its change feed; it is killed, resumed, and counted. Needs nothing else, and takes less than a
    minute on 2 cores. Exits with 0 only if every version of every row was trained exactly once.
    """
    seed = random.randrange(2**31) if seed is None else seed
    with folder_of(folder) as at:
        director = Director(Script(rows=rows, kills=kills, per_second=rate, seed=seed, folder=at))
        perform(director.play(), director.scene, WORDS, as_json=as_json)


def _moment(scene: DeltaScene) -> Rows:
    written = [
        ("rows written", "rows"),
        ("rows updated", "updates"),
        ("commits", "commits"),
        ("compactions", "compactions"),
    ]
    return [*((words, f"{scene.written[key]:,}") for words, key in written), *of_trainer(scene)]


def _line(scene: DeltaScene) -> str:
    written = scene.written["rows"] + scene.written["updates"]
    return f"written {written:,}, trained {scene.trained:,}, killed {scene.kills}x"


def _closing(e: Ending) -> Rows:
    return [
        ("rows written", f"{e.rows:,}"),
        ("rows updated (trained again)", f"{e.updates:,}"),
        ("trained", f"{e.trained:,}"),
        ("lost", f"{e.lost:,}"),
        ("repeated", f"{e.repeated:,}"),
        ("trainer killed (SIGKILL)", f"{e.kills}x"),
        None,
        ("commits", f"{e.commits:,}"),
        ("compactions", f"{e.compactions:,}"),
        ("rows a second", number(e.rows_per_second, ",.0f")),
        ("starvation", number(e.starvation, ".0%")),
        None,
        ("accuracy at the end", f"{e.accuracy:.0%}"),
        ("seconds", f"{e.seconds:,.0f}"),
    ]


WORDS = Words(
    title="forebay demo delta",
    head="a Delta table of pictures, live",
    exact="every row and update trained once",
    moment=_moment,
    line=_line,
    closing=_closing,
)

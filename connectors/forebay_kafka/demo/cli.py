"""``forebay demo kafka``: the whole promise in one command."""

from __future__ import annotations

import random
from pathlib import Path

import click

from forebay.demo.show import Rows, Words, folder_of, number, of_trainer, perform
from forebay.demo.task import SHAPES
from forebay_kafka.demo.director import Director, Ending, KafkaScene, Script


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
    with folder_of(folder) as at:
        director = Director(
            Script(images=images, kills=kills, per_second=rate, seed=seed, folder=at)
        )
        perform(director.play(), director.scene, WORDS, as_json=as_json)


def _moment(scene: KafkaScene) -> Rows:
    return [
        ("produced", f"{scene.produced:,}"),
        *of_trainer(scene),
        ("dead letters in this run", number(scene.report.get("dead_letters"), "d")),
    ]


def _line(scene: KafkaScene) -> str:
    return f"produced {scene.produced:,}, trained {scene.trained:,}, killed {scene.kills}x"


def _closing(e: Ending) -> Rows:
    return [
        ("produced", f"{e.produced:,}"),
        ("trained", f"{e.trained:,}"),
        ("dead letters (broken pictures)", f"{e.dead_letters:,}"),
        ("lost", f"{e.lost:,}"),
        ("repeated", f"{e.repeated:,}"),
        ("trainer killed (SIGKILL)", f"{e.kills}x"),
        None,
        # Not the pictures a second: the two did not run side by side, and on a busy machine their
        # rates tell what else ran meanwhile. Each share is one of the loop's own time.
        ("starvation, loop by hand", f"{e.starvation_by_hand:.0%}"),
        ("starvation, forebay", number(e.starvation, ".0%")),
        None,
        ("accuracy at the end", f"{e.accuracy:.0%}"),
        ("seconds", f"{e.seconds:,.0f}"),
    ]


WORDS = Words(
    title="forebay demo",
    head="live pictures of " + ", ".join(SHAPES),
    exact="every picture was trained exactly once",
    moment=_moment,
    line=_line,
    closing=_closing,
)

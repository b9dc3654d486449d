"""``forebay doctor``: why the trainer is as fast as it is, by experiments or from a running job."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from forebay.cli.attached import attached, is_url
from forebay.cli.common import Options, common_options, engine_options, set_up_logging
from forebay.cli.exits import OK
from forebay.errors import ConfigError

FOUND = 8
"""The exit code with --strict where something else than the trainer is the limit."""
_FINE = ("compute", "ended", "draining")
_EXPERIMENTS = "forebay.cli.experiments"
"""Imported where experiments are made: it brings torch, which takes seconds."""


@click.command()
@click.argument("targets", nargs=-1, metavar="TOPOLOGY|URL|FILE...")
@engine_options
@click.option(
    "--loader",
    metavar="MODULE:FACTORY",
    help="Examine the torch DataLoader that this function returns, in place of a topology.",
)
@click.option(
    "--steps", type=click.IntRange(1), help="Of each phase.  [default: those of a second]"
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each experiment is repeated.",
)
@click.option("--out", type=click.Path(), help="Write a report with plots into this folder.")
@click.option("--profile", is_flag=True, help="Record three steps with torch.profiler in the end.")
@click.option(
    "--strict", is_flag=True, help="Exit with 8 if a trainer is not the limit; a drain has none."
)
@common_options
@click.pass_context
def doctor(
    context: click.Context,
    targets: Sequence[str],
    engine: str | None,
    address: str | None,
    loader: str | None,
    steps: int | None,
    rounds: int,
    out: str | None,
    profile: bool,
    strict: bool,
) -> None:
    """Why is my GPU idle? One sentence, with the evidence.

    With a TOPOLOGY its training function is run for some steps, in turns on the whole pipeline and
    on less of it: records from memory, finished slices, one frozen batch. What each part costs
    shows in the differences. Nothing is saved, committed or written, and the position stays.

    With addresses of dashboards (http://HOST:PORT) or state files of a running job, one for each
    rank, the verdict is by what these tell, without experiments.

    With --loader it is about any DataLoader: which of its arguments would make it faster.
    """
    options = context.find_object(Options) or Options()
    set_up_logging(options)
    if not options.debug:  # loaders that start again and again each say where they go on
        logging.getLogger("forebay").setLevel(logging.WARNING)
    if loader is not None:
        if targets or engine or address or profile:
            raise ConfigError("--loader stands alone, or with --steps, --rounds, --out, --strict")
        healthy = _experiments().on_loader(options, loader, steps, rounds, out)
        context.exit(FOUND if strict and not healthy else OK)
    if targets and all(map(_is_job, targets)):
        if engine or address or profile or steps:
            raise ConfigError("--engine, --address, --steps and --profile are for a TOPOLOGY")
        verdicts = attached(options, targets, out)
    elif len(targets) == 1:
        if profile and out is None:
            raise ConfigError("--profile writes a trace: say where with --out FOLDER")
        verdict = _experiments().on_topology(
            options, targets[0], engine, address, rounds=rounds, steps=steps, out=out,
            profile=profile,
        )  # fmt: skip
        verdicts = [verdict]
    else:
        raise ConfigError(
            "give one topology, or addresses and state files of one running job, or --loader"
        )
    if strict and any(v.cause not in _FINE for v in verdicts):
        context.exit(FOUND)


def _experiments() -> Any:
    return import_module(_EXPERIMENTS)


def _is_job(target: str) -> bool:
    """Whether it is a running job's address or state file, not a topology: lines of JSON.

    Raises:
        ConfigError: it is an empty file, which is neither.
    """
    if is_url(target):
        return True
    try:
        with Path(target).open("rb") as f:
            first = f.read(1)
    except OSError:
        return False  # the reader of topologies says what is wrong with it
    if not first:
        raise ConfigError(
            f"{target} is empty: no topology, and no state file that a job wrote anything into yet"
        )
    return first == b"{"

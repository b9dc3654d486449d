"""``forebay validate`` and ``forebay schema``: everything about a topology file but running it."""

from __future__ import annotations

import json

import click

from forebay.cli.common import (
    Options,
    common_options,
    described,
    engine_options,
    in_words,
    read_topology,
)
from forebay.topology import SINKS, SOURCES, json_schema


@click.command()
@click.argument("topology", type=click.Path())
@engine_options
@common_options
@click.pass_obj
def validate(options: Options, topology: str, engine: str | None, address: str | None) -> None:
    """Check the file TOPOLOGY and all it names; open and start nothing.

    Every problem is told with its line. Exit code 0: it can be run; 2: it cannot.
    """
    what = described(read_topology(options, topology, engine, address))
    options.emit({"event": "valid", **what}, f"{topology} is valid: {in_words(what)}")


@click.command()
@common_options
@click.pass_obj
def schema(options: Options) -> None:
    """Print the JSON Schema of topology files, for editors.

    It covers the sources, sinks, recorders and engines that are installed here.
    """
    made = json_schema(SOURCES, SINKS)
    click.echo(json.dumps(made, indent=None if options.json else 2, ensure_ascii=False))

"""What commands share: ``--json`` and ``--debug``, printing, reading topology files."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from forebay import topology
from forebay.topology import EngineChoice, Topology, redacted
from forebay.topology.engines import DEFAULT

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Options:
    """What was asked for on the command line, and what must not be shown."""

    json: bool = False
    debug: bool = False
    secrets: set[str] = field(default_factory=set)

    def emit(self, event: Mapping[str, Any], text: str) -> None:
        """Print an outcome: as a line of JSON, or the text for people."""
        if self.json:
            click.echo(json.dumps(event, ensure_ascii=False, default=str))
        elif text:
            click.echo(redacted(text, self.secrets))


def common_options(command: F) -> F:
    """Give a command ``--json`` and ``--debug``; they are found in the ``Options``."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        setattr(ctx.ensure_object(Options), str(param.name), value)

    for name, text in (
        ("--json", "Print JSON, one object a line."),
        ("--debug", "Show the traceback of an error, and debug messages."),
    ):
        command = click.option(
            name, is_flag=True, expose_value=False, callback=remember, help=text
        )(command)
    return command


def engine_options(command: F) -> F:
    """Give a command ``--engine`` and ``--address``, which win over the topology's engine."""
    for name, value, text in (
        ("--address", "HOST:PORT", "Of the engine's cluster; auto: of the one on this machine."),
        ("--engine", "NAME", "Where the stages run: threads, ray.  [default: as the file says]"),
    ):
        command = click.option(name, metavar=value, help=text)(command)
    return command


def read_topology(
    options: Options, path: str, engine: str | None = None, address: str | None = None
) -> Topology:
    """Read and check a topology; modules beside the file can be imported by it."""
    importable_from(path)
    loaded = topology.load(path, engine=EngineChoice(name=engine, address=address))
    options.secrets |= loaded.secrets
    return loaded


def described(loaded: Topology) -> dict[str, Any]:
    """What the file says, without any value that could be a secret."""
    pipeline = loaded.pipeline
    assert pipeline.batching is not None
    return {
        "topology": loaded.file,
        "name": loaded.name,
        "source": type(pipeline.source).__name__,
        "stages": [s.name for s in pipeline.stages],
        "batch": pipeline.batching.size,
        "engine": loaded.engine,
        "dead_letters": type(pipeline.sink).__name__ if pipeline.sink else None,
        "train": getattr(loaded.train.function, "__name__", None) if loaded.train else None,
        "checkpoint": str(loaded.checkpoint.path) if loaded.checkpoint else None,
    }


def in_words(what: Mapping[str, Any]) -> str:
    """The way of a record, as ``described``; and the engine, where it is not the usual one."""
    way = " -> ".join([what["source"], *what["stages"], f"batches of {what['batch']}"])
    return way if what["engine"] == DEFAULT else f"{way}, on {what['engine']}"


def importable_from(path: str) -> None:
    """Let modules beside the file, and in the working directory, be imported."""
    for folder in (str(Path.cwd()), str(Path(path).absolute().parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def set_up_logging(options: Options) -> None:
    """Log lines on standard error, without secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting(options))
    level = logging.DEBUG if options.debug else logging.INFO
    logging.getLogger("forebay").setLevel(level)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class _Redacting(logging.Formatter):
    def __init__(self, options: Options) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._options = options

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record), self._options.secrets)

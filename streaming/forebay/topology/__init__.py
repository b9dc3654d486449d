"""Topologies: a whole run in one YAML file, checked before anything starts.

topology = load("clicks.yaml")
for batch in topology.loader(): ...
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay.deadletter import Sink
from forebay.errors import ConfigError
from forebay.hybrid import chain
from forebay.letterbox import FolderSink
from forebay.mixing import mix
from forebay.options import ENGINES
from forebay.plugins import Plugins
from forebay.topology.build import RECORDERS, Builder
from forebay.topology.changes import Change, changes_of, with_change
from forebay.topology.engines import EngineChoice, with_engine
from forebay.topology.nodes import Node, parse
from forebay.topology.parameters import parameters
from forebay.topology.problems import Place, Problem, Problems, TopologyError
from forebay.topology.schema import json_schema
from forebay.topology.secret import redacted, refuse_literals, secret_values
from forebay.topology.sections import Checkpointing, Topology, Training

__all__ = [
    "RECORDERS",
    "SINKS",
    "SOURCES",
    "Change",
    "Checkpointing",
    "EngineChoice",
    "Place",
    "Problem",
    "Topology",
    "TopologyError",
    "Training",
    "changes_of",
    "json_schema",
    "load",
    "load_sink",
    "load_target",
    "redacted",
    "sink_named",
]

SOURCES = Plugins("forebay.sources", "source type", {"chain": chain, "mix": mix})
SINKS = Plugins("forebay.sinks", "sink type", {"folder": FolderSink})
_AS_THE_FILE_SAYS = EngineChoice()


def load(
    path: str | os.PathLike[str],
    *,
    sources: Plugins = SOURCES,
    sinks: Plugins = SINKS,
    recorders: Plugins = RECORDERS,
    engines: Plugins = ENGINES,
    env: Mapping[str, str] = os.environ,
    engine: EngineChoice = _AS_THE_FILE_SAYS,
    changes: Sequence[Change] = (),
) -> Topology:
    """Read and check a topology file. Imports what it names; opens and starts nothing.

    Args:
        engine: wins over what the file says.
        changes: other values for some keys of the file; see ``changes_of``.

    Raises:
        TopologyError: something is wrong; tells every problem with its line.
        ConfigError: the file cannot be read, or ``engine`` names none, or a wrong address.
    """
    problems = Problems()
    root = _tree(path, env, problems)
    for change in changes:
        root = with_change(root, change, problems)
    if engine != _AS_THE_FILE_SAYS:
        root = with_engine(root, engine, engines)
    builder = Builder(root, problems, sources, sinks, recorders, engines)
    topology = builder.build(str(path), secret_values(root))
    problems.stop_if_any()
    assert topology is not None
    return topology


def load_sink(
    path: str | os.PathLike[str], *, sinks: Plugins = SINKS, env: Mapping[str, str] = os.environ
) -> Sink | None:
    """The sink of a topology file alone, whatever may be wrong with the rest of it."""
    root = _tree(path, env, Problems())
    problems = Problems()
    sink = Builder(root, problems, SOURCES, sinks).sink()
    problems.stop_if_any()
    return sink


def sink_named(kind: str, address: str, *, sinks: Plugins = SINKS) -> Sink:
    """The sink of a type, at the first thing that the type asks for: a folder, a table.

    Raises:
        ConfigError: there is no such type, or it wants more than an address.
    """
    make = sinks.load(kind)
    first, *others = parameters(make).known.items()
    if wants := [name for name, p in others if p.required]:
        raise ConfigError(
            f"{kind}:{address} does not say all that this type wants ({', '.join(wants)}): give a "
            "topology file with it in the section 'dead_letters'"
        )
    sink: Sink = make(**{first[0]: address})
    return sink


def load_target(
    path: str | os.PathLike[str],
    target: str,
    config: Mapping[str, Any] | None = None,
    *,
    sinks: Plugins = SINKS,
    env: Mapping[str, str] = os.environ,
) -> Sink:
    """A sink to send records to, beside those that a topology file names.

    Args:
        path: the topology file.
        target: ``NAME``, or ``TYPE:NAME``: the first thing that the sink's type asks for, such as
            a topic. Without a type: that of the file's dead letters, or of its source if those
            go to a folder.
        config: the sink's ``config``; None takes that of the file's dead letters or source.

    Raises:
        ConfigError: there is no such type, or it cannot be made so.
    """
    root = _tree(path, env, Problems()).mapping()
    kind, colon, name = target.partition(":")
    sections = [s.mapping() for s in (root.get("dead_letters"), root.get("source")) if s]
    kinds = [str(s["type"].value) for s in sections if "type" in s]
    if not colon:
        name = kind
        kind = next((k for k in kinds if k != "folder"), "folder")
    make = sinks.load(kind)
    known = parameters(make).known
    options: dict[str, Any] = {next(iter(known)): name}
    if "config" in known:
        configs = [s["config"].plain() for s in sections if "config" in s]
        options["config"] = config if config is not None else next(iter(configs), {})
    if "annotate" in known:
        options["annotate"] = False  # the records as they came, not as dead letters
    sink: Sink = make(**options)
    return sink


def _tree(path: str | os.PathLike[str], env: Mapping[str, str], problems: Problems) -> Node:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise ConfigError(f"the topology {path} cannot be read: {why}") from e
    root = parse(text, str(path), env, problems)
    if root is None:
        problems.stop_if_any()
        raise ConfigError(f"the topology {path} is empty")
    refuse_literals(root, problems)
    return root

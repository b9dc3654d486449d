"""From the tree of a topology file to a pipeline, one section after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from forebay.deadletter import ErrorBudget, Sink
from forebay.engine import Engine
from forebay.errors import ConfigError
from forebay.observe.settings import Metrics
from forebay.options import ENGINES, LoaderOptions
from forebay.pipeline import Pipeline
from forebay.plugins import Plugins
from forebay.source import Source
from forebay.topology.engines import as_mapping, engine_name
from forebay.topology.nodes import Node, joined
from forebay.topology.parameters import Parameters, parameters
from forebay.topology.problems import Problems, nearest
from forebay.topology.sections import REQUIRED, SECTIONS, Checkpointing, Topology, Training
from forebay.topology.stages import batch_function, with_stage
from forebay.topology.values import (
    attempt,
    call,
    import_named,
    read,
    read_arguments,
    sources_in,
)

RECORDERS = Plugins("forebay.recorders", "recorder type")


class Builder:
    """Builds the sections of one file; what is wrong goes to ``problems``."""

    def __init__(
        self,
        root: Node,
        problems: Problems,
        sources: Plugins,
        sinks: Plugins,
        recorders: Plugins = RECORDERS,
        engines: Plugins = ENGINES,
    ) -> None:
        self._root, self._problems = root, problems
        self._sources, self._sinks, self._recorders = sources, sinks, recorders
        self._engines = engines

    def build(self, file: str, secrets: frozenset[str]) -> Topology | None:
        """The topology; None, with problems noted, if something is wrong."""
        self._check_names()
        # A stand-in for a source that is wrong lets the other sections be checked, too.
        source: Any = self._source() or _NoSource()
        pipeline = self._record(Pipeline(source))
        pipeline = self._shuffle(self._batch(self._dead_letters(self._stages(pipeline))))
        sections: dict[str, Any] = {
            "name": self._value("name", str),
            "loader_options": self._loader(),
            "engine": engine_name(self._engine_node()),
            "train": self._train(),
            "checkpoint": self._checkpoint(),
            "metrics": self._metrics(),
        }
        if self._problems.found:
            return None
        return Topology(file=file, pipeline=pipeline, secrets=secrets, **sections)

    def sink(self) -> Sink | None:
        """The sink of the section ``dead_letters``, if there is one."""
        node = self._node("dead_letters")
        made = None if node is None else self._plugin(node, "dead_letters", self._sinks)
        if node is not None and made is not None and not isinstance(made, Sink):
            kind = type(made).__name__
            self._problems.add(node.place, "dead_letters", f"{kind} is no sink for dead letters")
            return None
        return made

    def _check_names(self) -> None:
        root = self._root
        if not root.is_mapping:
            self._problems.add(root.place, "", f"a topology is a mapping, not {root.shown()}")
            return
        for key, place in root.key_places.items():
            if key not in SECTIONS:
                self._problems.add(place, key, f"unknown section{_home(key)}")
        for key, what in REQUIRED.items():
            if self._node(key) is None:
                at = root.key_places.get(key, root.place)
                self._problems.add(at, key, f"this section is missing: {what}")

    def _node(self, section: str) -> Node | None:
        node = self._root.mapping().get(section)
        return None if node is None or node.value is None else node

    def _value(self, section: str, hint: Any) -> Any:
        node = self._node(section)
        return None if node is None else read(node, hint, section, self._problems)

    def _source(self) -> Source | None:
        node = self._node("source")
        return None if node is None else self._source_at(node, "source")

    def _source_at(self, node: Node, path: str) -> Source | None:
        """The source of a node, which may be made of other sources."""
        made = self._plugin(node, path, self._sources)
        if made is not None and not isinstance(made, Source):
            kind = type(made).__name__
            self._problems.add(node.place, path, f"{kind} is no source: no splits() and open()")
            return None
        return made

    def _plugin(self, node: Node, path: str, plugins: Plugins, type_path: str = "") -> Any:
        """What the thing named by ``type`` makes of the other entries."""
        kind, type_path = node.mapping().get("type"), type_path or joined(path, "type")
        if kind is None or not isinstance(kind.value, str):
            at = kind.place if kind else node.place
            names = ", ".join(plugins.names())
            self._problems.add(at, type_path, f"must be one of {names}")
            return None
        try:
            target = plugins.load(kind.value)
        except ConfigError as e:
            self._problems.add(kind.place, type_path, str(e))
            return None
        return self._made(target, _without(node, "type"), path)

    def _made(self, target: Callable[..., Any], node: Node, path: str) -> Any:
        """What ``target`` makes of the entries of a node, of which some may be sources again."""
        known = parameters(target)
        nested = {n: p for n, p in known.known.items() if sources_in(p.hint)}
        if not nested:
            return call(target, node, path, self._problems)
        before = len(self._problems.found)
        plain = {n: p for n, p in known.known.items() if n not in nested}
        arguments = read_arguments(
            node, Parameters(plain, known.open), path, self._problems, also=nested
        )
        for name, p in nested.items():
            if (given := node.mapping().get(name)) is not None:
                arguments[name] = self._sources_of(given, joined(path, name), sources_in(p.hint))
            elif p.required:
                what = "a source" if sources_in(p.hint) == "one" else "a mapping of sources"
                self._problems.add(node.place, joined(path, name), f"is missing: {what}")
        if len(self._problems.found) > before:
            return None
        return attempt(lambda: target(**arguments), node, path, self._problems)

    def _sources_of(self, node: Node, path: str, how_many: str) -> Any:
        """One source, or several by name; None, with problems noted, for what is wrong."""
        if how_many == "one":
            return self._source_at(node, path)
        if not node.is_mapping:
            self._problems.add(
                node.place, path, f"must be a mapping of names to sources, not {node.shown()}"
            )
        return {k: self._source_at(v, joined(path, k)) for k, v in node.mapping().items()}

    def _record(self, pipeline: Pipeline) -> Pipeline:
        node = self._node("record")
        made = None if node is None else self._plugin(node, "record", self._recorders)
        if node is None or made is None:
            return pipeline
        recorded = attempt(lambda: pipeline.record(made), node, "record", self._problems)
        return pipeline if recorded is None else recorded

    def _stages(self, pipeline: Pipeline) -> Pipeline:
        node = self._node("stages")
        if node is not None and not node.is_list:
            self._problems.add(node.place, "stages", f"must be a list, not {node.shown()}")
        for i, item in enumerate(node.items() if node else ()):
            pipeline = with_stage(pipeline, item, f"stages[{i}]", self._problems)
        return pipeline

    def _dead_letters(self, pipeline: Pipeline) -> Pipeline:
        node = self._node("error_budget")
        budget = None if node is None else call(ErrorBudget, node, "error_budget", self._problems)
        return pipeline.dead_letters(self.sink(), budget)

    def _batch(self, pipeline: Pipeline) -> Pipeline:
        node = self._node("batch")
        if node is None:
            return pipeline
        pipeline = self._applied(pipeline, Pipeline.batch, node, "batch", "size", also=("map",))
        functions = node.mapping().get("map")
        listed = [] if functions is None else functions.items() or [functions]
        for function in listed:
            made = batch_function(function, "batch.map", self._problems)
            pipeline = pipeline if made is None else pipeline.map_batch(made)
        return pipeline

    def _shuffle(self, pipeline: Pipeline) -> Pipeline:
        node = self._node("shuffle")
        if node is None:
            return pipeline
        return self._applied(pipeline, Pipeline.shuffle, node, "shuffle", "rows")

    def _applied(
        self,
        pipeline: Pipeline,
        method: Callable[..., Pipeline],
        node: Node,
        path: str,
        short: str,
        also: tuple[str, ...] = (),
    ) -> Pipeline:
        """The pipeline after a method of it was called with the options of a section."""
        options = self._options(node, short, parameters(method, skip=1), path, also)
        if options is None:
            return pipeline
        made = attempt(lambda: method(pipeline, **options), node, path, self._problems)
        return pipeline if made is None else made

    def _options(
        self, node: Node, short: str, known: Parameters, path: str, also: tuple[str, ...] = ()
    ) -> dict[str, Any] | None:
        """The options of a section, or its one value, which then is the option ``short``."""
        before = len(self._problems.found)
        if node.is_mapping:
            options = read_arguments(node, known, path, self._problems, also=also)
        else:
            options = {short: read(node, known.known[short].hint, path, self._problems)}
        return None if len(self._problems.found) > before else options

    def _loader(self) -> dict[str, Any]:
        node = self._node("loader")
        if node is None:
            return {}
        before = len(self._problems.found)
        known = parameters(LoaderOptions)
        options = read_arguments(node, known, "loader", self._problems, also=("engine",))
        if (engine := self._engine()) is not None:
            options["engine"] = engine
        if len(self._problems.found) == before:
            attempt(lambda: LoaderOptions(**options), node, "loader", self._problems)
        return options

    def _engine_node(self) -> Node | None:
        """The engine, a name or a mapping with its settings."""
        loader = self._node("loader")
        return None if loader is None else loader.mapping().get("engine")

    def _engine(self) -> Engine | None:
        given, path = self._engine_node(), "loader.engine"
        if given is None:
            return None
        type_path = joined(path, "type") if given.is_mapping else path
        made = self._plugin(as_mapping(given), path, self._engines, type_path)
        if made is not None and not callable(getattr(made, "start", None)):
            kind = type(made).__name__
            self._problems.add(given.place, path, f"{kind} is no engine: no start()")
            return None
        engine: Engine | None = made
        return engine

    def _checkpoint(self) -> Checkpointing | None:
        made: Checkpointing | None = self._settings("checkpoint", "path", Checkpointing)
        return made

    def _metrics(self) -> Metrics:
        return self._settings("metrics", "listen", Metrics) or Metrics()

    def _settings(self, section: str, short: str, make: Callable[..., Any]) -> Any:
        """What a section describes; None, with problems noted or without the section, if none."""
        node = self._node(section)
        options = None if node is None else self._options(node, short, parameters(make), section)
        if node is None or options is None:
            return None
        return attempt(lambda: make(**options), node, section, self._problems)

    def _train(self) -> Training | None:
        node = self._node("train")
        if node is None:
            return None
        named = node.mapping().get("function") if node.is_mapping else node
        path = "train.function" if node.is_mapping else "train"
        if named is None:
            self._problems.add(node.place, path, "is missing: module:function")
            return None
        function = import_named(named, path, self._problems)
        if not callable(function):
            return None
        known = parameters(function, skip=1)
        given = {n: p for n, p in known.known.items() if n != "checkpoint"}
        options = read_arguments(
            _without(node, "function"), Parameters(given, known.open), "train", self._problems
        )
        wants = "checkpoint" in known.known
        return Training(function=function, options=options, wants_checkpoint=wants)


def _home(key: str) -> str:
    """A hint for a key at the top of the file that has no place there."""
    if key in parameters(LoaderOptions).known:
        return f"; {key!r} belongs under 'loader'"
    return nearest(key, SECTIONS)


class _NoSource:
    """Stands where the source of the file is wrong; never opened."""


def _without(node: Node, key: str) -> Node:
    """The node less one of its keys."""
    return replace(node, value={k: v for k, v in node.mapping().items() if k != key})

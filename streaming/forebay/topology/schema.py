"""A JSON Schema of topology files, for editors, from the signatures that ``load`` checks by."""

from __future__ import annotations

import collections.abc as abc
import logging
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.deadletter import ErrorBudget
from forebay.errors import ConfigError
from forebay.observe.settings import Metrics
from forebay.options import ENGINES, LoaderOptions
from forebay.pipeline import Pipeline
from forebay.plugins import Plugins
from forebay.source import Source
from forebay.topology.build import RECORDERS
from forebay.topology.parameters import Parameter, Parameters, parameters
from forebay.topology.sections import REQUIRED, SECTIONS, Checkpointing
from forebay.topology.stages import MADE_BY, VERBS, method_of, public_names
from forebay.topology.values import (
    alternatives,
    bare,
    can_be_given,
    is_size,
    is_union,
    sources_in,
)

_log = logging.getLogger(__name__)

Json: typing.TypeAlias = dict[str, Any]

_ENV: Json = {"type": "string", "pattern": r"\$\{"}
_FUNCTION: Json = {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}
_SIZE: Json = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(B|[kKMGT]i?B)$"}


def json_schema(
    sources: Plugins,
    sinks: Plugins,
    recorders: Plugins = RECORDERS,
    engines: Plugins = ENGINES,
) -> Json:
    """The schema, with the options of every source, sink, recorder and engine installed."""
    sections: dict[str, Json] = {
        "name": {"type": "string"},
        "source": _plugins(sources),
        "record": _plugins(recorders),
        "stages": {"type": "array", "items": {"oneOf": [_stage(verb) for verb in VERBS]}},
        "dead_letters": _plugins(sinks),
        "error_budget": _object(parameters(ErrorBudget)),
        "shuffle": _short("rows", parameters(Pipeline.shuffle, skip=1)),
        "batch": _short("size", parameters(Pipeline.batch, skip=1), {"map": _batch_map()}),
        "loader": _loader(engines),
        "train": {"anyOf": [_FUNCTION, {"type": "object", "required": ["function"]}]},
        "checkpoint": _short("path", parameters(Checkpointing)),
        "metrics": _short("listen", parameters(Metrics)),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Forebay topology",
        "type": "object",
        "properties": {k: {"description": SECTIONS[k], **v} for k, v in sections.items()},
        "required": list(REQUIRED),
        "additionalProperties": False,
    }


def of_type(hint: Any, name: str = "") -> Json:
    """The schema of a value of this type, given to the parameter ``name``."""
    hint = bare(hint)
    if is_union(hint):
        listed = [of_type(a, name) for a in alternatives(hint)]
        return listed[0] if len(listed) == 1 else {"anyOf": listed}
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin is tuple and args and args[-1] is not ...:
        items = [of_type(a) for a in args]
        return {"type": "array", "prefixItems": items, "minItems": len(args), "maxItems": len(args)}
    if origin in (list, tuple, abc.Sequence, abc.Collection, abc.Iterable, set, frozenset):
        return {"type": "array", **({"items": of_type(args[0])} if args else {})}
    if origin in (dict, abc.Mapping, abc.MutableMapping):
        return {"type": "object", **({"additionalProperties": of_type(args[1])} if args else {})}
    if isinstance(origin, type) and is_dataclass(origin):
        return _object(parameters(origin))
    return _scalar(origin, name)


def _scalar(hint: Any, name: str) -> Json:
    if hint in (bool, int, float):
        kind = {bool: "boolean", int: "integer", float: "number"}[hint]
        sizes = [_SIZE] if hint is int and is_size(name) else []
        return {"anyOf": [{"type": kind}, *sizes, _ENV]}
    if hint is abc.Callable:
        return _FUNCTION
    known: dict[Any, Json] = {
        type(None): {"type": "null"},
        str: {"type": "string"},
        Path: {"type": "string"},
        datetime: {"type": "string", "format": "date-time"},
        pa.Schema: {"type": "object"},
        Source: {"$ref": "#/properties/source"},
    }
    return known.get(hint, {})


def _object(known: Parameters, more: Mapping[str, Json] | None = None) -> Json:
    """An object whose entries are arguments by name; ``more`` are entries beside them."""
    given = {n: p for n, p in known.known.items() if can_be_given(p.hint) or sources_in(p.hint)}
    return {
        "type": "object",
        "properties": {**(more or {}), **{n: _entry(p) for n, p in given.items()}},
        "required": [*(more or {}), *(n for n, p in given.items() if p.required)],
        "additionalProperties": known.open,
    }


def _entry(p: Parameter) -> Json:
    entry = of_type(p.hint, p.name)
    if p.doc:
        entry = {"description": p.doc, **entry}
    if isinstance(p.default, (bool, int, float, str)):
        entry = {**entry, "default": p.default}
    return entry


def _short(short: str, known: Parameters, more: Mapping[str, Json] | None = None) -> Json:
    """The options of a section, or the one value that stands for the option ``short``."""
    whole = _object(known)
    whole["properties"].update(more or {})
    return {"anyOf": [of_type(known.known[short].hint, short), whole]}


def _loader(engines: Plugins) -> Json:
    """The loader's options; its engine is a name, or a type with settings."""
    known = parameters(LoaderOptions)
    whole = _object(known)
    named = {"enum": list(engines.names())}
    engine = {"anyOf": [named, _plugins(engines)]}
    whole["properties"]["engine"] = {"description": known.known["engine"].doc, **engine}
    return whole


def _plugins(plugins: Plugins) -> Json:
    """One of the installed types with its options; a broken package is left out, with a word."""
    shapes = []
    for name in plugins.names():
        target = _loaded(plugins, name)
        if target is not None:
            shapes.append(_object(parameters(target), {"type": {"const": name}}))
    return {"type": "object", "oneOf": shapes or [False]}


def _loaded(plugins: Plugins, name: str) -> Callable[..., Any] | None:
    try:
        loaded: Callable[..., Any] = plugins.load(name)
    except ConfigError as e:
        _log.warning("left out of the schema: %s", e)
        return None
    return loaded


def _stage(verb: str) -> Json:
    return _object(parameters(method_of(verb), skip=2), {verb: _work(verb)})


def _work(verb: str) -> Json:
    if verb not in MADE_BY:
        return _FUNCTION
    made = {name: _object(parameters(f)) for name, f in _factories(MADE_BY[verb])}
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": made,
        "patternProperties": {":": {"type": ["object", "null"]}},
        "additionalProperties": False,
    }


def _factories(module_name: str) -> Sequence[tuple[str, Callable[..., Any]]]:
    """The public factories of a module, less those whose libraries are not installed."""
    try:
        module = import_module(module_name)
    except ConfigError as e:
        _log.warning("left out of the schema: %s", e)
        return []
    found = []
    for name in public_names(module):
        factory = _factory(module, name)
        if factory is not None:
            found.append((name, factory))
    return found


def _factory(module: Any, name: str) -> Callable[..., Any] | None:
    try:
        factory: Callable[..., Any] = getattr(module, name)
    except ConfigError as e:
        _log.warning("left out of the schema: %s", e)
        return None
    return factory


def _batch_map() -> Json:
    one = {"anyOf": [_FUNCTION, _work("augment")]}
    return {"anyOf": [one, {"type": "array", "items": one}]}

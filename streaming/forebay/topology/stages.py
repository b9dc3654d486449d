"""The stages of a topology file, each put onto the pipeline by the method of its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from forebay.pipeline import Pipeline
from forebay.topology.nodes import Node, joined
from forebay.topology.parameters import parameters
from forebay.topology.problems import Problems, nearest
from forebay.topology.values import attempt, call, import_named, read_arguments

VERBS = ("decode", "map", "filter", "expand", "augment")
# The modules whose public names stand for themselves in a file.
MADE_BY = {"decode": "forebay.decode", "augment": "forebay.augment"}


def method_of(verb: str) -> Callable[..., Pipeline]:
    """The method of ``Pipeline`` that adds such a stage."""
    method: Callable[..., Pipeline] = getattr(Pipeline, "map" if verb == "augment" else verb)
    return method


def with_stage(pipeline: Pipeline, item: Node, path: str, problems: Problems) -> Pipeline:
    """The pipeline with the stage that ``item`` describes, or unchanged, with problems noted."""
    verbs = [v for v in VERBS if v in item.mapping()]
    if len(verbs) != 1:
        near = "" if verbs else nearest(next(iter(item.mapping()), ""), VERBS)
        text = f"a stage is exactly one of {', '.join(VERBS)}{near if 'mean' in near else ''}"
        problems.add(item.place, path, text)
        return pipeline
    verb, before = verbs[0], len(problems.found)
    known = parameters(method_of(verb), skip=2)
    options = read_arguments(item, known, path, problems, also=(verb,))
    work = stage_work(verb, item.mapping()[verb], joined(path, verb), problems)
    if len(problems.found) > before:
        return pipeline
    made = attempt(lambda: method_of(verb)(pipeline, work, **options), item, path, problems)
    return pipeline if made is None else made


def stage_work(verb: str, node: Node, path: str, problems: Problems) -> Any:
    """The decoder, augment or function of a stage: a name, or a name with options."""
    if verb in MADE_BY:
        return _made(verb, node, path, problems)
    return import_named(node, path, problems)


def batch_function(node: Node, path: str, problems: Problems) -> Any:
    """A function on whole batches: ``module:function``, or an augment with options."""
    return stage_work("augment" if node.is_mapping else "map", node, path, problems)


def public_names(module: ModuleType) -> Sequence[str]:
    """The factories of a module that a file may name: those with named options only."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    own = {n: f for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__}
    return [n for n, f in own.items() if not n.startswith("_") and _has_named_options(f)]


def _has_named_options(f: Any) -> bool:
    if not inspect.isfunction(f) and not (isinstance(f, type) and is_dataclass(f)):
        return False
    kinds = {p.kind for p in inspect.signature(f).parameters.values()}
    return inspect.Parameter.VAR_POSITIONAL not in kinds


def _made(verb: str, node: Node, path: str, problems: Problems) -> Any:
    """``{jpeg: {column: value}}``: what the factory of that name makes of the options."""
    module = attempt(lambda: import_module(MADE_BY[verb]), node, path, problems)
    if module is None:
        return None
    if len(node.mapping()) != 1:
        names = public_names(module)
        example = f"{{{names[0]}: {{…}}}}"
        text = f"must be one name with its options, {example}; known are {', '.join(names)}"
        problems.add(node.place, path, text)
        return None
    ((name, options),) = node.mapping().items()
    here = joined(path, name)
    factory = _factory(module, name, node, here, problems)
    return None if factory is None else call(factory, options, here, problems)


def _factory(module: ModuleType, name: str, node: Node, path: str, problems: Problems) -> Any:
    at = node.key_places[name]
    if ":" in name:
        return import_named(Node(name, at, text=name), path, problems)
    names = public_names(module)
    if name not in names:
        problems.add(at, path, f"{module.__name__} has no such thing{nearest(name, names)}")
        return None
    return attempt(lambda: getattr(module, name), node, path, problems)

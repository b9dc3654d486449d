"""Values of a topology file, read as the type that a parameter says it wants.

The types of signatures decide: numbers, text, booleans, lists, tuples, mappings, literals,
dataclasses (a mapping of their fields), unions, and by agreement
* ``pyarrow.Schema``: a mapping of column names to types (``{id: int64, tags: [string]}``),
* a callable: ``module:function``,
* ``datetime``: ISO 8601 with its offset from UTC (``2026-11-30T08:00:00Z``),
* an integer whose name has ``bytes`` in it, or is ``memory``: also ``256MiB``.
"""

from __future__ import annotations

import collections.abc as abc
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.decode.schemas import arrow_schema
from forebay.errors import ConfigError
from forebay.source import Source
from forebay.topology.nodes import Node, aware_time, joined, resolve
from forebay.topology.parameters import Parameters, parameters
from forebay.topology.problems import Problems, nearest

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[kKMGT]i?B)")
_UNITS = {"B": 1} | {
    prefix + unit: base**power
    for power, prefixes in enumerate(("kK", "M", "G", "T"), 1)
    for prefix in prefixes
    for unit, base in (("B", 1000), ("iB", 1024))
}
_LISTS = (list, tuple, abc.Sequence, abc.Collection, abc.Iterable, set, frozenset)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_SCALARS = (bool, int, float, str, type(None), Path, datetime)


def read(node: Node, hint: Any, path: str, problems: Problems) -> Any:
    """The value as ``hint`` wants it; None, with problems noted, if it does not fit."""
    hint = bare(hint)
    if node.broken:
        return None
    if hint is Any or hint is object:
        return node.plain()
    if is_union(hint):
        return _read_union(node, hint, path, problems)
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return _read_literal(node, args, path, problems)
    if origin in _LISTS:
        return _read_list(node, hint, path, problems)
    if origin in _MAPPINGS:
        return _read_mapping(node, hint, path, problems)
    if origin is pa.Schema:
        return _read_schema(node, path, problems)
    if origin is abc.Callable:
        return import_named(node, path, problems)
    if isinstance(origin, type) and is_dataclass(origin):
        return _read_object(node, origin, path, problems)
    return _read_scalar(node, origin, path, problems)


def read_arguments(
    node: Node, known: Parameters, path: str, problems: Problems, *, also: abc.Container[str] = ()
) -> dict[str, Any]:
    """The entries of a mapping as arguments by name; unknown and missing ones are problems.

    Keys in ``also`` are left to the caller.
    """
    if not node.is_mapping and node.value is not None:
        problems.add(node.place, path, f"must be a mapping of options, not {node.shown()}")
        return {}
    arguments: dict[str, Any] = {}
    for key, value in node.mapping().items():
        here = joined(path, key)
        parameter = known.known.get(key)
        if key in also:
            continue
        if parameter is not None and can_be_given(parameter.hint):
            arguments[key] = read(value, parameter.hint, here, problems)
        elif not known.open:
            problems.add(node.key_places[key], here, f"unknown key{_home(key, known)}")
        else:
            arguments[key] = value.plain()
    for name, parameter in known.known.items():
        if parameter.required and name not in node.mapping():
            problems.add(node.place, joined(path, name), f"is missing: {wanted(parameter.hint)}")
    return arguments


def _home(key: str, known: Parameters) -> str:
    """A hint for an unknown key."""
    if "." in key and "config" in known.known:
        return f"; {key!r} belongs under 'config'"
    return nearest(key, [n for n, p in known.known.items() if can_be_given(p.hint)])


def call(target: Callable[..., Any], node: Node, path: str, problems: Problems) -> Any:
    """What ``target`` makes of the entries of a mapping; None, with problems, if it cannot."""
    before = len(problems.found)
    arguments = read_arguments(node, parameters(target), path, problems)
    if len(problems.found) > before:
        return None
    return attempt(lambda: target(**arguments), node, path, problems)


def attempt(make: Callable[[], Any], node: Node, path: str, problems: Problems) -> Any:
    """What ``make`` returns; a ``ConfigError`` becomes a problem at the key that it names."""
    try:
        return make()
    except ConfigError as e:
        at, key = _blamed(node, path, str(e))
        problems.add(at, key, str(e))
    except (TypeError, ValueError) as e:
        problems.add(node.place, path, f"{type(e).__name__}: {e}")
    return None


def import_named(node: Node, path: str, problems: Problems) -> Any:
    """What ``module:name`` stands for; None, with a problem noted, if there is no such thing."""
    text = node.value
    if not isinstance(text, str) or not re.fullmatch(r"[\w.]+:[\w.]+", text):
        problems.add(node.place, path, f"must be module:function, not {node.shown()}")
        return None
    module_name, name = text.split(":")
    try:
        found: Any = import_module(module_name)
    except Exception as e:  # the module is the user's, it can raise anything
        problems.add(
            node.place, path, f"module {module_name!r} cannot be imported: {type(e).__name__}: {e}"
        )
        return None
    for part in name.split("."):
        if not hasattr(found, part):
            near = nearest(part, [n for n in vars(found) if not n.startswith("_")])
            problems.add(node.place, path, f"module {module_name!r} has no {name!r}{near}")
            return None
        found = getattr(found, part)
    if not callable(found):
        problems.add(node.place, path, f"{text} is no function but {type(found).__name__}")
    return found


def bare(hint: Any) -> Any:
    """The hint without ``Annotated`` and ``NewType`` around it."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def is_union(hint: Any) -> bool:
    """Whether the hint is ``A | B``, in either spelling."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def alternatives(hint: Any) -> list[Any]:
    """The types that the hint lets in and a file can give."""
    hint = bare(hint)
    if is_union(hint):
        return [a for arg in typing.get_args(hint) for a in alternatives(arg)]
    return [hint] if can_be_given(hint) else []


def can_be_given(hint: Any) -> bool:
    """Whether a file can give a value of this type at all."""
    hint = bare(hint)
    if is_union(hint):
        return any(can_be_given(a) for a in typing.get_args(hint) if a is not type(None))
    origin = typing.get_origin(hint) or hint
    known = (Any, object, typing.Literal, pa.Schema, abc.Callable, *_SCALARS, *_LISTS, *_MAPPINGS)
    return origin in known or (isinstance(origin, type) and is_dataclass(origin))


def sources_in(hint: Any) -> typing.Literal["", "one", "named"]:
    """Whether a parameter takes a source, or sources by name: they have a ``type`` of their own."""
    hint = bare(hint)
    if hint is Source:
        return "one"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    return "named" if origin in _MAPPINGS and bare(args[1]) is Source else ""


def wanted(hint: Any) -> str:
    """The type in words: "a whole number", "text or a list of text"."""
    hint = bare(hint)
    if is_union(hint):
        # In words int is part of float, and nothing (null) goes without saying.
        words = [wanted(a) for a in alternatives(hint) if a is not type(None)]
        return " or ".join(dict.fromkeys(words))
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin is tuple and args and args[-1] is not ...:
        return f"a list of {len(args)}: {', '.join(map(wanted, args))}"
    if origin in _LISTS:
        return f"a list of {wanted(args[0])}" if args else "a list"
    if origin in _MAPPINGS or (isinstance(origin, type) and is_dataclass(origin)):
        return "a mapping"
    return _WORDS.get(origin, getattr(origin, "__name__", str(origin)))


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "nothing",
    Path: "a path",
    datetime: "a time (2026-11-30T08:00:00Z)",
    pa.Schema: "a mapping of column names to types",
    abc.Callable: "module:function",
}


def is_size(name: str) -> bool:
    """Whether an integer of this name is a number of bytes; ``memory`` is Ray's own name."""
    return "bytes" in name or name == "memory"


def size_in_bytes(text: str) -> int | None:
    """``256MiB`` as bytes; None if it is no size."""
    m = _SIZE.fullmatch(text.strip())
    return int(float(m[1]) * _UNITS[m[2]]) if m else None


def _read_union(node: Node, hint: Any, path: str, problems: Problems) -> Any:
    near_misses: list[Problems] = []
    for alternative in sorted(alternatives(hint), key=_looseness):
        tried = Problems()
        value = read(node, alternative, path, tried)
        if not tried.found:
            return value
        if _same_kind(node, alternative):
            near_misses.append(tried)
    if len(near_misses) == 1:
        problems.found += near_misses[0].found
    else:
        _add_mismatch(node, hint, path, problems)
    return None


def _looseness(hint: Any) -> int:
    """Text last among scalars: a time must not pass as text where both are wanted."""
    return 1 if bare(hint) is str else 2 if bare(hint) in (Any, object) else 0


def _same_kind(node: Node, hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    if node.is_list:
        return origin in _LISTS
    if node.is_mapping:
        return origin not in (*_LISTS, *_SCALARS, typing.Literal, abc.Callable)
    return origin in (abc.Callable, typing.Literal)


def _read_literal(node: Node, choices: tuple[Any, ...], path: str, problems: Problems) -> Any:
    for choice in choices:
        if node.value == choice and type(node.value) is type(choice):
            return choice
    words = [c for c in choices if isinstance(c, str)]
    listed = ", ".join(map(repr, choices))
    near = nearest(str(node.value), words) if isinstance(node.value, str) else ""
    hint = near if "did you mean" in near else ""
    problems.add(node.place, path, f"must be one of {listed}, not {node.shown()}{hint}")
    return None


def _read_list(node: Node, hint: Any, path: str, problems: Problems) -> Any:
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if not node.is_list:
        return _add_mismatch(node, hint, path, problems)
    items = node.items()
    kinds = [args[0] if args else Any] * len(items)
    if origin is tuple and args and args[-1] is not ...:
        if len(items) != len(args):
            return _add_mismatch(node, hint, path, problems, f"a list of {len(items)}")
        kinds = list(args)
    values = [
        read(item, kind, f"{path}[{i}]", problems)
        for i, (item, kind) in enumerate(zip(items, kinds, strict=True))
    ]
    return tuple(values) if origin is tuple else values


def _read_mapping(node: Node, hint: Any, path: str, problems: Problems) -> Any:
    if not node.is_mapping:
        return _add_mismatch(node, hint, path, problems)
    args = typing.get_args(hint)
    kind = args[1] if args else Any
    number_keys = bool(args) and bare(args[0]) is int
    values: dict[Any, Any] = {}
    for key, item in node.mapping().items():
        if number_keys and not key.isdigit():
            problems.add(node.key_places[key], joined(path, key), "the key must be a whole number")
            continue
        values[int(key) if number_keys else key] = read(item, kind, joined(path, key), problems)
    return values


def _read_schema(node: Node, path: str, problems: Problems) -> Any:
    if not node.is_mapping:
        return _add_mismatch(node, pa.Schema, path, problems)
    return attempt(lambda: arrow_schema(node.plain(), path), node, path, problems)


def _read_object(node: Node, cls: type, path: str, problems: Problems) -> Any:
    if not node.is_mapping:
        return _add_mismatch(node, cls, path, problems)
    return call(cls, node, path, problems)


def _read_scalar(node: Node, hint: Any, path: str, problems: Problems) -> Any:
    value = node.value
    if node.from_env and hint in (bool, int, float):
        value = resolve(str(value))
    if hint is type(None) and value is None:
        return None
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is int and is_size(path.rpartition(".")[2]):
        size = size_in_bytes(value) if isinstance(value, str) else None
        if size is not None:
            return size
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, str):
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is datetime and isinstance(value, str) and (time := aware_time(value)) is not None:
        return time
    return _add_mismatch(node, hint, path, problems)


def _add_mismatch(
    node: Node, hint: Any, path: str, problems: Problems, shown: str | None = None
) -> None:
    text = f"must be {wanted(hint)}, not {shown or node.shown()}"
    problems.add(node.place, path, text + _way_out(node, hint, path))


def _way_out(node: Node, hint: Any, path: str) -> str:
    kinds = {bare(a) for a in alternatives(hint)}
    value = node.value
    if isinstance(value, str):
        if bool in kinds and value.lower() in ("yes", "on", "y", "true", "no", "off", "n", "false"):
            word = "true" if value.lower() in ("yes", "on", "y", "true") else "false"
            return f": write {word}, without quotes"
        if kinds & {int, float} and re.fullmatch(r"[-+]?\d+(\.\d+)?", value):
            return ": remove the quotes" if node.quoted else ""
        if int in kinds and is_size(path.rpartition(".")[2]):
            return ": a number of bytes, or one with a unit such as 256MiB"
    elif str in kinds and isinstance(value, (bool, int, float)):
        return f': put it in quotes: "{node.text}"' if not node.from_env else ""
    elif value is None:
        return ": give a value, or remove the line"
    return ""


def _blamed(node: Node, path: str, message: str) -> tuple[Any, str]:
    """The place and path of the deepest key that a message names; of several, the first named."""
    named = sorted(_named(node, path, message, 0), key=lambda found: found[:2])
    return named[0][2:] if named else (node.place, path)


def _named(node: Node, path: str, message: str, depth: int) -> Iterator[tuple[int, int, Any, str]]:
    """All keys that a message names: less their depth, where in the message, place, path."""
    for key, value in node.mapping().items():
        here = joined(path, key)
        if (at := _mention(message, key)) is not None:
            yield -depth, at, node.key_places[key], here
        if value.is_mapping:
            yield from _named(value, here, message, depth + 1)


def _mention(message: str, key: str) -> int | None:
    """Where a message names this key: in quotes, or as a word that is no common one."""
    found = re.search(rf"['\"]{re.escape(key)}['\"]", message)
    if found is None and len(key) > 2:
        found = re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.]*\w)", message)
    return None if found is None else found.start()

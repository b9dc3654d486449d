"""YAML as a tree whose every value knows its line, with ``${NAME}`` replaced.

YAML 1.2 rules decide what a plain word is: only ``true`` and ``false`` are booleans (``yes``,
``no``, ``on`` and ``off`` are text), ``010`` and ``10:30`` are text. Duplicate keys are a problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import yaml

from forebay.topology.problems import Place, Problems

Scalar: TypeAlias = "str | int | float | bool | None"

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_ODD_FLOATS = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_ENV = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}|\$\{")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
_MOST_NODES = 100_000  # aliases of aliases can grow without bound


@dataclass(slots=True)
class Node:
    """A value of the file."""

    value: Scalar | list[Node] | dict[str, Node]
    place: Place
    text: str = ""
    """What the file says, for a scalar; with ``${NAME}`` not replaced."""
    quoted: bool = False
    from_env: bool = False
    broken: bool = False
    """It has no value, and a problem says why."""
    key_places: dict[str, Place] = field(default_factory=dict)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def mapping(self) -> dict[str, Node]:
        """The entries; empty if it is none."""
        return self.value if isinstance(self.value, dict) else {}

    def items(self) -> list[Node]:
        """The items; empty if it is no list."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without places: dicts, lists and scalars.

        Unquoted times with an offset (``2026-11-30T08:00:00Z``) become ``datetime``, and whole
        numbers as keys become ``int``: who takes anything cannot say that it wants one.
        """
        if isinstance(self.value, dict):
            return {_plain_key(k): v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if isinstance(self.value, str) and not self.quoted:
            return aware_time(self.value) or self.value
        return self.value

    def shown(self) -> str:
        """How messages name the value; never what came from the environment."""
        if self.value is None:
            return "nothing"
        if self.is_mapping:
            return "a mapping"
        if self.is_list:
            return "a list"
        if isinstance(self.value, str) and not self.from_env:
            return f"the text {self.text!r}"
        return self.text


def parse(text: str, file: str, env: Mapping[str, str], problems: Problems) -> Node | None:
    """The tree of a file; None, with problems noted, if it is no YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        at = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)
        why = ", ".join(filter(None, (e.context, e.problem)))
        way_out = '; inside { } and [ ] write "${NAME}" in quotes' if "${" in text else ""
        problems.add(at, "", f"this is no YAML: {why}{way_out}")
        return None
    except (yaml.YAMLError, RecursionError) as e:
        problems.add(Place(file, 1, 1), "", f"this is no YAML: {str(e) or 'it is nested too deep'}")
        return None
    if root is None:
        problems.add(Place(file, 1, 1), "", "the file is empty; a topology needs at least a source")
        return None
    return _Tree(file, env, problems).node(root, "", ())


def _plain_key(key: str) -> str | int:
    number = resolve(key)
    return number if isinstance(number, int) and not isinstance(number, bool) else key


def aware_time(text: str) -> datetime | None:
    """An ISO 8601 time; None if it is none, or has no offset: such a one is no instant."""
    if not _TIME.match(text):
        return None
    try:
        time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        return None
    return time if time.tzinfo else None


def resolve(text: str) -> Scalar:
    """What a plain (unquoted) word of YAML stands for."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    if text.lower() in _ODD_FLOATS:
        return _ODD_FLOATS[text.lower()]
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return text


class _Tree:
    """Turns what PyYAML composed into nodes."""

    def __init__(self, file: str, env: Mapping[str, str], problems: Problems) -> None:
        self._file, self._env, self._problems = file, env, problems
        self._count = 0

    def node(self, raw: yaml.Node, path: str, above: tuple[int, ...]) -> Node:
        place = self._place(raw)
        self._count += 1
        if id(raw) in above or self._count > _MOST_NODES:
            if self._count <= _MOST_NODES + 1:
                self._problems.add(place, path, "this alias refers to itself, or to far too much")
            return Node(None, place, broken=True)
        if raw.tag not in _TAGS:
            self._problems.add(place, path, f"the YAML tag {raw.tag!r} is not supported; remove it")
        above = (*above, id(raw))
        if isinstance(raw, yaml.MappingNode):
            return self._mapping(raw, path, above)
        if isinstance(raw, yaml.SequenceNode):
            items = [self.node(r, f"{path}[{i}]", above) for i, r in enumerate(raw.value)]
            return Node(items, place)
        return self._scalar(raw, path)

    def _mapping(self, raw: yaml.MappingNode, path: str, above: tuple[int, ...]) -> Node:
        node = Node({}, self._place(raw))
        entries = node.mapping()
        for raw_key, raw_value in raw.value:
            place = self._place(raw_key)
            if not isinstance(raw_key, yaml.ScalarNode):
                self._problems.add(place, path, "a key must be a word")
                continue
            key = str(raw_key.value)
            here = joined(path, key)
            if key in entries:
                first = node.key_places[key].line
                self._problems.add(place, here, f"given twice; the first is in line {first}")
                continue
            node.key_places[key] = place
            entries[key] = self.node(raw_value, here, above)
        return node

    def _scalar(self, raw: yaml.Node, path: str) -> Node:
        text, place = str(raw.value), self._place(raw)
        quoted = isinstance(raw, yaml.ScalarNode) and raw.style is not None
        before = len(self._problems.found)
        from_env = any(m["name"] for m in _ENV.finditer(text))
        value = self._expanded(text, place, path)
        return Node(
            # A password of digits is text: what comes from the environment becomes a number only
            # where one is wanted.
            value=value if quoted or from_env else resolve(value),
            place=place,
            text=text,
            quoted=quoted,
            from_env=from_env,
            broken=len(self._problems.found) > before,
        )

    def _expanded(self, text: str, place: Place, path: str) -> str:
        def replaced(m: re.Match[str]) -> str:
            if m[0] == "$${":
                return "${"
            name, default = m["name"], m["default"]
            if name is None:
                self._problems.add(place, path, f"{text!r} has a '${{' without a name and '}}'")
                return ""
            if self._env.get(name) or default is None:
                return self._of_env(name, place, path)
            return str(default)

        return _ENV.sub(replaced, text)

    def _of_env(self, name: str, place: Place, path: str) -> str:
        if name not in self._env:
            self._problems.add(
                place,
                path,
                f"the environment variable {name} is not set; set it, or write "
                f"${{{name}:-a default}}",
            )
        return self._env.get(name, "")

    def _place(self, raw: yaml.Node) -> Place:
        return Place(self._file, raw.start_mark.line + 1, raw.start_mark.column + 1)


def joined(path: str, key: str) -> str:
    """The path of a key inside the thing at ``path``."""
    return f"{path}.{key}" if path else key

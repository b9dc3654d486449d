"""Values of a topology file that are changed for one run, by their path: ``loader.workers``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forebay.topology.nodes import Node, joined, parse
from forebay.topology.problems import Problems

# Their keys are those of a client and have dots in them.
_OPEN = ("config", "storage_options")
_INDEX = re.compile(r"\[(\d+)\]")
_NOT_PLAIN = re.compile(r"[\[\]{},]|: | #|^[&*!|>'\"%@`]|\$\{")


@dataclass(frozen=True, slots=True)
class Change:
    """Another value for one key."""

    path: str
    """As problems name it: ``loader.prefetch``, ``stages[0].map``, ``source.config.acks``."""
    node: Node

    @property
    def yaml(self) -> str:
        """The value as YAML on one line, as it was written: ``${NAME}`` is not replaced."""
        return as_yaml(self.node)


def changes_of(
    values: Mapping[str, str], *, env: Mapping[str, str] = os.environ
) -> tuple[Change, ...]:
    """Changes by path, from values in YAML: ``{"loader.workers": "4", "loader.engine": "ray"}``.

    Raises:
        TopologyError: a value is no YAML, or names a variable that is not set.
    """
    problems = Problems()
    parsed = {path: parse(text, f"{path} = {text}", env, problems) for path, text in values.items()}
    problems.stop_if_any()
    return tuple(Change(path, node) for path, node in parsed.items() if node is not None)


def with_change(root: Node, change: Change, problems: Problems) -> Node:
    """A copy of the tree with the change in it; the tree itself, with a problem noted, if it has
    no such place."""
    return _changed(root, change.path, "", change, problems)


def value_at(root: Node, path: str) -> Node | None:
    """What stands at a path; None if nothing does."""
    node: Node | None = root
    done = ""
    while path and node is not None:
        step, path = _step(node, path, done)
        if isinstance(step, int):
            items = node.items()
            node, done = (items[step] if step < len(items) else None), f"{done}[{step}]"
        else:
            node, done = node.mapping().get(step), joined(done, step)
    return node


def as_yaml(node: Node) -> str:
    """The node as YAML on one line, as it was written: ``${NAME}`` is not replaced."""
    if node.is_mapping:
        entries = (f"{json.dumps(k)}: {as_yaml(v)}" for k, v in node.mapping().items())
        return f"{{{', '.join(entries)}}}"
    if node.is_list:
        return f"[{', '.join(map(as_yaml, node.items()))}]"
    if node.quoted or _NOT_PLAIN.search(node.text):
        return json.dumps(node.text, ensure_ascii=False)
    return node.text or "null"


def _changed(node: Node, path: str, done: str, change: Change, problems: Problems) -> Node:
    if not path:
        return change.node
    if node.value is None:
        node = replace(node, value={}, key_places={})
    step, rest = _step(node, path, done)
    if isinstance(step, int):
        return _changed_item(node, step, rest, done, change, problems)
    here = joined(done, step)
    if not node.is_mapping:
        what = f"{done!r} is {node.shown()}" if done else "the topology is no mapping"
        problems.add(
            change.node.place,
            change.path,
            f"{what} in the topology and has no keys: write it there as a mapping, or vary "
            f"{done!r} as a whole",
        )
        return node
    below = node.mapping().get(step, Node(None, change.node.place))
    new = _changed(below, rest, here, change, problems)
    places = {**node.key_places, step: node.key_places.get(step, change.node.place)}
    return replace(node, value={**node.mapping(), step: new}, key_places=places)


def _changed_item(
    node: Node, i: int, rest: str, done: str, change: Change, problems: Problems
) -> Node:
    items = node.items()
    if i >= len(items):
        text = f"the topology has {len(items)} entries in {done!r}; the first is {done}[0]"
        problems.add(change.node.place, change.path, text)
        return node
    new = _changed(items[i], rest, f"{done}[{i}]", change, problems)
    return replace(node, value=[*items[:i], new, *items[i + 1 :]])


def _step(node: Node, path: str, done: str) -> tuple[str | int, str]:
    """The first step of a path below the node at ``done``, and the rest of it."""
    if index := _INDEX.match(path):
        return int(index[1]), path[index.end() :].lstrip(".")
    known = [k for k in node.mapping() if re.match(rf"{re.escape(k)}(\.|\[|$)", path)]
    if known:
        step = max(known, key=len)
    elif done.rpartition(".")[2] in _OPEN:
        step = path
    else:
        step = re.split(r"[.\[]", path, maxsplit=1)[0]
    return step, path[len(step) :].lstrip(".")

"""The engine of a topology, and what a command line says of it, which wins over the file."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forebay.errors import ConfigError
from forebay.plugins import Plugins
from forebay.topology.nodes import Node
from forebay.topology.parameters import parameters
from forebay.topology.problems import Place

DEFAULT = "threads"
_ADDRESS = "address"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine that is named outside of the file."""

    name: str | None = None
    """Its name; None: the engine of the file."""
    address: str | None = None
    """Of the cluster it runs on; None: as the file says."""


def with_engine(root: Node, choice: EngineChoice, engines: Plugins) -> Node:
    """The tree of a file with another engine in it, or with another address for its own.

    The settings that the file gives its engine stay if the engine stays the same.

    Raises:
        ConfigError: there is no such engine, it cannot be loaded, or it takes no address.
    """
    loader = root.mapping().get("loader")
    if loader is None or loader.value is None:
        loader = Node({}, root.place)
    if not root.is_mapping or not loader.is_mapping:
        return root  # which is a problem that the builder tells
    given = loader.mapping().get("engine")
    kind = choice.name or engine_name(given)
    _check(kind, choice, engines)
    stays = given is not None and kind == engine_name(given)
    settings = as_mapping(given) if given and stays else Node({}, loader.place)
    if not stays:
        settings = _put(settings, "type", _option("--engine", kind))
    if choice.address is not None:
        settings = _put(settings, _ADDRESS, _option("--address", choice.address))
    return _put(root, "loader", _put(loader, "engine", settings))


def as_mapping(node: Node) -> Node:
    """An engine as a mapping with its ``type``, where the file only gives its name."""
    if node.is_mapping:
        return node
    return Node({"type": node}, node.place, key_places={"type": node.place})


def engine_name(node: Node | None) -> str:
    """The name of the engine that a node describes; of none, that of the usual one."""
    kind = None if node is None else as_mapping(node).mapping().get("type")
    return DEFAULT if kind is None else str(kind.value)


def _check(kind: str, choice: EngineChoice, engines: Plugins) -> None:
    if choice.name is not None and choice.name not in engines.names():
        raise ConfigError(engines.unknown(choice.name))
    if choice.address is None or kind not in engines.names():
        return
    if _ADDRESS not in parameters(engines.load(kind)).known:
        raise ConfigError(
            f"the engine {kind!r} runs in this process and takes no address: name the engine that "
            "runs on the cluster as well (--engine ray), or leave --address out"
        )


def _option(name: str, text: str) -> Node:
    """A value of the command line: what is wrong with it is no mistake in the file."""
    return Node(text, Place(name, 0, 0), text=text, quoted=True)


def _put(node: Node, key: str, value: Node) -> Node:
    """The mapping with one more entry; other nodes of the tree may share it, so it is a copy."""
    kept = {} if value.place.is_option else node.key_places
    places = {**node.key_places, key: kept.get(key, value.place)}
    return replace(node, value={**node.mapping(), key: value}, key_places=places)

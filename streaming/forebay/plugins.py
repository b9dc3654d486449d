"""What other packages add: sources, sinks and commands, found by entry point, loaded when used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from forebay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Plugins:
    """The things of one kind, by name.

    Args:
        group: the entry point group: ``forebay.sources``.
        what: what one is called in messages: "source type".
        own: things that need no entry point. They win over entry points of the same name.
    """

    group: str
    what: str
    own: Mapping[str, Any] = field(default_factory=dict)

    def names(self) -> Sequence[str]:
        """Every name, sorted. Imports nothing."""
        return sorted({*self.own, *(e.name for e in entry_points(group=self.group))})

    def origin(self, name: str) -> str:
        """The package that adds this; empty for what is our own."""
        found = self._found(name)
        return found[0].dist.name if found and found[0].dist else ""

    def load(self, name: str) -> Any:
        """Import the thing.

        Raises:
            ConfigError: there is none of this name, there are two, or its package is broken.
        """
        if name in self.own:
            return self.own[name]
        found = self._found(name)
        if not found:
            raise ConfigError(self.unknown(name))
        if len({e.value for e in found}) > 1:
            packages = " and ".join(sorted({_package(e) for e in found}))
            raise ConfigError(
                f"the {self.what} {name!r} is in two packages, {packages}: uninstall one of them"
            )
        try:
            return found[0].load()
        except Exception as e:  # importing a package can raise anything
            raise ConfigError(self._broken(found[0], e)) from e

    def _found(self, name: str) -> list[EntryPoint]:
        return list(entry_points(group=self.group, name=name))

    def unknown(self, name: str) -> str:
        """What to say of a name that there is none of."""
        near = get_close_matches(name, self.names(), 1)
        if near:
            return f"there is no {self.what} {name!r}; did you mean {near[0]!r}?"
        return f"there is no {self.what} {name!r}; installed are: {', '.join(self.names())}"

    def _broken(self, entry: EntryPoint, error: Exception) -> str:
        return (
            f"the {self.what} {entry.name!r} of package {_package(entry)} cannot be loaded: "
            f"{type(error).__name__}: {error}. Install what it needs (for Forebay's own: "
            f"pip install 'forebay[{entry.name}]'), or uninstall the package."
        )


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value

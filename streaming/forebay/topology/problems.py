"""What is wrong with a topology file: every problem with its place, told together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from forebay.errors import ConfigError


class Place(NamedTuple):
    """A place in a file; line and column count from 1, and are 0 for an option."""

    file: str
    """Its path; or the option of a command line that says what is wrong, such as ``--address``."""
    line: int
    column: int

    @property
    def is_option(self) -> bool:
        return self.line == 0

    def __str__(self) -> str:
        return self.file if self.is_option else f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it."""

    place: Place
    path: str
    """The key as in ``loader.max_bytes``; empty for the file as a whole."""
    text: str

    def __str__(self) -> str:
        if not self.path or self.place.is_option:
            return f"{self.place}: {self.text}"
        return f"{self.place}: {self.path}: {self.text}"


class TopologyError(ConfigError):
    """A topology file is wrong; ``problems`` has them in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: p.place))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(slots=True)
class Problems:
    """Collects problems, so that one run tells them all."""

    found: list[Problem] = field(default_factory=list)

    def add(self, place: Place, path: str, text: str) -> None:
        """Note a problem."""
        self.found.append(Problem(place, path, text))

    def stop_if_any(self) -> None:
        """Raise ``TopologyError`` if something was noted; for an option only ``ConfigError``."""
        if options := [str(p) for p in self.found if p.place.is_option]:
            raise ConfigError("\n".join(options))
        if self.found:
            raise TopologyError(self.found)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a wrong name: "; did you mean 'x'?", or the list of right ones."""
    listed = list(known)
    near = get_close_matches(name, listed, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known are {', '.join(listed)}" if listed else ""

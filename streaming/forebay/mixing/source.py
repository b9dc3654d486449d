"""A mix of sources as one source: the splits of all members, under their own names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Literal, TypeAlias

from forebay.errors import ConfigError, StateError
from forebay.mixing.reader import MixedReader
from forebay.mixing.repeat import Repeated
from forebay.source import Owns, Reader, Source, Split
from forebay.state import Position

WhenDry: TypeAlias = Literal["wait", "others", "repeat"]
"""``wait``: keep the shares and wait; the run ends with the first member that ends. ``others``: the
others fill in while a member has nothing; the run ends when all ended. ``repeat``: a member that
ends begins anew; the run ends when every member ended once."""


def mix(
    sources: Mapping[str, Source],
    weights: Mapping[str, float],
    *,
    when_dry: WhenDry = "wait",
    quantum: int = 16,
) -> MixedSource:
    """Mix sources: each gets its share of the rows that batches get.

    >>> from forebay import Pipeline
    >>> from forebay.testing import MemorySource
    >>> live, replay = MemorySource({"l": range(8)}), MemorySource({"r": range(100, 108)})
    >>> mixed = mix({"live": live, "replay": replay}, {"live": 3, "replay": 1}, quantum=1)
    >>> batches = Pipeline(mixed).batch(4).loader(order="deterministic")
    >>> [batch["value"].tolist() for batch in batches]
    [[0, 1, 100, 2], [3, 4, 101, 5], [6, 7, 102]]

    Args:
        sources: the members by name.
        weights: the share of each, in any unit: ``{"live": 0.8, "replay": 0.2}``.
        when_dry: what happens while a member has no data, and when it ends.
        quantum: rows that a member gives in a row at least. Over any stretch of the run, two
            members keep their shares to within one quantum.

    Raises:
        ConfigError: a weight is missing, unknown or not positive.
    """
    return MixedSource(dict(sources), dict(weights), when_dry, quantum)


@dataclass(frozen=True, slots=True)
class MixedSource:
    """Several sources as one; see ``mix``. The loader keeps the shares."""

    sources: Mapping[str, Source]
    weights: Mapping[str, float]
    when_dry: WhenDry = "wait"
    quantum: int = 16
    _members: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The member of each split that was heard of."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def bounded(self) -> bool:
        ends = [s.bounded for s in self.sources.values()]
        return {"wait": any(ends), "others": all(ends), "repeat": False}[self.when_dry]

    def repeats(self, name: str) -> bool:
        """Whether this member begins anew when it ends."""
        return self.when_dry == "repeat" and self.sources[name].bounded

    def splits(self) -> Sequence[Split]:
        """The splits of all members.

        Raises:
            SourceError: a member cannot be reached.
            ConfigError: two members have the same split.
        """
        found = {name: source.splits() for name, source in self.sources.items()}
        for name, splits in found.items():
            for split in splits:
                self._note(split.id, name)
        return [split for splits in found.values() for split in splits]

    def member_of(self, split: str) -> str:
        """The name of the member that has this split.

        Raises:
            StateError: none has.
        """
        if split not in self._members:
            self.splits()
        if split not in self._members:
            raise StateError(
                f"split {split!r} belongs to no member of the mix ({', '.join(self.sources)})"
            )
        return self._members[split]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> MixedReader:
        """Open all members; none stays open if one cannot be."""
        if not self._members:
            self.splits()
        given = self._by_member(positions)
        with ExitStack() as opened:
            readers: dict[str, Reader] = {}
            for name in self.sources:
                readers[name] = self._opened(name, given[name], owns)
                opened.callback(readers[name].close)
            opened.pop_all()
        bounded = {name for name, source in self.sources.items() if source.bounded}
        return MixedReader(
            readers, self.weights, bounded=bounded, says_dry=self.when_dry == "others"
        )

    def _opened(self, name: str, positions: Mapping[str, Position], owns: Owns) -> Reader:
        source = self.sources[name]

        def noted(split: Split) -> bool:
            self._note(split.id, name)
            return owns(split)

        if self.repeats(name):
            return Repeated(name, source, positions, noted)
        return source.open(positions, noted)

    def _note(self, split: str, name: str) -> None:
        other = self._members.setdefault(split, name)
        if other != name:
            raise ConfigError(
                f"mix: the members {other!r} and {name!r} both have the split {split!r}, whose "
                "position could not be told apart in a checkpoint. A mix reads each split once: "
                "leave it out of one of them."
            )

    def _by_member(self, positions: Mapping[str, Position]) -> dict[str, dict[str, Position]]:
        """The positions that each member is to go on from.

        One of a split that no member has any more goes to the member with the most similar name
        of a split: its source knows best what to say.
        """
        given: dict[str, dict[str, Position]] = {name: {} for name in self.sources}
        for split, position in positions.items():
            given[self._members.get(split) or self._likely(split)][split] = position
        return given

    def _likely(self, split: str) -> str:
        alike = {k: _alike(k, split) for k in self._members}
        nearest = max(alike, key=lambda k: alike[k], default="")
        if not alike.get(nearest):
            raise StateError(
                f"the state has a position of split {split!r}, which no member of the mix has "
                f"({', '.join(self.sources)}). Load the checkpoint of this pipeline, or add the "
                "source to the mix."
            )
        return self._members[nearest]


def _alike(a: str, b: str) -> int:
    """Characters that both begin with."""
    pairs = takewhile(lambda p: p[0] == p[1], zip(a, b, strict=False))
    return sum(1 for _ in pairs)


def mix_in(source: Source) -> MixedSource | None:
    """The mix that a source is, or wraps (as its attribute ``source``); None if there is none.

    Raises:
        ConfigError: it is a part of a chain, where nothing would keep its shares.
    """
    at: Any = source
    while at is not None and not isinstance(at, MixedSource):
        for part in ("history", "live"):
            if isinstance(getattr(at, part, None), MixedSource):
                raise ConfigError(
                    f"mix: the {part} of a chain cannot be a mix, for the shares are kept over "
                    "the whole run: make the chain a member of the mix"
                )
        at = getattr(at, "source", None)
    return at


def _check(m: MixedSource) -> None:
    if not m.sources:
        raise ConfigError("mix: there are no sources to mix")
    given: Mapping[str, Any] = m.sources
    for name, source in given.items():
        if not isinstance(source, Source):
            kind = type(source).__name__
            raise ConfigError(
                f"mix: sources[{name!r}] is a {kind}, which has no splits() and open()"
            )
        if mix_in(source) is not None:
            raise ConfigError(
                f"mix: the member {name!r} is a mix itself. Name its sources here, with their "
                "weights multiplied."
            )
    _check_weights(m)
    if m.when_dry not in ("wait", "others", "repeat"):
        raise ConfigError(f"mix: when_dry must be one of wait, others, repeat, not {m.when_dry!r}")
    if not isinstance(m.quantum, int) or isinstance(m.quantum, bool) or m.quantum < 1:
        raise ConfigError(f"mix: quantum must be a positive whole number, not {m.quantum!r}")


def _check_weights(m: MixedSource) -> None:
    for name in m.weights:
        if name not in m.sources:
            near = get_close_matches(str(name), m.sources, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"they are {', '.join(m.sources)}"
            raise ConfigError(f"mix: weights name {name!r}, which is none of the sources; {hint}")
    for name in m.sources:
        if name not in m.weights:
            raise ConfigError(f"mix: the weight of {name!r} is missing")
        weight = m.weights[name]
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight <= 0:
            raise ConfigError(
                f"mix: the weight of {name!r} must be a positive number, not {weight!r}. A source "
                "that is to give nothing is left out."
            )

"""A fixed part of a source: the same records for every run, whatever arrives meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from forebay.errors import ConfigError
from forebay.mixing.source import MixedSource, mix_in
from forebay.slice import Slice
from forebay.source import Counting, Owns, Reader, Source, Split
from forebay.state import Position, State


@dataclass(frozen=True, slots=True)
class Extract:
    """A source that ends each split at an offset; splits that have none are left out."""

    source: Source
    stops: Mapping[str, int]

    @property
    def bounded(self) -> bool:
        return True

    def splits(self) -> Sequence[Split]:
        return [s for s in self.source.splits() if s.id in self.stops]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> ExtractReader:
        stops = self.stops
        reader = self.source.open(positions, lambda s: s.id in stops and owns(s))
        return ExtractReader(reader, stops)


class ExtractReader:
    """Cuts what a reader gives at the stops, and pauses what is beyond."""

    def __init__(self, reader: Reader, stops: Mapping[str, int]) -> None:
        self._reader, self._stops = reader, stops
        self._at = {k: p.low for k, p in reader.positions().items()}
        self._asked: frozenset[str] = frozenset()
        self._pause()

    def positions(self) -> Mapping[str, Position]:
        return self._reader.positions()

    def poll(self, timeout: float) -> Slice | None:
        s = self._reader.poll(timeout)
        if s is None or s.split not in self._stops or self._at_end(s.split):
            return None
        stop = self._stops[s.split]
        if s.next_offset > stop:
            s = s.between(s.start, stop)
        self._at[s.split] = s.next_offset
        if self._at_end(s.split):
            self._pause()
        return s

    def pause(self, splits: Collection[str]) -> None:
        self._asked = frozenset(splits)
        self._pause()

    def finished_splits(self) -> Collection[str]:
        ours = {k for k in self._at if self._at_end(k)}
        return ours | set(self._reader.finished_splits())

    def ends(self) -> Mapping[str, int]:
        ends = self._reader.ends()
        return {k: min(end, self._stops[k]) for k, end in ends.items() if k in self._stops}

    def counts(self) -> Mapping[str, float]:
        """What the reader counts; nothing if it does not."""
        return self._reader.counts() if isinstance(self._reader, Counting) else {}

    def close(self) -> None:
        self._reader.close()

    def _at_end(self, split: str) -> bool:
        return self._at.get(split, 0) >= self._stops[split]

    def _pause(self) -> None:
        ended = {k for k in self._at if self._at_end(k)}
        self._reader.pause(self._asked | ended)


@dataclass(frozen=True, slots=True)
class Scouted:
    """A source that notes where reading began. Of one process: not for an engine elsewhere."""

    source: Source
    began: dict[str, Position] = field(default_factory=dict)

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    def splits(self) -> Sequence[Split]:
        return self.source.splits()

    def open(self, positions: Mapping[str, Position], owns: Owns) -> Reader:
        reader = self.source.open(positions, owns)
        self.began.update(reader.positions())
        return reader


def extract(source: Source, stops: Mapping[str, int]) -> Source:
    """The part of a source before the stops; of a mix, that of every member, read whole.

    Raises:
        ConfigError: a mix that repeats its members has no end.
    """
    mixed = mix_in(source)
    if mixed is None:
        return Extract(source, stops)
    if mixed is not source or mixed.when_dry == "repeat":
        raise ConfigError(
            "a mix inside of another source, or one that repeats its members, has no fixed part to "
            "compare on: compare with when_dry: others, or on one member"
        )
    members: Mapping[str, Source] = {k: Extract(m, stops) for k, m in mixed.sources.items()}
    return MixedSource(members, mixed.weights, "others", mixed.quantum)


def stops_of(state: State) -> dict[str, int]:
    """Where each split was read to: with the rows of shuffle windows that are half delivered."""
    stops = {k: p.offset for k, p in state.splits.items()}
    for window in state.open_windows:
        for split, position in window.after.items():
            stops[split] = max(stops.get(split, 0), position.offset)
    return stops


def started(began: Mapping[str, Position]) -> State:
    """The state of a job that was given nothing, and begins there."""
    return State(splits={k: replace(p, base=p.low) for k, p in began.items()})

"""A source in memory whose readers count what they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.slice import Slice
from forebay.source import Owns
from forebay.state import Position
from forebay.testing import MemoryReader, MemorySource


@dataclass(frozen=True, slots=True)
class CountingSource(MemorySource):
    """As ``MemorySource``; counts under ``name``."""

    name: str = "rows"

    def open(self, positions: Mapping[str, Position], owns: Owns) -> CountingReader:
        return CountingReader(self, dict(MemorySource.open(self, positions, owns).positions()))


class CountingReader(MemoryReader):
    """Counts the rows that it gave since it was opened."""

    _source: CountingSource

    def __init__(self, source: CountingSource, positions: dict[str, Position]) -> None:
        super().__init__(source, positions)
        self.rows = 0

    def poll(self, timeout: float) -> Slice | None:
        s = super().poll(timeout)
        self.rows += 0 if s is None else len(s)
        return s

    def counts(self) -> Mapping[str, float]:
        return {self._source.name: self.rows}

"""What a report is made of: plain data that each format writes in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Section:
    """Begins a part of the report."""

    title: str


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, as they are shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def is_number(self, column: int) -> bool:
        """Whether all cells of a column are numbers, which stand to the right."""
        cells = [row[column] for row in self.rows]
        return bool(cells) and all(c[:1].isdigit() or c[:1] in ("-", "+") for c in cells)


@dataclass(frozen=True, slots=True)
class Code:
    """Something to type or to copy."""

    code: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture; ``name`` is that of its file, ``svg`` the whole of it."""

    name: str
    svg: str
    caption: str


Block: TypeAlias = Section | Text | Bullets | Table | Code | Figure

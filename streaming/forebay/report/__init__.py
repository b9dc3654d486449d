"""Reports for people: text, tables and charts, as Markdown and as HTML.

report = Report("Two decoders")
report.text("The new one is faster.")
report.table(["decoder", "rows/s"], [["old", 812.0], ["new", 1440.0]])
report.figure("speed", charts.bar_chart("Speed", {"old": 812, "new": 1440}, "rows/s"), "Rows/s.")
report.save("report")
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from forebay.report.blocks import Block, Bullets, Code, Figure, Section, Table, Text
from forebay.report.markdown import markdown
from forebay.report.page import page
from forebay.statistics import shown

__all__ = ["Report", "markdown", "page"]

Cell = object
"""What a cell may be: text, a number, an ``Estimate``; None is shown as a dash."""


class Report:
    """Collects the parts of a report in their order; one thread."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.blocks: list[Block] = []

    def section(self, title: str) -> None:
        """Begin a part."""
        self.blocks.append(Section(title))

    def text(self, text: str) -> None:
        """Add a paragraph of plain text."""
        self.blocks.append(Text(text))

    def bullets(self, items: Iterable[str]) -> None:
        """Add a list; none if it is empty."""
        if listed := list(items):
            self.blocks.append(Bullets(listed))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Add a table. Floats get three significant digits, None a dash.

        Raises:
            ValueError: a row has more or fewer cells than there are columns.
        """
        cells = [[_cell(cell) for cell in row] for row in rows]
        if wrong := next((row for row in cells if len(row) != len(columns)), None):
            raise ValueError(f"{len(wrong)} cells do not fit {len(columns)} columns: {wrong}")
        self.blocks.append(Table(list(columns), cells))

    def code(self, code: str) -> None:
        """Add a command, or something to copy."""
        self.blocks.append(Code(code))

    def figure(self, name: str, svg: str, caption: str) -> None:
        """Add a picture.

        Args:
            name: of its file, without the ending: letters, digits, ``_``, ``.`` and ``-``.
            svg: from ``forebay.report.charts``; it becomes part of the page as it is.

        Raises:
            ValueError: the name is no such name, or taken.
        """
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"{name!r} is no name for a figure's file")
        if any(isinstance(b, Figure) and b.name == name for b in self.blocks):
            raise ValueError(f"two figures are named {name!r}")
        self.blocks.append(Figure(name, svg, caption))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``report.md``, ``report.html`` and ``figures/*.svg``; returns the folder.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        figures = [block for block in self.blocks if isinstance(block, Figure)]
        if figures:
            (path / "figures").mkdir(exist_ok=True)
        for figure in figures:
            (path / "figures" / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
        (path / "report.md").write_text(markdown(self.title, self.blocks), encoding="utf-8")
        (path / "report.html").write_text(page(self.title, self.blocks), encoding="utf-8")
        return path


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)

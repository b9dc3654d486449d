"""A report as Markdown; its figures are files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from forebay.report.blocks import Block, Bullets, Code, Figure, Section, Table, Text

_SPECIAL = re.compile(r"([\\`*_<>\[\]|#])")


def markdown(title: str, blocks: Iterable[Block]) -> str:
    """The whole report; figures are linked as ``figures/NAME.svg``."""
    return "\n\n".join([f"# {_plain(title)}", *map(_block, blocks)]) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Section):
        return f"## {_plain(block.title)}"
    if isinstance(block, Text):
        return _plain(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_plain(item)}" for item in block.items)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Code):
        return _fenced(block.code)
    return _figure(block)


def _table(table: Table) -> str:
    numbers = [table.is_number(i) for i in range(len(table.columns))]
    lines = [
        map(_plain, table.columns),
        ["---:" if number else "---" for number in numbers],
        *(map(_plain, row) for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(code: str) -> str:
    """In a fence that is longer than any in the code."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{code.rstrip()}\n{fence}"


def _figure(figure: Figure) -> str:
    return f"![{_plain(figure.caption)}](figures/{figure.name}.svg)"


def _plain(text: str) -> str:
    """Text that means nothing to Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))

"""The means of a chart: its colours in light and dark, escaped text, and round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

WIDTH = 560
# Told apart also by people who see few colours (after Okabe and Ito), on white and on dark; lines
# differ in their dashes as well.
_LIGHT = ("#0072b2", "#c44e00", "#00795a", "#a8487f", "#8a6d00", "#3f6fb5", "#57606a")
_DARK = ("#56b4e9", "#f0944d", "#2fc99a", "#e29bc4", "#e6cf3a", "#9fb8ff", "#aab4be")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2")
SERIES = len(_LIGHT)


def _style(kind: str, colours: Iterable[str], paper: str, ink: str, soft: str, line: str) -> str:
    series = "".join(
        f".fb-f{i} {{ fill: {colour}; }} .fb-s{i} {{ stroke: {colour}; }} "
        for i, colour in enumerate(colours)
    )
    rules = (
        f".fb-paper {{ fill: {paper}; }} .fb-ink {{ fill: {ink}; }} .fb-soft {{ fill: {soft}; }} "
        f".fb-line {{ stroke: {line}; }} .fb-bar {{ stroke: {ink}; }} {series}"
    )
    return f"@media {kind} {{ {rules}}}" if kind else rules


_STYLES = _style("", _LIGHT, "#ffffff", "#1b1f24", "#57606a", "#d0d7de") + _style(
    "(prefers-color-scheme: dark)", _DARK, "#14181c", "#e6e9ec", "#9aa4ae", "#3a424b"
)


def svg(title: str, height: float, parts: Iterable[str]) -> str:
    """A picture with a title, for the eye and for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13">'
        f"<style>{_STYLES}</style>"
        '<rect class="fb-paper" width="100%" height="100%"/>'
    )
    return "\n".join([head, text(8, 20, title, size=15), *parts, "</svg>\n"])


def text(
    x: float, y: float, content: str, *, kind: str = "fb-ink", anchor: str = "start", size: int = 0
) -> str:
    """Text at its base line; what is in it means nothing to XML."""
    sized = f' font-size="{size}"' if size else ""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{sized}>'
        f"{escape(content)}</text>"
    )


def legend(names: Iterable[str], y: float, *, lines: bool = True) -> tuple[list[str], float]:
    """Names beside the line, or the colour, of their series; and at which height it ends."""
    parts, x = [], 8.0
    for i, name in enumerate(names):
        width = 26 + 7.3 * len(name)
        if x > 8 and x + width > WIDTH:
            x, y = 8.0, y + 18
        if lines:
            parts.append(f'<path d="M{x:.1f},{y - 4:.1f} h14" {stroke(i)} stroke-width="3"/>')
        else:
            parts.append(f'<rect {fill(i)} x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12"/>')
        parts.append(text(x + 19, y, name))
        x += width + 8
    return parts, y


def fill(i: int) -> str:
    """The attributes that fill a shape in the colour of series ``i``."""
    return f'class="fb-f{i % SERIES}"'


def stroke(i: int) -> str:
    """The attributes that draw a line of series ``i``."""
    dashes = _DASHES[i % SERIES]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'class="fb-s{i % SERIES}" fill="none"{dashed}'


def ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers of which the first is at most ``low`` and the last at least ``high``.

    Args:
        whole: without fractions.
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * (1 - 1e-9))
    if whole:
        step = max(math.ceil(step), 1)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]

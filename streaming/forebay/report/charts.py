"""Charts as SVG: lines over something, bars with their uncertainty, shares of a whole.

They follow the reader's light or dark setting, and can be read without colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from forebay.report.drawing import WIDTH, fill, legend, stroke, svg, text, ticks
from forebay.statistics import shown

Points: TypeAlias = Sequence[tuple[float, float]]
Lines: TypeAlias = Mapping[str, Points]
Bar: TypeAlias = "float | tuple[float, float, float]"
"""A value, or a value with the low and the high end of its interval."""

_LEFT, _RIGHT, _PANEL, _BAR_ROW = 62, 16, 190, 44


def line_chart(title: str, lines: Lines, x_label: str, y_label: str) -> str:
    """One line a name; values that are not finite leave a gap."""
    return panels(title, {y_label: lines}, x_label)


def panels(title: str, charts: Mapping[str, Lines], x_label: str) -> str:
    """Charts of the same lines above each other, over one x axis; each by what it shows."""
    names = list(dict.fromkeys(name for lines in charts.values() for name in lines))
    parts, y = legend(names, 42) if len(names) > 1 else ([], 24.0)
    xs = [x for lines in charts.values() for points in lines.values() for x, _ in points]
    whole = all(float(x).is_integer() for x in xs)
    across = ticks(min(xs, default=0.0), max(xs, default=1.0), whole=whole)
    for label, lines in charts.items():
        parts += _panel(label, lines, names, across, y + 14)
        y += 14 + _PANEL + 24
    parts.append(text(WIDTH - _RIGHT, y + 12, x_label, kind="fb-soft", anchor="end"))
    return svg(title, y + 22, parts)


def bar_chart(title: str, bars: Mapping[str, Bar], unit: str) -> str:
    """A bar for each name, from 0, with a whisker over its interval where it has one."""
    given = {name: _interval(bar) for name, bar in bars.items()}
    ends = [end for interval in given.values() for end in interval if math.isfinite(end)]
    across = ticks(min([0.0, *ends]), max([0.0, *ends]))
    inner = WIDTH - 8 - _RIGHT
    parts = []
    for i, (name, (value, low, high)) in enumerate(given.items()):
        top = 36.0 + i * _BAR_ROW
        x0, x1, a, b = (_place(v, across, 8, inner) for v in (0.0, value, low, high))
        label = f"{shown(value)} {unit}"
        parts += [
            text(8, top + 12, name),
            text(WIDTH - _RIGHT, top + 12, label, kind="fb-soft", anchor="end"),
        ]
        if math.isfinite(value):
            box = f'x="{min(x0, x1):.1f}" y="{top + 18:.1f}" width="{abs(x1 - x0):.1f}"'
            parts.append(f'<rect {fill(0)} {box} height="14" rx="2"/>')
        if math.isfinite(low) and math.isfinite(high) and high > low:
            y = top + 25
            whisker = f"M{a:.1f},{y} H{b:.1f} M{a:.1f},{y - 5} v10 M{b:.1f},{y - 5} v10"
            parts.append(f'<path class="fb-bar" d="{whisker}" fill="none" stroke-width="1.5"/>')
    return svg(title, 36.0 + len(given) * _BAR_ROW + 6, parts)


def stacked_bar(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """For each row what parts it has, as shares of 1; what is missing to 1 stays empty."""
    names = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    parts, y = legend(names, 42, lines=False)
    inner = WIDTH - 8 - _RIGHT
    for row, shares in rows.items():
        y += 14
        parts.append(text(8, y + 12, row))
        x = 8.0
        for name, share in shares.items():
            width = inner * max(share, 0.0)
            parts.append(_part(names.index(name), x, y + 18, width, share))
            x += width
        y += 40
    return svg(title, y + 12, parts)


def _part(i: int, x: float, y: float, width: float, share: float) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="22"'
    drawn = f"<rect {fill(i)} {box}/>"
    if width < 34:  # no room for the number
        return drawn
    # On the colour, which is dark where the paper is light: so written in the paper's colour.
    number = text(x + width / 2, y + 16, f"{share:.0%}", kind="fb-paper", anchor="middle")
    return drawn + number


def _panel(
    label: str, lines: Lines, names: Sequence[str], across: Sequence[float], top: float
) -> list[str]:
    ys = [y for points in lines.values() for _, y in points if math.isfinite(y)]
    up = ticks(min([0.0, *ys]), max([0.0, *ys]))
    base, inner = top + _PANEL, WIDTH - _LEFT - _RIGHT

    def at(x: float, y: float) -> str:
        height = (_PANEL - 26) * (y - up[0]) / (up[-1] - up[0])
        return f"{_place(x, across, _LEFT, inner):.1f},{base - height:.1f}"

    parts = [text(8, top + 12, label, kind="fb-soft")]
    for tick in up:
        x, y = at(across[0], tick).split(",")
        parts.append(f'<path class="fb-line" d="M{x},{y} h{inner}" fill="none"/>')
        parts.append(text(_LEFT - 6, float(y) + 4, _tick(tick), kind="fb-soft", anchor="end"))
    for tick in across:
        x = at(tick, up[0]).split(",")[0]
        parts.append(text(float(x), base + 16, _tick(tick), kind="fb-soft", anchor="middle"))
    for name, points in lines.items():
        for run in _runs(points):
            places = " ".join(at(x, y) for x, y in run)
            # A point without neighbours is a line of no length: a dot, by its round ends.
            line = f'{stroke(names.index(name))} stroke-width="{2 if len(set(run)) > 1 else 6}"'
            parts.append(f'<polyline {line} stroke-linecap="round" points="{places}"/>')
    return parts


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """The points without gaps, a list for each part between gaps; one point is drawn as a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run * 2 if len(run) == 1 else run for run in runs if run]


def _interval(bar: Bar) -> tuple[float, float, float]:
    return bar if isinstance(bar, tuple) else (bar, math.nan, math.nan)


def _place(x: float, across: Sequence[float], left: float, inner: float) -> float:
    return left + inner * (x - across[0]) / (across[-1] - across[0])


def _tick(value: float) -> str:
    return f"{value:,.10g}" if abs(value) < 1e6 else f"{value:.3g}"

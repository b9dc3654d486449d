"""Simulated runs as a picture: lag, waiting and workers over time, in plain SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from forebay.autoscale.simulate import Outcome, Point

_WIDTH, _HEIGHT, _LEFT, _GAP, _LEGEND = 900, 170, 70, 46, 40
_COLOURS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a", "#787774")
_PANELS: tuple[tuple[str, Callable[[Point], float]], ...] = (
    ("workers", lambda p: float(sum(p.workers.values()))),
    ("rows that wait", lambda p: float(p.lag)),
    ("trainer starves, share", lambda p: p.starved),
)


def picture(title: str, outcomes: Mapping[str, Outcome]) -> str:
    """An SVG with a line for each run, by name; runs of one scenario."""
    height = _LEGEND + len(_PANELS) * (_HEIGHT + _GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 20} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="18" font-size="15">{escape(title)}</text>'
    )
    panels = [
        _panel(label, value, outcomes, _LEGEND + i * (_HEIGHT + _GAP))
        for i, (label, value) in enumerate(_PANELS)
    ]
    return "\n".join([head, _legend(outcomes), *panels, "</svg>\n"])


def _legend(outcomes: Mapping[str, Outcome]) -> str:
    step = _WIDTH / max(len(outcomes), 1)
    return "".join(
        f'<text x="{_LEFT + i * step:.0f}" y="35" fill="{_colour(i)}">{escape(name)}: '
        f"{outcome.score:,.1f}</text>"
        for i, (name, outcome) in enumerate(outcomes.items())
    )


def _panel(
    label: str, value: Callable[[Point], float], outcomes: Mapping[str, Outcome], top: float
) -> str:
    points = [p for outcome in outcomes.values() for p in outcome.points]
    longest = max((p.at for p in points), default=1.0)
    highest = _round_up(max((value(p) for p in points), default=1.0))
    base = top + 20 + _HEIGHT - 20

    def place(p: Point) -> str:
        x = _LEFT + _WIDTH * p.at / longest
        return f"{x:.1f},{base - (_HEIGHT - 20) * value(p) / highest:.1f}"

    lines = "".join(
        _line(i, [place(p) for p in outcome.points]) for i, outcome in enumerate(outcomes.values())
    )
    return (
        f'<text x="{_LEFT}" y="{top + 14:.0f}" fill="#555">{escape(label)}</text>'
        f'<path d="M{_LEFT},{base - _HEIGHT + 20} V{base} H{_LEFT + _WIDTH}" fill="none" '
        'stroke="#999"/>'
        f'<text x="{_LEFT - 6}" y="{base - _HEIGHT + 28}" text-anchor="end">{highest:,g}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + _WIDTH}" y="{base + 15}" text-anchor="end">{longest:,.0f} s</text>'
        f"{lines}"
    )


def _line(i: int, places: Sequence[str]) -> str:
    return (
        f'<polyline points="{" ".join(places)}" fill="none" stroke="{_colour(i)}" '
        'stroke-width="1.5"/>'
    )


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, … from a value."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * m for m in (1, 2, 5, 10) if unit * m >= value * (1 - 1e-9))

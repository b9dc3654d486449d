"""Simulated runs as a picture: workers, lag and waiting over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forebay.autoscale.simulate import Outcome, Point
from forebay.report.charts import panels

_PANELS: Mapping[str, Callable[[Point], float]] = {
    "workers": lambda p: float(sum(p.workers.values())),
    "rows that wait": lambda p: float(p.lag),
    "trainer starves, share": lambda p: p.starved,
}


def picture(title: str, outcomes: Mapping[str, Outcome]) -> str:
    """An SVG with a line for each run, by name; runs of one scenario."""
    charts = {
        label: {
            f"{name}: {outcome.score:,.1f}": [(p.at, value(p)) for p in outcome.points]
            for name, outcome in outcomes.items()
        }
        for label, value in _PANELS.items()
    }
    return panels(title, charts, "seconds")

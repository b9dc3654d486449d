"""What a job told, over time: plots of a rank's snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from forebay.observe.snapshot import Snapshot
from forebay.observe.window import Window, between
from forebay.report import Report
from forebay.report.charts import line_chart

_MOST_POINTS = 120


def history_into(report: Report, history: Sequence[Snapshot], name: str) -> None:
    """Add the shares of a step, the rows a second and the lag of one rank; nothing of one snapshot.

    Args:
        name: of the figures' files, before their own.
    """
    stretches = [between(pair) for pair in _pairs(history)]
    if not stretches:
        return
    parts = dict.fromkeys(part for w in stretches for part in w.shares)
    x_label = "minutes"
    shares = {
        part: [(_minutes(history, w), 100 * w.shares[part]) for w in stretches if part in w.shares]
        for part in parts
    }
    rows = [(_minutes(history, w), w.rows) for w in stretches]
    lag = [(_minutes(history, w), float(w.behind)) for w in stretches if w.behind is not None]
    if shares:
        chart = line_chart("Where a step's time went", shares, x_label, "% of the time")
        report.figure(f"{name}-shares", chart, "Shares of the trainer's time.")
    chart = line_chart("Rows a second", {"rows": rows}, x_label, "rows a second")
    report.figure(f"{name}-rows", chart, "Rows that the trainer took.")
    if lag:
        chart = line_chart("Lag", {"lag": lag}, x_label, "records")
        report.figure(f"{name}-lag", chart, "Records that were not delivered yet.")


def _pairs(history: Sequence[Snapshot]) -> list[Sequence[Snapshot]]:
    """Neighbours, not more than make a plot that can be read."""
    every = max(len(history) // _MOST_POINTS, 1)
    some = history[::every]
    return [(a, b) for a, b in pairwise(some) if b.at > a.at]


def _minutes(history: Sequence[Snapshot], w: Window) -> float:
    return (w.last.at - history[0].at) / 60

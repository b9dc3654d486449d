"""Figures of a loader as people write them."""

from __future__ import annotations

from forebay.statistics import shown


def rate(batches_per_second: float) -> str:
    """How fast batches come: ``11,400 batches/s``."""
    return f"{shown(batches_per_second)} batches/s"


def span(seconds: float) -> str:
    """How long something takes, in the unit that fits: ``2.5 s``, ``32.3 ms``, ``87.7 µs``."""
    if seconds >= 1:
        return f"{shown(seconds)} s"
    return f"{shown(1e3 * seconds)} ms" if seconds >= 1e-3 else f"{shown(1e6 * seconds)} µs"

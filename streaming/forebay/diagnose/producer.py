"""Whether the producer will be the limit, though something else was while a backlog was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forebay.diagnose.experiments import Measured
from forebay.observe.limits import percent
from forebay.observe.snapshot import Snapshot
from forebay.observe.verdict import WORTH, Verdict
from forebay.observe.window import Window, arrived

_WIDE = 0.3
"""Of a step: a share of which no more than that is known is not known."""


def with_rates(
    w: Window, full: Sequence[Window], history: Sequence[Snapshot], m: Measured
) -> Window:
    """``w`` with how many records come, and how many would be taken if all were there.

    Phases are shorter than the time between two answers on where the splits end, so that it is
    all of the ``history`` that tells what comes. What could be taken is what the phases without
    a source took.

    Args:
        full: the phases of the whole pipeline.
    """
    taken = sum((f.taken or 0.0) * f.seconds for f in full)
    steps, seconds = sum(f.steps for f in full), m.per_step["no source"].value
    could = taken / steps / seconds if steps and seconds > 0 else None
    return replace(w, arrived=arrived(history) if history else None, taken=could or None)


def with_doubt(verdict: Verdict, m: Measured) -> Verdict:
    """The verdict, with the source as a guess where its share was very different in the rounds."""
    source = m.intervals["source"]
    wide = source.known and source.high - source.low >= _WIDE and source.high >= WORTH
    if not wide or verdict.cause == "source":
        return verdict
    doubt = (
        f"reading, or the producer, was the limit in some of the rounds: its share is "
        f"{percent(source.low)} to {percent(source.high)}; more --rounds tell more"
    )
    return replace(verdict, guess=(doubt, *verdict.guess))

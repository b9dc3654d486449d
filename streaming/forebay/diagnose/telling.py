"""A verdict written down: for a terminal, as JSON, in a report. Knows nothing of experiments."""

from __future__ import annotations

from typing import Any

from forebay.observe.verdict import Verdict
from forebay.report import Report


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain JSON values."""
    return {
        "cause": verdict.cause,
        "starved": verdict.starved,
        "sentence": verdict.sentence,
        "shares": dict(verdict.shares),
        "evidence": list(verdict.evidence),
        "guess": list(verdict.guess),
        "advice": verdict.advice,
    }


def verdict_lines(verdict: Verdict) -> list[str]:
    """A verdict for a terminal: the sentence, what was seen, what is guessed, what to try."""
    return [
        verdict.sentence,
        *(f"  seen: {text}" for text in verdict.evidence),
        *(f"  guess: {text}" for text in verdict.guess),
        *([f"  next: {verdict.advice}"] if verdict.advice else []),
    ]


def verdict_into(report: Report, verdict: Verdict) -> None:
    """Add a verdict to a section of a report."""
    report.text(verdict.sentence)
    if verdict.evidence:
        report.text("What was seen:")
        report.bullets(verdict.evidence)
    if verdict.guess:
        report.text("What may be the reason, but was not shown:")
        report.bullets(verdict.guess)
    if verdict.advice:
        report.text(f"What to try next: {verdict.advice}.")

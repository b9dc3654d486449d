"""What is said of a user's loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from forebay.report import Report
from forebay.report.charts import bar_chart
from forebay.statistics import Estimate

Cause: TypeAlias = Literal[
    "hang",  # nothing comes, and nobody computes
    "died",  # a process was killed, or crashed
    "error",  # the loader, its dataset or its factory raises
    "empty",  # no batch at all
    "duplicates",  # each worker gives all of the data
    "workers",  # too few
    "handover",  # fewer workers, or none, are faster: handing over costs more than it gives
    "restart",  # workers start anew with each epoch
    "order",  # slow batches hold up those behind them
    "prefetch",  # too few batches lie ready
    "start_method",  # another way of starting workers is faster
    "pinning",  # copies to the GPU from memory that is not pinned
    "threads",  # each worker has a pool of threads for all CPUs
    "cpu",  # the CPUs are at work, whatever the settings
    "fetching",  # the loader is fast enough, but taking a batch from it takes long
    "irregular",  # it is fast enough on average, but some batches take long
    "dataset",  # it waits for the loader, and no setting nor the CPUs are the reason
    "memory",  # the workers' memory grows
    "unfinished",  # it was interrupted before that was known
    "no_better",  # no step is known to wait; no setting is faster
    "healthy",  # the step does not wait for it
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting, measured."""

    setting: str
    """What differs from the present one, as arguments."""
    rate: float | None
    """Batches per second at a first look; None: it failed."""
    gain: Estimate | None = None
    """Times as many as with the present setting, measured in turns."""
    first_seconds: float | None = None
    cpu_per_batch: float | None = None
    """CPU seconds of all processes."""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFindings:
    """The verdict on a user's ``DataLoader``, and what it rests on."""

    spec: str
    cause: Cause
    sentence: str
    evidence: tuple[str, ...] = ()
    """What was seen."""
    guesses: tuple[str, ...] = ()
    """What may be, and was not shown."""
    advice: str = ""
    """What to do, in a sentence."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What to change in the call of ``DataLoader``."""
    forebay: str = ""
    """What Forebay does about it."""
    starved: float | None = None
    """Share of the time in which the training step waits for the loader, 0 to 1; None without a
    step."""
    trials: tuple[Trial, ...] = ()
    interrupted: bool = False
    """Whether it was ended before everything was tried."""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to do."""
        return self.cause in ("healthy", "no_better")

    @property
    def call(self) -> str:
        """What to write; empty if there is nothing to change."""
        if not self.arguments:
            return ""
        changes = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"DataLoader(..., {changes})"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        for trial, of in zip(made["trials"], self.trials, strict=True):
            trial["gain"] = None if of.gain is None else of.gain.to_json()
        return {**made, "healthy": self.healthy, "call": self.call}

    def text(self) -> str:
        """For the terminal."""
        lines = [self.sentence, *(f"  {line}" for line in (self.advice, self.call) if line)]
        if self.evidence:
            lines += ["Seen:", *(f"  {line}" for line in self.evidence)]
        if self.guesses:
            lines += ["May be, but was not shown:", *(f"  {line}" for line in self.guesses)]
        if self.forebay:
            lines += ["With Forebay:", f"  {self.forebay}"]
        return "\n".join(lines)

    def report(self, report: Report) -> None:
        """Add it to a report."""
        report.section("Verdict")
        report.text(self.sentence)
        if self.advice:
            report.text(self.advice)
        if self.call:
            report.code(self.call)
        if self.evidence:
            report.section("What was seen")
            report.bullets(self.evidence)
        if self.guesses:
            report.section("What may be, but was not shown")
            report.bullets(self.guesses)
        if self.trials:
            self._report_trials(report)
        if self.forebay:
            report.section("With Forebay")
            report.text(self.forebay)

    def _report_trials(self, report: Report) -> None:
        report.section("Settings that were tried")
        report.table(
            ["setting", "batches/s", "times the present", "first batch, s", "CPU ms/batch", ""],
            [
                [
                    t.setting,
                    t.rate,
                    t.gain,
                    t.first_seconds,
                    None if t.cpu_per_batch is None else t.cpu_per_batch * 1e3,
                    t.trouble,
                ]
                for t in self.trials
            ],
        )
        rates = {t.setting: t.rate for t in self.trials if t.rate is not None}
        if len(rates) > 1:
            chart = bar_chart("Batches per second at a first look", rates, "batches/s")
            report.figure("settings", chart, "Each setting once; the rest of the call as it is.")

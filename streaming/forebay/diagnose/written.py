"""What the doctor found, written down: for a terminal, as JSON, and as a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from forebay.diagnose.doctor import Diagnosis
from forebay.diagnose.environment import Environment, size
from forebay.diagnose.experiments import PARTS, Measured, Part, percentiles
from forebay.diagnose.memory import MemoryWatch
from forebay.diagnose.phases import KINDS, Kind
from forebay.diagnose.telling import verdict_into, verdict_json, verdict_lines
from forebay.diagnose.trace import ProfileSummary
from forebay.report import Report
from forebay.report.charts import bar_chart, line_chart, stacked_bar
from forebay.statistics import Estimate

WHAT: Mapping[Part, str] = {
    "source": "reading the source",
    "stages": "stages: decoding, augmenting",
    "handover": "putting batches together",
    "copy": "copying to the device",
    "communication": "exchange between ranks",
    "host": "the loop's own code, while the device idles",
    "pause": "named pauses: checkpoints, evaluation",
    "compute": "the training step",
}
_WITH: Mapping[Kind, str] = {
    "full": "the whole pipeline",
    "no source": "records from memory, through the stages",
    "no stages": "finished slices from memory",
    "frozen": "one frozen batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A diagnosis, and all that belongs to its record."""

    diagnosis: Diagnosis
    environment: Environment
    memory: MemoryWatch
    profile: ProfileSummary | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        d = self.diagnosis
        return {
            **verdict_json(d.verdict),
            **(_measured_json(d.measured) if d.measured else {}),
            "percentiles_seconds": _json_of(percentiles(d.phases)),
            "mix": dict(d.mix),
            "notes": list(d.notes),
            "memory": _memory_json(self.memory),
            "environment": self.environment.to_json(),
            "profile": None if self.profile is None else self.profile.to_json(),
        }

    def text(self) -> str:
        """For a terminal."""
        d = self.diagnosis
        lines = [d.verdict.sentence]
        if d.measured is not None:
            lines += ["", *_table(d.measured)]
        lines += verdict_lines(d.verdict)[1:]
        return "\n".join([*lines, *(f"  note: {note}" for note in d.notes)])

    def report(self, title: str) -> Report:
        """With plots, tables, and the record of where it was measured."""
        d, report = self.diagnosis, Report(title)
        report.section("Verdict")
        verdict_into(report, d.verdict)
        if d.measured is not None:
            _shares_into(report, d.measured)
            _experiments_into(report, d)
            _percentiles_into(report, d)
        if self.profile is not None:
            self.profile.report(report)
        if d.mix:
            report.section("Data")
            rows = sum(d.mix.values())
            report.table(
                ["split", "rows", "share"], [[k, n, f"{n / rows:.0%}"] for k, n in d.mix.items()]
            )
        _memory_into(report, self.memory)
        report.section("Environment")
        report.table(["what", "value"], self.environment.rows())
        report.bullets(d.notes)
        return report


def _table(m: Measured) -> Iterator[str]:
    """The shares, those of nothing left out."""
    for part in PARTS:
        e = m.intervals[part]
        if e.value >= 0.005:
            yield f"  {e.value:6.1%}  {_interval(e):18}  {part:13}  {WHAT[part]}"
    yield f"  in {m.steps} steps of {m.rounds} rounds"


def _interval(e: Estimate) -> str:
    return f"({e.low:.1%} to {e.high:.1%})" if e.known else ""


def _measured_json(m: Measured) -> dict[str, Any]:
    return {
        "rounds": m.rounds,
        "steps": m.steps,
        "parts": {part: m.intervals[part].to_json() for part in PARTS},
        "step_seconds": {kind: m.per_step[kind].to_json() for kind in KINDS},
    }


def _json_of(found: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    return {k: {q: e.to_json() for q, e in by.items()} for k, by in found.items()}


def _memory_json(memory: MemoryWatch) -> dict[str, Any]:
    peak, growth = memory.peak(), memory.growth()
    return {
        "peak_pss_bytes": None if peak is None else peak.pss,
        "peak_rss_bytes": None if peak is None else peak.rss,
        "bytes_per_minute": None if growth is None else growth.to_json(),
        "grows": memory.grows(),
    }


def _shares_into(report: Report, m: Measured) -> None:
    report.section("Where a step's time goes")
    named = {WHAT[part]: m.shares[part] for part in PARTS if m.shares[part] > 0}
    report.figure("shares", stacked_bar("Where a step's time goes", {"step": named}), "Shares.")
    report.table(
        ["part", "what it is", "share", "95 % interval"],
        [[p, WHAT[p], f"{m.shares[p]:.1%}", _interval(m.intervals[p])] for p in PARTS],
    )
    report.text(
        "A part's share is what a step would be shorter by without it, of the whole step. Parts "
        "that work side by side hide behind the slowest of them: once that is gone, the next one "
        "shows."
    )


def _experiments_into(report: Report, d: Diagnosis) -> None:
    assert d.measured is not None
    report.section("Experiments")
    per_step = d.measured.per_step
    report.table(
        ["what the training function was fed", "ms a step", "95 % interval"],
        [[_WITH[k], 1e3 * per_step[k].value, _milliseconds(per_step[k])] for k in KINDS],
    )
    bars = {
        _WITH[k]: (1e3 * e.value, 1e3 * e.low, 1e3 * e.high)
        if (e := per_step[k]).known
        else 1e3 * e.value
        for k in KINDS
    }
    report.figure("experiments", bar_chart("A step", bars, "ms"), "Milliseconds a step.")
    lines = {
        _WITH[k]: [(p.round + 1.0, 1e3 * p.per_step) for p in d.phases if p.kind == k]
        for k in KINDS
    }
    report.figure("rounds", line_chart("By round", lines, "round", "ms a step"), "Each round.")


def _percentiles_into(report: Report, d: Diagnosis) -> None:
    report.section("Percentiles of the whole pipeline")
    rows = [
        [name, q, 1e3 * e.value, _milliseconds(e)]
        for name, by in percentiles(d.phases).items()
        for q, e in by.items()
    ]
    report.table(["of", "quantile", "ms", "95 % interval"], rows)
    report.text("A wait is that of the trainer's thread in next(), which a device may not notice.")


def _memory_into(report: Report, memory: MemoryWatch) -> None:
    peak, growth = memory.peak(), memory.growth()
    if peak is None:
        return
    report.section("Memory")
    rows = [["peak, shared pages counted once (PSS)", size(peak.pss)], ["RSS then", size(peak.rss)]]
    grows = growth is not None and memory.grows()
    if growth is not None and grows:
        rows.append(["growth a minute", f"{growth.value / (1 << 20):,.1f} MiB"])
    report.table(["what", "value"], rows)
    report.text("It grows all the time." if grows else "No lasting growth was seen.")


def _milliseconds(e: Estimate) -> str:
    return "" if math.isinf(e.low) else f"{1e3 * e.low:.3g} to {1e3 * e.high:.3g}"

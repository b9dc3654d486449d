"""A comparison as a folder: the report, the figures as JSON, every run, and what was run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forebay.compare.judging import FOR_INTERVAL, Figures, Judged, rollout
from forebay.compare.orders import Mode
from forebay.compare.rounds import MODES, Results
from forebay.diagnose.environment import Environment
from forebay.report import Report, charts
from forebay.statistics import Estimate, shown
from forebay.topology import redacted

_LONGEST_CELL = 300


def save(
    results: Results, judged: Sequence[Judged], environment: Environment, folder: Path
) -> Path:
    """Write everything into ``folder``; returns the path of the page."""
    secrets = results.matrix.secrets
    report(results, judged, environment).save(folder)
    for file in (folder / "report.md", folder / "report.html"):
        file.write_text(redacted(file.read_text("utf-8"), secrets), "utf-8")
    _write(folder / "results.json", as_json(results, judged, environment), secrets)
    (folder / "runs").mkdir(exist_ok=True)
    for i, outcome in enumerate(results.outcomes):
        runs = [asdict(run) for mode in MODES for run in outcome.runs.get(mode, ())]
        what = {"variant": outcome.variant.name, "changes": dict(outcome.variant.changes)}
        _write(folder / "runs" / f"{i:02}.json", {**what, "runs": runs}, secrets)
    settings = results.matrix.settings
    for name, file in (("matrix.yaml", results.matrix.file), ("topology.yaml", settings.topology)):
        (folder / name).write_text(redacted(file.read_text("utf-8"), secrets), "utf-8")
    return folder / "report.html"


def as_json(results: Results, judged: Sequence[Judged], environment: Environment) -> dict[str, Any]:
    """All that was found, as plain JSON."""
    settings = asdict(results.matrix.settings)
    return {
        "settings": {**settings, "topology": str(settings["topology"])},
        "rounds": results.rounds,
        "partial": results.partial,
        "rows": results.inputs.rows,
        "inputs": asdict(results.inputs),
        "seconds": results.seconds,
        "environment": environment.to_json(),
        "variants": [variant_json(j) for j in judged],
    }


def variant_json(judged: Judged) -> dict[str, Any]:
    """One variant as plain JSON; what is not known is null."""
    outcome = judged.outcome
    return {
        "name": judged.name,
        "changes": dict(outcome.variant.changes),
        "verdict": judged.judgement,
        "why": judged.why,
        "prepare_seconds": outcome.prepare_seconds,
        "rows": None if outcome.difference is None else asdict(outcome.difference),
        "reading": _figures_json(judged.drain),
        "training": _figures_json(judged.train),
    }


def report(results: Results, judged: Sequence[Judged], environment: Environment) -> Report:
    """The report for people."""
    settings, trains = results.matrix.settings, results.matrix.trains
    made = Report(f"Comparison of {settings.topology.name}")
    made.text(summary(results, judged))
    made.section("Verdicts")
    made.table(["variant", "verdict", "why"], [[j.name, j.judgement, j.why] for j in judged])
    if trains:
        made.section("Training")
        _speed(made, "train", results, judged, "The training function on the pipeline's batches.")
    made.section("Reading")
    text = "The pipeline alone: its batches are taken as fast as they come, and not trained on."
    _speed(made, "drain", results, judged, text)
    made.section("Cost and staging")
    _cost(made, results, judged)
    _how_to_roll_out(made, judged)
    made.section("How it was measured")
    made.bullets(_method(results))
    made.table(["where", ""], [[k, _cut(v)] for k, v in environment.rows()])
    return made


def summary(results: Results, judged: Sequence[Judged]) -> str:
    """What was found, in one or two sentences."""
    count = {k: [j.name for j in judged if j.judgement == k] for k in ("better", "worse", "WRONG")}
    found = [f"{k}: {', '.join(names)}" for k, names in count.items() if names]
    failed = [j.name for j in judged if j.judgement == "failed"]
    found += [f"failed: {', '.join(failed)}"] if failed else []
    what = "; ".join(found) if found else "no variant was shown to differ from the baseline"
    n, rounds = len(judged) - 1, results.rounds
    so_far = ""
    if results.partial:
        so_far = (
            f"Partial: interrupted after {rounds} of {results.matrix.settings.repeats} rounds. "
        )
    return (
        f"{so_far}{what[0].upper()}{what[1:]}. {n} {'variant' if n == 1 else 'variants'} against "
        f"the baseline, {rounds} {'round' if rounds == 1 else 'rounds'} of "
        f"{results.inputs.rows:,} rows each."
    )


def told(e: Estimate) -> str:
    """A figure with its interval; a dash where none can be told."""
    return str(e) if e.known else f"{shown(e.value)} (-)"


def _whisker(results: Results) -> str:
    return ", with its 95 % interval" if results.rounds >= FOR_INTERVAL else ""


def _speed(made: Report, mode: Mode, results: Results, judged: Sequence[Judged], text: str) -> None:
    known = [(j, f) for j in judged if (f := _of(j, mode)) is not None]
    made.text(text)
    columns = ["variant", "rows/s", "times the baseline", "step p95, ms"]
    rows: list[list[object]] = [
        [j.name, told(f.rows_per_second), _ratio(j, f), _scaled(f.step_p95_seconds, 1e3)]
        for j, f in known
    ]
    if mode == "train":
        columns.append("starved, %")
        for row, (_, f) in zip(rows, known, strict=True):
            row.append(_scaled(f.starved, 100))
    made.table(columns, rows)
    bars = {_marked(j): _bar(f.rows_per_second) for j, f in known}
    word = MODES[mode]
    svg = charts.bar_chart(f"Throughput of {word}", bars, "rows/s")
    made.figure(f"{word}-throughput", svg, f"The median of the rounds{_whisker(results)}.")
    lines = {
        _marked(j): [(i + 1.0, r.rows_per_second) for i, r in enumerate(j.outcome.runs[mode])]
        for j, _ in known
    }
    svg = charts.line_chart(f"Rounds of {word}", lines, "round", "rows/s")
    made.figure(f"{word}-rounds", svg, "Every run: what moves together is the machine's doing.")


def _cost(made: Report, results: Results, judged: Sequence[Judged]) -> None:
    known = [(j, j.drain) for j in judged if j.drain is not None]
    columns = ["variant", "CPU µs/row", "first batch, s", "staged MiB", "memory MiB", "prepare, s"]
    made.table(
        columns,
        [
            [
                j.name,
                _scaled(f.cpu_seconds_per_row, 1e6),
                _scaled(f.first_batch_seconds, 1.0),
                _mib(f.staged_bytes),
                _mib(_most_memory(j)),
                j.outcome.prepare_seconds,
            ]
            for j, f in known
        ],
    )
    made.text(
        "CPU time and memory are those of the run's processes on this machine while the pipeline "
        "was drained. The first batch is counted from the opening of the source; staged is what "
        "was under way when it came."
    )
    bars = {_marked(j): _bar(_times(f.cpu_seconds_per_row, 1e6)) for j, f in known}
    svg = charts.bar_chart("CPU time for a row", bars, "µs")
    made.figure("cpu", svg, f"Reading and the stages; the median of the rounds{_whisker(results)}.")
    made.bullets(_amortised(judged, results.inputs.rows))


def _amortised(judged: Sequence[Judged], rows: int) -> Iterable[str]:
    """For each preparation, after how many rows it has paid for itself."""
    base = judged[0].decisive
    for j in judged:
        seconds, figures = j.outcome.prepare_seconds, j.decisive
        if seconds is None or figures is None or base is None:
            continue
        gain = 1 / base.rows_per_second.value - 1 / figures.rows_per_second.value
        spread = f"{j.name}: prepared in {shown(seconds)} s, {shown(1e6 * seconds / rows)} µs a row"
        if gain > 0 and j.judgement == "better":
            yield f"{spread} of this comparison; it pays after {seconds / gain:,.0f} rows."
        else:
            yield f"{spread} of this comparison; it was not shown to pay."


def _how_to_roll_out(made: Report, judged: Sequence[Judged]) -> None:
    made.section("Rollout and rollback")
    better = [(j, rollout(j, judged[0])) for j in judged if j.judgement == "better"]
    if not better:
        made.text("There is nothing to roll out: no variant is better than the baseline.")
    for j, criteria in better:
        made.text(f"{j.name}:")
        made.code(
            "\n".join(f"{path}: {value}" for path, value in j.outcome.variant.changes.items())
        )
        made.bullets(criteria)


def _method(results: Results) -> list[str]:
    matrix, settings = results.matrix, results.matrix.settings
    same = "ids and contents" if settings.check == "bytes" else "ids"
    by = "split and offset" if settings.ids is None else f"the column {settings.ids}"
    return [
        f"All runs read the same records: {results.inputs.rows:,} rows of "
        f"{len(results.inputs.stops or ())} splits, from the same positions to the same ends.",
        f"One key of the topology was changed at a time; {results.rounds} rounds, in each of "
        f"which every variant ran once, in an order drawn with seed {settings.seed}.",
        "Every run had a process of its own. The first "
        f"{settings.warmup_batches} of {settings.batches} batches were not timed.",
        f"The rows of each variant were compared with the baseline's: {same}, by {by}, in any "
        "order. A variant that gives other rows is WRONG, however fast it is.",
        "Ratios are of the two runs of one round; intervals are 95 % percentile bootstraps of the "
        "median, for ratios at least as wide as Student's t of their logarithms. Of fewer than "
        "four rounds no interval of a median can be told, of fewer than three none of a ratio. "
        f"A difference counts if its interval leaves out 1 and it is {100 * settings.least:.3g} % "
        "or more. Of twenty variants that differ in nothing, one may still be told to.",
        "No checkpoint, dead letter, recording or group offset was written.",
        *(f"Left out, for it is what the file says: {name}." for name in matrix.same),
        f"It took {results.seconds:,.0f} s.",
    ]


def _cut(text: str) -> str:
    """The beginning of a text that is too long to be read, as that of rows in a topology is."""
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"


def _of(judged: Judged, mode: Mode) -> Figures | None:
    return judged.train if mode == "train" else judged.drain


def _marked(judged: Judged) -> str:
    """Its name in a chart: a fast variant that is wrong must not look like a good one."""
    return f"{judged.name} (WRONG)" if judged.judgement == "WRONG" else judged.name


def _ratio(judged: Judged, figures: Figures) -> str | None:
    return None if judged.judgement == "baseline" else told(figures.ratio)


def _most_memory(judged: Judged) -> int | None:
    known = [f.pss_bytes for f in (judged.drain, judged.train) if f and f.pss_bytes is not None]
    return max(known, default=None)


def _times(e: Estimate, factor: float) -> Estimate:
    return Estimate(e.value * factor, e.low * factor, e.high * factor, e.n)


def _scaled(e: Estimate | None, factor: float) -> str | None:
    return None if e is None else told(_times(e, factor))


def _bar(e: Estimate) -> tuple[float, float, float]:
    return e.value, e.low, e.high


def _mib(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / (1 << 20)


def _figures_json(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    return {
        name: value.to_json() if isinstance(value, Estimate) else value
        for name in Figures.__dataclass_fields__
        for value in [getattr(figures, name)]
    }


def _write(path: Path, what: Any, secrets: Iterable[str]) -> None:
    text = json.dumps(what, indent=2, ensure_ascii=False, default=str)
    path.write_text(redacted(text + "\n", secrets), encoding="utf-8")

"""``forebay doctor``: why the trainer is as fast as it is, by experiments or from a running job."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from forebay.cli.common import (
    Options,
    common_options,
    engine_options,
    importable_from,
    read_topology,
    set_up_logging,
)
from forebay.cli.exits import OK, UserCodeError
from forebay.cli.following import followed, unreached
from forebay.diagnose.doctor import TrainingFailed, examine
from forebay.diagnose.environment import environment
from forebay.diagnose.foreign import examine as examine_loader
from forebay.diagnose.memory import MemoryWatch
from forebay.diagnose.patient import NothingMeasured
from forebay.diagnose.phases import Schedule
from forebay.diagnose.profile import StepProfiler
from forebay.diagnose.written import Findings, verdict_into, verdict_json, verdict_lines
from forebay.errors import ConfigError
from forebay.observe.snapshot import Snapshot
from forebay.observe.verdict import Verdict, judge
from forebay.report import Report
from forebay.topology import Topology
from forebay.training import Stop, Stopper

FOUND = 8
"""The exit code with --strict where something else than the trainer is the limit."""
_FINE = ("compute", "ended", "draining")
_PATIENCE_SECONDS = 15.0
_LOADER_STEPS = 50


@click.command()
@click.argument("targets", nargs=-1, metavar="TOPOLOGY|URL|FILE...")
@engine_options
@click.option(
    "--loader",
    metavar="MODULE:FACTORY",
    help="Examine the torch DataLoader that this function returns, in place of a topology.",
)
@click.option(
    "--steps", type=click.IntRange(1), help="Of each phase.  [default: those of a second]"
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each experiment is repeated.",
)
@click.option("--out", type=click.Path(), help="Write a report with plots into this folder.")
@click.option("--profile", is_flag=True, help="Record three steps with torch.profiler in the end.")
@click.option("--strict", is_flag=True, help="Exit with 8 if the trainer is not the limit.")
@common_options
@click.pass_context
def doctor(
    context: click.Context,
    targets: Sequence[str],
    engine: str | None,
    address: str | None,
    loader: str | None,
    steps: int | None,
    rounds: int,
    out: str | None,
    profile: bool,
    strict: bool,
) -> None:
    """Why is my GPU idle? One sentence, with the evidence.

    With a TOPOLOGY its training function is run for some steps, in turns on the whole pipeline and
    on less of it: records from memory, finished slices, one frozen batch. What each part costs
    shows in the differences. Nothing is saved, committed or written, and the position stays.

    With addresses of dashboards (http://HOST:PORT) or state files of a running job, one for each
    rank, the verdict is by what these tell, without experiments.

    With --loader it is about any DataLoader: which of its arguments would make it faster.
    """
    options = context.find_object(Options) or Options()
    set_up_logging(options)
    if not options.debug:  # loaders that start again and again each say where they go on
        logging.getLogger("forebay").setLevel(logging.WARNING)
    if loader is not None:
        if targets or engine or address or profile:
            raise ConfigError("--loader stands alone, or with --steps, --rounds, --out, --strict")
        healthy = _foreign(options, loader, steps, rounds, out)
        context.exit(FOUND if strict and not healthy else OK)
    if targets and all(map(_is_job, targets)):
        if engine or address or profile or steps:
            raise ConfigError("--engine, --address, --steps and --profile are for a TOPOLOGY")
        verdicts = _attached(options, targets, out)
    elif len(targets) == 1:
        loaded = read_topology(options, targets[0], engine, address)
        verdicts = [_examined(options, loaded, Schedule(rounds=rounds, steps=steps), out, profile)]
    else:
        raise ConfigError(
            "give one topology, or addresses and state files of one running job, or --loader"
        )
    if strict and any(v.cause not in _FINE for v in verdicts):
        context.exit(FOUND)


def _examined(
    options: Options, loaded: Topology, schedule: Schedule, out: str | None, profile: bool
) -> Verdict:
    """Do the experiments, and tell and write what they say."""
    if profile and out is None:
        raise ConfigError("--profile writes a trace: say where with --out FOLDER")
    profiler = StepProfiler(out) if profile and out is not None else None
    with Stopper() as stopper, MemoryWatch() as memory:
        try:
            diagnosis = examine(loaded, schedule, stopper, profiler=profiler)
        except TrainingFailed as e:
            raise UserCodeError(str(e)) from e.__cause__
        except (Stop, NothingMeasured):
            if stopper.signal is None:
                raise
            raise KeyboardInterrupt from None  # before anything could be told
    findings = Findings(
        diagnosis=diagnosis,
        environment=environment(loaded),
        memory=memory,
        profile=None if profiler is None else profiler.summary(),
    )
    report = _saved(findings.report(f"Doctor: {loaded.name or loaded.file}"), out)
    event = {"event": "verdict", "topology": loaded.file, **findings.to_json(), "report": report}
    options.emit(event, findings.text() + _where(report))
    return diagnosis.verdict


def _foreign(options: Options, spec: str, steps: int | None, rounds: int, out: str | None) -> bool:
    """Examine a DataLoader; whether nothing is to be changed about it."""
    importable_from(spec)
    findings = examine_loader(
        spec, steps=steps or _LOADER_STEPS, repeats=rounds, tell=partial(click.echo, err=True)
    )
    report = Report(f"Doctor: {spec}")
    findings.report(report)
    _environment_into(report)
    written = _saved(report, out)
    event = {"event": "verdict", "loader": spec, **findings.to_json(), "report": written}
    options.emit(event, findings.text() + _where(written))
    return findings.healthy


def _environment_into(report: Report) -> None:
    report.section("Environment")
    report.table(["what", "value"], environment().rows())


def _attached(options: Options, targets: Sequence[str], out: str | None) -> list[Verdict]:
    """Judge what the ranks of a job tell, and write it."""
    report, verdicts = Report("Doctor"), []
    for history in _histories(options, targets):
        job, verdict = history[-1].job, judge(_before_end(history))
        verdicts.append(verdict)
        name = f"{job.name}, rank {job.rank} of {job.world_size}"
        event = {"event": "verdict", "job": job.name, "rank": job.rank, **verdict_json(verdict)}
        verdict_into(report, verdict, name)
        options.emit(event, "\n".join([f"{name}:", *verdict_lines(verdict)]))
    if written := _saved(report, out):
        options.emit({"event": "report", "folder": written}, _where(written).strip())
    return verdicts


def _histories(options: Options, targets: Sequence[str]) -> Sequence[Sequence[Snapshot]]:
    """What the targets tell, once it is enough for a verdict, or after some patience.

    Raises:
        SourceError: nothing is heard of one of them.
    """
    board, until = followed(options, targets), time.monotonic() + _PATIENCE_SECONDS
    while True:
        board.refresh()
        for target in board.targets():
            if not target.ranks:
                raise unreached([target])
        histories = board.histories()
        enough = all(judge(h).cause != "unknown" for h in histories)
        if enough or time.monotonic() >= until or not any(map(_is_url, targets)):
            return histories
        time.sleep(1.0)


def _before_end(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Without the last word of a run that ended, which is about its end."""
    before = [s for s in history if s.ended is None]
    return before or history


def _saved(report: Report, out: str | None) -> str | None:
    """The folder of the report, if one was asked for.

    Raises:
        ConfigError: it cannot be written.
    """
    if out is None:
        return None
    try:
        return str(report.save(out))
    except OSError as e:
        raise ConfigError(f"the report cannot be written to {out}: {e}") from e


def _where(report: str | None) -> str:
    return "" if report is None else f"\n  report: {Path(report) / 'report.html'}"


def _is_job(target: str) -> bool:
    """Whether it is a running job's address or state file, not a topology: lines of JSON."""
    return _is_url(target) or _first_byte(target) == b"{"


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _first_byte(path: str) -> bytes:
    try:
        with Path(path).open("rb") as f:
            return f.read(1)
    except OSError:
        return b""  # the reader of topologies says what is wrong with it

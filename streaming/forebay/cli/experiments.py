"""``forebay doctor`` of a topology, or of a torch ``DataLoader``: verdicts by experiments."""

from __future__ import annotations

from functools import partial

import click

from forebay.cli.attached import saved, where
from forebay.cli.common import Options, importable_from, read_topology
from forebay.cli.exits import Interrupted, UserCodeError
from forebay.diagnose.doctor import Diagnosis, TrainingFailed, examine
from forebay.diagnose.environment import environment
from forebay.diagnose.foreign import ForeignFindings
from forebay.diagnose.foreign import examine as examine_loader
from forebay.diagnose.memory import MemoryWatch
from forebay.diagnose.patient import NothingMeasured
from forebay.diagnose.phases import Schedule
from forebay.diagnose.profile import StepProfiler
from forebay.diagnose.written import Findings
from forebay.observe.verdict import Verdict
from forebay.report import Report
from forebay.topology import Topology
from forebay.training import Stop, Stopper

_LOADER_STEPS = 50
_tell = partial(click.echo, err=True)


def on_topology(
    options: Options,
    path: str,
    engine: str | None,
    address: str | None,
    *,
    rounds: int,
    steps: int | None,
    out: str | None,
    profile: bool,
) -> Verdict:
    """Do the experiments on a topology, and tell and write what they say.

    Raises:
        UserCodeError: the training function raised.
        ForebayError: the topology is wrong, or of its source, a stage, or the state.
    """
    loaded = read_topology(options, path, engine, address)
    profiler = StepProfiler(out) if profile and out is not None else None
    with MemoryWatch() as memory:
        diagnosis = _diagnosis(loaded, Schedule(rounds=rounds, steps=steps), profiler)
    findings = Findings(
        diagnosis=diagnosis,
        environment=environment(loaded),
        memory=memory,
        profile=None if profiler is None else profiler.summary(),
    )
    report = saved(findings.report(f"Doctor: {loaded.name or loaded.file}"), out)
    event = {"event": "verdict", "topology": loaded.file, **findings.to_json(), "report": report}
    options.emit(event, findings.text() + where(report))
    return diagnosis.verdict


def on_loader(options: Options, spec: str, steps: int | None, rounds: int, out: str | None) -> bool:
    """Examine a DataLoader; whether nothing is to be changed about it.

    Raises:
        ConfigError: there is no such factory, or it fails, or it returns no loader.
        Interrupted: a signal came before anything was measured.
    """
    importable_from(spec)
    with Stopper() as stopper:
        findings = _of_loader(spec, steps or _LOADER_STEPS, rounds, stopper)
        written = _written(spec, findings, out)
        event = {"event": "verdict", "loader": spec, **findings.to_json(), "report": written}
        options.emit(event, findings.text() + where(written))
    return findings.healthy


def _of_loader(spec: str, steps: int, rounds: int, stopper: Stopper) -> ForeignFindings:
    try:
        return examine_loader(spec, steps=steps, repeats=rounds, stopper=stopper, tell=_tell)
    except Stop:
        raise Interrupted("nothing was measured yet") from None


def _written(spec: str, findings: ForeignFindings, out: str | None) -> str | None:
    report = Report(f"Doctor: {spec}")
    findings.report(report)
    report.section("Environment")
    report.table(["what", "value"], environment().rows())
    return saved(report, out)


def _diagnosis(loaded: Topology, schedule: Schedule, profiler: StepProfiler | None) -> Diagnosis:
    with Stopper() as stopper:
        try:
            return examine(loaded, schedule, stopper, profiler=profiler, tell=_tell)
        except TrainingFailed as e:
            raise UserCodeError(str(e)) from e.__cause__
        except (Stop, NothingMeasured):
            if stopper.signal is None:
                raise
            raise KeyboardInterrupt from None  # before anything could be told

"""Runs a topology under the doctor: its own training function, fed in turns; then the verdict.

Nothing is moved by it: no checkpoint, no dead letters, no recording, no committed offsets. The
position is read from the checkpoint, if there is one, and stays there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forebay import checkpoint
from forebay.checkpoint import save_torch
from forebay.diagnose.experiments import DATA, Measured, Part, measured
from forebay.diagnose.patient import NothingMeasured, Patient
from forebay.diagnose.phases import DoctorsLoader, Phase, Schedule
from forebay.diagnose.producer import with_doubt, with_rates
from forebay.diagnose.profile import StepProfiler
from forebay.diagnose.silence import Silence
from forebay.errors import ForebayError
from forebay.observe.limits import (
    Limit,
    all_workers_busy,
    of_handover,
    of_source,
    of_stages,
)
from forebay.observe.monitor import Monitor, job_of_program
from forebay.observe.snapshot import Snapshot
from forebay.observe.verdict import WORTH, Verdict, draining, starved, told
from forebay.observe.window import Window, between, together
from forebay.stepclock import DeviceTimeline
from forebay.topology import Topology
from forebay.training import Checkpoint, Stop, Stopper, TrainingLoader

_WATCH_SECONDS = 0.1
_CHEAPER = "to train faster, make the step cheaper: --profile --out FOLDER records what it does"
_LOSSES: Mapping[str, tuple[Part, ...]] = {
    "starved": DATA,
    "copy": ("copy",),
    "communication": ("communication",),
    "host": ("host",),
    "pause": ("pause",),
}


class TrainingFailed(Exception):
    """The training function raised; its cause is what it raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor found."""

    verdict: Verdict
    measured: Measured | None
    """None where the source gave nothing to do experiments with."""
    phases: Sequence[Phase] = ()
    mix: Mapping[str, int] = field(default_factory=dict)
    """Rows of the whole pipeline by split."""
    notes: Sequence[str] = ()
    """In what the run under the doctor differs from a real one."""


def examine(
    topology: Topology,
    schedule: Schedule,
    stopper: Stopper,
    *,
    timeline: DeviceTimeline | None = None,
    profiler: StepProfiler | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Do the experiments, and tell what limits the trainer.

    Args:
        schedule: how long is measured.
        stopper: ends it early; what was measured until then counts.
        timeline: of the trainer's device; None: that of the topology's ``loader.device``.
        profiler: records a few steps in the end.
        tell: is told what is done, a line each, on any thread.

    Raises:
        NothingMeasured: it ended before one round of experiments was through, and that was not
            because nothing came of the source.
        TrainingFailed: the training function raised.
        ForebayError: of the source, of a stage, or of the state.
    """
    patient = Patient.of(topology, timeline, schedule.patience)
    tell(f"reading the first records, {schedule.patience:.0f} s at most")
    raw = patient.sample()
    if not raw:
        return _no_data(patient)
    done = patient.finished(raw)
    with ExitStack() as stack:
        loader = patient.live(raw, done)
        doctors = DoctorsLoader(
            loader,
            stopper,
            schedule,
            supplies=patient.supplies(raw, done),
            clock=patient.clock,
            timeline=patient.timeline,
            profiler=profiler,
            grows=not topology.pipeline.source.bounded,
            tell=tell,
        )
        stack.callback(doctors.close)
        monitor = Monitor(loader, job_of_program(loader.options), interval=_WATCH_SECONDS)
        stack.enter_context(monitor)
        _train(topology, doctors)
    return _diagnosis(patient, doctors, monitor.history())


class ScratchCheckpoint(Checkpoint):
    """The training function's checkpoint under the doctor: read as ever, written to a file that
    is thrown away at once, on the same disk, so that saving takes as long as it does."""

    def save(self, payload: Any) -> None:
        folder = self.path.parent if self.path.parent.is_dir() else None
        with (
            self._loader.pause("checkpoint"),
            tempfile.TemporaryDirectory(prefix=".forebay-doctor-", dir=folder) as scratch,
        ):
            save_torch(Path(scratch) / "checkpoint", {"payload": payload})
        self._saved_at = self._loader.batches


def _train(topology: Topology, loader: DoctorsLoader) -> None:
    train, kept = topology.train, topology.checkpoint
    try:
        if train is None:
            _resume(topology, loader)
            for _ in loader:
                continue
            return
        options = dict(train.options)
        if train.wants_checkpoint:
            options["checkpoint"] = kept and ScratchCheckpoint(
                kept.path, loader, every=kept.every, run=topology.name
            )
        else:
            _resume(topology, loader)
        train.function(loader, **options)
    except ForebayError:
        raise
    except Stop:
        return
    except Exception as e:
        if loader.error is e:
            raise
        raise TrainingFailed(f"the training function raised {type(e).__name__}: {e}") from e


def _resume(topology: Topology, loader: TrainingLoader) -> None:
    """Go on from the run's checkpoint, which is only read."""
    if topology.checkpoint is not None:
        state = checkpoint.load(topology.checkpoint.path, run=topology.name)
        if state is not None:
            loader.load_state_dict(state)


def _diagnosis(patient: Patient, loader: DoctorsLoader, history: Sequence[Snapshot]) -> Diagnosis:
    try:
        m = measured(loader.phases, loader.paused)
    except ValueError as e:
        if loader.silence is not None:
            return _silent(patient, loader.silence)
        raise NothingMeasured(
            f"{e}: the training function took {loader.batches} batches and ended. Let it take "
            "more of them (its own options in the section 'train'), or measure less: --steps 5 "
            "--rounds 1"
        ) from e
    seen = _window(history, loader, m)
    return Diagnosis(
        verdict=_verdict(patient, m, seen),
        measured=m,
        phases=tuple(loader.phases),
        mix=dict(loader.origins),
        notes=(*patient.notes, *_of_its_end(patient, loader.silence)),
    )


def _silent(patient: Patient, silence: Silence) -> Diagnosis:
    verdict = silence.verdict(patient.source, trains=patient.topology.train is not None)
    return Diagnosis(verdict=verdict, measured=None, notes=patient.notes)


def _of_its_end(patient: Patient, silence: Silence | None) -> tuple[str, ...]:
    if silence is None:
        return ()
    return (f"the rounds ended early: {silence.sentence(patient.source)}",)


def _window(history: Sequence[Snapshot], loader: DoctorsLoader, m: Measured) -> Window:
    """What was seen while the whole pipeline ran, with the shares that were measured."""
    s = m.shares
    shares = {
        "starved": m.starved,
        "copy": s["copy"],
        "compute": s["compute"],
        "communication": s["communication"],
        "other": s["host"] + s["pause"],
    }
    pauses = _parted(loader.paused, s["pause"])
    full = [p for p in loader.phases if p.kind == "full"]
    within = [[s for s in history if p.began <= s.at <= p.ended] for p in full]
    seen = [_of_phase(snapshots) for snapshots in within if len(snapshots) >= 2]
    # Of phases of a few quick steps nothing was seen: all phases then.
    w = together(seen) if seen else between(history)
    w = replace(w, shares=shares, starved=m.starved, pauses=pauses)
    return with_rates(w, seen, history, m)


def _of_phase(snapshots: Sequence[Snapshot]) -> Window:
    """How often the lock was taken is told of the moment before: at the end it is of the phase."""
    return replace(between(snapshots), gil=snapshots[-1].process.gil)


def _parted(paused: Mapping[str, float], share: float) -> dict[str, float]:
    """The share of all pauses, by their names."""
    whole = sum(paused.values())
    return {k: share * v / whole for k, v in paused.items() if v > 0}


def _verdict(patient: Patient, m: Measured, w: Window) -> Verdict:
    grows = not patient.pipeline.source.bounded
    if patient.topology.train is None:
        return _drained(m, replace(w, rows=m.rows_a_second), grows=grows)
    losses = {loss: sum(m.shares[part] for part in parts) for loss, parts in _LOSSES.items()}
    loss = max(losses, key=lambda k: losses[k])
    # A machine that stutters makes any part look long in one round; in all of them it does not.
    if losses[loss] < WORTH or m.shown(_LOSSES[loss]) < WORTH / 2:
        healthy = replace(told(w, "compute", losses[loss]), advice=_CHEAPER)
        return _with_experiments(healthy, m)
    if loss == "starved":
        return _with_experiments(starved(w, m.starved, _limit(m, w, grows=grows)), m)
    return _with_experiments(told(w, loss, losses[loss]), m)


def _limit(m: Measured, w: Window, *, grows: bool) -> Limit:
    """Why data is late, by what the experiments say it waits for most."""
    most = max(DATA, key=lambda part: m.shares[part])
    if most == "handover":
        return of_handover(w)
    # Where the lock or the CPUs are what all wait for, reading waits for them as stages do.
    works = bool(w.stages and w.pools)
    if not works or (most == "source" and not all_workers_busy(w)):
        return of_source(w, grows=grows)
    return of_stages(w)


def _drained(m: Measured, w: Window, *, grows: bool) -> Verdict:
    return _with_experiments(draining(w, _limit(m, w, grows=grows)), m)


def _with_experiments(verdict: Verdict, m: Measured) -> Verdict:
    """The verdict with what was measured as the first of its evidence."""
    ms = {kind: 1e3 * e.value for kind, e in m.per_step.items()}
    steps = (
        f"a step takes {ms['full']:.1f} ms; without the source {ms['no source']:.1f} ms, without "
        f"source and stages {ms['no stages']:.1f} ms, with one frozen batch {ms['frozen']:.1f} ms"
    )
    return with_doubt(replace(verdict, evidence=(steps, *verdict.evidence)), m)


def _no_data(patient: Patient) -> Diagnosis:
    verdict = Verdict(
        cause="source",
        sentence="The trainer waits for data all the time: no record came of "
        f"{patient.source} within {patient.patience:.0f} s.",
        shares={"starved": 1.0},
        evidence=("no experiment could be done without a record",),
        guess=("the topic or table is empty, or its reading begins at its end",),
        advice="look whether something is written there, and where reading begins",
    )
    return Diagnosis(verdict=verdict, measured=None, notes=patient.notes)

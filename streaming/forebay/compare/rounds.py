"""The runs of a comparison: every variant in every round, in a random order, each in a process
of its own."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from forebay.compare.digest import Difference, difference
from forebay.compare.matrix import Matrix, Variant
from forebay.compare.orders import Inputs, Mode, Order, Run
from forebay.compare.worker import RunFailed, Worker
from forebay.training import Stop, Stopper

Told: TypeAlias = Callable[[str], None]
MODES: Mapping[Mode, str] = {"drain": "reading", "train": "training"}
"""In words."""
_LAST_WORDS = 500


class Runner(Protocol):
    """Runs orders; each in a process of its own, if it can."""

    def scout(self, order: Order, batches: int) -> Inputs:
        """See ``measuring.scout``. Raises RunFailed."""

    def measure(self, order: Order) -> Run:
        """See ``measuring.measure``. Raises RunFailed."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Runs each order in a new process."""

    timeout: float

    def scout(self, order: Order, batches: int) -> Inputs:
        with Worker(self.timeout) as worker:
            return worker.scout(order, batches)

    def measure(self, order: Order) -> Run:
        with Worker(self.timeout) as worker:
            return worker.measure(order)


@dataclass(slots=True)
class Outcome:
    """What became of one variant."""

    variant: Variant
    runs: dict[Mode, list[Run]] = field(default_factory=dict)
    """In the order of the rounds."""
    failure: str | None = None
    """Why it was given up."""
    difference: Difference | None = None
    """Of its rows from the baseline's; None: not looked at."""
    unsteady: bool = False
    """Whether its timed runs gave other rows than the one whose rows were compared."""
    prepare_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that was run."""

    matrix: Matrix
    inputs: Inputs
    outcomes: tuple[Outcome, ...]
    """The baseline first."""
    rounds: int
    """Those that are complete; fewer than asked for if it was interrupted."""
    seconds: float
    """That all of it took."""

    @property
    def baseline(self) -> Outcome:
        """What became of the topology as the file has it."""
        return self.outcomes[0]

    @property
    def partial(self) -> bool:
        """Whether it was interrupted."""
        return self.rounds < self.matrix.settings.repeats


class Planned(NamedTuple):
    """A run that is to be made."""

    round: int
    mode: Mode
    outcome: Outcome


def run_all(
    matrix: Matrix, rows_folder: Path, runner: Runner, tell: Told, stopper: Stopper
) -> Results:
    """Run the whole matrix.

    Args:
        rows_folder: where the rows of each variant are listed, to be compared.
        tell: is told what is done, in words.
        stopper: ends it early; what the complete rounds gave counts.

    Raises:
        RunFailed: the baseline failed.
        Stop: it was ended before a round was complete.
    """
    began, settings = time.monotonic(), matrix.settings
    outcomes = [Outcome(variant) for variant in matrix.variants]
    with stopper.waiting():
        tell(f"reading {settings.batches} batches of {settings.topology} to fix what all runs read")
        inputs = runner.scout(Order(topology=str(settings.topology)), settings.batches)
        for outcome in outcomes:
            _prepare(outcome, matrix.file.parent, tell)
        rounds = _run_rounds(matrix, outcomes, inputs, rows_folder, runner, tell)
    stopper.finish()
    _check_rows(matrix, outcomes, rows_folder)
    return Results(
        matrix=matrix,
        inputs=inputs,
        outcomes=tuple(outcomes),
        rounds=rounds,
        seconds=time.monotonic() - began,
    )


def number_of_runs(matrix: Matrix) -> int:
    """How many runs there are to be, if none fails."""
    return len(matrix.variants) * matrix.settings.repeats * len(_modes(matrix))


def _run_rounds(
    matrix: Matrix,
    outcomes: list[Outcome],
    inputs: Inputs,
    rows_folder: Path,
    runner: Runner,
    tell: Told,
) -> int:
    """Make the runs; returns how many rounds are complete, and keeps what these gave."""
    complete = 0
    try:
        for planned, place in _in_turn(_plan(matrix, outcomes)):
            if planned.round > complete:
                complete = planned.round
                _check_baseline(outcomes[0])
            mode, outcome = planned.mode, planned.outcome
            tell(f"{place}: {MODES[mode]} {outcome.variant.name}, round {planned.round + 1}")
            first = planned.round == 0 and mode == "drain"
            rows_file = _rows_file(rows_folder, matrix, outcome) if first else None
            _measure(outcome, _order(matrix, outcome, mode, inputs, rows_file), runner)
    except Stop:
        if not complete:
            raise
        for outcome in outcomes:
            for runs in outcome.runs.values():
                del runs[complete:]
    else:
        complete = matrix.settings.repeats
    _check_baseline(outcomes[0])
    return complete


def _plan(matrix: Matrix, outcomes: list[Outcome]) -> list[Planned]:
    shuffled = random.Random(matrix.settings.seed)
    return [
        Planned(round_, mode, outcome)
        for round_ in range(matrix.settings.repeats)
        for mode in _modes(matrix)
        for outcome in shuffled.sample(outcomes, len(outcomes))
    ]


def _in_turn(plan: list[Planned]) -> Iterator[tuple[Planned, str]]:
    """The runs of variants that did not fail, each with which it is and how long it will take."""
    began, done = time.monotonic(), 0
    for i, planned in enumerate(plan):
        if planned.outcome.failure is None:
            left = sum(p.outcome.failure is None for p in islice(plan, i, None))
            place = f"run {done + 1} of {done + left}"
            if done:
                place += f", about {_span((time.monotonic() - began) / done * left)} left"
            yield planned, place
            done += 1


def _span(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _check_baseline(baseline: Outcome) -> None:
    if baseline.failure is not None:
        raise RunFailed(
            f"the baseline failed, so there is nothing to compare with: {baseline.failure}"
        )


def _modes(matrix: Matrix) -> tuple[Mode, ...]:
    return ("drain", "train") if matrix.trains else ("drain",)


def _order(
    matrix: Matrix, outcome: Outcome, mode: Mode, inputs: Inputs, rows_file: Path | None
) -> Order:
    settings = matrix.settings
    return Order(
        topology=str(settings.topology),
        changes=outcome.variant.changes,
        mode=mode,
        inputs=inputs,
        # In rows, so that it is the same for every size of a batch.
        warmup_rows=inputs.rows * settings.warmup_batches // settings.batches,
        rows_file=None if rows_file is None else str(rows_file),
        id_column=settings.ids,
    )


def _measure(outcome: Outcome, order: Order, runner: Runner) -> None:
    try:
        run = runner.measure(order)
    except RunFailed as e:
        outcome.failure = str(e)
    else:
        outcome.runs.setdefault(order.mode, []).append(run)


def _prepare(outcome: Outcome, folder: Path, tell: Told) -> None:
    command = outcome.variant.prepare
    if command is None:
        return
    tell(f"preparing {outcome.variant.name}: {command}")
    began = time.monotonic()
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    outcome.prepare_seconds = time.monotonic() - began
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-_LAST_WORDS:]
        outcome.failure = f"prepare ended with code {done.returncode}: {words}"


def _rows_file(folder: Path, matrix: Matrix, outcome: Outcome) -> Path:
    return folder / f"rows-{matrix.variants.index(outcome.variant)}.arrow"


def _check_rows(matrix: Matrix, outcomes: list[Outcome], folder: Path) -> None:
    baseline = _rows_file(folder, matrix, outcomes[0])
    contents = matrix.settings.check == "bytes"
    for outcome in outcomes:
        file = _rows_file(folder, matrix, outcome)
        if outcome.failure is None:
            outcome.difference = difference(baseline, file, contents=contents)
            drained = outcome.runs["drain"]
            outcome.unsteady = len({(run.rows, run.ids) for run in drained}) > 1

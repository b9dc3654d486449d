"""Does the doctor find what is wrong? Runs with a known fault, and healthy ones.

Each is run twice: under the doctor, whose experiments give a verdict and shares, and as a job that
is watched for a few seconds, whose snapshots give a verdict (what the dashboard shows). Nearly all
faults are sleeps, so that the truth is known on a busy machine, too; how much time those cost that
take CPUs or the interpreter's lock is not known, and only their verdict counts. Devices are fake
ones that work in order and later, as a stream does: no GPU is needed, or used.

A verdict is right if it names the cause, and the stage, rank or pause that it comes of. The ratio
is the part of the faults that the doctor finds; it is to find 19 in 20, to be off by at most 5
points in every share that is known, and to call no healthy run starved, by neither way.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from _faults import Case, cases
from _report import report, table
from forebay import Loader
from forebay.diagnose.doctor import Diagnosis, examine
from forebay.diagnose.phases import Schedule
from forebay.observe.monitor import Monitor, job_of_program
from forebay.observe.snapshot import RankSeen, Snapshot
from forebay.observe.verdict import Verdict, judge
from forebay.stepclock import DeviceClock, HostClock
from forebay.tensors import Batch
from forebay.training import Stopper, TrainingLoader

POINTS, FOUND = 0.05, 0.95
_WATCH_SECONDS, _WATCH_BATCHES = 3.2, 30


def main() -> int:
    """Run the cases, print what was found; 0 if that is enough."""
    options = _arguments()
    chosen = [c for c in cases() if options.only in c.name]
    rows: list[dict[str, Any]] = []
    for case in chosen:
        schedule = Schedule(rounds=options.rounds, seconds=case.times * options.seconds)
        rows.append(_row(case, schedule))
        _tell(rows[-1], case)
    table([{k: v for k, v in row.items() if k in _SHOWN} for row in rows], "What the doctor found")
    return _sum_up(rows)


_SHOWN = ("case", "truth", "doctor", "off by", "watched", "right", "right watched")


def _row(case: Case, schedule: Schedule) -> dict[str, Any]:
    with case.around():
        watched = _watched(case)
        found = None if case.ranks else _examined(case, schedule)
    off = None if found is None else _off(case, found)
    return {
        "case": case.name,
        "truth": case.cause,
        "doctor": None if found is None else found.verdict.cause,
        "off by": off,
        "watched": watched.cause,
        "right": _right(case, watched if found is None else found.verdict),
        "right watched": _right(case, watched),
        "healthy": case.healthy,
        "false alarm": case.healthy
        and (watched.starved or (found is not None and found.verdict.starved)),
        "sentence": (watched if found is None else found.verdict).sentence,
        "watched sentence": watched.sentence,
    }


def _examined(case: Case, schedule: Schedule) -> Diagnosis:
    with Stopper() as stopper:
        return examine(case.topology, schedule, stopper, timeline=case.timeline)


def _watched(case: Case) -> Verdict:
    """The verdict on the run itself, after some seconds."""
    clock = HostClock() if case.timeline is None else DeviceClock(case.timeline)
    train = case.topology.train
    with Stopper() as stopper, case.topology.loader(step_clock=lambda: clock) as loader:
        timed = _Timed(loader, stopper)
        job = replace(job_of_program(loader.options), has_trainer=train is not None)
        with Monitor(loader, job, interval=0.25, gpus=False, ranks=_Told(case.ranks)) as monitor:
            if train is None:
                for _ in timed:
                    continue
            else:
                train.function(timed)
            return judge(monitor.history())


class _Timed(TrainingLoader):
    """Ends after some seconds, and some batches."""

    def __init__(self, loader: Loader, stopper: Stopper) -> None:
        super().__init__(loader, stopper)
        self._until = time.monotonic() + _WATCH_SECONDS

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            yield batch
            if time.monotonic() >= self._until and self.batches >= _WATCH_BATCHES:
                return

    def _end_step(self) -> None:
        """Nothing is committed."""


class _Told:
    """What other ranks tell."""

    def __init__(self, ranks: Sequence[RankSeen]) -> None:
        self._ranks = ranks

    def exchange(self, snapshot: Snapshot) -> tuple[RankSeen, ...]:
        return tuple(replace(r, at=snapshot.at) for r in self._ranks)


def _right(case: Case, verdict: Verdict) -> bool:
    return verdict.cause == case.cause and case.says in verdict.sentence.lower()


def _off(case: Case, found: Diagnosis) -> float | None:
    """How far the share is off that is off most."""
    if case.shares is None or found.measured is None:
        return None
    return max(abs(found.measured.shares[part] - share) for part, share in case.shares.items())


def _tell(row: dict[str, Any], case: Case) -> None:
    mark = "ok " if row["right"] and row["right watched"] else "NOT"
    print(f"{mark} {case.name}: {row['sentence']}", flush=True)
    if not row["right watched"]:
        print(f"    watched: {row['watched sentence']}", flush=True)


def _sum_up(rows: Sequence[dict[str, Any]]) -> int:
    faults = [row for row in rows if not row["healthy"]]
    offs = [row["off by"] for row in rows if row["off by"] is not None]
    right = sum(row["right"] for row in faults)
    alarms = sum(row["false alarm"] for row in rows)
    ratio = right / max(len(faults), 1)
    return report(
        "doctor",
        ratio,
        FOUND,
        ratio >= FOUND and max(offs, default=0.0) <= POINTS and not alarms,
        {
            "faults": len(faults),
            "right": right,
            "right watched": sum(row["right watched"] for row in faults),
            "healthy": len(rows) - len(faults),
            "false alarms": alarms,
            "shares known of": len(offs),
            "shares off by at most": max(offs, default=0.0),
            "cases": {row["case"]: {k: row[k] for k in _SHOWN[1:]} for row in rows},
        },
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a phase")
    parser.add_argument("--only", default="", help="cases with this in their names")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

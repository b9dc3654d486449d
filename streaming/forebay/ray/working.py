"""What runs in a worker of the pool: all stages, one after the other, on the slices of a parcel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray import cloudpickle

from forebay.errors import EngineError
from forebay.ray.attempts import DEATHS, Attempts, Record, Rows, forget_old
from forebay.ray.carried import Carried, unloadable
from forebay.ray.parcels import PackedSlice, content_of, number_of, packed, to_table, unpacked
from forebay.rng import RowRandom, Run
from forebay.slice import Failure, Slice
from forebay.stage import Outcome, Stage, StageRun, run_stages, to_rows

# A worker that dies so often outside of any record will not stop dying.
_MOST_ATTEMPTS = 12
_MOST_DEATHS_LOADING = 5
_MORTAL = (
    "{} Ray workers died one after the other while they loaded the stages: see the logs of the Ray "
    "workers for what ends the process, and whether they have memory enough for what it imports"
)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a worker made of a parcel."""

    slices: list[list[PackedSlice] | Carried]
    """For each slice of the parcel its parts, or the error that it ended with."""
    seconds: float
    cpu_seconds: float
    rows: int
    stages: list[StageRun]
    worker: str
    """The worker's name: the same one after a restart."""


class StageWorker:
    """Runs the stages. Never raises inside Ray, which would end the run or drop the slice.

    Args:
        packed_stages: ``(stages, run)``, pickled.
        attempts: what the files begin with in which attempts are written down.
    """

    def __init__(self, packed_stages: bytes, attempts: Path) -> None:
        forget_old(attempts)
        self._attempts = Attempts(attempts)
        self._stages: Sequence[Stage] = ()
        self._run = Run()
        self._useless = self._load(packed_stages, self._attempts.deaths_loading)
        self._attempts.loaded()

    def _load(self, packed_stages: bytes, deaths: int) -> Carried | None:
        """Load the stages; why they cannot be, if so."""
        if deaths >= _MOST_DEATHS_LOADING:
            return Carried.of(EngineError(_MORTAL.format(deaths)))
        try:
            self._stages, self._run = cloudpickle.loads(packed_stages)
        except Exception as e:  # a module that is not installed here can raise anything
            return Carried.of(unloadable("a Ray worker", "the stages", e))
        return None

    def __call__(self, parcel: pa.Table) -> pa.Table:
        began, used = time.perf_counter(), time.thread_time()
        slices = [unpacked(p) for p in content_of(parcel)]
        self._attempts.begin([Rows(s.split, s.start, s.next_offset) for s in slices])
        runs: list[StageRun] = []
        results = [self._result(s, runs) for s in slices]
        finished = Finished(
            results,
            time.perf_counter() - began,
            time.thread_time() - used,
            sum(map(len, slices)),
            runs,
            ray.get_runtime_context().get_actor_id() or "",
        )
        table = to_table(number_of(parcel), finished)
        self._attempts.done()
        return table

    def _result(self, s: Slice, runs: list[StageRun]) -> list[PackedSlice] | Carried:
        try:
            if self._useless is not None:
                return self._useless
            if (earlier := self._attempts.earlier) >= _MOST_ATTEMPTS:
                raise EngineError(
                    f"{earlier} workers died on {s.split}@{s.start}, in no record of it: see the "
                    "logs of the Ray workers, and whether they have memory enough"
                )
            if earlier:
                with self._attempts.alone():
                    records = _one_by_one(self._stages, s, self._run, self._attempts)
                    return [packed(r) for r in records]
            return [packed(run_stages(self._stages, s, self._run, runs))]
        except BaseException as e:  # raised again by the taker, in the slice's turn
            return Carried.of(e)


def _one_by_one(stages: Sequence[Stage], s: Slice, run: Run, attempts: Attempts) -> Iterator[Slice]:
    """Run the records of a slice one after the other; those that kill become dead letters."""
    culprits = attempts.culprits
    for rows in _records(s):
        record = Record(s.split, int(rows.offsets[0]) if len(rows) else rows.start)
        if (stage := culprits.get(record)) is not None:
            yield _quarantined(rows, stage)
        else:
            yield run_stages([_Watched(x, record, attempts) for x in stages], rows, run)


def _records(s: Slice) -> Iterator[Slice]:
    """The slice cut into records; each answers for the offsets up to the next."""
    while True:
        rows = int(np.searchsorted(s.offsets, s.offsets[0], "right")) if len(s) else 0
        yield s.head(rows) if rows else s
        if rows >= len(s):
            return
        s = s.tail(rows)


def _quarantined(record: Slice, stage: str) -> Slice:
    """A record that is not run: a dead letter with the row as it came."""
    failure = Failure(
        offset=int(record.offsets[0]),
        stage=stage,
        reason=f"killed its process or hung, {DEATHS} times in this stage",
        original=to_rows(record.columns)[0],
    )
    none = np.zeros(0, np.int64)
    return replace(
        record,
        columns={},
        offsets=none,
        event_times=None if record.event_times is None else none,
        failures=(failure,),
        source_rows=len(record),
    )


@dataclass(frozen=True, slots=True)
class _Watched:
    """A stage that says what it is given before it runs."""

    stage: Stage
    record: Record
    attempts: Attempts

    @property
    def name(self) -> str:
        return self.stage.name

    def run(self, columns: Any, rng: RowRandom) -> Outcome:
        self.attempts.at(self.record, self.name)
        return self.stage.run(columns, rng)

"""The running Ray engine: a ``Feed``.

One thread of this process asks the reader for parcels and puts references to them into a Ray Data
execution; another takes the finished ones. What is in flight is known here and nowhere else: a
reader or a worker that dies is asked again, and an execution that ends is started anew from the
positions that were secured.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from forebay.engine import Plan, PoolStats, StageStats
from forebay.errors import ConfigError, EngineError, ProcessError
from forebay.ray.attempts import forget_all
from forebay.ray.carried import Carried
from forebay.ray.executor import IN_FLIGHT, Executor, OnEnd, OnFinished, Replacing
from forebay.ray.lookout import Lookout, loss_of
from forebay.ray.nodes import Nodes
from forebay.ray.parcels import content_of, number_of, unpacked
from forebay.ray.reading import (
    Note,
    ReaderCounts,
    Report,
    SourceLost,
    SourceReading,
    Wish,
    frontier,
    weight,
)
from forebay.ray.store import raise_if_full
from forebay.ray.tempo import Tempo
from forebay.ray.turns import Turn, Turns
from forebay.ray.watch import HeadWatch, OnLost
from forebay.ray.working import Finished
from forebay.slice import Slice
from forebay.state import Position

POOL = "stages"
_WAIT_SECONDS = 0.1
_LINGER_SECONDS = 0.05
_PARCEL_BYTES = 4 << 20
_MOST_SLICES, _ANY_ROWS = 1000, 1 << 30
# Parcels in Ray for each worker.
_PARCELS_PER_WORKER = IN_FLIGHT
_ENDS_SECONDS = 1.0
# Without a head closing takes longer than there may be time for.
_LEAVE_SECONDS = 3.0
_RETRIES = 5
_BACKOFF_SECONDS = 0.5
_log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a feed is made of, beside what it is to run."""

    make: Callable[[OnFinished, OnEnd], Executor]
    """Starts an executor of the stages."""
    attempts: Path
    """What the files begin with in which workers write down their attempts."""
    bounds: tuple[int, int]
    """Least and most workers."""
    asks: Mapping[str, Any]
    """What each worker takes of the cluster, by Ray's names."""
    roll_seconds: float
    """After so long an executor is followed by a new one."""
    hung_seconds: float
    """After so long a worker that gives nothing, while its peers do, is replaced."""
    nodes: Nodes
    """What the cluster has for the workers."""
    watch: Callable[[OnLost], HeadWatch]
    """Starts what notices that the head of the cluster is gone."""
    on_close: Callable[[], None]
    """Called last."""


@dataclass(slots=True)
class _Parcel:
    """A parcel that Ray has."""

    turns: list[Turn]
    ref: Any
    """Keeps what was read until it is finished."""


class RayFeed:
    """The running engine. One lock guards the books; Ray is asked outside of it.

    Args:
        positions: where the reading began, as the reader resolved it.
    """

    def __init__(
        self,
        plan: Plan,
        reading: SourceReading,
        positions: Mapping[str, Position],
        setup: Setup,
    ) -> None:
        self._plan, self._reading, self._setup = plan, reading, setup
        self._bounds = setup.bounds
        self.positions = dict(positions)
        self._at = dict(positions)
        self._got: dict[str, Position] = {}
        self._turns = Turns(plan.order, plan.max_bytes, positions)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._ready_changed = threading.Condition(self._lock)
        self._parcels: dict[int, _Parcel] = {}
        self._numbers = itertools.count(1)
        self._wanted: frozenset[str] = frozenset()
        self._finished_splits: frozenset[str] = frozenset()
        self._ends: Mapping[str, int] = {}
        self._counts = ReaderCounts()
        self._phase, self._at_seam = 0, False
        self._reading_on, self._stopping, self._lost = True, False, False
        self._failure: BaseException | None = None
        self._broken: BaseException | None = None
        self._failed_reads, self._failed_runs = 0, 0
        self._lookout = Lookout(setup.hung_seconds, setup.asks)
        self._tempo = Tempo(plan.stages)
        self._workers = setup.bounds[1]
        self._execution = self._started() if plan.stages else None
        self._closed = False
        # Before Ray's own, which was there first: the loader's comes after it.
        atexit.register(self.close)
        self._thread = threading.Thread(target=self._read, name="forebay-read", daemon=True)
        self._thread.start()
        self._watch = setup.watch(self._lose)

    # -- the taker's side ----------------------------------------------------------------------

    @property
    def done(self) -> bool:
        with self._lock:
            return not self._reading_on and self._turns.idle and not self._failure

    def exhausted(self) -> Collection[str]:
        with self._lock:
            return [k for k in self._finished_splits if not self._turns.waiting(k)]

    def take(self, timeout: float) -> Slice | None:
        self._check_process()
        deadline = time.monotonic() + timeout
        with self._lock:
            while not self._turns.ready:
                if self._stopping:
                    return None
                if not self._reading_on and self._turns.idle:
                    if self._failure is not None:
                        self._check_attached()  # or Ray raised SystemExit for that in our threads
                        raise self._failure
                    return None
                left = deadline - time.monotonic()
                if left <= 0 or not self._ready_changed.wait(left):
                    return None
            taken = self._turns.take()
            if self._at_seam:
                self._room.notify()
            return taken

    def release(self, s: Slice) -> None:
        if s.ticket:
            with self._lock:
                self._turns.leave(s.ticket)
                self._room.notify()

    def want(self, splits: Collection[str]) -> None:
        with self._lock:
            self._wanted = frozenset(splits)
            self._room.notify()

    def resize(self, pool: str, workers: int) -> None:
        """Change the number of workers, within the bounds.

        Raises:
            ConfigError: the engine has no such pool.
        """
        if pool != POOL:
            raise ConfigError(f"the ray engine has one pool, {POOL!r}, not {pool!r}")
        with self._lock:
            self._workers = min(max(workers, self._bounds[0]), self._bounds[1])
            if self._execution is not None:
                self._execution.wanted = self._workers
            self._room.notify()
        self._setup.nodes.ask(self._workers)

    def pools(self) -> Mapping[str, PoolStats]:
        with self._lock:
            execution, queued = self._execution, sorted(self._parcels)[self._workers :]
            stats = PoolStats(
                workers=execution.running if execution is not None else 0,
                # What was asked for a moment ago is not seen to start yet.
                starting=max(0, self._workers - execution.running) if execution is not None else 0,
                busy_seconds=self._tempo.busy_seconds,
                cpu_seconds=self._tempo.cpu_seconds,
                queued_slices=sum(len(self._parcels[n].turns) for n in queued),
                rows=self._tempo.rows,
                least=self._bounds[0],
                most=self._bounds[1],
                replaced=self._lookout.replaced,
            )
        return {POOL: stats}

    def stages(self) -> Mapping[str, StageStats]:
        with self._lock:
            return self._tempo.stages.stats()

    def fetched(self) -> Mapping[str, int]:
        with self._lock:
            return {k: p.low for k, p in self._at.items()}

    def reader_counts(self) -> Mapping[str, float]:
        return self._counts.all()

    def cpus(self) -> float | None:
        """CPUs that the cluster has for the workers, or may get. Any thread."""
        execution = self._execution
        return self._setup.nodes.cpus(execution.running if execution is not None else 0)

    @property
    def full(self) -> bool:
        with self._lock:
            return self._turns.idle and self._turns.room <= 0

    def bytes_in_flight(self) -> int:
        with self._lock:
            return self._turns.charged

    def ends(self) -> Mapping[str, int]:
        return self._ends

    def close(self) -> None:
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        with self._lock:
            self._stopping = True
            self._room.notify_all()
            self._ready_changed.notify_all()
        self._watch.close()
        if not self._lost:
            self._close_all()
            return
        closing = threading.Thread(target=self._close_all, name="forebay-close", daemon=True)
        closing.start()
        closing.join(_LEAVE_SECONDS)

    def _close_all(self) -> None:
        """Without a head each order to an actor waits in vain: half a minute, all in all."""
        if ray.is_initialized():
            self._close_actors()
        self._thread.join()
        self._parcels.clear()
        forget_all(self._setup.attempts)
        self._setup.on_close()

    def _close_actors(self) -> None:
        """Not once Ray was shut down: they are gone, and to ask for one starts another Ray."""
        self._reading.stop()
        self._thread.join()
        if self._execution is not None:
            self._execution.close()
        self._setup.nodes.close()
        self._reading.close()

    def _check_attached(self) -> None:
        if not ray.is_initialized():
            raise EngineError(
                "ray.shutdown() was called in this process while a loader ran on Ray: close the "
                "loader first. To go on, start a new one from its state."
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ProcessError(
                "the ray engine was started in another process, and its connection to the cluster "
                "does not survive a fork: start the loader in the process that trains, and let "
                "processes be made with the 'spawn' method"
            )

    # -- reading -------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while self._wait_for_room():
                if self._broken is not None:
                    self._start_anew()
                try:
                    if self._read_parcel():
                        break
                except SourceLost as e:
                    self._open_again(f"the process that reads is gone ({e})")
        except BaseException as e:  # raised again in take(), on the taker's thread
            self._failure = e
        with self._lock:
            self._reading_on = False
            if self._broken is not None:
                self._give_up()
            self._ready_changed.notify_all()

    def _read_parcel(self) -> bool:
        """Ask for the next parcel; True at the end of the source."""
        wish = self._wish()
        report, ref = self._reading.read(wish)
        self._failed_reads = 0
        with self._lock:
            self._ends = report.ends
        self._counts.told(report.counts)
        if report.notes:
            self._admit(wish.number, report.notes, ref)
        elif report.error is not None:
            self._fail_in_turn(report.error)
        return self._at_end(report)

    def _fail_in_turn(self, error: Carried) -> None:
        """Raise what the reader raised, once all that was read before it is through."""
        with self._lock:
            if self._parcels:
                self._room.wait(_WAIT_SECONDS)
                return
        if self._broken is None:
            raise error.error()

    def _wish(self) -> Wish:
        with self._lock:
            room = self._turns.room
            beyond = self._missing() if room <= 0 else frozenset()
            paused = set(self._turns.splits) - beyond if beyond else ()
            busy = self._turns.growth is None or len(self._parcels) >= self._workers
        share = max(1, self._plan.max_bytes // (2 * _PARCELS_PER_WORKER * self._workers))
        return Wish(
            number=next(self._numbers),
            paused=frozenset(paused),
            max_slices=1 if beyond else _MOST_SLICES,
            max_bytes=min(room, share, _PARCEL_BYTES),
            cut_bytes=min(share, _PARCEL_BYTES),
            max_rows=self._tempo.parcel_rows if self._plan.stages else _ANY_ROWS,
            wait=_WAIT_SECONDS,
            linger=_LINGER_SECONDS if busy else 0.0,
        )

    def _at_end(self, report: Report) -> bool:
        with self._lock:
            if report.finished != self._finished_splits:
                self._finished_splits = report.finished
                self._ready_changed.notify_all()
            return (
                self._plan.source.bounded
                and not report.notes
                and report.finished >= set(self._turns.splits)
                and not self._parcels
                and self._broken is None
            )

    def _wait_for_room(self) -> bool:
        """Wait until something may be read, or is to be mended; False to stop."""
        asked = time.monotonic()
        self._look_around()
        while True:
            with self._lock:
                if self._stopping or self._lost:
                    return False
                if self._broken is not None or self._may_read():
                    return True
                self._room.wait(_WAIT_SECONDS)
            self._look_around()
            self._roll()
            if time.monotonic() - asked > _ENDS_SECONDS:
                asked = time.monotonic()
                self._ask_for_ends()

    def _may_read(self) -> bool:
        if self._is_old():
            return False
        if len(self._parcels) >= _PARCELS_PER_WORKER * self._workers + 1:
            return False
        return self._turns.room > 0 or bool(self._missing())

    def _ask_for_ends(self) -> None:
        """The lag goes on growing while the window is full: the ends must not stand still."""
        try:
            self._ends = self._reading.ends()
        except SourceLost as e:
            self._open_again(f"the process that reads is gone ({e})")

    def _missing(self) -> frozenset[str]:
        """The wanted splits of which nothing is in the window."""
        return frozenset(k for k in self._wanted if not self._turns.waiting(k))

    def _admit(self, number: int, notes: tuple[Note, ...], ref: Any) -> None:
        phase = max(n.bare.phase for n in notes)
        if phase > self._phase and not self._begin_phase(phase):
            return
        with self._lock:
            if self._lost:
                return
            turns = [self._admitted(n) for n in notes]
            if self._broken is None and (self._execution is None or any(n.rows for n in notes)):
                self._parcels[number] = _Parcel(turns, ref)
                self._lookout.put(number, sum(n.rows for n in notes))
            nbytes = sum(n.weight for n in notes)
        if self._execution is None:
            self._finish(number, _as_read(ref))
        elif number in self._parcels:
            self._execution.put(ref, nbytes)
        elif self._broken is None:
            self._finish_empty(turns)

    def _admitted(self, note: Note) -> Turn:
        s = note.bare
        if s.split not in self._turns.splits:
            # Its later slices may overtake this one: the state must know where the split begins.
            begins = replace(s, next_offset=s.start, skip=0, resets=False)
            self._turns.complete(self._turns.admit(begins, 0), [begins])
        if s.resets:
            self._got.pop(s.split, None)
        self._at[s.split] = frontier(self._at.get(s.split), s)
        return self._turns.admit(s, note.weight)

    def _begin_phase(self, phase: int) -> bool:
        """Wait until all slices of the phase before were taken; False to stop.

        Room may be long in coming: what was taken need not be delivered.
        """
        while self._waits_at_seam():
            self._look_around()
        with self._lock:
            self._at_seam = False
            if self._turns.untaken():
                return False  # what was read is read again
            self._phase = phase
            return not self._stopping

    def _waits_at_seam(self) -> bool:
        with self._lock:
            self._at_seam = True
            if not self._turns.untaken() or self._stopping or self._broken is not None:
                return False
            self._room.wait(_WAIT_SECONDS)
            return True

    # -- what Ray gives back -------------------------------------------------------------------

    def _take_finished(self, table: pa.Table) -> None:
        finished: Finished = content_of(table)
        with self._lock:
            self._tempo.count(finished)
            self._lookout.back(number_of(table), finished.worker)
        self._finish(number_of(table), finished.slices)

    def _finish(self, number: int, results: list[Any]) -> None:
        """Let the slices of a finished parcel go; one that is not known was given up meanwhile."""
        made = [_made(r) for r in results]
        with self._lock:
            parcel = self._parcels.pop(number, None)
            if parcel is None:
                return
            self._failed_runs = 0
            for turn, (parts, error) in zip(parcel.turns, made, strict=True):
                taken = sum(map(weight, parts)) if self._execution is not None else None
                self._turns.complete(turn, parts or [turn.bare], taken, error)
            self._ready_changed.notify()
            self._room.notify()

    def _finish_empty(self, turns: list[Turn]) -> None:
        """Slices without rows need no worker."""
        with self._lock:
            for turn in turns:
                self._turns.complete(turn, [replace(turn.bare, source_rows=0)])
            self._ready_changed.notify()

    # -- what goes wrong -----------------------------------------------------------------------

    def _started(self) -> Executor:
        execution = self._setup.make(self._take_finished, self._ended)
        execution.wanted = self._workers
        self._lookout.begin()
        return execution

    def _ended(self, error: BaseException | None) -> None:
        """The execution ended though it should not: start anew, on the reading thread."""
        with self._lock:
            self._broken = error or RuntimeError("it ended without an error")
            if not self._reading_on:
                self._give_up()
            self._room.notify_all()
            self._ready_changed.notify_all()

    def _give_up(self) -> None:
        """Wait for nothing more: the thread that would start anew has ended."""
        self._parcels.clear()
        self._turns.drop_unready()
        self._failure = self._failure or self._broken

    def _lose(self, error: EngineError) -> None:
        """The head is gone: raise ``error`` once what is here was taken. Called by the watch."""
        with self._lock:
            self._lost, self._broken, self._reading_on = True, error, False
            self._give_up()
            self._room.notify_all()
            self._ready_changed.notify_all()

    def _look_around(self) -> None:
        """Look for what goes wrong without an error."""
        self._check_attached()
        execution = self._execution
        if execution is None:
            return
        with self._lock:
            owed = sum(len(p.turns) for p in self._parcels.values())
        if (loss := loss_of(execution, owed)) is not None:
            self._ended(loss)
        if owed:
            self._lookout.say_whether_workers_come(execution)
        if isinstance(execution, Replacing):
            with self._lock:
                hang = self._lookout.hang(execution, self._tempo.row_seconds)
            if hang is not None:
                execution.replace(hang)

    def _is_old(self) -> bool:
        execution = self._execution
        if execution is None:
            return False
        return time.monotonic() - execution.began > self._setup.roll_seconds

    def _roll(self) -> None:
        """Follow an old execution with a new one, once nothing is in it.

        What Ray keeps of a task for ever, in whatever process, is forgotten then.
        """
        with self._lock:
            if not self._is_old() or self._parcels or self._broken is not None:
                return
        assert self._execution is not None
        self._execution.close()
        self._execution = self._started()

    def _start_anew(self) -> None:
        """Close the execution, and read again all that it owes.

        Raises:
            EngineError: it was tried several times, and nothing came through in between; or it
                is of no use.
        """
        broken = self._broken
        why = f"the Ray execution ended ({_first_line(broken)})"
        assert self._execution is not None
        self._execution.close()
        raise_if_full(broken)
        self._failed_runs += 1
        if self._failed_runs > _RETRIES:
            raise EngineError(_no_help(why))
        with self._lock:
            self._parcels.clear()
            self._turns.drop_unready()
            self._at = dict(self._turns.secured)
            self._got = dict(self._turns.secured)
            self._broken = None
        self._open_again(why)
        if not self._lost:
            self._execution = self._started()

    def _open_again(self, why: str) -> None:
        """Open the source anew where reading was, less what was got beyond.

        Raises:
            EngineError: it was tried several times, and nothing came of it.
        """
        while not (self._stopping or self._lost):
            self._failed_reads += 1
            if self._failed_reads > _RETRIES:
                raise EngineError(_no_help(why))
            _log.warning("%s; reading on from where it was", why)
            self._counts.begin_anew()
            try:
                opened = self._reading.open(self._at, self._got)
            except SourceLost:
                with self._lock:
                    self._room.wait(_BACKOFF_SECONDS * 2**self._failed_reads)
                continue
            if isinstance(opened, Carried):
                raise opened.error()
            return


def _no_help(why: str) -> str:
    return (
        f"{why}; {_RETRIES} new starts did not help. See the logs of Ray (ray status, ray logs), "
        "and whether the cluster has what the workers and the reader ask for."
    )


def _first_line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _made(result: Any) -> tuple[list[Slice], BaseException | None]:
    """The parts that a slice became, or the error that it ended with."""
    if isinstance(result, Carried):
        return [], result.error()
    return [unpacked(p) for p in result], None


def _as_read(ref: Any) -> list[Any]:
    return [[p] for p in content_of(ray.get(ref))]

"""The embedded engine: one thread reads, a pool of threads runs the stages, in this process.

A slice is admitted to the window while the bytes in flight stay below the plan's bound, is cut
into tasks of about 10 ms of work, and leaves the window when its rows were delivered. That one
rule is all of backpressure: a trainer that pauses fills the window, the reading thread stops
polling, and the source's client stops fetching.

A worker that makes no progress while its peers do is replaced, and its slice is run once more;
whichever run ends first counts. Stages are pure, so it does not matter which that is.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from forebay.cpus import cpu_share
from forebay.engine import Plan, PoolStats, StageCounts, StageStats
from forebay.errors import ConfigError, StageError
from forebay.slice import Slice
from forebay.source import Counting, Reader
from forebay.stage import StageRun, run_stages

POOL = "stages"
_POLL_SECONDS = 0.1
_TASK_SECONDS = 0.010
_BATCH_TASK_SECONDS = 0.150
_FIRST_TASK_ROWS = 8
# A stuck slice may be overtaken by this many windows' worth of later ones: it bounds what a
# resume has to read again to find it.
_OVERTAKE_WINDOWS = 4
# What a slice takes beside its rows, as measured: small and empty ones are mostly that.
_SLICE_BYTES, _COLUMN_BYTES = 600, 480
# A task hangs if it took this many times as long as its rows should, beside `hung_seconds`, and
# its peers finished this many tasks each in the meantime, or have nothing to do: a slow row among
# slow rows is no hanging worker.
_HUNG_TIMES, _HUNG_PEER_TASKS = 50, 2
# The second run of a slice gets this many times the patience of the first.
_LAST_PATIENCE = 10
_LEFT_BEHIND_SECONDS = 0.2

_log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class ThreadEngine:
    """Runs stages on threads of the training process: right for work that releases the GIL."""

    hung_seconds: float = 30.0
    """A worker that is busy with one task for so long, while its peers finish theirs, is replaced
    and the task run once more. If that takes ten times as long again, reading ends with a
    ``StageError`` that names the records."""

    def __post_init__(self) -> None:
        if not self.hung_seconds > 0:
            raise ConfigError(f"hung_seconds must be positive, not {self.hung_seconds}")

    def start(self, plan: Plan) -> ThreadFeed:
        """Open the source and begin reading.

        Raises:
            SourceError, StateError, ConfigError: as ``Source.open``; nothing was started.
        """
        most = max(2, math.ceil(cpu_share()))
        reader = plan.source.open(plan.positions, plan.owns)
        return ThreadFeed(plan, reader, plan.workers or (1, most), self.hung_seconds)


@dataclass(slots=True, eq=False)
class _Task:
    """A piece of a slice on its way through the window."""

    s: Slice
    """As read until it is done, then as finished: the one makes room for the other."""
    raw_bytes: int
    admitted_at: int
    """Bytes admitted before it, since the start."""
    done: bool = False
    error: BaseException | None = None
    runs: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """What a thread of the pool is doing."""

    task: _Task | None = None
    began: float = 0.0
    peers_done: int = 0
    """Tasks that the pool had finished when it began."""
    hangs: bool = False
    """It was given up: what it brings is dropped, and it ends."""


@dataclass(slots=True)
class _Window:
    """Bytes in flight, estimated before a task ran and measured after."""

    max_bytes: int
    charges: dict[int, int] = field(default_factory=dict)
    charged: int = 0
    admitted: int = 0
    growth: float | None = None
    """Bytes after the stages for each byte before; None until a task finished."""

    def admit(self, ticket: int, raw_bytes: int) -> None:
        estimate = int(raw_bytes * max(self.growth or 1.0, 1.0))
        self.charges[ticket] = estimate
        self.charged += estimate
        self.admitted += raw_bytes

    def correct(self, ticket: int, raw_bytes: int, finished_bytes: int) -> None:
        growth = finished_bytes / max(raw_bytes, 1)
        self.growth = growth if self.growth is None else 0.9 * self.growth + 0.1 * growth
        self.charged += finished_bytes - self.charges[ticket]
        self.charges[ticket] = finished_bytes

    def leave(self, ticket: int) -> None:
        self.charged -= self.charges.pop(ticket, 0)


class ThreadFeed:
    """The running engine: a ``Feed``. One lock guards all of it; slices are processed outside."""

    def __init__(
        self, plan: Plan, reader: Reader, workers: tuple[int, int], hung_seconds: float
    ) -> None:
        self._plan, self._reader, self._bounds = plan, reader, workers
        self._hung_seconds = hung_seconds
        self.positions = dict(reader.positions())
        self._window = _Window(plan.max_bytes)
        self._tickets = itertools.count(1)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._ready_changed = threading.Condition(self._lock)
        self._queue: deque[_Task] = deque()
        self._in_order: deque[_Task] = deque()
        self._by_split: dict[str, deque[_Task]] = {k: deque() for k in self.positions}
        self._ready: deque[_Task] = deque()
        self._wanted: frozenset[str] = frozenset()
        self._finished_splits: frozenset[str] = frozenset()
        self._phase, self._at_seam = 0, False
        self._reading, self._stopping = True, False
        self._failure: BaseException | None = None
        self._row_seconds = _TASK_SECONDS / _FIRST_TASK_ROWS
        self._admitted_rows = 0
        self._busy_seconds, self._cpu_seconds, self._rows = 0.0, 0.0, 0
        self._finished_tasks, self._replaced = 0, 0
        self._stages = StageCounts(plan.stages)
        self._fetched = {k: p.low for k, p in self.positions.items()}
        self._at_work: dict[threading.Thread, _Worker] = {}
        self._wanted_workers, self._workers = 0, 0
        self._names = itertools.count()
        self._threads: list[threading.Thread] = []
        self.resize(POOL, workers[1])
        self._start_thread("forebay-read", self._read)

    # -- the taker's side ----------------------------------------------------------------------

    @property
    def done(self) -> bool:
        with self._lock:
            return (
                not self._reading and not self._in_order and not self._ready and not self._failure
            )

    def exhausted(self) -> Collection[str]:
        with self._lock:
            return [k for k in self._finished_splits if not self._by_split.get(k)]

    def take(self, timeout: float) -> Slice | None:
        deadline = time.monotonic() + timeout
        with self._lock:
            self._replace_hanging()
            while not self._ready:
                if self._stopping:
                    return None
                if not self._reading and not self._in_order:
                    if self._failure is not None:
                        raise self._failure
                    return None
                left = deadline - time.monotonic()
                if left <= 0 or not self._ready_changed.wait(left):
                    return None
            return self._taken(self._ready.popleft())

    def release(self, s: Slice) -> None:
        if s.ticket:
            with self._lock:
                self._window.leave(s.ticket)
                self._wake_reader()

    def want(self, splits: Collection[str]) -> None:
        with self._lock:
            self._wanted = frozenset(splits)
            self._room.notify()

    def resize(self, pool: str, workers: int) -> None:
        """Change the number of threads, within the plan's bounds.

        Raises:
            ConfigError: the engine has no such pool.
        """
        if pool != POOL:
            raise ConfigError(f"the threads engine has one pool, {POOL!r}, not {pool!r}")
        with self._lock:
            if self._stopping:
                return
            self._wanted_workers = min(max(workers, self._bounds[0]), self._bounds[1])
            missing = self._wanted_workers - self._workers
            self._workers += max(missing, 0)
            self._work.notify_all()
            self._wake_reader()
            for _ in range(missing):
                self._start_thread(f"forebay-work-{next(self._names)}", self._run_tasks)

    def pools(self) -> Mapping[str, PoolStats]:
        with self._lock:
            now = time.perf_counter()
            under_way = sum(now - w.began for w in self._at_work.values() if w.task is not None)
            stats = PoolStats(
                workers=self._workers,
                busy_seconds=self._busy_seconds + under_way,
                queued_slices=len(self._queue),
                rows=self._rows,
                cpu_seconds=self._cpu_seconds,
                least=self._bounds[0],
                most=self._bounds[1],
                replaced=self._replaced,
            )
        return {POOL: stats}

    def stages(self) -> Mapping[str, StageStats]:
        with self._lock:
            return self._stages.stats()

    def fetched(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._fetched)

    @property
    def full(self) -> bool:
        with self._lock:
            return not self._in_order and not self._ready and not self._has_room()

    def bytes_in_flight(self) -> int:
        with self._lock:
            return self._window.charged

    def ends(self) -> Mapping[str, int]:
        return self._reader.ends()

    def reader_counts(self) -> Mapping[str, float]:
        return self._reader.counts() if isinstance(self._reader, Counting) else {}

    def cpus(self) -> float:
        return cpu_share()

    def close(self) -> None:
        with self._lock:
            self._stopping = True
            self._queue.clear()
            for condition in (self._room, self._work, self._ready_changed):
                condition.notify_all()
        for thread in self._threads:
            thread.join()
        self._leave_behind()
        self._reader.close()

    # -- reading -------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while self._wait_for_room():
                s = self._reader.poll(_POLL_SECONDS)
                if s is not None:
                    self._admit(s)
                elif self._at_end():
                    break
        except BaseException as e:  # raised again in take(), on the taker's thread
            self._failure = e
        with self._lock:
            self._reading = False
            self._ready_changed.notify_all()

    def _at_end(self) -> bool:
        finished = frozenset(self._reader.finished_splits())
        with self._lock:
            if finished != self._finished_splits:
                self._finished_splits = finished
                self._ready_changed.notify_all()
        return self._plan.source.bounded and finished >= self._by_split.keys()

    def _wait_for_room(self) -> bool:
        """Wait until something may be read, and tell the reader of which splits; False to stop."""
        with self._lock:
            while not self._stopping and not self._has_room() and not self._missing():
                self._room.wait()
            if self._stopping:
                return False
            beyond = self._missing() if not self._has_room() else frozenset()
            paused = self._by_split.keys() - beyond if beyond else ()
        self._reader.pause(paused)
        return True

    def _has_room(self) -> bool:
        window = self._window
        if window.charged >= window.max_bytes:
            return False
        if window.growth is None and len(self._in_order) > 2 * self._wanted_workers:
            return False  # how much the stages inflate a slice is not known yet
        oldest = self._in_order[0].admitted_at if self._in_order else window.admitted
        return window.admitted - oldest <= _OVERTAKE_WINDOWS * window.max_bytes

    def _wake_reader(self) -> None:
        if self._has_room():
            self._room.notify()

    def _missing(self) -> frozenset[str]:
        """The wanted splits of which nothing is in the window."""
        return frozenset(k for k in self._wanted if not self._by_split.get(k))

    def _admit(self, s: Slice) -> None:
        """Let a slice in, piece by piece as there is room."""
        with self._lock:
            self._fetched[s.split] = s.next_offset
        if s.phase > self._phase and not self._begin_phase(s.phase):
            return
        if s.split not in self._by_split:
            # Its later slices may overtake this one: the state must know where the split begins.
            self._admit_piece(replace(s.bare(), next_offset=s.start, skip=0, resets=False))
        for i, piece in enumerate(self._pieces(s)):
            if i and not self._wait_for_room():
                return
            self._admit_piece(piece)

    def _begin_phase(self, phase: int) -> bool:
        """Wait until all slices of the phase before were taken; False to stop.

        Room may be long in coming: what was taken need not be delivered.
        """
        with self._lock:
            self._at_seam = True
            while any(self._by_split.values()) and not self._stopping:
                self._room.wait()
            self._phase, self._at_seam = phase, False
            return not self._stopping

    def _admit_piece(self, piece: Slice) -> None:
        with self._lock:
            ticket = next(self._tickets)
            task = _Task(replace(piece, ticket=ticket), _weight(piece), self._window.admitted)
            self._window.admit(ticket, task.raw_bytes)
            self._in_order.append(task)
            self._by_split.setdefault(piece.split, deque()).append(task)
            if self._plan.stages and len(piece):
                self._queue.append(task)
                self._work.notify()
            else:
                self._complete(task, task.s, task.raw_bytes)

    def _pieces(self, s: Slice) -> Iterator[Slice]:
        """The slice cut into tasks' worth of rows."""
        if not self._plan.stages:
            yield s
            return
        while len(s) > (rows := self._task_rows()):
            yield s.head(rows)
            s = s.tail(rows)
            self._admitted_rows += rows
        self._admitted_rows += len(s)
        yield s

    def _task_rows(self) -> int:
        """Rows of the next task: about 10 ms of work, cut where a batch ends if that is near."""
        rows = max(1, int(_TASK_SECONDS / self._row_seconds))
        batch = self._plan.batch_rows
        if batch is None or batch * self._row_seconds > _BATCH_TASK_SECONDS:
            return rows
        return max(rows // batch, 1) * batch - self._admitted_rows % batch

    # -- working -------------------------------------------------------------------------------

    def _run_tasks(self) -> None:
        worker = _Worker()
        with self._lock:
            self._at_work[threading.current_thread()] = worker
        while (task := self._next_task(worker)) is not None:
            self._run_task(worker, task)
            del task  # leaves no slice in a variable of a thread that waits

    def _run_task(self, worker: _Worker, task: _Task) -> None:
        raw, error = task.s, None
        runs: list[StageRun] = []
        used = time.thread_time()
        try:
            finished = run_stages(self._plan.stages, raw, self._plan.run, runs)
        except BaseException as e:  # raised again in take(), in the slice's turn
            error = e
            finished = replace(raw, columns={}, offsets=raw.offsets[:0])
        used, weight = time.thread_time() - used, _weight(finished)
        with self._lock:
            now = time.perf_counter()
            if not worker.hangs:
                self._busy_seconds += now - worker.began
            worker.task = None
            if task.done:  # the slice was run twice, and the other run was faster
                return
            self._cpu_seconds += used
            self._stages.add(runs)
            self._finished_tasks += 1
            self._rows += len(raw)
            pace = max((now - worker.began) / len(raw), 1e-7)
            self._row_seconds = 0.8 * self._row_seconds + 0.2 * pace
            task.error = error
            self._complete(task, finished, weight)

    def _next_task(self, worker: _Worker) -> _Task | None:
        with self._lock:
            while not self._stopping and not worker.hangs and self._workers <= self._wanted_workers:
                if not self._queue:
                    self._work.wait()
                elif not (task := self._queue.popleft()).done:
                    return self._begun(worker, task)
            self._at_work.pop(threading.current_thread(), None)
            self._workers -= not worker.hangs
            return None

    def _begun(self, worker: _Worker, task: _Task) -> _Task:
        worker.task, worker.began = task, time.perf_counter()
        worker.peers_done = self._finished_tasks
        task.runs += 1
        return task

    def _complete(self, task: _Task, finished: Slice, finished_bytes: int) -> None:
        """A task is done; the caller holds the lock."""
        if len(task.s):
            self._window.correct(finished.ticket, task.raw_bytes, finished_bytes)
        task.s, task.done = finished, True
        while self._in_order and self._in_order[0].done:
            self._in_order.popleft()
        if self._may_go(task):
            self._ready.append(task)
            self._ready_changed.notify()
        self._wake_reader()

    # -- hanging workers -----------------------------------------------------------------------

    def _replace_hanging(self) -> None:
        """Give up workers that stand still while their peers go on; holds the lock."""
        now = time.perf_counter()
        for thread, worker in list(self._at_work.items()):
            task = worker.task
            if task is None or task.done or not self._stands_still(worker, task, now):
                continue
            if task.runs < 2:
                self._replace(thread, worker, task, now)
            elif now - worker.began > _LAST_PATIENCE * self._hung_seconds:
                self._give_up(thread, worker, task)

    def _stands_still(self, worker: _Worker, task: _Task, now: float) -> bool:
        expected = _HUNG_TIMES * self._row_seconds * len(task.s)
        if now - worker.began <= max(self._hung_seconds, expected):
            return False
        peers = self._workers - 1
        went_on = self._finished_tasks - worker.peers_done >= _HUNG_PEER_TASKS * peers
        at_work = sum(w.task is not None for w in self._at_work.values())
        return task.runs > 1 or (peers > 0 and (went_on or at_work <= peers))

    def _replace(self, thread: threading.Thread, worker: _Worker, task: _Task, now: float) -> None:
        _log.warning(
            "worker %s has been busy with %s for %.0f s while its peers went on: it is replaced, "
            "and the rows are run once more",
            thread.name,
            _where(task.s),
            now - worker.began,
        )
        self._busy_seconds += now - worker.began
        worker.hangs, worker.task = True, None
        self._replaced += 1
        self._threads.remove(thread)
        self._queue.appendleft(task)
        self._start_thread(f"forebay-work-{next(self._names)}", self._run_tasks)
        self._work.notify()

    def _give_up(self, thread: threading.Thread, worker: _Worker, task: _Task) -> None:
        s, names = task.s, " or ".join(stage.name for stage in self._plan.stages)
        why = (
            f"the rows to offset {int(s.offsets[-1])} were run twice, and the second time did not "
            f"end within {_LAST_PATIENCE * self._hung_seconds:.0f} s either. Let the stage give "
            "up such a row, or give the engine more hung_seconds"
        )
        task.error = StageError(names, s.split, int(s.offsets[0]), why)
        worker.hangs, worker.task = True, None
        self._workers -= 1
        self._threads.remove(thread)
        finished = replace(s, columns={}, offsets=s.offsets[:0])
        self._complete(task, finished, _weight(finished))

    def _leave_behind(self) -> None:
        """Say which threads hang on: Python cannot end them, and waiting for them may never end."""
        deadline = time.monotonic() + _LEFT_BEHIND_SECONDS
        with self._lock:
            hanging = [thread for thread, worker in self._at_work.items() if worker.hangs]
        for thread in hanging:
            thread.join(max(deadline - time.monotonic(), 0))
        left = [thread.name for thread in hanging if thread.is_alive()]
        if left:
            _log.warning("%s still hang in a stage and are left behind", ", ".join(left))

    def _taken(self, task: _Task) -> Slice:
        """Hand out a task's slice; successors in the split may be ready by now."""
        waiting = self._by_split[task.s.split]
        waiting.remove(task)
        if self._at_seam:
            self._room.notify()
        self._ready.extend(self._freed(task.s, waiting))
        if task.error is not None:
            raise task.error
        s, task.s = task.s, task.s.bare()  # the task may stay in the order for long
        return s

    def _may_go(self, task: _Task) -> bool:
        """Whether a finished task needs not wait for others of its split.

        Where a split begins anew, nothing may be overtaken: positions of before mean nothing
        after, and the other way round.
        """
        waiting = self._by_split[task.s.split]
        if waiting[0] is task:
            return True
        before = itertools.takewhile(lambda t: t is not task, waiting)
        return (
            self._plan.order == "arrival"
            and not task.s.resets
            and not any(t.s.resets for t in before)
        )

    def _freed(self, taken: Slice, waiting: deque[_Task]) -> Iterator[_Task]:
        """Finished tasks of a split that had to wait until ``taken`` was handed out."""
        if not waiting:
            return
        if self._plan.order != "arrival" or waiting[0].s.resets:
            yield from [waiting[0]] if waiting[0].done else ()
        elif taken.resets:
            after = itertools.takewhile(lambda t: not t.s.resets, waiting)
            yield from [t for t in after if t.done]

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _where(s: Slice) -> str:
    return f"{s.split}@{int(s.offsets[0])} to {int(s.offsets[-1])}"


def _weight(s: Slice) -> int:
    """Bytes that a slice takes."""
    return s.nbytes + _SLICE_BYTES + _COLUMN_BYTES * len(s.columns)

"""An executor of public names of Ray only: parcels come to the stages by leases.

Ray Data has no input that grows while it runs, and loses records of a read task that never ends. A
lease is a read task that ends after so many parcels, and asks a coordinator for each. Before they
run out, another data set with other leases follows.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from forebay.ray import cluster
from forebay.ray.coordinator import Coordinator, Lease
from forebay.ray.executor import OnEnd, OnFinished, Pool
from forebay.ray.parcels import to_table
from forebay.ray.quiet import NAME, THREAD, quiet
from forebay.ray.working import StageWorker

# A lease that is run again yields all of its parcels again, most of them empty.
_PARCELS_PER_LEASE = 500
# Ray keeps a kilobyte or two of every parcel of a data set for as long as the data set runs.
_LEASES = 20
# The next data set is begun before this one runs out: its workers take seconds to start.
_PARCELS_PER_RUN = _PARCELS_PER_LEASE * _LEASES * 9 // 10
# A lease gives some ten parcels a second: Ray looks at what never ends ten times a second.
_WORKERS_PER_LEASE = 2
_LEASE_CPUS = 0.01
_IN_FLIGHT = 2
_LOOK_SECONDS = 0.25
# Workers of the next data set may have to wait for the room that this one takes.
_PATIENCE_SECONDS = 10.0
_STALLED_SECONDS = 60.0
_CLOSE_SECONDS = 30.0
_SERIAL, _STOP = "serial", 0
_SETTINGS = {
    "target_max_block_size": 1,  # or blocks are kept until they make 128 MiB
    "execution_no_progress_timeout_s": -1,  # a quiet topic is no fault
    "memory_usage_poll_interval_s": None,
    "print_on_execution_start": False,
    "enable_progress_bars": False,
}
_log = logging.getLogger("forebay")
_settings_lock = threading.Lock()
"""Ray's settings are of the whole process while a data set is made: one at a time."""


class LeaseWorker(StageWorker):
    """Runs the stages; says when it is there, and hands the serial number on."""

    def __init__(self, coordinator: Any, run: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        ray.get(coordinator.arrive.remote(run, ray.get_runtime_context().get_actor_id()))

    def __call__(self, parcel: pa.Table) -> pa.Table:
        return super().__call__(parcel).append_column(_SERIAL, parcel[_SERIAL])


class Reads(Datasource):  # type: ignore[misc]
    """A data source of tasks that are known already."""

    def __init__(self, reads: list[Callable[[], Iterator[pa.Table]]]) -> None:
        super().__init__()
        self._reads = reads

    def get_name(self) -> str:
        """The name in Ray's own reports."""
        return NAME

    def estimate_inmemory_data_size(self) -> int | None:
        """Nobody knows."""
        return None

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
        """The tasks, in the order in which Ray begins them."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [ReadTask(read, unknown) for read in self._reads]


def _guarding(coordinator: Any, run: int) -> Iterator[pa.Table]:
    """Yields once if its data set is to stop: only who iterates over one can end it."""
    if ray.get(coordinator.stopped.remote(run)):
        yield _with_serial(to_table(0, []), _STOP)


def _parcels(coordinator: Any, lease: Lease) -> Iterator[pa.Table]:
    for index in range(_PARCELS_PER_LEASE):
        given = ray.get(coordinator.take.remote(lease, index))
        if given is None:
            return
        serial, refs = given
        parcel = ray.get(refs[0]) if refs else to_table(0, [])
        yield _with_serial(parcel, serial)


def _with_serial(parcel: pa.Table, serial: int) -> pa.Table:
    return parcel.append_column(_SERIAL, pa.array([serial], pa.int64()))


def _serial_of(parcel: pa.Table) -> int:
    serial: int = parcel[_SERIAL][0].as_py()
    return serial


class _Run:
    """One data set: leases, and a pool of workers of a fixed size."""

    def __init__(
        self,
        number: int,
        pool: Pool,
        workers: int,
        coordinator: Any,
        on_table: Callable[[pa.Table], None],
        on_over: Callable[[_Run, BaseException | None], None],
    ) -> None:
        self.number, self.workers = number, workers
        self.began = time.monotonic()
        self.parcels = 0
        """How many it finished."""
        self.arrived = 0
        """How many of its workers were seen."""
        self.ending = False
        self.changed = self.began
        """When it began, or began to end."""
        self._pool, self._coordinator = pool, coordinator
        self._on_table, self._on_over = on_table, on_over
        self._thread = threading.Thread(target=self._iterate, name=THREAD, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether nothing of it is left."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Let it finish what it has."""
        self.ending, self.changed = True, time.monotonic()
        self._coordinator.end.remote(self.number)

    def stop(self) -> None:
        """End it, whatever it is doing."""
        self._coordinator.stop.remote(self.number)

    def unguard(self) -> None:
        """Let it end although it owes parcels."""
        self._coordinator.unguard.remote(self.number)

    def look(self) -> None:
        """See how many workers are there."""
        arrived = ray.get(self._coordinator.arrived.remote(self.number))
        self.arrived = min(arrived, self.workers)

    def join(self, timeout: float) -> None:
        """Wait until nothing of it is left."""
        self._thread.join(timeout)

    def _iterate(self) -> None:
        error: BaseException | None = None
        try:
            # Ray keeps the latest batches of a topic for itself if it is let to look ahead.
            tables = self._dataset().iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=0
            )
            with closing(iter(tables)) as tables:
                for table in tables:
                    if _serial_of(table) == _STOP:
                        break
                    self.parcels += 1
                    self._on_table(table)
                    del table  # or its parcel is kept until the next one comes
        except BaseException as e:  # told to the feed, which starts anew or raises it
            error = e
        self._on_over(self, error)

    def _dataset(self) -> Any:
        with _settings_lock, DataContext.current(_context(self._pool)):
            # Beside the stages, not before them: nothing that they do holds the guard up.
            both = self._leased().union(self._guard())
            both.set_name(NAME)
            return both

    def _guard(self) -> Any:
        reads = Reads([partial(_guarding, self._coordinator, self.number)])
        return ray.data.read_datasource(reads, override_num_blocks=1, num_cpus=_LEASE_CPUS)

    def _leased(self) -> Any:
        leases = [Lease(self.number, n) for n in range(_LEASES)]
        data = ray.data.read_datasource(
            Reads([partial(_parcels, self._coordinator, lease) for lease in leases]),
            override_num_blocks=_LEASES,
            concurrency=-(-self.workers // _WORKERS_PER_LEASE),
            # Of another size than the workers, or Ray runs leases in them.
            num_cpus=_LEASE_CPUS * (1 + (self._pool.options.get("num_cpus") == _LEASE_CPUS)),
        )
        return data.map_batches(
            LeaseWorker,
            fn_constructor_args=(self._coordinator, self.number, *self._pool.arguments),
            batch_size=None,
            batch_format="pyarrow",
            zero_copy_batch=True,
            compute=ActorPoolStrategy(size=self.workers, max_tasks_in_flight_per_actor=_IN_FLIGHT),
            **self._pool.options,
        )


class LeaseExecution:
    """Runs the stages of parcels in a pool of workers until it is closed.

    A pool keeps its size: for another number of workers, and before the leases run out, a new data
    set with a new pool follows the old one, which finishes what it has.

    Args:
        on_finished, on_end: called on a thread of this execution.
    """

    def __init__(self, pool: Pool, on_finished: OnFinished, on_end: OnEnd) -> None:
        quiet()
        self._pool, self._on_finished, self._on_end = pool, on_finished, on_end
        self.wanted = pool.most
        """Workers that there should be; any thread may set it."""
        self.began = time.monotonic()
        self.idle_since: float | None = self.began
        """Since when no parcel is owed; what Ray itself has to do is not public."""
        self._progressed = self.began
        self._lock = threading.Lock()
        self._owed: set[int] = set()
        self._serials, self._numbers = itertools.count(1), itertools.count(1)
        self._closing = threading.Event()
        where = {"num_cpus": 0, **cluster.near()}  # so that it is not lost alone
        self._coordinator = ray.remote(Coordinator).options(**where).remote()
        self._runs = [self._begun()]
        self._thread = threading.Thread(target=self._watch, name=THREAD, daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Workers of the newest pool that came; one that is being replaced still counts."""
        return self._runs[-1].arrived

    def put(self, ref: Any, nbytes: int) -> None:
        """Run a parcel. Any thread."""
        with self._lock:
            serial = next(self._serials)
            self._owed.add(serial)
            if self.idle_since is not None:
                self.idle_since, self._progressed = None, time.monotonic()
        self._coordinator.put.remote(serial, [ref])

    def close(self) -> None:
        """End the execution and its workers, whatever they are doing."""
        self._closing.set()
        self._thread.join()
        for run in self._runs:
            run.stop()
        for run in self._runs:
            run.join(_CLOSE_SECONDS)
        ray.kill(self._coordinator)

    # -- on the threads of the runs ------------------------------------------------------------

    def _take(self, table: pa.Table) -> None:
        serial = _serial_of(table)
        with self._lock:
            if serial not in self._owed:
                return  # a lease that was run again, or a parcel that was
            self._owed.remove(serial)
            self._progressed = time.monotonic()
            self.idle_since = None if self._owed else self._progressed
        self._coordinator.finished.remote(serial)
        self._on_finished(table)

    def _over(self, run: _Run, error: BaseException | None) -> None:
        if self._closing.is_set():
            return
        if error is None:
            try:
                back = ray.get(self._coordinator.take_back.remote(run.number))
            except ray.exceptions.RayError as e:
                error = e
            else:
                if back:
                    _log.warning("Ray ended %s parcels short; running them again", back)
        if error is not None:
            self._fail(error)

    # -- on the watching thread ----------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._closing.wait(_LOOK_SECONDS):
                self._runs[-1].look()
                self._follow()
        except BaseException as e:  # told to the feed, which starts anew or raises it
            self._fail(e)

    def _follow(self) -> None:
        """Follow the newest run with another if it is time, and end those that were followed."""
        newest = self._runs[-1]
        there = newest.arrived or time.monotonic() - newest.began > _PATIENCE_SECONDS
        for run in self._runs[:-1]:
            if there and not run.ending:
                run.end()
            elif run.ending and self._is_stalled(run):
                run.unguard()
        # Made anew, not changed: other threads look at it.
        self._runs = [run for run in self._runs if run is newest or not run.over]
        used_up = newest.over or newest.parcels >= _PARCELS_PER_RUN
        # For any other reason they follow one after the other: each takes room.
        settled = there and len(self._runs) == 1
        if used_up or (settled and (newest.workers != self.wanted or self._is_stalled(newest))):
            self._runs = [*self._runs, self._begun()]

    def _is_stalled(self, run: _Run) -> bool:
        """Whether parcels are owed and none came for long; slow stages look the same."""
        since = max(self._progressed, run.changed)
        return self.idle_since is None and time.monotonic() - since > _STALLED_SECONDS

    def _begun(self) -> _Run:
        workers, number = self.wanted, next(self._numbers)
        return _Run(number, self._pool, workers, self._coordinator, self._take, self._over)

    def _fail(self, error: BaseException) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._on_end(error)


def _context(pool: Pool) -> Any:
    """Settings of a data set; a version that does not have one of them is as good."""
    context = (pool.context or DataContext.get_current()).copy()
    for name, value in _SETTINGS.items():
        if hasattr(context, name):
            setattr(context, name, value)
    if hasattr(context, "issue_detectors_config"):
        # They advise on operators, of which a user of ours has none.
        context.issue_detectors_config.detectors = []
    return context

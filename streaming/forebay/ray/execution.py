"""One running Ray Data execution that is fed while it runs, and asked for workers.

Parcels are put in by reference and come out as tables, in any order. The hooks of this module run
on Ray's scheduling thread; Ray pickles their classes by name, and finds the execution in ``_RUNS``.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import ray

from forebay.ray import _compat
from forebay.ray.executor import IN_FLIGHT, OnEnd, OnFinished, Pool
from forebay.ray.hanging import Hang
from forebay.ray.parcels import to_table
from forebay.ray.quiet import NAME, THREAD, quiet
from forebay.ray.working import StageWorker

# While nothing runs and nothing waits, the scheduling loop would spin.
_IDLE_SECONDS = 0.05
_TICK_SECONDS = 0.02
_BOOKS_SECONDS = 0.25
_CLOSE_SECONDS = 30.0
_RUN = "forebay.run"
_RUNS: dict[str, Execution] = {}


class Execution:
    """Runs the stages of parcels in a pool of workers until it is closed.

    Args:
        on_finished, on_end: called on a thread of this execution.
        fetch: makes of a reference to a finished parcel what ``on_finished`` is given.
    """

    def __init__(
        self,
        pool: Pool,
        on_finished: OnFinished,
        on_end: OnEnd,
        fetch: Callable[[Any], Any] = ray.get,
    ) -> None:
        quiet_and_quick()
        self._pool, self._on_finished, self._on_end = pool, on_finished, on_end
        self._fetch = fetch
        self.wanted = pool.most
        """Workers that there should be; any thread may set it."""
        self.began = time.monotonic()
        self.running = 0
        """Workers that were seen alive last."""
        self.replaced = 0
        """Workers that hung and were replaced."""
        self._hang: Hang | None = None
        self._quiet: dict[str, float] = {}
        """When each worker was last seen without work."""
        self.idle_since: float | None = None
        """Since when Ray has nothing to do, and nothing waits; None while it has."""
        self._waiting: deque[Any] = deque()
        self._news = threading.Event()
        self._open = True
        self._executor: Any = None
        self._id = uuid.uuid4().hex
        _RUNS[self._id] = self
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def put(self, ref: Any, nbytes: int) -> None:
        """Run a parcel. Any thread."""
        self.idle_since = None
        self._waiting.append(_compat.bundle_of(ref, nbytes))
        self._news.set()

    def replace(self, hang: Hang) -> None:
        """Kill the worker that hangs: Ray starts it anew, and runs its parcels. Any thread."""
        self._hang = hang

    def close(self) -> None:
        """End the execution and its workers, whatever they are doing."""
        self._open = False
        self._waiting.clear()
        self._news.set()
        executor = self._executor
        if executor is not None:
            executor.shutdown(force=True)
        self._thread.join(_CLOSE_SECONDS)
        _RUNS.pop(self._id, None)

    # -- on the execution's own thread ---------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for refs in map(_refs_of, self._dataset().iter_internal_ref_bundles()):
                while refs:  # one that was kept here would keep its parcel in the object store
                    self._on_finished(self._fetch(refs.pop()))
        except BaseException as e:  # told to the feed, which starts anew or raises it
            error = e
        if self._open:
            self._on_end(error)

    def _dataset(self) -> Any:
        seed = ray.put(to_table(0, None))
        with _compat.DataContext.current(self._context()):
            inputs = ray.data.from_arrow_refs([seed])
            inputs.set_name(NAME)
            return inputs.map_batches(
                StageWorker,
                fn_constructor_args=self._pool.arguments,
                batch_size=None,
                batch_format="pyarrow",
                zero_copy_batch=True,
                compute=_compat.ActorPoolStrategy(
                    min_size=self._pool.least,
                    max_size=self._pool.most,
                    max_tasks_in_flight_per_actor=IN_FLIGHT,
                ),
                **self._pool.options,
            )

    def _context(self) -> Any:
        context = (self._pool.context or _compat.DataContext.get_current()).copy()
        context.target_max_block_size = 1  # or blocks are kept until they make 128 MiB
        context.execution_no_progress_timeout_s = -1  # a quiet topic is no fault
        context.memory_usage_poll_interval_s = None
        context.print_on_execution_start = False
        context.enable_progress_bars = False
        context.custom_execution_callback_classes = [Hooks]
        context.set_config(_RUN, self._id)
        context.set_config(
            _compat.ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY,
            [*_compat.ENABLED_BACKPRESSURE_POLICIES, ShrinkGate],
        )
        return context

    # -- on Ray's scheduling thread ------------------------------------------------------------

    def started(self, executor: Any) -> None:
        """Take over the input and the scaling of an execution that is about to start."""
        for operator in executor._topology:
            if isinstance(operator, _compat.InputDataBuffer):
                operator.__class__ = LiveInput
                operator.run = self
        executor._actor_autoscaler = WantedWorkers(
            executor._topology, executor._resource_manager, self
        )
        self._executor = executor
        self._looked = 0.0

    def stepped(self, executor: Any) -> None:
        """Keep the books, and wait while there is nothing to do."""
        busy = any(op.num_active_tasks() for op in executor._topology)
        queued = any(st.total_enqueued_input_blocks() for st in executor._topology.values())
        if time.monotonic() - self._looked > _BOOKS_SECONDS:
            self._look(executor)
        if busy or queued or self._waiting or not self._open:
            self.idle_since = None
        else:
            self.idle_since = self.idle_since or time.monotonic()
            self._news.wait(_IDLE_SECONDS)
        self._news.clear()

    def _look(self, executor: Any) -> None:
        self._looked = time.monotonic()
        for operator in executor._topology:
            _compat.trim(operator)
            for pool in operator.get_autoscaling_actor_pools():
                self.running = pool.num_running_actors() - pool.num_restarting_actors()
                self._replace_in(pool)

    def _replace_in(self, pool: Any) -> None:
        """Kill those that have had work for as long as the hang, and gave nothing since."""
        now, hang, self._hang = time.monotonic(), self._hang, None
        workers = _compat.workers_of(pool)
        before, self._quiet = self._quiet, {}
        for name, handle, working in workers:
            since = self._quiet[name] = before.get(name, now) if working else now
            if hang is not None and name not in hang.alive and now - since > hang.seconds:
                ray.kill(handle, no_restart=False)
                self.replaced += 1
                self._quiet[name] = now

    def next_input(self) -> Any:
        """The next parcel; there is one."""
        return self._waiting.popleft()

    @property
    def has_input(self) -> bool:
        """Whether a parcel waits."""
        return bool(self._waiting)

    @property
    def ended(self) -> bool:
        """Whether no parcel comes any more."""
        return not self._open and not self._waiting


def _refs_of(bundle: Any) -> list[Any]:
    return list(bundle.block_refs)


class LiveInput(_compat.InputDataBuffer):  # type: ignore[misc]
    """The input of an execution, which grows while it runs."""

    run: Execution

    def has_next(self) -> bool:
        return self.run.has_input

    def _get_next_inner(self) -> Any:
        return self.run.next_input()

    def has_completed(self) -> bool:
        return self.run.ended

    def num_outputs_total(self) -> int | None:
        return None


class Hooks(_compat.ExecutionCallback):  # type: ignore[misc]
    """Connects an execution that Ray starts with the one that asked for it."""

    def before_execution_starts(self, executor: Any) -> None:
        self._execution = _RUNS[executor._data_context.get_config(_RUN)]
        self._execution.started(executor)

    def on_execution_step(self, executor: Any) -> None:
        self._execution.stepped(executor)


class WantedWorkers(_compat.ActorAutoscaler):  # type: ignore[misc]
    """Gives the pool the workers that are wanted, and no others.

    Ray's own rules see neither what waits at the source nor whether the trainer starves.
    """

    def __init__(self, topology: Any, resource_manager: Any, execution: Execution) -> None:
        super().__init__(topology, resource_manager)
        self._execution = execution

    def try_trigger_scaling(self) -> None:
        for operator, state in self._topology.items():
            for pool in operator.get_autoscaling_actor_pools():
                self._scale(operator, state, pool)

    def _scale(self, operator: Any, state: Any, pool: Any) -> None:
        wanted = self._execution.wanted
        if operator.has_completed() or self._execution.ended:
            wanted = 0
        delta = wanted - pool.current_size()
        if delta:
            request = _compat.ActorPoolScalingRequest(delta=delta, force=True, reason="wanted")
            pool.scale(request)


class ShrinkGate(_compat.BackpressurePolicy):  # type: ignore[misc]
    """Gives a pool that is to shrink no more work than the workers that stay can do.

    Ray takes away only workers that have nothing to do, and keeps all of them busy.
    """

    def can_add_input(self, op: Any) -> bool:
        execution = _RUNS.get(self._data_context.get_config(_RUN))
        if execution is None:
            return True
        return all(
            pool.num_running_actors() <= execution.wanted
            or op.num_active_tasks() < execution.wanted
            for pool in op.get_autoscaling_actor_pools()
        )


def quiet_and_quick() -> None:
    """Settings of the whole process; harmless to other uses of Ray Data in it."""
    _compat.quicken(_TICK_SECONDS)
    quiet()

"""An execution in an actor of its own, the host: Ray's scheduling loop takes no GIL of the trainer.

Parcels go to the host by reference, and come back so: what they hold never passes through it. The
host belongs to the process that trains and dies with it, and the workers belong to the host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.data import DataContext

from forebay.ray.carried import Carried
from forebay.ray.execution import Execution
from forebay.ray.executor import OnEnd, OnFinished, Pool
from forebay.ray.hanging import Hang
from forebay.ray.quiet import THREAD

_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 15.0
# Orders are carried out in turn; beside them one may wait for what is finished.
_BESIDE = "beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a host says when it is asked."""

    refs: list[Any] = field(default_factory=list)
    """Parcels that finished since; whoever takes one out of the list has the only reference."""
    running: int = 0
    replaced: int = 0
    parcels: int = 0
    """How many it was ever given."""
    idle_seconds: float | None = None
    """For how long it has had nothing to do: clocks of two nodes cannot be compared."""
    over: bool = False
    """Whether the execution ended by itself."""
    error: Carried | None = None
    """What it ended with."""


class Host:
    """Runs an execution for another process. Orders come on one thread, polls on another."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._finished: list[Any] = []
        self._parcels, self._over = 0, False
        self._error: Carried | None = None
        self._execution: Execution | None = None

    def start(self, pool: Pool) -> None:
        """Start the execution, before any other order and any poll."""
        self._execution = Execution(pool, self._on_finished, self._on_end, fetch=_left)

    def put(self, refs: list[Any], nbytes: int) -> None:
        """Run a parcel. Its reference is in a list, or Ray would give the parcel itself."""
        self._started().put(refs.pop(), nbytes)
        self._parcels += 1

    def want(self, workers: int) -> None:
        """Have so many workers."""
        self._started().wanted = workers

    def replace(self, hang: Hang) -> None:
        """Kill the worker that hangs."""
        self._started().replace(hang)

    def close(self) -> None:
        """End the execution and its workers."""
        self._started().close()

    def finished(self, timeout: float) -> Told:
        """All that finished, once there is any, and how the pool is; within ``timeout`` seconds."""
        execution = self._started()
        with self._news:
            self._news.wait_for(lambda: self._finished or self._over, timeout)
            refs, self._finished = self._finished, []
        # Counted before it is asked whether it is idle: what is put meanwhile makes that old news.
        parcels, since = self._parcels, execution.idle_since
        return Told(
            refs=refs,
            running=execution.running,
            replaced=execution.replaced,
            parcels=parcels,
            idle_seconds=None if since is None else time.monotonic() - since,
            over=self._over,
            error=self._error,
        )

    def _started(self) -> Execution:
        if self._execution is None:
            raise RuntimeError("the host was not started")
        return self._execution

    def _on_finished(self, ref: Any) -> None:
        with self._news:
            self._finished.append(ref)
            self._news.notify()

    def _on_end(self, error: BaseException | None) -> None:
        with self._news:
            self._over, self._error = True, Carried.of(error) if error else None
            self._news.notify()


def _left(ref: Any) -> Any:
    """A parcel stays where it is: only its reference is given."""
    return ref


class Hosts:
    """Makes executors that run in hosts, one after the other, as ``Setup.make``.

    The process of the first host can start beside whatever else takes time to start. Its workers
    start with the executor, since they take room on the cluster.

    Args:
        options: how a host is placed, as ``ActorClass.options`` takes it.
        ahead: whether to start the first one at once.
    """

    def __init__(self, pool: Pool, options: Mapping[str, Any], *, ahead: bool) -> None:
        self._pool = replace(pool, context=DataContext.get_current())
        self._options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, **options}
        self._next: Any = self._host() if ahead else None

    def __call__(self, on_finished: OnFinished, on_end: OnEnd) -> HostedExecution:
        host, self._next = self._next or self._host(), None
        return HostedExecution(host, self._pool, on_finished, on_end)

    def _host(self) -> Any:
        host = ray.remote(concurrency_groups={_BESIDE: 1})(Host)
        return host.options(**self._options).remote()


class HostedExecution:
    """An ``Executor`` whose execution runs in a host.

    Args:
        host: the actor, which ends with this object.
        on_finished, on_end: called on a thread of this object.
    """

    def __init__(self, host: Any, pool: Pool, on_finished: OnFinished, on_end: OnEnd) -> None:
        self._on_finished, self._on_end = on_finished, on_end
        self._host, self._started = host, host.start.remote(pool)
        self.began = time.monotonic()
        self._parcels, self._wanted, self._closed = 0, pool.most, False
        self._told, self._told_at = Told(), self.began
        self._thread = threading.Thread(target=self._poll, name=THREAD, daemon=True)
        self._thread.start()

    @property
    def wanted(self) -> int:
        """Workers that there should be; any thread may set it."""
        return self._wanted

    @wanted.setter
    def wanted(self, workers: int) -> None:
        self._wanted = workers
        self._host.want.remote(workers)

    @property
    def running(self) -> int:
        """Workers that were seen alive last."""
        return self._told.running

    @property
    def replaced(self) -> int:
        """Workers that hung and were replaced."""
        return self._told.replaced

    @property
    def idle_since(self) -> float | None:
        """Since when it has nothing to do; None while it has, or may have."""
        told, at = self._told, self._told_at
        if told.idle_seconds is None or told.parcels < self._parcels:
            return None
        return at - told.idle_seconds

    def put(self, ref: Any, nbytes: int) -> None:
        """Run a parcel. One thread at a time."""
        self._parcels += 1
        self._host.put.remote([ref], nbytes)

    def replace(self, hang: Hang) -> None:
        """Kill the worker that hangs: Ray starts it anew, and runs its parcels. Any thread."""
        self._host.replace.remote(hang)

    def close(self) -> None:
        """End the host and the workers, whatever they are doing; may be called twice."""
        self._closed = True
        ray.wait([self._host.close.remote()], timeout=_CLOSE_SECONDS)
        ray.kill(self._host, no_restart=True)
        self._thread.join(_CLOSE_SECONDS)

    # -- on the thread of this object ----------------------------------------------------------

    def _poll(self) -> None:
        error: BaseException | None = None
        ask = self._host.finished.options(concurrency_group=_BESIDE)
        try:
            ray.get(self._started)
            while not (self._closed or self._told.over):
                self._hear(ray.get(ask.remote(_POLL_SECONDS)))
            error = self._told.error.error() if self._told.error else None
        except BaseException as e:  # told to the feed, which starts anew or raises it
            error = e
        if not self._closed:
            self._on_end(error)

    def _hear(self, told: Told) -> None:
        """Hand the parcels over, and keep none: what is kept here stays in the object store."""
        at = time.monotonic()
        while told.refs and not self._closed:
            self._on_finished(ray.get(told.refs.pop(0)))
        self._told, self._told_at = told, at

"""Notices what goes wrong without an error: parcels that are lost, workers that find no room on the
cluster, workers that hang.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import ray

from forebay.errors import EngineError
from forebay.ray.executor import IN_FLIGHT, Executor, Replacing
from forebay.ray.hanging import Hang, HangWatch

# A parcel that Ray neither has nor gave for so long is lost.
_LOST_SECONDS = 20.0
# Workers import what the stages need; one that takes longer mostly waits for room.
_ROOM_SECONDS = 30.0
_NO_ROOM = (
    "no Ray worker has started for %.0f s: each asks for %s, and free on the cluster are %s. They "
    "wait for room: add nodes, let each take less (RayEngine(num_cpus=...)), or, under Ray Train, "
    "leave some CPUs to them (ScalingConfig)."
)
_log = logging.getLogger("forebay")


class Lookout:
    """Looks at one executor after the other. The feed's lock guards all but
    ``say_whether_workers_come``.

    Args:
        hung_seconds: how long a worker may give nothing while its peers do.
        asks: what each worker takes of the cluster, by Ray's names.
    """

    def __init__(self, hung_seconds: float, asks: Mapping[str, Any]) -> None:
        self._asks = asks
        self._hanging = HangWatch(hung_seconds, IN_FLIGHT)
        self.replaced = 0
        """Workers that hung and were replaced, of all executors."""
        self._replaced_before = 0
        self._came = False
        self._known_to_wait: Executor | None = None

    def begin(self) -> None:
        """Another executor follows, with other workers."""
        self._hanging.clear()
        self._replaced_before = 0

    def put(self, number: int, rows: int) -> None:
        """A parcel went out. Numbers grow."""
        self._hanging.put(number, rows)

    def back(self, number: int, worker: str) -> None:
        """A parcel came back."""
        self._hanging.back(number, worker)

    def hang(self, executor: Replacing, row_seconds: float | None) -> Hang | None:
        """Whether a worker hangs; counts those that were replaced since the last look."""
        if (more := executor.replaced - self._replaced_before) > 0:
            self._replaced_before += more
            self.replaced += more
            self._hanging.replaced(executor.running, row_seconds)
            _log.warning("%d of the Ray workers hung: replaced, their slices run once more", more)
        return self._hanging.look(executor.running, row_seconds)

    def say_whether_workers_come(self, executor: Executor) -> None:
        """Say when the first worker is there; and, once for each executor that has work, if none
        of its workers comes."""
        if executor.running and not self._came:
            self._came = True
            seconds = time.monotonic() - executor.began
            _log.info("the first Ray worker is there, after %.0f s", seconds)
        if executor is self._known_to_wait or executor.running:
            return
        if time.monotonic() - executor.began > _ROOM_SECONDS:
            self._known_to_wait = executor
            _log.warning(_NO_ROOM, _ROOM_SECONDS, self._asks, _free())


def loss_of(executor: Executor, slices: int) -> EngineError | None:
    """The error if an executor has nothing to do, and has had nothing, though it owes slices."""
    since = executor.idle_since
    if not slices or since is None or time.monotonic() - since <= _LOST_SECONDS:
        return None
    return EngineError(f"Ray lost {slices} slices: it has nothing to do, and owes them")


def _free() -> dict[str, float]:
    """What the cluster has left, without what only one node has or what is no resource."""
    free: dict[str, float] = ray.available_resources()
    return {k: round(v, 2) for k, v in free.items() if not k.startswith("node:")}

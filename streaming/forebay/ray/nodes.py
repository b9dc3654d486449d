"""What the cluster has for the workers of a pool, and asking its autoscaler for more."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import ray
from ray.autoscaler.sdk import request_resources


class Nodes:
    """The room on a cluster that others use, too. Any thread.

    Ray's autoscaler sees workers that wait for room by itself; it is told what is wanted as well,
    so that it starts all nodes at once, and keeps those that are wanted. Where there is none
    nobody listens. A request holds until the next one of any job: it is only made where the cluster
    is said to grow, and taken back in the end.

    Args:
        worker: what one worker takes, by Ray's names.
        most_cpus: to how many CPUs the cluster may grow; None: it does not.
        fresh_seconds: for how long an answer of the cluster is not asked for again.
    """

    def __init__(
        self, worker: Mapping[str, float], most_cpus: float | None, fresh_seconds: float = 2.0
    ) -> None:
        self._worker, self._most_cpus, self._fresh = dict(worker), most_cpus, fresh_seconds
        self._lock = threading.Lock()
        self._free, self._asked_at = 0.0, -float("inf")
        self._requested = 0

    def cpus(self, workers: int) -> float:
        """CPUs for the workers of the pool.

        Args:
            workers: how many it has now.
        """
        if self._most_cpus is not None:
            return self._most_cpus
        return self._free_cpus() + workers * self._worker.get("CPU", 0.0)

    def ask(self, workers: int) -> None:
        """Have room for so many workers, if the cluster can grow."""
        if self._most_cpus is None:
            return
        with self._lock:
            if workers != self._requested:
                self._requested = workers
                request_resources(bundles=[self._worker] * workers)

    def close(self) -> None:
        """Take back what was asked for."""
        if self._requested:
            self.ask(0)

    def _free_cpus(self) -> float:
        with self._lock:
            if time.monotonic() - self._asked_at > self._fresh:
                self._free = ray.available_resources().get("CPU", 0.0)
                self._asked_at = time.monotonic()
            return self._free

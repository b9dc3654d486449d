"""A Ray of one machine, that all tests of a session share: starting one takes seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import psutil
import ray

from forebay.ray import RayEngine

CPUS = 8
"""As Ray is told; the workers of the tests hardly use them."""


@contextmanager
def local_ray() -> Iterator[str]:
    """Start Ray; gives its address."""
    context = ray.init(
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=300 << 20,
    )
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def small_engine(address: str, **changes: Any) -> RayEngine:
    """An engine whose workers find room on a small machine."""
    return RayEngine(**{"address": address, "num_cpus": 0.5, **changes})


def processes_of(what: Literal["Reading", "MapWorker", "Host"]) -> list[int]:
    """The processes of the readers, of the workers of all pools, or of the hosts."""
    ours = psutil.Process().children(recursive=True)
    return [p.pid for p in ours if f"ray::{what}" in title(p)]


def title(process: psutil.Process) -> str:
    """What a process calls itself; nothing once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended meanwhile
        return ""


def await_that(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: it never did.
    """
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def kill(pid: int) -> None:
    """SIGKILL; a process that ended meanwhile is as good."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

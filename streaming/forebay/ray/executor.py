"""What runs the stages of parcels: a seam, since Ray offers several ways.

Imports nothing of Ray: which way can be gone depends on the version that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from forebay.ray.hanging import Hang

OnFinished: TypeAlias = Callable[[pa.Table], None]
"""Called with each finished parcel."""
OnEnd: TypeAlias = Callable[["BaseException | None"], None]
"""Called once with why it ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The workers of an executor."""

    least: int
    most: int
    arguments: tuple[Any, ...]
    """Of ``StageWorker``."""
    options: Mapping[str, Any]
    """Resources of each worker, as ``map_batches`` takes them."""
    context: Any = None
    """Settings of Ray Data; None for those of the process that it runs in."""


IN_FLIGHT = 2
"""Parcels that a worker has at a time: one that it works on, one that waits for it."""


class Executor(Protocol):
    """What runs the stages of parcels: here or in a process of its own.

    It is made with what is called with each finished parcel, and what is called once if it ends by
    itself; both on a thread of its own.
    """

    wanted: int
    """Workers that there should be; any thread may set it."""

    @property
    def began(self) -> float:
        """When it was made, by the monotonic clock."""

    @property
    def running(self) -> int:
        """Workers that were seen alive last."""

    @property
    def idle_since(self) -> float | None:
        """Since when it has nothing to do, by the monotonic clock; None while it has."""

    def put(self, ref: Any, nbytes: int) -> None:
        """Run a parcel. Any thread."""

    def close(self) -> None:
        """End it and its workers, whatever they are doing."""


@runtime_checkable
class Replacing(Executor, Protocol):
    """An executor that can replace a worker which hangs; not each can."""

    @property
    def replaced(self) -> int:
        """Workers that were replaced."""

    def replace(self, hang: Hang) -> None:
        """Kill the worker that hangs; Ray starts it anew, and runs its parcels again. Any thread.

        May be called again for the same hang: a worker is killed once.
        """

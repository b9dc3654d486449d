"""How long a step waits for the other ranks' gradients: a hook in DistributedDataParallel.

    model = DistributedDataParallel(model)
    measure_communication(model, loader)

It takes the place of the all-reduce that DDP does by itself, and gives the same gradients.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from forebay.cudaclock import CudaTimeline
from forebay.stepclock import StepClock
from forebay.timeline import DeviceTimeline

_dist: Any = dist  # parts of it have no types
_MOST_PENDING = 256


class Clocked(Protocol):
    """A loader, or what stands for it in a training function."""

    @property
    def step_clock(self) -> StepClock:
        """What is told."""


def measure_communication(
    ddp_model: Any, loader: Clocked, *, timeline: DeviceTimeline | None = None
) -> None:
    """Tell the loader's step clock what part of communication the backward pass did not hide.

    That is the time from the moment at which the last bucket of gradients is complete, when
    backward has nothing left to compute, until all buckets are reduced. It contains the wait for
    ranks that come later, whatever keeps them.

    Gradients are those of DDP without a hook, to the last bit; except that with
    ``gradient_as_bucket_view=True`` and ``zero_grad(set_to_none=False)`` the last bit may differ
    where the number of ranks is no power of two. Not for a backward pass that is captured as a CUDA
    graph.

    Args:
        timeline: of the device; None: of the model's where that is a CUDA one, else of the host.

    Raises:
        RuntimeError: the model has a communication hook already.
    """
    group = ddp_model.process_group
    device = next(ddp_model.parameters()).device
    if timeline is None and device.type == "cuda":
        timeline = CudaTimeline(device)
    waits: _HostWaits | _DeviceWaits = _HostWaits(loader.step_clock)
    if timeline is not None:
        waits = _DeviceWaits(loader.step_clock, timeline)
    hook = _Hook(group, waits)
    # DDP looks at a hook's annotations, and wants classes, not the texts that ours are.
    ddp_model.register_comm_hook(hook, _reduce)


def _reduce(hook: Any, bucket: Any) -> Any:
    return hook.reduce(bucket)


_reduce.__annotations__ = {"bucket": _dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


class _Hook:
    """Reduces buckets, and lets ``waits`` see when.

    What is called on a thread of the backend belongs to ``waits``, which knows nothing of the
    group: were its thread the last to let go of the group, that would wait for its own end.
    """

    def __init__(self, group: Any, waits: _HostWaits | _DeviceWaits) -> None:
        self._group, self._waits = group, waits

    def reduce(self, bucket: Any) -> Any:
        """A future of the reduced bucket."""
        when_done = self._waits.begun(bucket.is_last())
        return _all_reduced(bucket.buffer(), self._group).then(when_done)


class _HostWaits:
    """Of tensors in the host's memory: a bucket is reduced when its future says so."""

    def __init__(self, told: StepClock, clock: Callable[[], float] = time.monotonic) -> None:
        self._told, self._clock = told, clock
        self._lock = threading.Lock()
        self._open = 0
        self._last_given: float | None = None

    def begun(self, last: bool) -> Callable[[Any], Any]:
        """A bucket is complete; what is to be called with its future once it is reduced."""
        with self._lock:
            self._open += 1
            if last:
                self._last_given = self._clock()
        return self._done

    def _done(self, future: Any) -> Any:
        """On a thread of the backend, or on the trainer's."""
        tensor = future.value()[0]
        with self._lock:
            self._open -= 1
            if self._open == 0 and self._last_given is not None:
                self._told.add_communication(self._clock() - self._last_given)
                self._last_given = None
        return tensor


class _DeviceWaits:
    """Of tensors on a device, which reduces the buckets in order: by marks, looked at later."""

    def __init__(self, told: StepClock, timeline: DeviceTimeline) -> None:
        self._told, self._timeline = told, timeline
        self._given: Any = None
        self._pending: deque[tuple[Any, Any]] = deque(maxlen=_MOST_PENDING)

    def begun(self, last: bool) -> Callable[[Any], Any]:
        """A bucket is complete; what is to be called with its future once it is reduced."""
        self._tell()
        if not last:
            return _first_value
        self._given = self._timeline.mark()
        return self._last_done

    def _last_done(self, future: Any) -> Any:
        """When the reducing is ordered, on a stream that waits for its end."""
        end = self._timeline.mark()
        if self._given is not None and end is not None:
            self._pending.append((self._given, end))
        return future.value()[0]

    def _tell(self) -> None:
        while self._pending and self._timeline.reached(self._pending[0][1]):
            given, end = self._pending.popleft()
            self._told.add_communication(max(self._timeline.seconds(given, end), 0.0))


def _all_reduced(tensor: Any, group: Any) -> Any:
    """A future of the mean over the ranks, made as DDP itself does: it multiplies before it sums,
    and divides what is sparse."""
    ranks = group.size()
    if tensor.is_sparse:
        tensor.div_(ranks)
    else:
        tensor.mul_(1.0 / ranks)
    return dist.all_reduce(tensor, group=group, async_op=True).get_future()


def _first_value(future: Any) -> Any:
    return future.value()[0]

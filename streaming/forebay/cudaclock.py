"""A trainer's CUDA device: a step clock on the events of its stream, and its name for NVML."""

from __future__ import annotations

from typing import Any

import torch

from forebay.stepclock import DeviceClock

_cuda: Any = torch.cuda  # parts of it have no types


class CudaTimeline:
    """A ``DeviceTimeline`` of pairs of CUDA events. Touches the device at the first mark only.

    The trainer calls ``next()`` on the stream on which it gives its work, as it does unless it
    changes streams in between.

    Args:
        device: the trainer's.
        watch_idle: whether to ask, from another thread, if the stream has work left: what a slow
            host costs cannot be known without. Such a question breaks a CUDA graph that is being
            captured at the same moment, so not for a trainer that captures some while it trains.
    """

    def __init__(self, device: Any = "cuda", *, watch_idle: bool = False) -> None:
        self._device, self._watch_idle = torch.device(device), watch_idle
        self._usable: bool | None = None
        self._stream: Any = None

    def mark(self) -> Any | None:
        if self._usable is None:
            self._usable = _cuda.is_available()
        if not self._usable:
            return None
        self._stream = _cuda.current_stream(self._device)
        return self._stream.record_event(_timed_event())

    def reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1e3

    def idle(self) -> bool | None:
        if not self._watch_idle or self._stream is None:
            return None
        try:
            return bool(self._stream.query())
        except RuntimeError:  # a device that failed says so to the trainer
            return None


def _timed_event() -> Any:
    return _cuda.Event(enable_timing=True)


def cuda_clock(device: Any = "cuda", *, watch_idle: bool = False) -> DeviceClock:
    """A clock for trainers on a CUDA device. Without one it knows nothing, and says so (None)."""
    return DeviceClock(CudaTimeline(device, watch_idle=watch_idle))


def cuda_uuid() -> str | None:
    """The device that this thread works on, as NVML names it; None where CUDA is not in use yet."""
    if not _cuda.is_initialized():
        return None
    uuid = getattr(_cuda.get_device_properties(_cuda.current_device()), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"

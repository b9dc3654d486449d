"""The step clock of a CUDA device: marks are events of the stream that the trainer works on."""

from __future__ import annotations

from typing import Any

import torch

from forebay.stepclock import DeviceClock


class CudaTimeline:
    """A ``DeviceTimeline`` of pairs of CUDA events. Touches the device at the first mark only.

    The trainer calls ``next()`` on the stream on which it gives its work, as it does unless it
    changes streams in between.
    """

    def __init__(self, device: Any = "cuda") -> None:
        self._device = torch.device(device)
        self._usable: bool | None = None

    def mark(self) -> Any | None:
        if self._usable is None:
            self._usable = torch.cuda.is_available()
        if not self._usable:
            return None
        stream = torch.cuda.current_stream(self._device)
        return stream.record_event(_timed_event())

    def reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1e3


def _timed_event() -> Any:
    make: Any = torch.cuda.Event  # it has no types
    return make(enable_timing=True)


def cuda_clock(device: Any = "cuda") -> DeviceClock:
    """A clock for trainers on a CUDA device. Without one it knows nothing, and says so (None)."""
    return DeviceClock(CudaTimeline(device))

"""One device asked again and again; what it does not answer is None, and does no harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from forebay.nvml import library
from forebay.nvml.gpm import GpmSamples
from forebay.nvml.library import NotTold, number, whole
from forebay.nvml.seen import THROTTLES, GpuSeen

_PERCENT, _MILLI = 100.0, 1e3


class Device:
    """A GPU, or a MIG device, by its UUID. On one thread, from ``begin`` of the library on.

    Args:
        missing: is told each question that the driver does not know, each time.
    """

    def __init__(self, uuid: str, missing: Callable[[str], None]) -> None:
        self._uuid, self._missing = uuid, missing
        self._mig = uuid.startswith("MIG-")
        self._samples = GpmSamples()
        self._trouble = ""

    def look(self) -> GpuSeen:
        """What it tells now."""
        self._trouble = ""
        handle = self._ask("nvmlDeviceGetHandleByUUID", self._uuid)
        if handle is None:
            return GpuSeen(uuid=self._uuid, mig=self._mig, trouble=self._trouble)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        total = None if memory is None else whole(memory.total)
        most = float("inf") if total is None else total
        # What a GPU draws and does as a whole says nothing of one of its parts.
        gpu = self._whole_of(handle) if self._mig else handle
        own = None if self._mig else handle
        rates = self._ask("nvmlDeviceGetUtilizationRates", own)
        return GpuSeen(
            uuid=self._uuid,
            busy=None if rates is None else _scaled(number(rates.gpu, _PERCENT), _PERCENT),
            sm_active=self._sm_active(handle, gpu),
            memory_used=None if memory is None else whole(memory.used, most),
            memory_total=total,
            memory_mine=self._mine(handle, most),
            watts=_scaled(number(self._ask("nvmlDeviceGetPowerUsage", own)), _MILLI),
            watts_limit=_scaled(number(self._ask("nvmlDeviceGetEnforcedPowerLimit", own)), _MILLI),
            celsius=number(self._ask("nvmlDeviceGetTemperature", gpu, 0)),
            throttled=_throttles(self._ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)),
            mig=self._mig,
            trouble=self._trouble,
        )

    def close(self) -> None:
        """Give back what was allocated for it."""
        self._samples.free()

    def _whole_of(self, handle: Any) -> Any | None:
        return self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)

    def _sm_active(self, handle: Any, gpu: Any | None) -> float | None:
        instance = self._ask("nvmlDeviceGetGpuInstanceId", handle) if self._mig else None
        if gpu is None or (self._mig and instance is None):
            return None
        try:
            return self._samples.sm_active(gpu, instance)
        except NotTold as e:
            self._note("nvmlGpmMetricsGet", e)
            return None

    def _mine(self, handle: Any, most: float) -> int | None:
        """A process list of a driver that does not fit the binding has numbers in each other's
        places: only this process, with memory that can be, is believed."""
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        mine = [p.usedGpuMemory for p in processes or () if p.pid == os.getpid()]
        return whole(mine[0], most) if len(mine) == 1 else None

    def _ask(self, question: str, handle: Any, *args: Any) -> Any | None:
        if handle is None:
            return None
        try:
            return library.ask(question, handle, *args)
        except NotTold as e:
            self._note(question, e)
            return None

    def _note(self, question: str, why: NotTold) -> None:
        if why.missing:
            self._missing(question)
        if not why.unsupported:
            self._trouble = str(why)


def _scaled(found: float | None, by: float) -> float | None:
    return None if found is None else found / by


def _throttles(reasons: Any) -> tuple[str, ...] | None:
    if reasons is None or number(reasons) is None:
        return None
    return tuple(name for bit, name in THROTTLES.items() if reasons & bit)

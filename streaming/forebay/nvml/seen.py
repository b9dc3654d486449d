"""One GPU at one moment, as NVML tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """One device at one moment; of a MIG device, what is known of that part of the GPU alone."""

    uuid: str
    busy: float | None = None
    """NVML's ``utilization.gpu``, 0 to 1: the share of its last sample period (a sixth of a second
    to a second) in which any kernel ran, however little of the device it used. None for MIG."""
    sm_active: float | None = None
    """Multiprocessors that worked, 0 to 1, on average since the last look: NVML's GPM, of Hopper
    and later."""
    memory_used: int | None = None
    """Bytes, of all processes."""
    memory_total: int | None = None
    memory_mine: int | None = None
    """Bytes, of this process. NVML may not find it in a container with process numbers of its
    own."""
    watts: float | None = None
    """None for MIG, as the next."""
    watts_limit: float | None = None
    """What the driver holds it to."""
    celsius: float | None = None
    """Of the GPU, also for MIG."""
    throttled: tuple[str, ...] | None = None
    """What keeps its clocks down, by the names in ``THROTTLES``, for MIG that of the whole GPU.
    Empty: nothing. An idle device is not throttled."""
    mig: bool = False
    trouble: str = ""
    """What the device answered with instead; the last of several. What it does not support, or its
    driver does not know, is no trouble."""


THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""NVML's clocks event reasons, by bit, that mean that a device could run faster."""

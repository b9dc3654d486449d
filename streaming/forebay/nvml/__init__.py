"""What NVML tells of this process's GPUs, asked once a second; None for whatever it does not tell.

A driver, a library or a permission that is missing is no failure: training goes on, less is known,
and ``trouble`` says why.
"""

from forebay.nvml.seen import GpuSeen as GpuSeen
from forebay.nvml.visible import visible as visible
from forebay.nvml.watch import GpuWatch as GpuWatch

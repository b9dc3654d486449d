"""How much of a GPU works: NVML's GPM, counts of the device between two samples of it."""

from __future__ import annotations

from typing import Any

from forebay.nvml import library
from forebay.nvml.library import NotTold, number

_PERCENT = 100.0


class GpmSamples:
    """Samples of one device; two of them are kept and written in turn."""

    def __init__(self) -> None:
        self._supported: bool | None = None
        self._last: Any | None = None
        self._spare: Any | None = None

    def sm_active(self, gpu: Any, instance: int | None) -> float | None:
        """The share of multiprocessors that worked since the last call, 0 to 1.

        Args:
            gpu: the handle of the whole GPU.
            instance: the GPU instance of a MIG device; None: the whole GPU is meant.

        Raises:
            NotTold: NVML could not say.
        """
        if self._supported is None:
            self._supported = self._asked_for_support(gpu)
        if not self._supported:
            return None
        sample, self._spare = self._spare or library.ask("nvmlGpmSampleAlloc"), None
        try:
            if instance is None:
                library.ask("nvmlGpmSampleGet", gpu, sample)
            else:
                library.ask("nvmlGpmMigSampleGet", gpu, instance, sample)
        except NotTold:
            self._spare = sample
            raise
        last, self._last = self._last, sample
        self._spare = last
        return None if last is None else _sm_active(last, sample)

    def free(self) -> None:
        """Give the samples back."""
        for sample in (self._last, self._spare):
            if sample is not None:
                library.ask("nvmlGpmSampleFree", sample)
        self._last = self._spare = None

    @staticmethod
    def _asked_for_support(gpu: Any) -> bool:
        try:
            return bool(library.ask("nvmlGpmQueryDeviceSupport", gpu).isSupportedDevice)
        except NotTold as e:
            if e.unsupported:
                return False
            raise


def _sm_active(earlier: Any, later: Any) -> float | None:
    nvml = library.pynvml
    wanted = nvml.c_nvmlGpmMetricsGet_t()
    wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
    wanted.sample1, wanted.sample2 = earlier, later
    wanted.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
    metric = library.ask("nvmlGpmMetricsGet", wanted).metrics[0]
    found = None if metric.nvmlReturn else number(metric.value, _PERCENT)
    return None if found is None else found / _PERCENT

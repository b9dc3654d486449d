"""Metrics in the words of the OpenTelemetry SDK: an extra, which takes time to be imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from forebay.histogram import Histogram
from forebay.observe.catalog import MOST_SPLITS, metrics_of
from forebay.observe.metric import COMMON_LABELS, Metric, common_labels
from forebay.observe.readings import History
from forebay.observe.snapshot import JobSeen

_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel"}


class SdkPusher:
    """Pushes by the SDK's exporter, with its own rules for trying again.

    Args:
        url: of the collector, with its path; None: what the environment says.
        timeout: seconds for one push, trials included.
    """

    def __init__(
        self, url: str | None, headers: Mapping[str, str] | None, timeout: float, most_splits: int
    ) -> None:
        self._most_splits = most_splits
        self._exporter = OTLPMetricExporter(
            endpoint=url, headers=None if headers is None else dict(headers), timeout=timeout
        )

    def push(self, history: History) -> bool:
        """Push the metrics of one rank; whether they were taken."""
        result = self._exporter.export(as_otlp(history, self._most_splits))
        return result is sdk.MetricExportResult.SUCCESS

    def close(self) -> None:
        """Push nothing more."""
        self._exporter.shutdown()


def as_otlp(history: History, most_splits: int = MOST_SPLITS) -> sdk.MetricsData:
    """The metrics of one rank; its snapshots oldest first, of which the last is told."""
    job = history[-1].job
    made = [_Points(metric, history) for metric in metrics_of(history, most_splits)]
    scope = sdk.ScopeMetrics(
        scope=InstrumentationScope("forebay", job.version),
        metrics=[points.metric() for points in made if points],
        schema_url="",
    )
    return sdk.MetricsData(
        resource_metrics=[
            sdk.ResourceMetrics(resource=_resource(job), scope_metrics=[scope], schema_url="")
        ]
    )


class _Points:
    """What is known of one metric."""

    def __init__(self, metric: Metric, history: History) -> None:
        now = history[-1]
        self._metric = metric
        self._common = dict(zip(COMMON_LABELS, common_labels(now.job), strict=True))
        self._began, self._at = int(now.job.began * 1e9), int(now.at * 1e9)
        self._known = [(k, v) for k, v in metric.read(history) if v is not None]

    def __bool__(self) -> bool:
        return bool(self._known)

    def metric(self) -> sdk.Metric:
        metric = self._metric
        return sdk.Metric(
            name=metric.name,
            description=metric.help,
            unit=_UNITS.get(metric.unit, ""),
            data=self._data(),
        )

    def _data(self) -> sdk.DataT:
        cumulative = sdk.AggregationTemporality.CUMULATIVE
        if self._metric.kind == "histogram":
            return sdk.Histogram(data_points=self._histograms(), aggregation_temporality=cumulative)
        if self._metric.kind == "counter":
            return sdk.Sum(
                data_points=self._numbers(), aggregation_temporality=cumulative, is_monotonic=True
            )
        return sdk.Gauge(data_points=self._numbers())

    def _numbers(self) -> list[sdk.NumberDataPoint]:
        return [
            sdk.NumberDataPoint(
                attributes=self._attributes(labels),
                start_time_unix_nano=self._began,
                time_unix_nano=self._at,
                value=value,
            )
            for labels, value in self._known
            if not isinstance(value, Histogram)
        ]

    def _histograms(self) -> list[sdk.HistogramDataPoint]:
        return [
            sdk.HistogramDataPoint(
                attributes=self._attributes(labels),
                start_time_unix_nano=self._began,
                time_unix_nano=self._at,
                count=h.count,
                sum=h.sum,
                bucket_counts=h.counts,
                explicit_bounds=h.bounds,
                min=None,  # type: ignore[arg-type]  # not known, which the protocol has a place for
                max=None,  # type: ignore[arg-type]
            )
            for labels, h in self._known
            if isinstance(h, Histogram)
        ]

    def _attributes(self, labels: Iterable[str]) -> dict[str, str]:
        return {**self._common, **dict(zip(self._metric.labels, labels, strict=True))}


def _resource(job: JobSeen) -> Resource:
    return Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or job.name,
            "service.instance.id": f"{job.host}:{job.pid}",
            "host.name": job.host,
            "process.pid": job.pid,
        }
    )

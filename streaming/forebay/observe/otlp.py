"""What runs, pushed to an OpenTelemetry collector by OTLP over HTTP: the metrics of ``catalog``.

Names, labels and values are those that Prometheus gets; counts are cumulative. Needs
``forebay[otlp]``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from forebay.errors import ConfigError
from forebay.histogram import Histogram
from forebay.observe.catalog import MOST_SPLITS, metrics_of
from forebay.observe.metric import COMMON_LABELS, Metric, common_labels
from forebay.observe.readings import RATIO_SECONDS, History
from forebay.observe.snapshot import JobSeen, Snapshot

_missing = ""
try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as e:
    _missing = str(e)

_log = logging.getLogger("forebay.observe")
_exporter_log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel"}
_TIMEOUT, _PATIENCE = 5.0, 2.0
_PATH = "/v1/metrics"


class Otlp:
    """An output of a ``Monitor``: pushes the newest snapshot now and then, on a thread of its own.

    A collector that does not answer costs the training nothing: it is told once in the log, and
    tried again each time.

    Args:
        endpoint: the collector's URL; without a path ``/v1/metrics`` is meant. None: what the
            environment says (``OTEL_EXPORTER_OTLP_ENDPOINT``, as its ``_HEADERS`` and others).
        seconds: between two pushes.
        headers: to send with each, as a token.

    Raises:
        ConfigError: the OpenTelemetry SDK is not installed, or the URL is none.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        seconds: float = 10.0,
        headers: Mapping[str, str] | None = None,
        most_splits: int = MOST_SPLITS,
    ) -> None:
        if _missing:
            raise ConfigError(
                f"OTLP needs the OpenTelemetry SDK: pip install 'forebay[otlp]' ({_missing})"
            )
        self._seconds, self._most_splits = seconds, most_splits
        self._exporter = OTLPMetricExporter(
            endpoint=None if endpoint is None else _full(endpoint),
            headers=None if headers is None else dict(headers),
            timeout=_TIMEOUT,
        )
        self._recent: tuple[Snapshot, ...] = ()
        self._failed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-otlp", daemon=True)
        _exporter_log.addFilter(self._tells)

    def write(self, snapshot: Snapshot) -> None:
        """Take it for the next push."""
        since = snapshot.at - RATIO_SECONDS
        self._recent = (*(s for s in self._recent if s.at >= since), snapshot)
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Push what came last, and end; a collector that hangs is not waited for longer than some
        seconds."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)
        self._exporter.shutdown()
        if self._thread.ident is not None:
            self._thread.join(_TIMEOUT)
        _exporter_log.removeFilter(self._tells)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            result = self._exporter.export(as_otlp(self._recent, self._most_splits))
        except Exception as e:  # an error of a transport that the exporter does not know
            self._told(f"{type(e).__name__}: {e}")
        else:
            failed = result is not sdk.MetricExportResult.SUCCESS
            self._told("the collector does not take them" if failed else "")

    def _tells(self, record: logging.LogRecord) -> bool:
        """Whether what the exporter logs is to be seen: of failures in a row the first."""
        return not (self._failed and record.thread == self._thread.ident)

    def _told(self, trouble: str) -> None:
        if trouble and not self._failed:
            _log.warning("metrics could not be pushed by OTLP, which goes on trying: %s", trouble)
        self._failed = bool(trouble)


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


def _full(endpoint: str) -> str:
    """With the path of metrics, if it has none.

    Raises:
        ConfigError: it is no URL.
    """
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ConfigError(
            f"otlp must be the URL of a collector, as http://localhost:4318, not {endpoint!r}"
        )
    return url._replace(path=_PATH).geturl() if url.path in ("", "/") else endpoint

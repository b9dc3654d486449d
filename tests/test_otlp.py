"""OTLP pushes what Prometheus would scrape: the same names, labels and values."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.snapshots import BEGAN, busy, idle

from forebay.errors import ConfigError
from forebay.observe.otlp import Otlp
from forebay.observe.prometheus import exposition


class Collector(ThreadingHTTPServer):
    """Takes what is pushed, and answers with ``status``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: Queue[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = Queue()
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def metrics(self) -> dict[str, Metric]:
        _, _, request = self.got.get(timeout=30)
        (resource,) = request.resource_metrics
        (scope,) = resource.scope_metrics
        return {m.name: m for m in scope.metrics}


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {k.lower(): v for k, v in self.headers.items()}
        self.server.got.put((self.path, headers, ExportMetricsServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def pushed_to(collector: Collector, *snapshots: object, **options: object) -> None:
    output = Otlp(collector.url, **options)  # type: ignore[arg-type]
    for snapshot in snapshots:
        output.write(snapshot)  # type: ignore[arg-type]
    output.close()


def of_prometheus(*snapshots: object) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text, _ = exposition([snapshots])  # type: ignore[list-item]
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text.decode())
        if family.type != "histogram"
        for s in family.samples
    }


def test_names_labels_and_values_are_those_that_prometheus_gets(collector: Collector) -> None:
    pushed_to(collector, busy(5), busy(10))
    found = {}
    for metric in collector.metrics().values():
        for point in [*metric.sum.data_points, *metric.gauge.data_points]:
            labels = {a.key: a.value.string_value for a in point.attributes}
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            found[metric.name, tuple(sorted(labels.items()))] = value
    assert found == of_prometheus(busy(5), busy(10))


def test_counts_are_cumulative_since_the_process_began(collector: Collector) -> None:
    pushed_to(collector, busy(10))
    rows = collector.metrics()["forebay_rows_total"]
    assert rows.sum.is_monotonic
    assert rows.sum.aggregation_temporality == (
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    (point,) = rows.sum.data_points
    assert (point.start_time_unix_nano, point.time_unix_nano) == (
        int(BEGAN * 1e9),
        int((BEGAN + 10) * 1e9),
    )


def test_histograms_keep_their_buckets_and_units_are_told(collector: Collector) -> None:
    pushed_to(collector, busy(10))
    metric = collector.metrics()["forebay_freshness_seconds"]
    assert metric.unit == "s"
    (point,) = metric.histogram.data_points
    assert (point.count, sum(point.bucket_counts)) == (25600, 25600)
    assert list(point.explicit_bounds) == list(busy(10).freshness.bounds)
    assert not point.HasField("min")


def test_what_is_not_known_is_not_pushed(collector: Collector) -> None:
    pushed_to(collector, idle())
    names = collector.metrics().keys()
    assert "forebay_rows_total" in names
    assert not names & {"forebay_starvation_ratio", "forebay_lag_records", "forebay_gpu_busy_ratio"}


def test_the_collector_learns_whose_they_are(collector: Collector) -> None:
    pushed_to(collector, busy(10), headers={"authorization": "Bearer secret"})
    path, headers, request = collector.got.get(timeout=30)
    resource = {a.key: a.value for a in request.resource_metrics[0].resource.attributes}
    assert path == "/v1/metrics"
    assert headers["authorization"] == "Bearer secret"
    assert resource["service.name"].string_value == "clicks"
    assert resource["service.instance.id"].string_value == "node-1:7"


def test_it_pushes_while_the_job_runs(collector: Collector) -> None:
    output = Otlp(collector.url, seconds=0.01)
    output.write(busy(10))
    assert collector.metrics()["forebay_rows_total"].sum.data_points[0].as_int == 25600
    output.close()


def test_a_collector_that_refuses_is_told_once_and_tried_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400
    output = Otlp(collector.url, seconds=0.01)
    output.write(busy(10))
    for _ in range(3):
        collector.got.get(timeout=30)
    collector.status = 200
    output.close()
    reason, told = [r.getMessage() for r in caplog.records]
    assert "400" in reason
    assert "goes on trying" in told


def test_nothing_is_pushed_of_a_job_that_never_began(collector: Collector) -> None:
    pushed_to(collector)
    assert collector.got.empty()


def test_without_the_sdk_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "forebay.observe.otlpsdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(ConfigError, match=r"pip install 'forebay\[otlp\]'"):
        Otlp("http://localhost:4318")


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="not 'localhost:4318'"):
        Otlp("localhost:4318")

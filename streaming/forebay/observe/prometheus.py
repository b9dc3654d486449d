"""What runs, for Prometheus: made of snapshots when it is asked for, no counters of its own.

exposition([monitor.history()])                       # the text of a scrape
REGISTRY.register(SnapshotCollector(lambda: [monitor.history()]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from prometheus_client import exposition as formats
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from forebay.histogram import Histogram
from forebay.observe.catalog import MOST_SPLITS, metrics_of
from forebay.observe.metric import COMMON_LABELS, Metric, common_labels
from forebay.observe.readings import History, Reading

Histories: TypeAlias = Sequence[History]
"""Of each rank its snapshots, oldest first; the newest is told."""


def exposition(
    histories: Histories, accept: str = "", most_splits: int = MOST_SPLITS
) -> tuple[bytes, str]:
    """The answer to a scrape, and its content type.

    Args:
        accept: the request's header, which may ask for OpenMetrics.
        most_splits: see ``families``.
    """
    encode, content_type = formats.choose_encoder(accept)
    return encode(SnapshotCollector(lambda: histories, most_splits)), content_type


def families(histories: Histories, most_splits: int = MOST_SPLITS) -> Iterator[Family]:
    """Every metric of which something is known, its samples labelled by run and rank.

    Args:
        histories: where two are of the same rank of the same run, the one that told last is taken.
        most_splits: a rank that has more of them has no series of single splits.
    """
    found: dict[str, Family] = {}
    for history in _newest(histories):
        labels = common_labels(history[-1].job)
        for metric in metrics_of(history, most_splits):
            family = found.get(metric.name)
            if family is None:
                family = found[metric.name] = _family(metric)
            for reading in metric.read(history):
                _add(family, labels, reading)
    return (family for family in found.values() if family.samples)


class SnapshotCollector(Collector):
    """For a registry of prometheus-client, beside the metrics that a program has of its own.

    Args:
        histories: asked at each scrape, on its thread; ``lambda: [monitor.history()]`` of one rank.
    """

    def __init__(self, histories: Callable[[], Histories], most_splits: int = MOST_SPLITS) -> None:
        self._histories, self._most_splits = histories, most_splits

    def collect(self) -> Iterable[Family]:
        """The metrics as they are now."""
        return families(self._histories(), self._most_splits)

    def describe(self) -> Iterable[Family]:
        """Nothing: a registry would else begin with a scrape, maybe before the job does."""
        return ()


def _newest(histories: Histories) -> list[History]:
    """One history a rank: a series that is there twice makes Prometheus refuse all of them."""
    ranks: dict[tuple[str, int], History] = {}
    for history in histories:
        if history:
            job = history[-1].job
            known = ranks.get((job.name, job.rank))
            if known is None or known[-1].at < history[-1].at:
                ranks[job.name, job.rank] = history
    return list(ranks.values())


def _family(metric: Metric) -> Family:
    labels = (*COMMON_LABELS, *metric.labels)
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=labels, unit=metric.unit)
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.help, labels=labels, unit=metric.unit)
    if metric.kind == "info":
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=labels, unit=metric.unit)


def _add(family: Any, common: tuple[str, ...], reading: Reading) -> None:
    labels, value = reading
    if value is None:
        return
    every = (*common, *labels)
    if isinstance(value, Histogram):
        family.add_metric(every, _buckets(value), value.sum)
    elif family.type == "info":
        family.add_metric(every, {})
    else:
        family.add_metric(every, value)


def _buckets(h: Histogram) -> list[tuple[str, int]]:
    bounds = [*map(floatToGoString, h.bounds), "+Inf"]
    return list(zip(bounds, accumulate(h.counts), strict=True))

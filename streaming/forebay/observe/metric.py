"""A metric: its name, its kind, and how it is read from the snapshots of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.engine import PoolStats, StageStats
from forebay.histogram import Histogram
from forebay.nvml import GpuSeen
from forebay.observe.readings import History, Reading, by_source
from forebay.observe.snapshot import JobSeen, Snapshot, SplitSeen

PREFIX = "forebay_"
COMMON_LABELS = ("run", "rank")
"""On every sample. Not ``job``, which Prometheus itself puts on all that it scrapes."""
_UNITS = ("seconds", "bytes", "ratio", "watts", "celsius")

Kind: TypeAlias = Literal["gauge", "counter", "histogram", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, of one rank."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    read: Callable[[History], Iterable[Reading]]
    per_split: bool = False
    """Whether there is a series of it, or more, for each split."""

    @property
    def unit(self) -> str:
        """As it ends the name; empty for plain numbers."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in _UNITS else ""


def common_labels(job: JobSeen) -> tuple[str, ...]:
    """The values of ``COMMON_LABELS``."""
    return (job.name, str(job.rank))


def gauge(name: str, text: str, of: Callable[[Snapshot], float | None]) -> Metric:
    """A value of each snapshot, without labels."""
    return each("gauge", name, text, (), lambda s: [((), of(s))])


def counter(name: str, text: str, of: Callable[[Snapshot], float | None]) -> Metric:
    """A count of each snapshot, without labels."""
    return each("counter", name, text, (), lambda s: [((), of(s))])


def histogram(name: str, text: str, of: Callable[[Snapshot], Histogram]) -> Metric:
    """Durations by size."""
    return each("histogram", name, text, (), lambda s: [((), of(s))])


def each(
    kind: Kind,
    name: str,
    text: str,
    labels: tuple[str, ...],
    of: Callable[[Snapshot], Iterable[Reading]],
) -> Metric:
    """What ``of`` reads in the last snapshot."""
    return Metric(name=PREFIX + name, kind=kind, help=text, labels=labels, read=lambda h: of(h[-1]))


def of_split(name: str, text: str, of: Callable[[SplitSeen], float | None]) -> Metric:
    """A gauge for each split."""
    return Metric(
        name=PREFIX + name,
        kind="gauge",
        help=text,
        labels=("source", "split"),
        read=lambda h: [((s.source, k), of(s)) for k, s in h[-1].splits.items()],
        per_split=True,
    )


def of_source(name: str, text: str, of: Callable[[list[SplitSeen]], float | None]) -> Metric:
    """A gauge for each source, of its splits together."""
    return each("gauge", name, text, ("source",), lambda s: by_source(s, of))


def of_stage(name: str, text: str, of: Callable[[StageStats], float]) -> Metric:
    """A counter for each stage."""
    return each(
        "counter", name, text, ("stage",), lambda s: [((k,), of(v)) for k, v in s.stages.items()]
    )


def of_pool(kind: Kind, name: str, text: str, of: Callable[[PoolStats], float | None]) -> Metric:
    """Something of each pool of workers."""
    return each(kind, name, text, ("pool",), lambda s: [((k,), of(v)) for k, v in s.pools.items()])


def of_gpu(name: str, text: str, of: Callable[[GpuSeen], float | None]) -> Metric:
    """A gauge for each GPU."""
    return each("gauge", name, text, ("gpu",), lambda s: [((g.uuid,), of(g)) for g in s.gpus])

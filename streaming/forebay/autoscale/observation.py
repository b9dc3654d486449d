"""What an autoscaler sees at one moment. Whatever is not known is None, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSeen:
    """One source: a topic, a table."""

    lag: float | None = None
    """Rows that were not delivered to the trainer yet."""
    arrival: float | None = None
    """New rows a second, by differences of the ends that the source itself tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeen:
    """One pool of workers. Rates are in rows of the source."""

    workers: int
    starting: int = 0
    """Workers that were asked for and do no work yet."""
    queued: int = 0
    """Slices that wait for a worker."""
    busy: float | None = None
    """Share of the time that its workers worked, 0 to 1."""
    rate: float | None = None
    """Rows a second that one worker does while it works."""
    throughput: float | None = None
    """Rows a second that the pool did."""
    cpu: float | None = None
    """CPUs that one worker uses while it works."""
    least: int = 1
    most: int | None = None

    @property
    def size(self) -> int:
        """Workers, those that start included."""
        return self.workers + self.starting


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSeen:
    """The side that eats."""

    demand: float | None = None
    """Rows of the source a second that it takes while it does not wait."""
    starved: float | None = None
    """Share of the time that it waited for a batch, 0 to 1."""
    ready: float | None = None
    """How full the queue of ready batches is, 0 to 1."""
    device_busy: float | None = None
    """Share of the time in which its device ran anything, 0 to 1, as NVML tells; None as well where
    ``starved`` was measured on the device, which is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything a policy decides by; a policy keeps nothing of its own."""

    at: float
    """Seconds of a monotonic clock."""
    sources: Mapping[str, SourceSeen] = field(default_factory=dict)
    pools: Mapping[str, PoolSeen] = field(default_factory=dict)
    """In the order in which rows pass them."""
    trainer: TrainerSeen = TrainerSeen()
    cpus: float | None = None
    """CPUs that all pools together may use."""
    gil: float | None = None
    """Share of the time that the interpreter's lock is taken; None where stages do not share it."""
    price: float = 0.0
    """What a second of one worker costs, in seconds of a starved trainer."""

    @property
    def lag(self) -> float | None:
        """Of all sources together; None if that of one is not known."""
        return _total(source.lag for source in self.sources.values())

    @property
    def arrival(self) -> float | None:
        """Of all sources together; None if that of one is not known."""
        return _total(source.arrival for source in self.sources.values())

    def to_json(self) -> dict[str, Any]:
        """As a plain dict."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observation:
        """From what ``to_json`` gave.

        Raises:
            TypeError, KeyError, ValueError: it is nothing of the kind.
        """
        return cls(
            **{
                **data,
                "sources": _each(data["sources"], SourceSeen),
                "pools": _each(data["pools"], PoolSeen),
                "trainer": TrainerSeen(**data["trainer"]),
            }
        )


def _each(data: Mapping[str, Mapping[str, Any]], make: Callable[..., Any]) -> dict[str, Any]:
    return {str(name): make(**values) for name, values in data.items()}


def _total(values: Iterable[float | None]) -> float | None:
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    return sum(value for value in known if value is not None)

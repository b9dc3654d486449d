"""How a loader runs, and what it tells of itself: plain data, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forebay.autoscale import Autoscaling, Policy, PolicyName
from forebay.deadletter import Letter
from forebay.engine import Engine, Order, StageStats, worker_range
from forebay.errors import ConfigError
from forebay.histogram import Histogram
from forebay.plugins import Plugins
from forebay.stepclock import StepClock, StepTimes
from forebay.threads import ThreadEngine

ENGINES = Plugins("forebay.engines", "engine")
StateOf: TypeAlias = Literal["yielded", "committed"]
Ragged: TypeAlias = Literal["list", "pad"]
"""Rows of different shapes in one column: a list of tensors, or one tensor padded with zeros and
a boolean ``<column>_mask`` of the same leading shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """How a loader runs. Every field is checked at construction."""

    order: Order = "split"
    max_bytes: int = 256 << 20
    """Bound on bytes in flight, from the source's client to the ready batches."""
    prefetch: int = 2
    """Batches made ahead of the trainer."""
    workers: int | tuple[int, int] | None = None
    """Worker threads, or (least, most); None: as many as this process has CPUs, at least 2."""
    autoscale: PolicyName | Autoscaling | Policy | Literal["auto"] | None = "auto"
    """What sizes the pool between least and most: a policy, its settings, or None for nothing.
    ``auto``: the policy ``starvation`` where ``workers`` is a range, nothing where it is not."""
    record_trace: str | None = None
    """A file that gets what an autoscaler sees, a line a second, to be simulated again."""
    step_clock: Callable[[], StepClock] | None = None
    """Makes what measures the trainer's waiting. None: ``cuda_clock`` for a CUDA ``device``, else
    ``HostClock``."""
    seed: int = 0
    """Keys the random numbers of the stages."""
    steps_per_epoch: int | None = None
    """Batches of one ``for`` loop; gives the loader a length. None: until the source ends."""
    passes: int | None = 1
    """How often a bounded source is read, one ``for`` loop each; None: without end."""
    state_of: StateOf = "yielded"
    """Whether the state covers batches that were yielded, or only those that were committed."""
    device: Any = None
    """Where the tensors go, as ``torch.device`` takes it; for CUDA through pinned memory."""
    ragged: Ragged = "list"
    rank: int | None = None
    """This process's rank; None: from torch.distributed, else RANK, else 0."""
    world_size: int | None = None
    engine: Engine | str = field(default_factory=ThreadEngine)
    """Where the stages run: ``threads``, ``ray``, the name of another, or one with settings."""

    def __post_init__(self) -> None:
        _check_choice("order", self.order, ("split", "arrival", "deterministic"))
        _check_choice("state_of", self.state_of, ("yielded", "committed"))
        _check_choice("ragged", self.ragged, ("list", "pad"))
        _check_positive("max_bytes", self.max_bytes)
        _check_positive("prefetch", self.prefetch)
        for name in ("steps_per_epoch", "passes"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError("give both rank and world_size, or neither")
        if self.rank is not None and self.world_size is not None:
            check_rank(self.rank, self.world_size)
        if self.workers is not None:
            worker_range(self.workers)
        self.autoscaling()
        if isinstance(self.engine, str) and self.engine not in ENGINES.names():
            raise ConfigError(ENGINES.unknown(self.engine))

    def chosen_engine(self) -> Engine:
        """The engine; one that was named is imported only now.

        Raises:
            ConfigError: its package is broken, or lacks what it needs.
        """
        if not isinstance(self.engine, str):
            return self.engine
        engine: Engine = ENGINES.load(self.engine)()
        return engine

    def worker_bounds(self) -> tuple[int, int] | None:
        """``workers`` as (least, most)."""
        if not isinstance(self.workers, int):
            return self.workers
        return (self.workers if self.autoscaling() is None else 1, self.workers)

    def autoscaling(self) -> Autoscaling | None:
        """How the pools are sized; None: not at all.

        Raises:
            ConfigError: the policy is none.
        """
        chosen = self.autoscale
        if chosen == "auto":
            fixed = not isinstance(self.workers, tuple) or self.workers[0] == self.workers[1]
            chosen = None if fixed else "starvation"
        if chosen is None or isinstance(chosen, Autoscaling):
            return chosen
        return Autoscaling(policy=chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """What a loader did so far in this process. Unknown values are None."""

    batches: int
    rows: int
    dead_letters: int
    wait_seconds: float
    """Time the trainer waited in ``next()``."""
    seconds: float
    """Time since the first ``next()``."""
    ready_batches: int
    bytes_in_flight: int
    freshness_seconds: float | None
    """From the median event time of the last batch to the moment it was yielded."""
    workers: int
    passes: int
    steps: StepTimes
    """Where the trainer's time went."""
    step_durations: Histogram
    """From batch to batch."""
    wait_durations: Histogram
    """One wait in ``next()`` for each batch."""
    freshness: Histogram
    """From each row's event time to the moment its batch was yielded."""
    stages: Mapping[str, StageStats]
    """In the order in which rows pass them."""
    letters: Mapping[tuple[str, str], int]
    """Dead letters by stage and kind: the name of the exception."""
    last_letters: tuple[Letter, ...]
    """The last dead letters, oldest first."""
    source_wait_seconds: float
    """Time in which making batches waited for finished slices."""
    room_wait_seconds: float
    """Time in which it waited for the trainer to take a batch."""
    decided: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The autoscaler's decisions by pool and action: ``up``, ``down``, ``hold``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStats:
    """How far a split was read, given to the trainer and saved, as offsets; None: not known."""

    delivered: int
    """All before it were given to the trainer, less ``pending``."""
    pending: int = 0
    """Offsets before ``delivered`` that were overtaken and not given yet."""
    low: int | None = None
    """The oldest offset that was not given; None: ``delivered``."""
    end: int | None = None
    fetched: int | None = None
    """All before it were read from the source."""
    saved: int | None = None
    """All before it are covered by the last state that was taken, less ``saved_pending``."""
    saved_pending: int = 0
    event_time: float | None = None
    """Of the last row that was given, seconds since the epoch."""


def check_rank(rank: int, world_size: int) -> None:
    """Refuse a rank that is none of ``world_size``.

    Raises:
        ConfigError: says which are.
    """
    _check_positive("world_size", world_size)
    whole = isinstance(rank, int) and not isinstance(rank, bool)
    if not whole or not 0 <= rank < world_size:
        raise ConfigError(f"rank must be 0 to world_size - 1 ({world_size - 1}), not {rank!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a positive integer, not {value!r}")

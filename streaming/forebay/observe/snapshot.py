"""What is known of one rank of a job at one moment: all views and verdicts are made of these.

Counts and seconds grow from the start of the process; rates are differences of two snapshots.
Whatever is not known is None, or absent from its mapping, never 0. As JSON a snapshot goes to
dashboards, into state files and over HTTP; readers leave out keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from forebay.autoscale import Taken
from forebay.engine import PoolStats, StageStats
from forebay.histogram import Histogram
from forebay.nvml import GpuSeen
from forebay.stepclock import StepTimes

FORMAT = 1
"""Of the JSON; readers refuse a higher one."""
LagState: TypeAlias = Literal["OK", "BEHIND", "STALLED", "STOPPED"]
"""OK: keeps up, or catches up. BEHIND: moves, but its lag does not shrink. STALLED: others move, it
does not, though there is more. STOPPED: the trainer takes nothing, or reading ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """Which process this is about."""

    name: str
    """The topology's, or of the program."""
    topology: str | None = None
    """The topology file."""
    host: str
    pid: int
    rank: int = 0
    world_size: int = 1
    engine: str
    version: str
    """Of Forebay."""
    began: float
    """Wall-clock seconds since the epoch."""
    has_trainer: bool = True
    """Whether a training function runs; a loop that only drains waits all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSeen:
    """One split of a source."""

    source: str
    """What it is a part of: ``kafka:clicks``."""
    position: int
    """Where its reading goes on after a resume: all before was delivered."""
    end: int | None = None
    lag_records: int | None = None
    """Offsets up to the end that were not delivered to the trainer."""
    lag_fetched: int | None = None
    """Offsets up to the end that were not read from the source yet."""
    lag_checkpointed: int | None = None
    """Offsets up to the end that the last state that was taken does not cover."""
    lag_seconds: float | None = None
    """How long the oldest record that was not delivered has been there."""
    state: LagState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSeen:
    """What lies between the source and the trainer."""

    bytes_in_flight: int
    max_bytes: int
    ready_batches: int
    prefetch: int
    source_wait_seconds: float
    """Time in which making batches waited for finished slices."""
    room_wait_seconds: float
    """Time in which it waited for the trainer to take a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSeen:
    """One of the last dead letters."""

    at: float
    split: str
    offset: int
    stage: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersSeen:
    """Records that could not be processed."""

    total: int = 0
    by_reason: Mapping[str, int] = field(default_factory=dict)
    """Counts by ``stage/kind``, the kind being the exception's name; few, as it is a label."""
    last: tuple[LetterSeen, ...] = ()
    """Oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeen:
    """The training process."""

    rss_bytes: int | None = None
    pss_bytes: int | None = None
    """With its children, memory that they share counted once."""
    cpu_seconds: float | None = None
    """Of all threads, user and system."""
    cpu_wait_seconds: float | None = None
    """Of the threads that live: they were ready to run, and had no CPU."""
    threads: int | None = None
    cpus: float | None = None
    """CPUs that it may use."""
    gil: float | None = None
    """Share of the time in which the interpreter's lock was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """What another rank told of itself at the last exchange; shares of its time, 0 to 1."""

    rank: int
    starved: float | None
    copy: float | None
    compute: float | None
    communication: float | None
    other: float | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One rank at one moment."""

    at: float
    """Wall-clock seconds since the epoch."""
    job: JobSeen
    batches: int
    rows: int
    steps: StepTimes
    step_seconds: Histogram
    """Of whole steps, from batch to batch."""
    wait_seconds: Histogram
    """Of waits in ``next()``, one for each batch."""
    freshness: Histogram
    """From each row's event time to the moment its batch was given to the trainer."""
    passes: int = 0
    splits: Mapping[str, SplitSeen] = field(default_factory=dict)
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    """In the order in which rows pass them."""
    pools: Mapping[str, PoolStats] = field(default_factory=dict)
    buffer: BufferSeen
    letters: LettersSeen = LettersSeen()
    decisions: tuple[Taken, ...] = ()
    """The autoscaler's last ones, oldest first."""
    decided: Mapping[str, int] = field(default_factory=dict)
    """Its decisions so far by ``pool/action``, the action being ``up``, ``down`` or ``hold``."""
    reader: Mapping[str, float] = field(default_factory=dict)
    """What the source counts of itself, by name: rebalances, bytes, rows left out."""
    process: ProcessSeen = ProcessSeen()
    gpus: tuple[GpuSeen, ...] = ()
    ranks: tuple[RankSeen, ...] = ()
    ended: str | None = None
    """How the run ended: ``done``, ``stopped``, ``failed``; None while it goes on."""
    format: int = FORMAT

    def with_ranks(self, ranks: tuple[RankSeen, ...]) -> Snapshot:
        """The same, with what the ranks told."""
        return replace(self, ranks=ranks)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    @classmethod
    def from_json(cls, data: Any) -> Snapshot:
        """From what ``to_json`` gave, also by a version that tells more.

        Raises:
            ValueError: it is no snapshot, or one of a format that this version does not know.
        """
        number = data.get("format") if isinstance(data, dict) else None
        if not isinstance(number, int) or number > FORMAT:
            raise ValueError(
                f"no snapshot of a job that this version can read (format {number!r}, it reads up "
                f"to {FORMAT}): update Forebay"
            )
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as e:
            raise ValueError(f"no snapshot of a job: {e}") from e

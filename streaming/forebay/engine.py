"""The seam between reading and processing on one side, and the trainer's loader on the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from forebay.errors import ConfigError
from forebay.rng import Run
from forebay.slice import Slice
from forebay.source import Owns, Source
from forebay.stage import Stage, StageRun
from forebay.state import Position

Order: TypeAlias = Literal["split", "arrival", "deterministic"]
"""``split``: splits interleave as data comes, each in its own order. ``arrival``: a slice that is
not ready is overtaken by later ones, also of its own split. ``deterministic``: one fixed order,
whatever the timing; waits for the slowest split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an engine is to run."""

    source: Source
    stages: Sequence[Stage] = ()
    positions: Mapping[str, Position]
    owns: Owns
    run: Run
    order: Order = "split"
    max_bytes: int = 256 << 20
    """Bound on the bytes in flight: read, being processed, and finished but not released."""
    workers: tuple[int, int] | None = None
    """Least and most workers of the pool; None leaves it to the engine."""
    batch_rows: int | None = None
    """Rows of a batch, where rows become batches in the order they come: a good place to cut a
    slice, since a batch that is one piece need not be put together by a copy."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ConfigError(f"max_bytes must be positive, not {self.max_bytes}")
        if self.workers is not None:
            worker_range(self.workers)


def worker_range(workers: int | tuple[int, int]) -> tuple[int, int]:
    """Least and most workers of a pool; one number is both.

    Raises:
        ConfigError: it is neither a number from 1 nor such a pair.
    """
    pair = (workers, workers) if isinstance(workers, int) else workers
    whole = len(pair) == 2 and all(type(n) is int for n in pair)
    if not whole or not 1 <= pair[0] <= pair[1]:
        raise ConfigError(
            "workers must be a number from 1, or (least, most) with 1 <= least <= most, not "
            f"{workers}"
        )
    return pair


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """One pool of workers at this moment; seconds and counts since the start."""

    workers: int
    """Live ones: started, and not hanging."""
    busy_seconds: float
    """Of all workers together, including the work that is under way."""
    queued_slices: int
    rows: int
    """Rows that it did, counted as rows of the source: what stages before it dropped or added
    does not show."""
    starting: int = 0
    """Workers that were asked for and do no work yet."""
    cpu_seconds: float | None = None
    """CPU time within ``busy_seconds``, of finished work; None if it is not known."""
    least: int = 1
    """Bounds of ``resize``."""
    most: int | None = None
    replaced: int = 0
    """Workers that hung and were replaced."""

    def and_then(self, later: PoolStats) -> PoolStats:
        """The counts of two runs, one after the other; the workers are those of the later one."""
        cpu, more = self.cpu_seconds, later.cpu_seconds
        return replace(
            later,
            busy_seconds=self.busy_seconds + later.busy_seconds,
            cpu_seconds=None if cpu is None or more is None else cpu + more,
            rows=self.rows + later.rows,
            replaced=self.replaced + later.replaced,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """One stage, on all workers together; seconds and counts since the start."""

    slices: int
    rows_in: int
    rows_out: int
    failed: int
    """Rows that became dead letters."""
    busy_seconds: float
    """Of finished work."""
    cpu_seconds: float | None = None
    """CPU time within ``busy_seconds``; None if it is not known."""

    def and_then(self, later: StageStats) -> StageStats:
        """The counts of two runs, one after the other."""
        cpu, more = self.cpu_seconds, later.cpu_seconds
        return StageStats(
            slices=self.slices + later.slices,
            rows_in=self.rows_in + later.rows_in,
            rows_out=self.rows_out + later.rows_out,
            failed=self.failed + later.failed,
            busy_seconds=self.busy_seconds + later.busy_seconds,
            cpu_seconds=None if cpu is None or more is None else cpu + more,
        )


@dataclass(slots=True)
class _Count:
    slices: int = 0
    rows_in: int = 0
    rows_out: int = 0
    failed: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class StageCounts:
    """Adds up what stages did, in place: it is done for each slice. Its owner guards it."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._counts = {s.name: _Count() for s in stages}

    def add(self, runs: Sequence[StageRun]) -> None:
        """Count what stages did with slices."""
        for r in runs:
            count = self._counts[r.name]
            count.slices += 1
            count.rows_in += r.rows_in
            count.rows_out += r.rows_out
            count.failed += r.failed
            count.seconds += r.seconds
            count.cpu_seconds += r.cpu_seconds

    def stats(self) -> dict[str, StageStats]:
        """The counts by name, in the stages' order."""
        return {
            name: StageStats(
                slices=c.slices,
                rows_in=c.rows_in,
                rows_out=c.rows_out,
                failed=c.failed,
                busy_seconds=c.seconds,
                cpu_seconds=c.cpu_seconds,
            )
            for name, c in self._counts.items()
        }


class Feed(Protocol):
    """Finished slices, in the promised order. Used by one thread, unless said."""

    @property
    def positions(self) -> Mapping[str, Position]:
        """Where the reading of each owned split began, as the reader resolved it."""

    @property
    def done(self) -> bool:
        """Whether a bounded source was read to its end and every slice was taken."""

    def exhausted(self) -> Collection[str]:
        """The splits of a bounded source of which every slice was taken."""

    def take(self, timeout: float) -> Slice | None:
        """The next finished slice, or None if none came within ``timeout`` seconds.

        Slices without rows are given, too: they move positions and carry failures. A failure of
        the reader or of a stage is raised here, after all slices finished before it.
        """

    def release(self, s: Slice) -> None:
        """Give back the room of a slice whose rows were all delivered. Any thread."""

    def want(self, splits: Collection[str]) -> None:
        """Say which splits the taker cannot go on without; empty: any will do.

        While the window is full of others, wanted splits are read beyond it, one slice at a
        time: a full window never locks out the slice that would empty it.
        """

    def resize(self, pool: str, workers: int) -> None:
        """Change the number of workers of a pool. Any thread."""

    def pools(self) -> Mapping[str, PoolStats]:
        """The pools by name. Any thread."""

    def stages(self) -> Mapping[str, StageStats]:
        """The stages by name, in their order. Any thread."""

    def fetched(self) -> Mapping[str, int]:
        """Where the reading of each split goes on: all before was read. Any thread."""

    @property
    def full(self) -> bool:
        """Whether all that the bound allows was taken and nothing of it released: no more comes
        but of wanted splits."""

    def bytes_in_flight(self) -> int:
        """Bytes that count against the bound. Any thread."""

    def ends(self) -> Mapping[str, int]:
        """The end offset of each split as last heard from the source. Any thread."""

    def reader_counts(self) -> Mapping[str, float]:
        """What the reader counts of itself, if it is ``Counting``. Any thread."""

    def close(self) -> None:
        """Stop reading and processing; leaves no thread, process or connection."""


@runtime_checkable
class Limited(Protocol):
    """A feed that knows what its workers may use."""

    def cpus(self) -> float | None:
        """CPUs' worth of time that all workers together may use; None if unknown. Any thread."""


class Engine(Protocol):
    """Where stages run. Holds configuration only."""

    def start(self, plan: Plan) -> Feed:
        """Open the source and begin reading. Nothing was started if it raises."""

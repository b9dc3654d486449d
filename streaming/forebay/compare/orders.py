"""What is asked of a run, and what it answers: plain data, which travels between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Mode: TypeAlias = Literal["drain", "train"]
"""Whether the batches are only taken, or the training function runs on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What every run reads: the same records."""

    rows: int
    """Rows that the baseline made of them."""
    start: Mapping[str, Any]
    """A loader's state: where each split begins."""
    stops: Mapping[str, int] | None
    """Where each split ends; None: where the source ends, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, as plain data."""

    topology: str
    changes: Mapping[str, str] = field(default_factory=dict)
    """Other values for its keys, in YAML, by path."""
    mode: Mode = "drain"
    inputs: Inputs | None = None
    """None: from where the source begins, to its end."""
    warmup_rows: int = 0
    """Rows before the clock starts."""
    warmup_seconds: float = 0.0
    """From the first batch to the start of the clock, at least."""
    seconds: float | None = None
    """End so long after the clock started, and after a few steps; None: with the last row."""
    rows_file: str | None = None
    """Run a second time, untimed, and write which rows there were to this file."""
    id_column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was measured."""

    mode: Mode
    rows: int
    """All that were given, those before the clock started included."""
    seconds: float
    """That the clock ran."""
    rows_per_second: float
    cpu_seconds_per_row: float
    """Of this process and all that it started, on this machine."""
    first_batch_seconds: float | None = None
    """From the opening of the source to the first batch; None: of a training."""
    staged_bytes: int | None = None
    """Bytes that were under way when the first batch was there."""
    starved: float | None = None
    """Share of the time that the device waited for data; None: of a drain, or not known."""
    step_p95_seconds: float | None = None
    dead_letters: int = 0
    ids: str = ""
    """The same for the same rows; see ``IdSum``."""
    pss_bytes: int | None = None
    """The most memory that was seen, what processes share counted once; None: not known."""

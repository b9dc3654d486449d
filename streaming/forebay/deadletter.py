"""Dead letters: records that could not be processed, kept with their bytes and the reason."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from forebay.errors import ConfigError, ErrorBudgetExceeded
from forebay.slice import Failure, Slice

_LONGEST_KIND = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One failed record: where it came from, what was in it, why it failed.

    ``(split, offset, stage)`` identifies it: after a crash the same letter may be written
    again, and readers of a sink drop the repeat.
    """

    split: str
    failure: Failure
    time: float = field(default_factory=time.time)
    """When it failed, seconds since the epoch."""


def kind_of(reason: str) -> str:
    """What stands before the first colon of a reason, such as the name of an exception, without
    numbers: something to count by, where reasons with their values are too many."""
    kind = re.sub(r"[\d.,]*\d", "#", reason.partition(":")[0].strip())
    return kind if len(kind) <= _LONGEST_KIND else kind[: _LONGEST_KIND - 1] + "…"


@runtime_checkable
class Sink(Protocol):
    """Where dead letters go. Called from the trainer's thread only."""

    def write(self, letters: Sequence[Letter]) -> None:
        """Take the letters; may buffer. Opens what it needs at the first call."""

    def flush(self) -> None:
        """Return once everything written is durable.

        Raises:
            SourceError: the letters could not be stored; no state may be saved past them.
        """

    def close(self) -> None:
        """Flush, then leave nothing open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """How many rows may fail: at most ``share`` of the last ``window`` rows that were read.

    Below ``minimum`` rows nothing is judged, unless every one of at least ``all_of`` failed.
    """

    share: float = 0.01
    window: int = 10_000
    minimum: int = 1_000
    all_of: int = 100

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"error budget: share must be between 0 and 1, not {self.share}")
        for name in ("window", "minimum", "all_of"):
            if getattr(self, name) < 1:
                raise ConfigError(f"error budget: {name} must be at least 1")


class BudgetMeter:
    """Counts rows and failures over the budget's window, and says when it is spent."""

    def __init__(self, budget: ErrorBudget) -> None:
        self._budget = budget
        self._recent: deque[tuple[int, int]] = deque()
        self._rows = self._failed = 0

    def count(self, s: Slice) -> None:
        """Add a finished slice.

        Raises:
            ErrorBudgetExceeded: more rows failed than allowed; names the last failure.
        """
        rows, failed = len(s) if s.source_rows is None else s.source_rows, len(s.failures)
        if not rows:
            return
        self._recent.append((rows, failed))
        self._rows += rows
        self._failed += failed
        while self._recent and self._rows - self._recent[0][0] >= self._budget.window:
            old_rows, old_failed = self._recent.popleft()
            self._rows -= old_rows
            self._failed -= old_failed
        if failed and self._spent():
            last = s.failures[-1]
            raise ErrorBudgetExceeded(
                f"{self._failed:,} of the last {self._rows:,} rows failed, the budget is "
                f"{self._budget.share:.2%}. Last: stage {last.stage!r} on {s.split}@{last.offset}: "
                f"{last.reason}. Mend the stage or the producer, or raise the error budget; a "
                "resumed run reads these records again, none is lost."
            )

    def _spent(self) -> bool:
        if self._rows < self._budget.minimum:
            return self._failed == self._rows >= self._budget.all_of
        return self._failed > self._budget.share * self._rows

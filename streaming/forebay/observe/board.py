"""What a dashboard or a terminal looks at: the histories of ranks, however they are come by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.observe.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSeen:
    """A running job, or its file, that is looked at from another process."""

    name: str
    """Its address without any secret."""
    ranks: int
    """How many ranks it ever told of."""
    silent_seconds: float | None = None
    """Since it last told anything; None if it never did."""
    trouble: str = ""
    """Why nothing new comes; empty while it does."""


class Board(Protocol):
    """Where snapshots are found. Any thread may ask, several at once."""

    def histories(self) -> Sequence[Sequence[Snapshot]]:
        """One history for each rank, each oldest first; ranks of which nothing is known yet have
        none."""

    def targets(self) -> Sequence[TargetSeen]:
        """What is followed from another process, in the order in which it was given."""


class OwnRanks:
    """The board of the ranks of this process, most often one.

    Args:
        histories: what gives each rank's history, as ``Monitor.history`` does.
    """

    def __init__(self, *histories: Callable[[], Sequence[Snapshot]]) -> None:
        self._histories = histories

    def histories(self) -> Sequence[Sequence[Snapshot]]:
        """Those that have begun."""
        return [found for history in self._histories if (found := history())]

    def targets(self) -> Sequence[TargetSeen]:
        """None: nothing is followed."""
        return ()

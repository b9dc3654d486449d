"""Marks on a device's timeline, and what the device did between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

# What a trainer is at, as keys of sums of seconds; a pause is ``PAUSE`` and its name.
WAIT, COPY, STEP, PAUSE = "wait", "copy", "step", "pause "

# A device that is so many marks behind does not idle: to know its steps one by one is worth no
# more memory.
_MOST_PENDING = 256


class DeviceTimeline(Protocol):
    """What a device does, in order: marks that are reached once all work given before is done."""

    def mark(self) -> Any | None:
        """Put a mark behind all work given so far; None if the device cannot. Never waits."""

    def reached(self, mark: Any) -> bool:
        """Whether the device came past it. Never waits. Any thread."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """The device's time between two marks that were reached. Any thread."""

    def idle(self) -> bool | None:
        """Whether the device has nothing to do now; None if it is not to be asked. Never waits.
        Any thread."""


class Cut(NamedTuple):
    """Where the trainer began something else, on the device's timeline."""

    mark: Any
    to: str
    at: float
    """On the host."""


class Ledger(NamedTuple):
    """What the device did; handed from thread to thread whole."""

    sums: Mapping[str, float] = {}
    cuts: tuple[Cut, ...] = ()
    """The last one that it is known to have come past, and those after it."""

    def and_then(self, cut: Cut) -> Ledger:
        """With one more cut; of too many, the last but one becomes a part of a step."""
        cuts = self.cuts
        if len(cuts) >= _MOST_PENDING:
            cuts = (*cuts[:-2], cuts[-2]._replace(to=STEP))
        return self._replace(cuts=(*cuts, cut))

    def resolved(
        self,
        timeline: DeviceTimeline,
        step_ends: Callable[[Mapping[str, float]], None] | None = None,
    ) -> Ledger:
        """With what the device has come past; it passes the marks in order.

        Args:
            step_ends: is told the sums at the end of each step that it came past.
        """
        cuts, known, sums = self.cuts, 0, dict(self.sums)
        while known + 1 < len(cuts) and timeline.reached(cuts[known + 1].mark):
            earlier, later = cuts[known], cuts[known + 1]
            seconds = max(timeline.seconds(earlier.mark, later.mark), 0.0)
            if earlier.to == WAIT:  # what it did longer than the trainer waited was work
                waited = min(seconds, later.at - earlier.at)
                sums[WAIT] = sums.get(WAIT, 0.0) + waited
                sums[STEP] = sums.get(STEP, 0.0) + seconds - waited
            else:
                sums[earlier.to] = sums.get(earlier.to, 0.0) + seconds
            if step_ends is not None and later.to == WAIT:
                step_ends(sums.copy())
            known += 1
        return Ledger(sums, cuts[known:]) if known else self

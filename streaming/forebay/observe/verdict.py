"""Why the trainer is as fast as it is: one sentence, from snapshots alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.observe.snapshot import Snapshot

Cause: TypeAlias = Literal[
    "unknown",  # too little was seen yet
    "compute",  # healthy: the trainer is the limit
    "source",  # no data there, or reading it is the limit
    "stages",  # decoding and augmenting is the limit: too few workers, or no CPUs for them
    "gil",  # stages hold the interpreter's lock
    "handover",  # batches are put together and handed over too slowly
    "copy",  # host to device
    "host",  # the trainer's own Python: launches, logging
    "pause",  # checkpoints, evaluation
    "communication",  # of the ranks, by itself
    "peer",  # another rank starves, this one waits for it
    "draining",  # nobody trains
    "ended",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the trainer, and how that is known."""

    cause: Cause
    sentence: str
    """For people, with the share that it is about."""
    shares: Mapping[str, float]
    """Of the trainer's time: ``starved``, ``copy``, ``compute``, ``communication``, ``other``;
    those that are known, and they add up to 1."""
    evidence: tuple[str, ...] = ()
    """What was seen, with numbers."""
    guess: tuple[str, ...] = ()
    """What may be the reason, but was not shown."""
    advice: str = ""
    """The next command to try, or the setting to change."""

    @property
    def starved(self) -> bool:
        """Whether the device waits for data a part of the time that is worth a word."""
        return self.cause in ("source", "stages", "gil", "handover")


def judge(history: Sequence[Snapshot]) -> Verdict:
    """The verdict on the last snapshots of one rank, oldest first."""
    return Verdict(cause="unknown", sentence="Too little was seen yet.", shares={})

"""A chain as topologies write it: its members and its hand-over as plain options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigError
from forebay.hybrid.handover import AtOffsets, ByOffset, ByTime, Handover
from forebay.hybrid.source import HybridSource
from forebay.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Exactly one way to hand over.

    Raises:
        ConfigError: there is none, or more than one.
    """

    by_offset: ByOffset | None = None
    """By columns of the history that hold the live split's id and offset."""
    at_offsets: Mapping[str, int] | None = None
    """At these offsets of live splits, by their ids."""
    by_time: ByTime | None = None
    """At a time that both sides carry."""

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.by_offset, self.at_offsets, self.by_time)) != 1:
            raise ConfigError("hand over by exactly one of by_offset, at_offsets and by_time")

    def handover(self) -> Handover:
        """The one that was given.

        Raises:
            ConfigError: an offset is wrong.
        """
        if self.at_offsets is not None:
            return AtOffsets(self.at_offsets)
        way = self.by_offset or self.by_time
        assert way is not None
        return way


def chain(
    history: Source, live: Source, *, handover: Rule, columns: Sequence[str] | None = None
) -> HybridSource:
    """Read a history to its end, then go on live.

    Args:
        history: a bounded source, such as a table with ``until``.
        live: the source that goes on where the history ends.
        handover: where that is: ``by_offset``, ``at_offsets`` or ``by_time``.
        columns: the columns to give on of both; without it all that they have.

    Raises:
        ConfigError: the history never ends.
    """
    return HybridSource(history, live, handover.handover(), columns=columns)

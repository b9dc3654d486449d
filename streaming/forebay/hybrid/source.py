"""A bounded source, then a live one: two sources that a pipeline reads as one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from forebay.errors import ConfigError, SourceError, StateError
from forebay.hybrid.handover import Handover
from forebay.hybrid.past import Past
from forebay.hybrid.present import Present
from forebay.hybrid.reader import HybridReader
from forebay.hybrid.tokens import (
    all_seen,
    begun,
    end_of,
    finished,
    groups_of,
    is_history,
    is_live,
    unwrapped,
)
from forebay.source import Owns, Reader, Source, Split
from forebay.state import Position

_log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class HybridSource:
    """Reads a history to its end, then goes on live: no record is missed at the seam, or repeated.

    Every row of the history is delivered before the first live row. Once a state knows the live
    splits, the history is not opened again.

    Raises:
        ConfigError: the history never ends.
    """

    history: Source
    """A bounded source: a table up to a version (``until=``)."""
    live: Source
    handover: Handover
    """Where live begins: ``ByOffset``, ``AtOffsets`` or ``ByTime``."""
    columns: Sequence[str] | None = field(default=None, kw_only=True)
    """The columns to give on, which both must have; None gives on all. Columns that only the
    hand-over needs can be left out."""

    def __post_init__(self) -> None:
        for name in ("history", "live"):
            if not isinstance(member := getattr(self, name), Source):
                raise ConfigError(f"the {name} of a chain must be a source, not {member!r}")
        if not self.history.bounded:
            raise ConfigError(
                f"a {type(self.history).__name__} that never ends cannot be a history: live would "
                "not be reached. Say where it ends: until='latest', or a version"
            )
        if isinstance(self.columns, str):
            raise ConfigError(f"columns must be a list of names, not {self.columns!r}")

    @property
    def bounded(self) -> bool:
        """Whether reading ends by itself: whether the live source does."""
        return self.live.bounded

    def splits(self) -> Sequence[Split]:
        """The splits of both. A history that is gone has none: what was read to its end may be
        deleted.

        Raises:
            ConfigError: a split is in both.
            SourceError: the live source cannot be reached.
        """
        live = self.live.splits()
        history = self._history_splits()
        if both := sorted({s.id for s in live} & {s.id for s in history}):
            raise ConfigError(f"history and live both have the split {both[0]!r}: name one anew")
        return [*history, *live]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> HybridReader:
        """Open a reader: on the history if any of it is left to be read, else on the live source.

        Raises:
            ConfigError: the hand-over does not fit the live source or the number of ranks.
            StateError, DataLossError, SourceError: see ``forebay.source.Source.open``.
        """
        splits = self.live.splits()
        self.handover.check(self.live, splits)
        history, live = self._parted(positions, splits)
        open_present = partial(self._present, live, owns)
        past = None
        if not _read_to_the_end(history, live):
            past = self._past(history, owns, splits)
        present = None
        try:
            if past is None or not past.splits:
                seen = all_seen(history.values()) if history or not live else None
                present = open_present(seen, after_history=False)
            elif live and not _next_pass(history, live):
                # Ranks came to the seam at different times, and were then shared out anew.
                present = open_present(None, after_history=False)
        except BaseException:
            if past is not None:
                past.close()
            raise
        return HybridReader(past, present, open_present)

    def _parted(
        self, positions: Mapping[str, Position], splits: Sequence[Split]
    ) -> tuple[dict[str, Position], dict[str, Position]]:
        """The positions of the history, and those of the live source.

        Those that neither hand-over nor name tells apart are left to the live source to refuse.
        """
        history = {k: p for k, p in positions.items() if is_history(p)}
        live = {k: p for k, p in positions.items() if is_live(p)}
        foreign = positions.keys() - history.keys() - live.keys()
        if foreign - {s.id for s in splits}:
            known = {s.id for s in self._history_splits()}
            history |= {k: positions[k] for k in foreign & known}
        live |= {k: positions[k] for k in foreign - history.keys()}
        return history, live

    def _past(self, saved: Mapping[str, Position], owns: Owns, live: Sequence[Split]) -> Past:
        """The history, less the splits that were delivered to their end."""
        if self.handover.whole_history and any(map(owns, live)):
            self._check_reads_all(owns)
        done = {k for k, p in saved.items() if finished(p)}
        own = {k: unwrapped(p) for k, p in saved.items()}
        reader = self.history.open(own, lambda s: owns(s) and s.id not in done)
        return Past(reader, self.handover, self.columns, saved)

    def _check_reads_all(self, owns: Owns) -> None:
        if others := [s.id for s in self.history.splits() if not owns(s)]:
            raise ConfigError(
                f"this rank reads live splits, but another one reads {others[0]} of the history: "
                f"{type(self.handover).__name__} learns from all of it where they begin. Run the "
                "history on one rank, or give the offsets: handover=AtOffsets({...})."
            )

    def _present(
        self,
        saved: Mapping[str, Position],
        owns: Owns,
        seen: Mapping[str, int] | None,
        *,
        after_history: bool = True,
    ) -> Present:
        """The live source from saved positions and, for other splits, where the history ended.

        Args:
            seen: None if this rank does not know it.
        """
        splits = self.live.splits()
        groups = groups_of(saved.values()) or _numbers(splits)
        if seen is None and self.handover.whole_history:
            _check_none_is_missing(saved, [s for s in splits if owns(s)], groups)
        starts = _known(self.handover.starts(seen or {}), splits)
        positions = {k: Position(at, base=at) for k, at in starts.items()}
        positions |= {k: unwrapped(p) for k, p in saved.items()}
        reader: Reader = self.handover.live_source(self.live).open(positions, owns)
        return Present(reader, self.handover, self.columns, groups, after_history=after_history)

    def _history_splits(self) -> Sequence[Split]:
        try:
            return self.history.splits()
        except SourceError as e:
            _log.warning("the history cannot be read; that is no harm once it was: %s", e)
            return ()


def _read_to_the_end(history: Mapping[str, Position], live: Mapping[str, Position]) -> bool:
    """Whether nothing of the history is left to be read on this rank."""
    return all(map(finished, history.values())) if history else bool(live)


def _next_pass(history: Mapping[str, Position], live: Mapping[str, Position]) -> bool:
    """Whether the history was read to its end before, and all begins again."""
    again = bool(history) and all(end_of(p) is not None for p in history.values())
    return again and not any(map(begun, live.values()))


def _numbers(splits: Sequence[Split]) -> dict[str, int]:
    """How many splits each group has."""
    groups: dict[str, int] = {}
    for s in splits:
        groups[s.group] = max(s.number + 1, groups.get(s.group, 0))
    return groups


def _check_none_is_missing(
    saved: Mapping[str, Position], owned: Sequence[Split], groups: Mapping[str, int]
) -> None:
    """Refuse a split that was there at the hand-over and has no position: it would begin anew."""
    for s in owned:
        if s.id not in saved and s.number < groups.get(s.group, 0):
            raise StateError(
                f"the state was saved while crossing from history to live, and does not know yet "
                f"where {s.id} begins. Resume it with as many ranks as saved it."
            )


def _known(starts: Mapping[str, int], splits: Sequence[Split]) -> dict[str, int]:
    """The starts of splits that exist.

    Raises:
        ConfigError: there is not one.
    """
    ids = {s.id for s in splits}
    known = {k: at for k, at in starts.items() if k in ids}
    unknown = sorted(starts.keys() - ids)
    if unknown and not known:
        raise ConfigError(
            f"the history's rows are of {unknown[0]}, the live source has "
            f"{', '.join(sorted(ids)[:3])}: make the hand-over name its splits, as in "
            "ByOffset(split='kafka:clicks/{partition}')"
        )
    if unknown:
        _log.warning("the history has rows of splits that live has not: %s", ", ".join(unknown))
    return known

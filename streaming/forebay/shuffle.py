"""Window shuffle that resumes exactly: the state names the window and how much of it is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from forebay.errors import ConfigError
from forebay.intake import Slices
from forebay.slice import Edition, Slice
from forebay.state import Position, Window, advanced
from forebay.supply import (
    Ledger,
    SliceSupply,
    Supply,
    WindowSupply,
    editions_of,
    fit_together,
    rows_by_split,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """Rows a window holds, and the seed of its permutations."""

    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rows < 2:
            raise ConfigError(f"shuffle needs a window of at least 2 rows, not {self.rows}")


class Returnable(Slices, Protocol):
    """Slices that take some back."""

    def put_back(self, slices: Collection[Slice]) -> None:
        """Give these again, in this order, before anything else of their splits."""


class PutBack:
    """Slices with a place to put back those that were read too early."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._back: deque[Slice] = deque()

    def next(self, want: Collection[str] = ()) -> Slice | None:
        return self._back.popleft() if self._back else self._slices.next(want)

    def put_back(self, slices: Collection[Slice]) -> None:
        self._back.extendleft(reversed(list(slices)))


def supplies(
    slices: Slices,
    ledger: Ledger,
    *,
    shuffle: Shuffle | None,
    pass_index: int,
    max_bytes: int,
    strict: bool,
    reread: Returnable | None = None,
) -> Iterator[Supply]:
    """Turn slices into supplies of rows: first the windows left open, then new ones or slices.

    Args:
        reread: where the rows of windows left open come from, if not from ``slices``: what
            decides about the order of rows must not decide anew about these.
        max_bytes: a window takes at most half of it, so that the next can fill meanwhile.
        strict: a window that does not fit is an error, not cut short (deterministic order).

    Raises:
        ConfigError: ``strict``, and a window is larger than half of ``max_bytes``.
    """
    source = PutBack(slices)
    for window in ledger.open_windows:
        yield _rebuilt(reread or source, window, pass_index, ledger)
    if shuffle is None:
        while (s := source.next()) is not None:
            yield SliceSupply(s, ledger)
        return
    while (w := _filled(source, shuffle, pass_index, ledger, max_bytes // 2, strict)) is not None:
        yield w


def _filled(
    source: PutBack, shuffle: Shuffle, pass_index: int, ledger: Ledger, max_bytes: int, strict: bool
) -> Supply | None:
    """A new window of ``shuffle.rows`` rows, fewer at the end; None after the end.

    Where a split begins anew a window ends: offsets of before and after cannot be compared. It
    ends where another edition begins, too: its rows could not be joined.
    """
    held: list[Slice] = []
    editions: frozenset[Edition] = frozenset()
    room, size = shuffle.rows, 0
    while room and (s := source.next()) is not None:
        fits = fit_together(editions, editions_of([s]))
        if held and (not fits or s.phase > held[-1].phase):
            source.put_back([s])
            break
        if s.resets and not len(s):
            if not held:
                return SliceSupply(s, ledger)
            source.put_back([s])
            break
        if len(s) > room:
            source.put_back([s.tail(room)])
            s = s.head(room)
        held.append(s)
        editions |= editions_of([s])
        room -= len(s)
        size += s.nbytes
        if size > max_bytes and room:
            if strict:
                raise ConfigError(
                    f"shuffle: {shuffle.rows - room} of a window's {shuffle.rows} rows already "
                    f"take {size:,} bytes, more than half of max_bytes={2 * max_bytes:,}. Raise "
                    "max_bytes or shuffle fewer rows."
                )
            break
    if not held:
        return None
    after = advanced(ledger.splits, held)
    rows = rows_by_split(held)
    window = Window(
        seed=shuffle.seed,
        index=ledger.windows,
        delivered=0,
        after={k: replace(after[k], token=None, base=None) for k in rows},
        rows=rows,
    )
    ledger.windows += 1
    return WindowSupply(held, window, pass_index, {k: after[k] for k in rows}, ledger)


def _rebuilt(source: Returnable, window: Window, pass_index: int, ledger: Ledger) -> Supply:
    """The window a state was saved in, from the same records."""
    seen = {k: ledger.splits[k] for k in window.after}
    inside: list[Slice] = []
    outside: list[Slice] = []
    while missing := [k for k, p in window.after.items() if not seen[k].covers(p)]:
        s = source.next(want=missing)
        if s is None:
            break
        after = window.after.get(s.split)
        if after is None:
            outside.append(s)
            continue
        seen[s.split] = seen[s.split].advance(s)
        later = after.remaining(s)
        outside.extend(later)
        inside.extend(_less(s, later))
    source.put_back(outside)
    # Not `seen`: it may have gone on beyond the window, where other tokens are valid.
    reached = advanced({k: ledger.splits[k] for k in window.after}, inside)
    positions = {k: _placed(p, reached[k]) for k, p in window.after.items()}
    return WindowSupply(inside, window, pass_index, positions, ledger)


def _less(s: Slice, later: list[Slice]) -> Iterator[Slice]:
    """The parts of ``s`` that are not in ``later``, which are parts of it in order."""
    at, lead = s.start, s.lead
    for part in later:
        if (part.start, part.lead) > (at, lead):
            yield replace(_between(s, at, lead, part), ticket=0)
        at, lead = part.next_offset, part.skip
    if (at, lead) < (s.next_offset, s.skip):
        yield replace(s.between(at, s.next_offset, lead), ticket=0 if later else s.ticket)


def _between(s: Slice, at: int, lead: int, part: Slice) -> Slice:
    """From record ``at``, less its first ``lead`` rows, to the first row of ``part``."""
    rest = s.between(at, s.next_offset, lead)
    ahead = len(rest) - len(s.between(part.start, s.next_offset, part.lead))
    return replace(rest.head(ahead), next_offset=part.start, skip=part.lead)


def _placed(after: Position, reached: Position) -> Position:
    """``after`` with what the state left out of it."""
    return replace(after, token=reached.token, base=reached.base)

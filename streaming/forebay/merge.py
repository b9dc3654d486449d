"""The deterministic order: one fixed interleaving of the splits, whatever the timing.

Offsets are counted from each split's ``base`` in blocks of 64; blocks follow each other in the
order (phase, block, split). The order depends on offsets alone, so a resumed run continues it with
any slice size, thread count or prefetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

from forebay.intake import Slices
from forebay.slice import Slice
from forebay.state import Position

BLOCK = 64


class Merge:
    """Puts slices into the deterministic order; waits for the split whose turn it is."""

    def __init__(self, slices: Slices, positions: Mapping[str, Position]) -> None:
        self._slices = slices
        self._base = {k: p.low if p.base is None else p.base for k, p in positions.items()}
        self._at = {k: p.low for k, p in positions.items()}
        self._phase = dict.fromkeys(positions, 0)
        self._waiting: dict[str, deque[Slice]] = {k: deque() for k in positions}

    def next(self, want: Collection[str] = ()) -> Slice | None:
        """The next slice in order. ``want`` is not needed: the order says what is waited for."""
        while self._at:
            split = min(self._at, key=lambda k: (self._phase[k], self._block(k), k))
            if not self._waiting[split] and not self._fill(split):
                del self._at[split]
            elif not self._moved(split):
                return self._pop(split)
        return None

    def _moved(self, split: str) -> bool:
        """Follow the split to its next slice: over a hole, to a new beginning, to a later phase."""
        s = self._waiting[split][0]
        began = s.start if s.resets else self._base[split]
        at = s.start if s.resets else max(s.start, self._at[split])
        place = at, began, s.phase
        moved = place != (self._at[split], self._base[split], self._phase[split])
        self._at[split], self._base[split], self._phase[split] = place
        return moved

    def _block(self, split: str) -> int:
        return (self._at[split] - self._base[split]) // BLOCK

    def _fill(self, split: str) -> bool:
        """Wait for a slice of ``split``, keeping others for their turn; False at its end."""
        while (s := self._slices.next(want=(split,))) is not None:
            self._base.setdefault(s.split, s.start)
            self._at.setdefault(s.split, s.start)
            self._phase.setdefault(s.split, s.phase)
            self._waiting.setdefault(s.split, deque()).append(s)
            if s.split == split:
                return True
        return False

    def _pop(self, split: str) -> Slice:
        """The head of the split, cut at the end of its block."""
        s = self._waiting[split].popleft()
        end = self._base[split] + (self._block(split) + 1) * BLOCK
        if s.next_offset > end:
            self._waiting[split].appendleft(s.between(end, s.next_offset))
            s = replace(s.between(s.start, end), ticket=0)
        self._at[split] = s.next_offset
        return s

"""Whose turn it is: slices finish in any order, and are given in the promised one.

Holds the books of what is in flight. No thread and no Ray in here; the feed's lock guards it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from forebay.engine import Order
from forebay.slice import Slice
from forebay.state import Position, advanced

# A stuck slice may be overtaken by so many windows' worth of later ones: it bounds what a resume
# has to read again to find it.
_OVERTAKE_WINDOWS = 4


@dataclass(slots=True, eq=False)
class Turn:
    """A slice in flight."""

    bare: Slice
    ticket: int
    weight: int
    admitted_at: int
    """Bytes admitted before it, since the start."""
    parts: list[Slice] = field(default_factory=list)
    """What it became; given one after the other."""
    error: BaseException | None = None
    done: bool = False
    taken: bool = False

    @property
    def split(self) -> str:
        return self.bare.split

    @property
    def resets(self) -> bool:
        return self.bare.resets


class Turns:
    """The slices in flight, their order and the bytes they take.

    Args:
        order: as promised. The deterministic order is made above, of splits each in its order.
        max_bytes: the bound.
        positions: where reading begins.
    """

    def __init__(self, order: Order, max_bytes: int, positions: Mapping[str, Position]) -> None:
        self._order, self.max_bytes = order, max_bytes
        self._by_split: dict[str, deque[Turn]] = {k: deque() for k in positions}
        self._in_order: deque[Turn] = deque()
        self._ready: deque[Turn] = deque()
        self._tickets = itertools.count(1)
        self._charges: dict[int, int] = {}
        self.secured = dict(positions)
        """What can be taken or was: the rest is read again if the engine has to start anew."""
        self.charged = 0
        self._admitted = 0
        self.growth: float | None = None
        """Bytes after the stages for each byte before; None until a slice was finished."""

    @property
    def splits(self) -> Collection[str]:
        """All that were ever seen."""
        return self._by_split.keys()

    @property
    def ready(self) -> bool:
        """Whether a slice can be taken."""
        return bool(self._ready)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight but what was taken."""
        return not self._in_order and not self._ready

    @property
    def room(self) -> int:
        """Bytes that may still be admitted, as they are when read; not positive for none."""
        oldest = self._in_order[0].admitted_at if self._in_order else self._admitted
        if self._admitted - oldest > _OVERTAKE_WINDOWS * self.max_bytes:
            return 0
        return int((self.max_bytes - self.charged) / max(self.growth or 1.0, 1.0))

    def waiting(self, split: str) -> int:
        """Slices of a split that were admitted and not taken."""
        return len(self._by_split.get(split, ()))

    def untaken(self) -> bool:
        """Whether a slice of any split was admitted and not taken."""
        return any(self._by_split.values())

    def admit(self, bare: Slice, weight: int) -> Turn:
        """Let a slice in."""
        turn = Turn(bare, next(self._tickets), weight, self._admitted)
        estimate = int(weight * max(self.growth or 1.0, 1.0))
        self._charges[turn.ticket] = estimate
        self.charged += estimate
        self._admitted += weight
        self._in_order.append(turn)
        self._by_split.setdefault(bare.split, deque()).append(turn)
        return turn

    def complete(
        self,
        turn: Turn,
        parts: list[Slice],
        weight: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Say what a slice became.

        Args:
            weight: bytes that the parts take; None: as many as before, by no stage's work.
        """
        turn.parts = [replace(p, ticket=0) for p in parts[:-1]]
        turn.parts += [replace(p, ticket=turn.ticket) for p in parts[-1:]]
        turn.error, turn.done = error, True
        if weight is not None:
            self._correct(turn, weight)
        while self._in_order and self._in_order[0].done:
            self._in_order.popleft()
        self._let_go([turn] if self._may_go(turn) else [])

    def take(self) -> Slice:
        """The next part of the next slice.

        Raises:
            Exception: the error that this slice ended with.
        """
        turn = self._ready[0]
        if not turn.taken:
            turn.taken = True
            waiting = self._by_split[turn.split]
            waiting.remove(turn)
            self._let_go(self._freed(turn, waiting))
        if turn.error is not None:
            self._ready.popleft()
            raise turn.error
        part = turn.parts.pop(0)
        if not turn.parts:
            self._ready.popleft()
        return part

    def leave(self, ticket: int) -> None:
        """Give back the room of a slice."""
        self.charged -= self._charges.pop(ticket, 0)

    def drop_unready(self) -> None:
        """Forget every slice that cannot be taken yet: they are to be read again."""
        kept = set(map(id, self._ready))
        for waiting in self._by_split.values():
            for turn in [t for t in waiting if id(t) not in kept]:
                waiting.remove(turn)
                self.leave(turn.ticket)
        self._in_order = deque(t for t in self._in_order if id(t) in kept)

    def _correct(self, turn: Turn, weight: int) -> None:
        growth = weight / max(turn.weight, 1)
        self.growth = growth if self.growth is None else 0.9 * self.growth + 0.1 * growth
        self.charged += weight - self._charges[turn.ticket]
        self._charges[turn.ticket] = weight

    def _let_go(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            self._ready.append(turn)
            self._secure(turn.bare)

    def _secure(self, s: Slice) -> None:
        known = {s.split: self.secured[s.split]} if s.split in self.secured else {}
        self.secured.update(advanced(known, [s]))

    def _may_go(self, turn: Turn) -> bool:
        """Whether a finished slice needs not wait for others of its split.

        Where a split begins anew, nothing may be overtaken: positions of before mean nothing
        after, and the other way round.
        """
        waiting = self._by_split[turn.split]
        if waiting[0] is turn:
            return True
        before = itertools.takewhile(lambda t: t is not turn, waiting)
        return self._order == "arrival" and not turn.resets and not any(t.resets for t in before)

    def _freed(self, taken: Turn, waiting: deque[Turn]) -> Iterator[Turn]:
        """Finished slices of a split that had to wait until ``taken`` was handed out."""
        if not waiting:
            return
        if self._order != "arrival" or waiting[0].resets:
            yield from [waiting[0]] if waiting[0].done else ()
        elif taken.resets:
            after = itertools.takewhile(lambda t: not t.resets, waiting)
            yield from [t for t in after if t.done]

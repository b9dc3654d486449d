"""Whose turn it is: what each member of a mix is owed, in exact numbers.

Members take turns of a quantum of rows; a turn goes to the member that would be owed the most rows
at its end. Thus a member is never ahead of its share by a quantum, nor behind it by more than
1/2 + 1/3 + ... + 1/k quanta, k being the number of members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from forebay.state import Mixture

PARTS = 1_000_000
"""What the weights add up to: whole numbers, so that a resumed run counts on to the last digit."""
# No member is owed or ahead by more quanta: it bounds how long one that was missing catches up.
# Two thousand members that miss nothing stay below it.
_MOST_QUANTA = 8
# Turns of one member that follow each other are one, up to so many quanta: slices are cut less.
_LONGEST_QUANTA = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What the members at work are owed. Depends on the rows given so far, on nothing else."""

    weights: Mapping[str, float]
    """Of all members, also those that are not at work."""
    quantum: int
    owed: Mapping[str, int]
    """Millionths of a row, of the members at work."""
    parts: Mapping[str, int]
    """Their weights, in millionths of all of theirs."""
    turn: str | None = None
    left: int = 0
    ended: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        weights: Mapping[str, float],
        at_work: Collection[str],
        quantum: int,
        mixture: Mixture | None = None,
    ) -> Shares:
        """The shares at the start, or where ``mixture`` was taken."""
        mixture = mixture or Mixture(owed={})
        begun = mixture.turn in at_work
        start = cls(
            weights=weights,
            quantum=quantum,
            owed=mixture.owed,
            parts={},
            turn=mixture.turn if begun else None,
            left=mixture.left if begun else 0,
            ended=mixture.ended,
        )
        return start.among(at_work)

    def among(self, at_work: Collection[str]) -> Shares:
        """The shares with other members at work; those that are new are owed nothing."""
        owed = {k: self.owed.get(k, 0) for k in sorted(at_work)}
        if owed and owed.keys() != self.owed.keys():
            mean = sum(owed.values()) // len(owed)
            owed = {k: v - mean for k, v in owed.items()}
        turn = self.turn if self.turn in owed else None
        return replace(
            self,
            owed=owed,
            parts=_parts(self.weights, list(owed)),
            turn=turn,
            left=self._left_of_quantum() if turn else 0,
        )

    def begun(self, ready: Collection[str]) -> Shares:
        """The shares with a turn of one of the members that are ``ready``, at least one."""
        if self.turn in ready and self.left:
            return self
        member = self._due(ready)
        rows, ahead = self.quantum, self.after(member, self.quantum)
        while rows < _LONGEST_QUANTA * self.quantum and ahead._due(ready) == member:
            rows += self.quantum
            ahead = ahead.after(member, self.quantum)
        return replace(self, turn=member, left=rows)

    def after(self, member: str, rows: int) -> Shares:
        """The shares after ``member`` gave ``rows`` rows. In two steps it is the same as in one."""
        most = _MOST_QUANTA * self.quantum * PARTS
        owed = {k: min(v + self.parts[k] * rows, most) for k, v in self.owed.items()}
        owed[member] = max(self.owed[member] + (self.parts[member] - PARTS) * rows, -most)
        return Shares(  # not replace(): this is called several times for each slice
            weights=self.weights,
            quantum=self.quantum,
            owed=owed,
            parts=self.parts,
            turn=self.turn,
            left=max(self.left - rows, 0),
            ended=self.ended,
        )

    def ending(self, member: str) -> Shares:
        """The shares after ``member`` came to an end."""
        return replace(self, ended=self.ended | {member})

    def mixture(self) -> Mixture:
        """What the state keeps of it."""
        return Mixture(
            owed=self.owed,
            turn=self.turn if self.left else None,
            left=self.left,
            ended=self.ended,
        )

    def _left_of_quantum(self) -> int:
        """What is left without the quanta that the turn was made longer by: with these weights
        the member gets them again, with others it should not."""
        return (self.left - 1) % self.quantum + 1 if self.left else 0

    def _due(self, ready: Collection[str]) -> str:
        return min(ready, key=lambda k: (-self.owed[k] - self.parts[k] * self.quantum, k))


def _parts(weights: Mapping[str, float], names: Collection[str]) -> dict[str, int]:
    """The weights of these members as whole numbers, at least 1, that add up to ``PARTS``."""
    whole = sum(weights[k] for k in names)
    exact = {k: weights[k] / whole * PARTS for k in names}
    parts = {k: max(int(v), 1) for k, v in exact.items()}
    missing = PARTS - sum(parts.values())
    by_rest = sorted(names, key=lambda k: (parts[k] - exact[k], k))
    for k in by_rest[: max(missing, 0)]:
        parts[k] += 1
    if missing < 0:
        parts[max(names, key=lambda k: (parts[k], k))] += missing
    return parts

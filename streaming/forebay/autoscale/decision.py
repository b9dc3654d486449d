"""What a policy says: how many workers a pool should have, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forebay.autoscale.observation import Observation


@dataclass(frozen=True, slots=True)
class Decision:
    """One pool's size; with the present size it means: hold."""

    pool: str
    workers: int
    reason: str
    """A sentence for people, with the figures that led to it."""
    urgent: bool = False
    """To be done at once: it frees what another pool needs now."""


@runtime_checkable
class Policy(Protocol):
    """Decides by an observation alone: same observation in, same decisions out."""

    def decide(self, observation: Observation) -> Sequence[Decision]:
        """What each pool should have; pools it does not name are left as they are."""

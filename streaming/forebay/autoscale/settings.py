"""How an autoscaler runs, as a user says it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from forebay.autoscale.decision import Policy
from forebay.autoscale.governor import Guards
from forebay.autoscale.policies import named
from forebay.errors import ConfigError

PolicyName: TypeAlias = Literal["starvation", "lag", "fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """An autoscaler's settings."""

    policy: PolicyName | Policy = "starvation"
    """One of ours by name, or any object with ``decide(observation)``."""
    dry_run: bool = False
    """Whether decisions are only listed and logged."""
    interval: float = 1.0
    """Seconds between two decisions."""
    price: float = 0.001
    """What a second of one worker costs, in seconds of a starved trainer."""
    keep: int = 1000
    """Decisions that are kept."""
    guards: Guards = field(default_factory=Guards)
    """How fast sizes may change."""

    def __post_init__(self) -> None:
        if not 0 < self.interval < math.inf:
            raise ConfigError(f"the autoscaler's interval must be positive, not {self.interval}")
        if not 0 <= self.price < math.inf:
            raise ConfigError(f"the price of a worker must be 0 or more, not {self.price}")
        if self.keep < 1:
            raise ConfigError(f"keep must be positive, not {self.keep}")
        self.chosen()

    def chosen(self) -> Policy:
        """The policy itself.

        Raises:
            ConfigError: a name that is not known, or an object that cannot decide.
        """
        if isinstance(self.policy, str):
            return named(self.policy)
        if not callable(getattr(self.policy, "decide", None)):
            kind = type(self.policy).__name__
            raise ConfigError(
                f"autoscale must be starvation, lag, fixed, or have decide(observation): {kind} "
                "has not"
            )
        return self.policy

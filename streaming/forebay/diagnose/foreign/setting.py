"""The arguments of a ``DataLoader`` that change how fast it is, and nothing of what it gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Factor: TypeAlias = Literal[
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
    "in_order",
]
FACTORS: tuple[Factor, ...] = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
    "in_order",
)
DEFAULT_PREFETCH = 2
_OF_WORKERS = frozenset(FACTORS) - {"num_workers", "pin_memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One choice of them."""

    num_workers: int = 0
    prefetch_factor: int = DEFAULT_PREFETCH
    """Of no effect without workers, as all but ``pin_memory``."""
    persistent_workers: bool = False
    pin_memory: bool = False
    multiprocessing_context: str = "fork"
    """How workers are started: ``fork``, ``forkserver``, ``spawn``."""
    in_order: bool = True

    def with_(self, **changes: Any) -> Setting:
        """The same but for these."""
        return replace(self, **changes)

    def changes(self, base: Setting) -> dict[str, Any]:
        """What differs from another choice, as far as it has an effect."""
        differ: dict[str, Any] = {
            name: getattr(self, name)
            for name in FACTORS
            if getattr(self, name) != getattr(base, name)
        }
        if self.num_workers == 0:
            differ = {name: value for name, value in differ.items() if name not in _OF_WORKERS}
        return differ

    def said(self, base: Setting) -> str:
        """What differs, as arguments; ``as it is`` if nothing does."""
        return arguments(self.changes(base)) or "as it is"


def arguments(values: dict[str, Any]) -> str:
    """As they stand in a call: ``num_workers=4, in_order=False``."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())

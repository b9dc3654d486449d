"""What a topology file describes: its sections, and the run they add up to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigError
from forebay.observe.settings import Metrics
from forebay.pipeline import Pipeline
from forebay.topology.engines import DEFAULT

if TYPE_CHECKING:
    from forebay.loader import Loader

SECTIONS: Mapping[str, str] = {
    "name": "The run's name: the checkpoint of another run is refused.",
    "source": "Where records come from: a type, and its options under their own names.",
    "record": "Where what the source gives is stored as well, so that it can be read again.",
    "stages": "What is done with them, in this order.",
    "dead_letters": "Where records go that a stage cannot process.",
    "error_budget": "How many records may fail before the run stops.",
    "shuffle": "Permutes rows within windows: a number of rows, or options.",
    "batch": "What one training step gets: a number of rows, or options.",
    "loader": "How the loader runs.",
    "train": "The training function, module:function, called with the loader; or it and options.",
    "checkpoint": "Where the position in the data is kept: a path, or options.",
    "metrics": "Where the run can be watched: an address to listen on, or options.",
}
REQUIRED: Mapping[str, str] = {
    "source": "say where records come from",
    "batch": "say how many rows a training step gets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Where and how often the position is saved."""

    path: Path
    """The file; the one before is kept beside it."""
    every: int = 100
    """Batches between two saves. At the end and on SIGTERM it is saved, too."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"every must be at least 1, not {self.every}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The function that trains, and what it is given beside the loader."""

    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    wants_checkpoint: bool = False
    """Whether it saves model and position together itself (a parameter named ``checkpoint``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole run, as a file describes it. Nothing is opened or started yet."""

    file: str
    name: str | None = None
    pipeline: Pipeline
    loader_options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = DEFAULT
    """The name of the engine, which is in ``loader_options``."""
    train: Training | None = None
    checkpoint: Checkpointing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values that must not be shown."""

    def loader(self, **options: Any) -> Loader:
        """The loader; ``options`` win over those of the file."""
        return self.pipeline.loader(**{**self.loader_options, **options})

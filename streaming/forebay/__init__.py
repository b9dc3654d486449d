"""Keeps GPUs full from live data: sources, stages, and a loader that resumes exactly."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay.deadletter import ErrorBudget, Letter, Sink
from forebay.engine import Engine, Feed, Plan
from forebay.errors import (
    ConfigError,
    DataLossError,
    EngineError,
    ErrorBudgetExceeded,
    ForebayError,
    ProcessError,
    SourceError,
    SourceStalled,
    StageError,
    StateError,
)
from forebay.mixing import MixedSource, mix
from forebay.options import LoaderOptions, LoaderStats
from forebay.rng import RowRandom
from forebay.slice import Failure, Slice
from forebay.source import Reader, Source, Split
from forebay.stage import Outcome, Stage
from forebay.state import Position, State, merge_states
from forebay.threads import ThreadEngine

if TYPE_CHECKING:
    from forebay.batcher import Origins
    from forebay.loader import Loader
    from forebay.pipeline import Pipeline
    from forebay.tensors import Batch

__all__ = [
    "Batch",
    "ConfigError",
    "DataLossError",
    "Engine",
    "EngineError",
    "ErrorBudget",
    "ErrorBudgetExceeded",
    "Failure",
    "Feed",
    "ForebayError",
    "Letter",
    "Loader",
    "LoaderOptions",
    "LoaderStats",
    "MixedSource",
    "Origins",
    "Outcome",
    "Pipeline",
    "Plan",
    "Position",
    "ProcessError",
    "Reader",
    "RowRandom",
    "Sink",
    "Slice",
    "Source",
    "SourceError",
    "SourceStalled",
    "Split",
    "Stage",
    "StageError",
    "State",
    "StateError",
    "ThreadEngine",
    "merge_states",
    "mix",
]

_WITH_TORCH = {
    "Batch": "forebay.tensors",
    "Loader": "forebay.loader",
    "Origins": "forebay.batcher",
    "Pipeline": "forebay.pipeline",
}


def __getattr__(name: str) -> Any:
    """What needs torch, imported when first asked for: tools that only read or produce records
    start in a fraction of a second instead of several."""
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_TORCH[name]), name)

"""Keeps GPUs full from live data: sources, stages, and a loader that resumes exactly."""

from forebay.batcher import Origins
from forebay.deadletter import ErrorBudget, Letter, Sink
from forebay.engine import Engine, Feed, Plan
from forebay.errors import (
    ConfigError,
    DataLossError,
    ErrorBudgetExceeded,
    ForebayError,
    ProcessError,
    SourceError,
    SourceStalled,
    StageError,
    StateError,
)
from forebay.loader import Loader, LoaderOptions, LoaderStats
from forebay.pipeline import Pipeline
from forebay.rng import RowRandom
from forebay.slice import Failure, Slice
from forebay.source import Reader, Source, Split
from forebay.stage import Outcome, Stage
from forebay.state import Position, State, merge_states
from forebay.tensors import Batch
from forebay.threads import ThreadEngine

__all__ = [
    "Batch",
    "ConfigError",
    "DataLossError",
    "Engine",
    "ErrorBudget",
    "ErrorBudgetExceeded",
    "Failure",
    "Feed",
    "ForebayError",
    "Letter",
    "Loader",
    "LoaderOptions",
    "LoaderStats",
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
]

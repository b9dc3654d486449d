"""Every error Forebay raises.

* ForebayError
  - ConfigError            a pipeline, topology or option is wrong; found before anything starts
  - ProcessError           a loader is used where it cannot work: a forked child, a loader worker
  - StateError             a checkpoint does not fit this pipeline
  - SourceError            the source cannot be read (broker gone, not authorised)
    . SourceStalled          data waits at the source and nothing arrives
    . DataLossError          records between the position and what the source still holds are gone
  - StageError             a stage broke its contract (wrong number of rows, wrong type)
  - EngineError            what runs the stages cannot go on (a cluster is gone, or refuses us)
  - ErrorBudgetExceeded    more rows failed than the pipeline allows

A message says where (split, offset, file, config key) and what to do about it.
"""

from __future__ import annotations


class ForebayError(Exception):
    """Base of every error raised by ``forebay`` and its connectors."""


class ConfigError(ForebayError):
    """A pipeline, topology or option is wrong."""


class ProcessError(ForebayError):
    """A loader is used in a process where it cannot work."""


class StateError(ForebayError):
    """A checkpoint does not fit this pipeline."""


class SourceError(ForebayError):
    """The source cannot be read."""


class SourceStalled(SourceError):
    """Data waits at the source and nothing arrives."""


class DataLossError(SourceError):
    """Records that were never delivered are gone from the source.

    Args:
        split: id of the split.
        start: first offset that is lost; None where it cannot be known.
        stop: one past the last lost offset; None where it cannot be known.
        why: what happened, as a clause ("retention passed the position").
        hint: the way out, as a sentence.
    """

    def __init__(
        self, split: str, start: int | None, stop: int | None, why: str, hint: str
    ) -> None:
        lost = "an unknown number of records"
        if start is not None and stop is not None:
            lost = f"up to {stop - start:,} records"
        since = "" if start is None else f" from offset {start}"
        upto = "" if stop is None else f" to {stop - 1}"
        super().__init__(f"{split}: {why}: {lost}{since}{upto} are lost. {hint}")
        self.split, self.start, self.stop = split, start, stop


class StageError(ForebayError):
    """A stage broke its contract on a slice.

    Args:
        stage: name of the stage.
        split: id of the split.
        offset: offset of the first row the stage was given.
        why: what it did wrong.
    """

    def __init__(self, stage: str, split: str, offset: int, why: str) -> None:
        super().__init__(f"stage {stage!r} failed on {split}@{offset}: {why}")
        self.stage, self.split, self.offset = stage, split, offset


class EngineError(ForebayError):
    """What runs the stages cannot go on."""


class ErrorBudgetExceeded(ForebayError):
    """More rows failed than the pipeline allows."""

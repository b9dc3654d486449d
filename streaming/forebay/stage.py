"""Stages: pure transformations of rows, and the one place that keeps their offsets."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forebay.columns import (
    Column,
    Columns,
    Indices,
    as_arrow,
    as_numpy,
    concat,
    cut,
    map_columns,
    row_count,
    take,
)
from forebay.errors import ConfigError, StageError
from forebay.rng import RowRandom, Run
from forebay.slice import Failure, Slice

Form: TypeAlias = Literal["as_is", "numpy", "arrow"]
"""How a user's function gets its columns."""
Row: TypeAlias = Mapping[str, Any]
BatchFn: TypeAlias = Callable[[Columns, RowRandom], Columns]
"""A function of the columns of a whole batch, all of them NumPy arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a stage made of the rows it was given."""

    columns: Columns
    parents: Indices | None = None
    """For each row out, the index of the row in that it came from, never decreasing; None: row
    ``i`` came from row ``i`` and there are as many."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Rows in that could not be processed, with the reason. They have no row out."""


class Stage(Protocol):
    """A pure transformation: a row's result depends on that row and its random numbers alone.

    ``run`` is called from several threads at once. If it raises, its rows are tried one by one,
    and those that raise again become dead letters with the exception as their reason.
    """

    @property
    def name(self) -> str:
        """Unique in the pipeline."""

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        """Process ``n`` rows; columns may be read-only and must not be written to."""


@dataclass(frozen=True, slots=True)
class Map:
    """``fn(columns) -> columns``: as many rows out as in, in order.

    Columns that ``fn`` does not return are gone. With a parameter named ``rng``, ``fn`` is
    given the rows' random numbers.
    """

    name: str
    fn: Callable[..., Columns]
    form: Form = "as_is"

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        return Outcome(columns=_call(self.fn, _formed(columns, self.form), rng))


@dataclass(frozen=True, slots=True)
class Filter:
    """``fn(columns) -> mask``: keeps the rows where the mask is true; null counts as false."""

    name: str
    fn: Callable[..., Any]
    form: Form = "as_is"

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        mask = _mask(_call(self.fn, _formed(columns, self.form), rng), len(rng))
        if mask.all():
            return Outcome(columns=columns)
        kept = np.flatnonzero(mask)
        return Outcome(columns=take(columns, kept), parents=kept)


@dataclass(frozen=True, slots=True)
class Expand:
    """``fn(columns) -> (columns, parents)``: any number of rows out for each row in.

    ``parents`` gives for each row out the index of its row in, and never decreases.
    """

    name: str
    fn: Callable[..., tuple[Columns, Any]]
    form: Form = "as_is"

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        rows, parents = _call(self.fn, _formed(columns, self.form), rng)
        return Outcome(columns=rows, parents=np.asarray(parents, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class MapRows:
    """``fn(row) -> row``, a dict of Python values for each: convenient, and slow (holds the GIL).

    ``schema`` names the columns and types that come out; without it they are inferred from the
    rows at hand, and rows that come out different in another slice are an error later on.
    """

    name: str
    fn: Callable[..., Row]
    schema: pa.Schema | None = None

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        return Outcome(columns=from_rows([self.fn(row) for row in to_rows(columns)], self.schema))


@dataclass(frozen=True, slots=True)
class FilterRows:
    """``fn(row) -> bool`` for each row."""

    name: str
    fn: Callable[..., bool]

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        kept = np.flatnonzero([bool(self.fn(row)) for row in to_rows(columns)])
        return Outcome(columns=take(columns, kept), parents=kept)


@dataclass(frozen=True, slots=True)
class ExpandRows:
    """``fn(row) -> rows``: any number of rows for each row; ``schema`` as for ``MapRows``."""

    name: str
    fn: Callable[..., Iterable[Row]]
    schema: pa.Schema | None = None

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        made = [list(self.fn(row)) for row in to_rows(columns)]
        parents = np.repeat(np.arange(len(made)), [len(rows) for rows in made])
        columns = from_rows([row for rows in made for row in rows], self.schema)
        return Outcome(columns=columns, parents=parents)


@dataclass(frozen=True, slots=True)
class StageRun:
    """What a stage did with one slice."""

    name: str
    rows_in: int
    rows_out: int
    failed: int
    seconds: float
    cpu_seconds: float = 0.0
    """Of the thread that ran it: less than ``seconds`` by what it waited for a lock, a CPU or a
    service, or left to other threads."""


def run_stages(
    stages: Sequence[Stage], raw: Slice, run: Run, runs: list[StageRun] | None = None
) -> Slice:
    """Run a slice through the stages in order; rows that fail become ``failures``.

    Args:
        runs: gets what each stage did.

    Raises:
        StageError: a stage broke its contract; names the stage and the slice's first offset.
    """
    s = replace(raw, source_rows=len(raw))
    for stage in stages:
        if not len(s):
            return replace(s, columns={})
        before, began, used = s, time.perf_counter(), time.thread_time()
        s = _apply(stage, s, raw, run)
        if runs is not None:
            failed = len(s.failures) - len(before.failures)
            seconds = time.perf_counter() - began
            cpu = time.thread_time() - used
            runs.append(StageRun(stage.name, len(before), len(s), failed, seconds, cpu))
    return s


def to_rows(columns: Columns) -> list[dict[str, Any]]:
    """The rows as dicts of Python values (arrays stay arrays)."""
    listed = {
        n: list(c) if isinstance(c, np.ndarray) else c.to_pylist() for n, c in columns.items()
    }
    return [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]


def from_rows(rows: Sequence[Row], schema: pa.Schema | None = None) -> dict[str, Column]:
    """Columns of dicts; a key that a row lacks is null there, whichever row comes first.

    Values that are arrays must agree in shape and dtype; they are stacked.

    Raises:
        ValueError, TypeError: a value does not fit ``schema`` (pyarrow's errors).
    """
    if schema is not None:
        return {f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in schema}
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> Column:
    if values and isinstance(values[0], (np.ndarray, np.generic)):
        stacked: Column = np.stack(values)
        return stacked
    inferred: Column = pa.array(values)
    return inferred


def _apply(stage: Stage, s: Slice, raw: Slice, run: Run) -> Slice:
    try:
        outcome = stage.run(s.columns, RowRandom(run, stage.name, s.split, s.offsets))
    except (StageError, ConfigError):  # of the whole stage, not of a row
        raise
    except Exception as e:
        return _one_by_one(stage, s, raw, run, e)
    return _follow(stage, s, raw, outcome)


def _one_by_one(stage: Stage, s: Slice, raw: Slice, run: Run, error: Exception) -> Slice:
    """Find the records that make the stage fail, and keep the others.

    The rows of one record stay together: their random numbers depend on their ordinal.
    """
    bounds = np.r_[np.flatnonzero(np.r_[True, s.offsets[1:] != s.offsets[:-1]]), len(s)]
    if len(bounds) == 2:
        reason = f"{type(error).__name__}: {error}"
        nothing = Outcome(columns={}, parents=np.zeros(0, np.int64), failed={0: reason})
        return _follow(stage, s, raw, nothing)
    parts = [_rows_of(s, int(a), int(b)) for a, b in pairwise(bounds)]
    done = [_apply(stage, part, raw, run) for part in parts]
    filled = [part for part in done if len(part)]
    return replace(
        s,
        columns=_joined(stage, s, filled),
        offsets=np.concatenate([part.offsets for part in done]),
        event_times=None
        if s.event_times is None
        else np.concatenate([t for part in done if (t := part.event_times) is not None]),
        failures=s.failures + tuple(f for part in done for f in part.failures),
    )


def _rows_of(s: Slice, a: int, b: int) -> Slice:
    times = None if s.event_times is None else s.event_times[a:b]
    columns = cut(s.columns, a, b)
    return replace(s, columns=columns, offsets=s.offsets[a:b], event_times=times, failures=())


def _joined(stage: Stage, s: Slice, parts: Sequence[Slice]) -> Columns:
    try:
        return concat([part.columns for part in parts]) if parts else {}
    except ValueError as e:
        raise _broken(stage, s, f"its rows differ from each other: {e}") from e


def _follow(stage: Stage, s: Slice, raw: Slice, outcome: Outcome) -> Slice:
    """The slice after a stage: offsets and event times follow their rows."""
    rows = _checked_rows(stage, s, outcome)
    parents = outcome.parents
    times = s.event_times
    failed = outcome.failed
    return replace(
        s,
        columns=outcome.columns if rows else {},
        offsets=s.offsets if parents is None else s.offsets[parents],
        event_times=times if parents is None or times is None else times[parents],
        failures=s.failures + tuple(_failure(stage, s, raw, i, failed[i]) for i in sorted(failed)),
    )


def _checked_rows(stage: Stage, s: Slice, outcome: Outcome) -> int:
    """The number of rows out, after checking that the outcome is what a stage may return."""
    columns: Any = outcome.columns  # a user's function may have returned anything
    if not isinstance(columns, Mapping):
        kind = type(columns).__name__
        raise _broken(stage, s, f"it must return a dict of columns, not {kind}")
    for name, column in columns.items():
        if not isinstance(column, (np.ndarray, pa.Array)):
            kind = type(column).__name__
            raise _broken(stage, s, f"column {name!r} must be a NumPy or Arrow array, not {kind}")
    try:
        rows = row_count(outcome.columns)
    except ValueError as e:
        raise _broken(stage, s, str(e)) from e
    parents = outcome.parents
    if parents is None and rows != len(s):
        raise _broken(
            stage,
            s,
            f"it was given {len(s)} rows and returned {rows}; a stage that changes the number "
            "of rows must be a filter or an expand",
        )
    if parents is not None:
        _check_parents(stage, s, parents, rows, bool(outcome.columns))
    return rows if parents is None else len(parents)


def _check_parents(stage: Stage, s: Slice, parents: Indices, rows: int, columns: bool) -> None:
    if len(parents) != rows and (columns or len(parents)):
        raise _broken(stage, s, f"it returned {rows} rows but {len(parents)} parents")
    if len(parents) and (parents[0] < 0 or parents[-1] >= len(s) or (np.diff(parents) < 0).any()):
        raise _broken(
            stage, s, f"its parents must rise from 0 to at most {len(s) - 1}, never falling"
        )


def _failure(stage: Stage, s: Slice, raw: Slice, i: int, reason: str) -> Failure:
    offset = int(s.offsets[i])
    at = int(np.searchsorted(raw.offsets, offset))
    original = to_rows(cut(raw.columns, at, at + 1))[0]
    return Failure(offset=offset, stage=stage.name, reason=reason, original=original)


def _broken(stage: Stage, s: Slice, why: str) -> StageError:
    return StageError(stage.name, s.split, int(s.offsets[0]), why)


def _formed(columns: Columns, form: Form) -> Columns:
    if form == "numpy":
        return map_columns(columns, as_numpy)
    if form == "arrow":
        return map_columns(columns, as_arrow)
    return columns


def _call(fn: Callable[..., Any], columns: Columns, rng: RowRandom) -> Any:
    return fn(columns, rng=rng) if _wants_rng(fn) else fn(columns)


@lru_cache(maxsize=1024)
def _wants_rng(fn: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # built in C, without a signature
        return False


def _mask(mask: Any, rows: int) -> NDArray[np.bool_]:
    """The filter's answer as booleans.

    Raises:
        TypeError, ValueError: it is no boolean array of one value a row.
    """
    if isinstance(mask, pa.Array):
        mask = mask.fill_null(False).to_numpy(zero_copy_only=False)
    values: NDArray[np.bool_] = np.asarray(mask)
    if values.dtype != np.bool_ or values.shape != (rows,):
        raise TypeError(
            f"a filter must return {rows} booleans, not {values.dtype} of shape {values.shape}"
        )
    return values

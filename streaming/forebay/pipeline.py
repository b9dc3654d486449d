"""The builder: a source, its stages, and how their rows become batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

import forebay
from forebay.batcher import Batching
from forebay.deadletter import ErrorBudget, Sink
from forebay.engine import worker_range
from forebay.errors import ConfigError
from forebay.hybrid import Handover, HybridSource
from forebay.options import LoaderOptions
from forebay.recording import RecordedSource, Recorder
from forebay.shuffle import Shuffle
from forebay.source import Source
from forebay.stage import (
    BatchFn,
    Expand,
    ExpandRows,
    Filter,
    FilterRows,
    Form,
    Map,
    MapRows,
    Stage,
)

if TYPE_CHECKING:
    from forebay.loader import Loader

Per: TypeAlias = Literal["batch", "row"]
Workers: TypeAlias = "int | tuple[int, int] | None"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Describes how records become batches. Every method returns a new pipeline.

    >>> from forebay.testing import MemorySource
    >>> numbers = Pipeline(MemorySource({"a": range(10)})).filter(
    ...     lambda row: row["value"] % 2 == 0, per="row"
    ... )
    >>> [batch["value"].tolist() for batch in numbers.batch(3).loader()]
    [[0, 2, 4], [6, 8]]
    """

    source: Source
    stages: tuple[Stage, ...] = ()
    workers: tuple[int, int] | None = None
    sink: Sink | None = None
    budget: ErrorBudget = field(default_factory=ErrorBudget)
    shuffling: Shuffle | None = None
    batching: Batching | None = None
    batch_fns: tuple[BatchFn, ...] = ()
    recorder: Recorder | None = None

    def decode(self, stage: Stage, *, workers: Workers = None) -> Pipeline:
        """Add a decoder from ``forebay.decode``, or any other stage."""
        return self._with(stage, workers)

    def map(
        self,
        fn: Callable[..., Any],
        *,
        per: Per = "batch",
        form: Form = "as_is",
        schema: pa.Schema | None = None,
        name: str | None = None,
        workers: Workers = None,
    ) -> Pipeline:
        """As many rows out as in: ``fn(columns) -> columns``, or per row ``fn(row) -> row``.

        Args:
            fn: pure; with a parameter named ``rng`` it is given a ``RowRandom`` (per batch only).
            per: whether it gets the columns of some rows, or each row as a dict.
            form: how it gets columns: as they are, or all as NumPy or Arrow arrays.
            schema: names and types of what a row function returns; None infers them.
        """
        name = self._name("map", fn, name)
        if _per_row(per):
            return self._with(MapRows(name, fn, schema), workers)
        return self._with(Map(name, fn, form), workers)

    def filter(
        self,
        fn: Callable[..., Any],
        *,
        per: Per = "batch",
        form: Form = "as_is",
        name: str | None = None,
        workers: Workers = None,
    ) -> Pipeline:
        """Keep the rows for which ``fn`` is true: a mask of booleans, or one answer per row."""
        name = self._name("filter", fn, name)
        return self._with(
            FilterRows(name, fn) if _per_row(per) else Filter(name, fn, form), workers
        )

    def expand(
        self,
        fn: Callable[..., Any],
        *,
        per: Per = "batch",
        form: Form = "as_is",
        schema: pa.Schema | None = None,
        name: str | None = None,
        workers: Workers = None,
    ) -> Pipeline:
        """Any number of rows for each row: ``fn(columns) -> (columns, parents)``, where
        ``parents`` names for each row out its row in; or per row ``fn(row) -> rows``."""
        name = self._name("expand", fn, name)
        if _per_row(per):
            return self._with(ExpandRows(name, fn, schema), workers)
        return self._with(Expand(name, fn, form), workers)

    def dead_letters(self, sink: Sink | None, budget: ErrorBudget | None = None) -> Pipeline:
        """Where records go that a stage cannot process, and how many may."""
        return replace(self, sink=sink, budget=budget or self.budget)

    def chain(
        self, live: Source, *, handover: Handover, columns: Sequence[str] | None = None
    ) -> Pipeline:
        """Read the source so far as a history, to its end, and ``live`` from there on.

        Args:
            live: the source that goes on where the history ends.
            handover: where that is: ``ByOffset``, ``AtOffsets`` or ``ByTime``.
            columns: what to give on of both; None gives on all that they have.

        Raises:
            ConfigError: the source so far never ends.
        """
        return replace(self, source=HybridSource(self.source, live, handover, columns=columns))

    def record(self, recorder: Recorder | None) -> Pipeline:
        """Store what the source gives as well, as it came, so that it can be read again.

        No state is given before all that it covers is recorded.
        """
        if recorder is not None and not isinstance(recorder, Recorder):
            raise ConfigError(f"{type(recorder).__name__} is no recorder: no portion and open()")
        return replace(self, recorder=recorder)

    def shuffle(self, rows: int, *, seed: int = 0) -> Pipeline:
        """Permute the rows within windows of ``rows`` rows."""
        return replace(self, shuffling=Shuffle(rows=rows, seed=seed))

    def batch(self, size: int, *, drop_last: bool = False) -> Pipeline:
        """How many rows one training step gets."""
        return replace(self, batching=Batching(size=size, drop_last=drop_last))

    def map_batch(self, fn: BatchFn) -> Pipeline:
        """``fn(columns, rng) -> columns`` on the NumPy columns of a whole batch (mixup)."""
        return replace(self, batch_fns=(*self.batch_fns, fn))

    def loader(self, **options: Any) -> Loader:
        """The loader that a training loop iterates over; see ``LoaderOptions``.

        Raises:
            ConfigError: an option is wrong, or ``batch`` was not called.
        """
        if self.batching is None:
            raise ConfigError("say how many rows a step gets: .batch(256) before .loader()")
        options.setdefault("workers", self.workers)
        # Looked up only now: it brings torch, and whoever just builds or checks pipelines need
        # not wait for that.
        return forebay.Loader(
            self.source if self.recorder is None else RecordedSource(self.source, self.recorder),
            self.stages,
            self.batching,
            _options(options),
            shuffle=self.shuffling,
            batch_fns=self.batch_fns,
            sink=self.sink,
            budget=self.budget,
        )

    def _with(self, stage: Stage, workers: Workers) -> Pipeline:
        if any(s.name == stage.name for s in self.stages):
            raise ConfigError(f"two stages are named {stage.name!r}: give one of them name=")
        return replace(self, stages=(*self.stages, stage), workers=_wider(self.workers, workers))

    def _name(self, verb: str, fn: Callable[..., Any], name: str | None) -> str:
        if not callable(fn):
            raise ConfigError(f"{verb} needs a function, not {fn!r}")
        if name is not None:
            return name
        wanted = getattr(fn, "__name__", type(fn).__name__).replace("<lambda>", verb)
        taken = {s.name for s in self.stages}
        return next(
            n
            for i in range(1, len(taken) + 2)
            if (n := wanted if i == 1 else f"{wanted}_{i}") not in taken
        )


def _options(options: dict[str, Any]) -> LoaderOptions:
    known = LoaderOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f": they are {', '.join(known)}"
            raise ConfigError(f"the loader has no option {name!r}{hint}")
    return LoaderOptions(**options)


def _per_row(per: Per) -> bool:
    if per not in ("batch", "row"):
        raise ConfigError(f"per must be 'batch' or 'row', not {per!r}")
    return per == "row"


def _wider(bounds: tuple[int, int] | None, workers: Workers) -> tuple[int, int] | None:
    """One pool runs all stages: it gets the most that any of them asks for."""
    if workers is None:
        return bounds
    least, most = worker_range(workers)
    return (least, most) if bounds is None else (max(least, bounds[0]), max(most, bounds[1]))

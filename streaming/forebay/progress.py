"""What a running loader does, for people and scripts: a table, a line now and then, or JSON.

Polls ``stats()`` and ``lag()`` of a loader from a thread of its own; nothing is counted in the
training loop. What is unknown is shown as a dash, never as 0.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.table import Table

from forebay.options import LoaderStats

UNKNOWN = "–"  # noqa: RUF001
Style: TypeAlias = Literal["table", "lines", "json"]
Outcome: TypeAlias = Literal["done", "stopped", "failed"]
"""How a run ended: at the end of its data or of its training, by a signal, or by an error."""


class Observed(Protocol):
    """What progress asks of a loader. Any thread may."""

    def stats(self) -> LoaderStats:
        """What it did so far."""

    def lag(self) -> Mapping[str, int]:
        """Records behind, by split; splits of unknown end are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A loader at one moment."""

    at: float
    """Seconds of a monotonic clock."""
    stats: LoaderStats
    lag: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What happened between two samples. Unknown is None."""

    rows_per_second: float | None
    rows: int
    batches: int
    lag_records: int | None
    freshness_seconds: float | None
    starvation: float | None
    """Share of the time that the trainer waited for a batch, by the host's clock."""
    ready_batches: int
    bytes_in_flight: int
    dead_letters: int
    workers: int
    passes: int


def reading(before: Sample | None, now: Sample, *, has_trainer: bool) -> Reading:
    """What happened since ``before``, or since the loader's start.

    Without a trainer nobody starves: a loop that only drains waits all the time.
    """
    stats = now.stats
    rows, waited, took = stats.rows, stats.wait_seconds, stats.seconds
    if before is not None:
        rows -= before.stats.rows
        waited -= before.stats.wait_seconds
        took = now.at - before.at
    return Reading(
        rows_per_second=rows / took if took > 0 else None,
        rows=stats.rows,
        batches=stats.batches,
        lag_records=sum(now.lag.values()) if now.lag else None,
        freshness_seconds=stats.freshness_seconds,
        starvation=min(1.0, waited / took) if has_trainer and took > 0 else None,
        ready_batches=stats.ready_batches,
        bytes_in_flight=stats.bytes_in_flight,
        dead_letters=stats.dead_letters,
        workers=stats.workers,
        passes=stats.passes,
    )


def shown(r: Reading) -> dict[str, str]:
    """The reading in words, by label."""
    return {
        "records": f"{r.rows:,}",
        "records/s": _number(r.rows_per_second, "{:,.0f}"),
        "batches": f"{r.batches:,}",
        "lag": _number(r.lag_records, "{:,} records"),
        "freshness": _number(r.freshness_seconds, "{:,.1f} s"),
        "starved": _number(r.starvation, "{:.1%}"),
        "ready": f"{r.ready_batches} batches",
        "in flight": f"{r.bytes_in_flight / (1 << 20):,.1f} MiB",
        "dead letters": f"{r.dead_letters:,}",
        "workers": f"{r.workers}",
    }


def line(r: Reading) -> str:
    """The reading as one line of a log."""
    return ", ".join(f"{label} {value}" for label, value in shown(r).items())


def summary(r: Reading, seconds: float, outcome: Outcome = "done") -> str:
    """The reading of a whole run as one line: without what only a running loader has."""
    words = shown(r)
    kept = ("records", "records/s", "batches", "starved", "dead letters")
    return ", ".join([outcome, *(f"{label} {words[label]}" for label in kept), f"{seconds:,.1f} s"])


def table(r: Reading) -> Table:
    """The reading as a small table."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", justify="right")
    grid.add_column()
    for label, value in shown(r).items():
        grid.add_row(label, value)
    return grid


class Progress:
    """Shows a loader's progress between ``start`` and ``stop``, then sums up.

    Args:
        loader: what is observed.
        console: where it is shown.
        style: a table that renews itself, a line every ``interval`` seconds, or JSON lines.
        interval: seconds between two lines.
        has_trainer: whether a training function runs; without one starvation means nothing.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        loader: Observed,
        console: Console,
        *,
        style: Style,
        interval: float = 5.0,
        has_trainer: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader, self._console, self._style = loader, console, style
        self._interval, self._has_trainer, self._clock = interval, has_trainer, clock
        self._before: Sample | None = None
        self._shown: Reading | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._live: Live | None = None

    def start(self) -> None:
        """Begin to show."""
        if self._style == "table":
            self._live = Live(
                get_renderable=self._renewed, console=self._console, refresh_per_second=2
            )
            self._live.start()
        else:
            self._thread = threading.Thread(target=self._lines, name="forebay-progress")
            self._thread.start()

    def stop(self, outcome: Outcome = "done") -> Reading:
        """End showing; the reading over the whole time, which is shown as a summary."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._live is not None:
            self._live.stop()
        whole = reading(None, self._sample(), has_trainer=self._has_trainer)
        self._sum_up(whole, outcome)
        return whole

    def _lines(self) -> None:
        while not self._stopped.wait(self._interval):
            self.tick()

    def tick(self) -> None:
        """Show what happened since the last tick."""
        self._show(self._next_reading())

    def _renewed(self) -> Table:
        """The table; its rates over at least a second, as shorter ones only flicker."""
        now = self._clock()
        if self._shown is None or self._before is None or now - self._before.at >= 1.0:
            self._shown = self._next_reading()
        return table(self._shown)

    def _next_reading(self) -> Reading:
        now = self._sample()
        made = reading(self._before, now, has_trainer=self._has_trainer)
        self._before = now
        return made

    def _sample(self) -> Sample:
        return Sample(at=self._clock(), stats=self._loader.stats(), lag=dict(self._loader.lag()))

    def _show(self, r: Reading) -> None:
        if self._style == "json":
            self._print(json.dumps({"event": "progress", **self._figures(r)}))
        elif self._style == "lines":
            self._print(line(r))

    def _sum_up(self, r: Reading, outcome: Outcome) -> None:
        if self._style == "json":
            event = {"event": "summary", "outcome": outcome, **self._figures(r)}
            self._print(json.dumps(event))
        else:
            self._print(summary(r, self._loader.stats().seconds, outcome))

    def _figures(self, r: Reading) -> dict[str, Any]:
        return {**asdict(r), "seconds": self._loader.stats().seconds}

    def _print(self, text: str) -> None:
        self._console.out(text, highlight=False)


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else form.format(value)

"""Progress shows what is known, a dash for what is not, and sums up at the end."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from forebay.histogram import FRESHNESS_BOUNDS, STEP_BOUNDS, Durations
from forebay.options import LoaderStats
from forebay.progress import UNKNOWN, Progress, Sample, Style, reading, shown
from forebay.stepclock import StepTimes
from forebay.testing import TurnableClock

NOTHING = LoaderStats(
    batches=0,
    rows=0,
    dead_letters=0,
    wait_seconds=0.0,
    seconds=0.0,
    ready_batches=0,
    bytes_in_flight=0,
    freshness_seconds=None,
    workers=0,
    passes=0,
    steps=StepTimes(steps=0, seconds=0.0, wait=0.0),
    step_durations=Durations(STEP_BOUNDS).taken(),
    wait_durations=Durations(STEP_BOUNDS).taken(),
    freshness=Durations(FRESHNESS_BOUNDS).taken(),
    stages={},
    letters={},
    last_letters=(),
    source_wait_seconds=0.0,
    room_wait_seconds=0.0,
)
BUSY = replace(
    NOTHING,
    batches=10,
    rows=2560,
    dead_letters=3,
    wait_seconds=0.5,
    seconds=2.0,
    ready_batches=2,
    bytes_in_flight=3 << 20,
    freshness_seconds=1.25,
    workers=4,
)


@dataclass
class Recorded:
    """A loader whose figures the test writes."""

    now: LoaderStats = NOTHING
    behind: Mapping[str, int] | None = None

    def stats(self) -> LoaderStats:
        return self.now

    def lag(self) -> Mapping[str, int]:
        return self.behind or {}


def sample(at: float, stats: LoaderStats, **lag: int) -> Sample:
    return Sample(at=at, stats=stats, lag=lag)


def progress_of(
    loader: Recorded, style: Style, clock: TurnableClock
) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=style == "table")
    return Progress(loader, console, style=style, interval=3600, clock=clock), out


def test_rates_and_starvation_are_those_of_the_time_between_two_samples() -> None:
    later = replace(BUSY, rows=2560 + 1000, wait_seconds=1.5)
    r = reading(sample(10.0, BUSY), sample(14.0, later, a=70, b=5), has_trainer=True)
    assert (r.rows_per_second, r.starvation, r.lag_records) == (250.0, 0.25, 75)


def test_the_reading_without_a_sample_before_is_of_the_whole_run() -> None:
    r = reading(None, sample(99.0, BUSY), has_trainer=True)
    assert (r.rows_per_second, r.starvation) == (1280.0, 0.25)


def test_what_is_unknown_is_a_dash_and_never_nought() -> None:
    words = shown(reading(None, sample(0.0, NOTHING), has_trainer=True))
    unknown = {label for label, value in words.items() if value == UNKNOWN}
    assert unknown == {"records/s", "lag", "freshness", "starved"}
    assert shown(reading(None, sample(0.0, NOTHING, a=0), has_trainer=True))["lag"] == "0 records"


def test_a_drain_has_no_trainer_that_could_starve() -> None:
    assert reading(None, sample(0.0, BUSY), has_trainer=False).starvation is None


def test_lines_say_everything_in_one_line_each() -> None:
    loader, clock = Recorded(BUSY, {"a": 1_234_567}), TurnableClock()
    progress, out = progress_of(loader, "lines", clock)
    progress.start()
    progress.tick()
    clock.turn(2.0)
    loader.now = replace(BUSY, rows=2560 + 10)
    progress.tick()
    progress.stop()
    first, second, last = out.getvalue().splitlines()
    assert first == (
        "records 2,560, records/s 1,280, batches 10, lag 1,234,567 records, freshness 1.2 s, "
        "starved 25.0%, ready 2 batches, in flight 3.0 MiB, dead letters 3, workers 4"
    )
    assert "records/s 5," in second
    assert last == (
        "done, records 2,570, records/s 1,285, batches 10, starved 25.0%, dead letters 3, 2.0 s"
    )


def test_json_lines_hold_null_for_what_is_unknown() -> None:
    progress, out = progress_of(Recorded(), "json", TurnableClock())
    progress.start()
    progress.tick()
    progress.stop()
    tick, summary = (json.loads(line) for line in out.getvalue().splitlines())
    assert (tick["event"], summary["event"]) == ("progress", "summary")
    assert tick["lag_records"] is tick["freshness_seconds"] is tick["rows_per_second"] is None


@pytest.mark.parametrize("style", ["lines", "json", "table"])
def test_the_summary_says_how_the_run_ended(style: Style) -> None:
    progress, out = progress_of(Recorded(BUSY), style, TurnableClock())
    progress.start()
    progress.stop("failed")
    last = out.getvalue().splitlines()[-1]
    assert '"outcome": "failed"' in last if style == "json" else "failed, records 2,560" in last


def test_on_a_terminal_a_table_renews_itself() -> None:
    progress, out = progress_of(Recorded(BUSY, {"a": 7}), "table", TurnableClock())
    progress.start()
    whole = progress.stop()
    assert "7 records" in out.getvalue()
    assert "1,280" in out.getvalue()
    assert whole.rows == 2560


@pytest.mark.parametrize("style", ["lines", "json", "table"])
def test_stopping_leaves_no_thread(style: Style) -> None:
    progress, _ = progress_of(Recorded(BUSY), style, TurnableClock())
    progress.start()
    progress.stop()
    assert progress._thread is None or not progress._thread.is_alive()

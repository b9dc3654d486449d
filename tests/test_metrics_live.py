"""Metrics of real loaders: right from before the first record on, whatever happens to workers."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence

import numpy as np
from tests.test_metrics import Series, names, scraped

from forebay import Pipeline, ThreadEngine
from forebay.autoscale import Autoscaling, Decision, DecisionLog
from forebay.columns import Columns
from forebay.loader import Loader
from forebay.observe.monitor import Monitor
from forebay.observe.snapshot import Snapshot
from forebay.source import Owns
from forebay.state import Position
from forebay.testing import MemoryReader, MemorySource, Stall

ROWS = {"a": list(range(300)), "b": list(range(300))}


class Scraper:
    """Scrapes a loader whenever told, as Prometheus would."""

    def __init__(self, loader: Loader) -> None:
        self._monitor = Monitor(loader, gpus=False)
        self._history: list[Snapshot] = []
        self.scrapes: list[dict[Series, float]] = []

    def scrape(self) -> None:
        self._history.append(self._monitor.snapshot())
        self.scrapes.append(scraped(self._history))


def counters(series: Mapping[Series, float]) -> dict[Series, float]:
    grows = ("_total", "_count", "_sum", "_bucket")
    return {key: value for key, value in series.items() if key[0].endswith(grows)}


def but_of_lag(series: Mapping[Series, float]) -> set[Series]:
    """What is there from the first batch on; how long a record waits is known some time later."""
    return {key for key in series if not re.search("lag|split", key[0])}


def stepped_back(scrapes: Sequence[Mapping[Series, float]]) -> set[Series]:
    highest: dict[Series, float] = {}
    found = set()
    for scrape in scrapes:
        for key, value in counters(scrape).items():
            if value < highest.get(key, 0.0):
                found.add(key)
            highest[key] = value
    return found


class HangsOnce:
    """A stage that hangs the first time it sees a row that 30 divides, until it is let go."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.let_go = threading.Event()

    def __call__(self, columns: Columns) -> Columns:
        for row in np.asarray(columns["value"]).tolist():
            if row % 30 == 0 and row not in self.seen:
                self.seen.add(row)
                self.let_go.wait(60)
        return columns


def test_counters_never_step_back_while_workers_are_replaced_twenty_times() -> None:
    stage, data = HangsOnce(), {"a": list(range(1, 630))}
    pipeline = Pipeline(MemorySource(data, slice_rows=10)).map(stage, name="hangs").batch(20)
    engine = ThreadEngine(hung_seconds=0.1)
    with pipeline.loader(engine=engine, workers=2, order="arrival") as loader:
        scraper = Scraper(loader)
        for _ in loader:
            scraper.scrape()
    stage.let_go.set()
    last = scraper.scrapes[-1]
    (replaced,) = [v for (n, _), v in last.items() if n == "forebay_workers_replaced_total"]
    assert replaced >= 20
    assert not stepped_back(scraper.scrapes)
    assert but_of_lag(last) == but_of_lag(scraper.scrapes[1])


def test_counters_never_step_back_from_pass_to_pass() -> None:
    pipeline = Pipeline(MemorySource(ROWS)).map(lambda columns: columns, name="same").batch(100)
    with pipeline.loader(passes=20, workers=2) as loader:
        scraper = Scraper(loader)
        for _ in range(20):
            for _ in loader:
                scraper.scrape()
    first, last = scraper.scrapes[1], scraper.scrapes[-1]
    assert not stepped_back(scraper.scrapes)
    assert but_of_lag(last) == but_of_lag(first)
    assert {v for (n, _), v in last.items() if n == "forebay_rows_total"} == {20 * 600}


def test_before_the_first_record_and_of_an_empty_topic_nothing_is_negative() -> None:
    never = threading.Event()
    source = MemorySource(
        {"empty": [Stall(never)], "waits": [1, 2, Stall(never), 3]}, bounded=False
    )
    with Pipeline(source).batch(2).loader() as loader:
        scraper = Scraper(loader)
        scraper.scrape()
        batches = iter(loader)
        next(batches)
        scraper.scrape()
    before, after = scraper.scrapes
    assert not {n for n in names(before) if "lag" in n}
    assert min([*before.values(), *after.values()]) >= 0
    lags = {dict(k)["split"]: v for (n, k), v in after.items() if n == "forebay_lag_records"}
    assert lags == {"empty": 0, "waits": 1}


def test_decisions_that_the_log_has_forgotten_still_count() -> None:
    log = DecisionLog(keep=1)
    for at, (before, wanted) in enumerate([(1, 2), (2, 4), (4, 4), (4, 3)]):
        log.add(float(at), before, Decision("decode", wanted, "why"), applied=True)
    assert log.counts() == {("decode", "up"): 2, ("decode", "hold"): 1, ("decode", "down"): 1}
    assert len(log.list()) == 1


def test_an_autoscaler_s_decisions_are_counted_by_pool_and_action() -> None:
    often = Autoscaling(policy="fixed", interval=0.01)
    source = MemorySource({"a": [1, Stall(threading.Event())]}, bounded=False)
    with Pipeline(source).batch(1).loader(workers=(1, 2), autoscale=often) as loader:
        scraper, batches = Scraper(loader), iter(loader)
        next(batches)
        while not loader.decisions():
            threading.Event().wait(0.01)
        scraper.scrape()
    ((name, labels),) = [k for k in scraper.scrapes[0] if "decisions" in k[0]]
    assert name == "forebay_autoscaler_decisions_total"
    assert dict(labels)["action"] == "hold"


class EndsLate(MemorySource):
    """Says that its splits end where they ended long ago."""

    def open(self, positions: Mapping[str, Position], owns: Owns) -> MemoryReader:
        return _EndsLate(self, dict(super().open(positions, owns).positions()))


class _EndsLate(MemoryReader):
    def ends(self) -> Mapping[str, int]:
        return dict.fromkeys(super().ends(), 5)


def test_ends_that_are_older_than_the_position_make_no_negative_lag() -> None:
    with Pipeline(EndsLate(ROWS)).batch(100).loader() as loader:
        scraper = Scraper(loader)
        for _ in loader:
            scraper.scrape()
    lags = [v for s in scraper.scrapes for (n, _), v in s.items() if "lag_" in n]
    assert lags
    assert min(lags) == 0

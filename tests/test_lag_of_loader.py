"""How far behind a loader is, as a watch sees it: what was read, given and saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.delta_slices import opened
from tests.delta_tables import append
from tests.kafka_support import wait_for

from forebay import Loader, Pipeline
from forebay.columns import Columns
from forebay.observe.lag import LagWatch
from forebay.observe.snapshot import SplitSeen
from forebay.testing import MemorySource, Stall
from forebay_delta import DeltaSource


def seen(loader: Loader) -> Mapping[str, SplitSeen]:
    stats = loader.stats()
    return LagWatch().look(time.time(), loader.splits(), stats.batches, stats.wait_seconds)


def a_loader() -> Loader:
    return Pipeline(MemorySource({"m/0": range(1000)}, slice_rows=50)).batch(50).loader()


def test_before_the_start_there_is_nothing_to_say_of_any_split() -> None:
    assert seen(a_loader()) == {}


def test_what_was_saved_given_and_read_are_three_lags() -> None:
    with a_loader() as loader:
        batches = iter(loader)
        next(batches)
        loader.state_dict()
        next(batches)
        wait_for(lambda: seen(loader)["m/0"].lag_fetched == 0, "all was read")
        split = seen(loader)["m/0"]
    assert (split.source, split.position, split.end) == ("m", 100, 1000)
    assert (split.lag_fetched, split.lag_records, split.lag_checkpointed) == (0, 900, 950)


def test_a_state_that_was_loaded_is_one_that_is_saved() -> None:
    with a_loader() as first:
        next(iter(first))
        state = first.state_dict()
    with a_loader() as second:
        second.load_state_dict(state)
        next(iter(second))
        assert seen(second)["m/0"].lag_checkpointed == 950


def test_a_record_that_is_overtaken_holds_the_position_and_is_lag() -> None:
    gate = threading.Event()

    def wait(columns: Columns) -> Columns:
        if 0 in np.asarray(columns["value"]):
            gate.wait(60)
        return columns

    source = MemorySource({"m/0": range(1000)}, slice_rows=50)
    pipeline = Pipeline(source).map(wait, name="wait").batch(50)
    with pipeline.loader(order="arrival", workers=2) as loader:
        batches = iter(loader)
        for _ in range(19):
            next(batches)
        split = seen(loader)["m/0"]
        gate.set()
    assert (split.position, split.lag_records) == (0, 50)


def test_one_split_of_which_nothing_comes_is_stalled_and_the_others_are_not() -> None:
    stuck = [1, 2, Stall(threading.Event()), 3]
    source = MemorySource({"m/0": stuck, "m/1": range(1000), "m/2": range(1000)}, slice_rows=10)
    watch = LagWatch()
    with Pipeline(source).batch(10).loader() as loader:
        for second, _ in zip(range(40), loader, strict=False):
            stats = loader.stats()
            split = watch.look(second, loader.splits(), stats.batches, stats.wait_seconds)
    assert [s.state for s in split.values()] == ["STALLED", "OK", "OK"]


def test_the_ends_of_a_delta_table_are_whole_while_its_shards_take_turns(tmp_path: Path) -> None:
    for i in range(8):
        append(tmp_path, range(i * 10, i * 10 + 10))
    with opened(DeltaSource(str(tmp_path), until="latest", shards=2)) as reader:
        lane = reader._lanes.pop(0)  # as between two lines of another thread
        assert sum(reader.ends().values()) == 80
        reader._lanes.append(lane)
        assert sum(reader.ends().values()) == 80


def test_a_bounded_source_that_was_read_to_its_end_is_not_behind_also_once_it_is_closed() -> None:
    with a_loader() as loader:
        for _ in loader:
            pass
    split = seen(loader)["m/0"]
    assert (split.lag_records, split.lag_seconds, split.state) == (0, 0.0, "OK")

"""What is known to go wrong in jobs on Ray: deaths again and again, memory, full disks."""

from __future__ import annotations

import os
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import pytest
from integration.local_ray import kill, processes_of, small_engine

from forebay import EngineError, Loader, Pipeline
from forebay.columns import Columns, as_numpy
from forebay.deadletter import Letter
from forebay.testing import MemorySource

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
]


@dataclass
class Box:
    """A dead-letter sink that keeps the letters."""

    letters: list[Letter] = field(default_factory=list)

    def write(self, letters: Any) -> None:
        self.letters += letters

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def loader(address: str, stage: Any, rows: int, **options: Any) -> Loader:
    """Of a split with the rows 0, 1 and on."""
    options = {"engine": small_engine(address), "workers": (2, 2), **options}
    sink = options.pop("sink", None)
    source = MemorySource({"a": list(range(rows))}, slice_rows=20)
    return Pipeline(source).map(stage).dead_letters(sink).batch(20).loader(**options)


def values(batches: Iterator[Any] | Loader) -> list[int]:
    return [int(v) for batch in batches for v in batch["value"]]


def takes_a_moment(columns: Columns) -> Columns:
    time.sleep(0.002 * len(columns["value"]))
    return columns


def test_workers_that_die_every_few_seconds_lose_and_repeat_nothing(ray_cluster: str) -> None:
    of, taken, deaths = loader(ray_cluster, takes_a_moment, 3000, max_bytes=200_000), [], 0
    for batch in of:
        taken += batch["value"].tolist()
        if len(taken) >= 500 * (deaths + 1) and (workers := processes_of("MapWorker")):
            kill(random.Random(deaths).choice(workers))
            deaths += 1
    assert deaths >= 4
    assert taken == list(range(3000))


def exits_at_777(columns: Columns) -> Columns:
    if 777 in as_numpy(columns["value"]):
        os._exit(1)
    return columns


def test_a_record_that_exits_its_process_is_the_only_one_that_does_not_come(
    ray_cluster: str,
) -> None:
    box = Box()
    of = loader(ray_cluster, exits_at_777, 1000, sink=box)
    assert values(of) == [v for v in range(1000) if v != 777]
    assert of.stats().dead_letters == 1
    assert [(x.failure.offset, x.failure.original) for x in box.letters] == [(777, {"value": 777})]


def exits_at_random(columns: Columns) -> Columns:
    if random.random() < 0.1:
        os._exit(1)
    return columns


def test_workers_that_exit_at_random_come_through_or_end_in_an_error(ray_cluster: str) -> None:
    box = Box()
    try:
        taken = values(loader(ray_cluster, exits_at_random, 200, sink=box))
    except EngineError as e:
        assert "12 workers died on a@" in str(e)
    else:
        letters = [x.failure.offset for x in box.letters]
        assert Counter(taken + letters) == Counter(range(200))


class ExitsWhenLoaded:
    """As a library that crashes when it is imported."""

    def __call__(self, columns: Columns) -> Columns:
        return columns

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_workers_that_die_while_they_start_end_in_an_error(ray_cluster: str) -> None:
    with pytest.raises(EngineError, match=r"5 Ray workers died .* while they loaded the stages"):
        values(loader(ray_cluster, ExitsWhenLoaded(), 100))


def takes_too_much_at_77(columns: Columns) -> Columns:
    """The process may not have more memory than it has, as in a container."""
    if 77 in as_numpy(columns["value"]):
        most = psutil.Process().memory_info().vms + (64 << 20)
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        try:
            np.ones(256 << 20, np.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    return columns


def test_a_record_that_gets_no_memory_is_a_dead_letter_and_kills_no_worker(
    ray_cluster: str,
) -> None:
    box = Box()
    taken = values(loader(ray_cluster, takes_too_much_at_77, 200, sink=box))
    assert taken == [v for v in range(200) if v != 77]
    (letter,) = box.letters
    assert letter.failure.offset == 77
    assert "Memory" in letter.failure.reason

"""A worker of a real Ray that hangs is replaced: no row is lost, and none comes twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integration.local_ray import small_engine
from tests.engine_contract import drained, offsets, plan

from forebay import ConfigError
from forebay.columns import Columns
from forebay.ray import RayEngine
from forebay.stage import Map

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    # Ray warns of defaults of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
]
ROWS = list(range(2000))


class HangsAt:
    """A stage that hangs at a row so many times, whatever process it runs in."""

    def __init__(self, row: int, folder: Path, times: int) -> None:
        self.row, self.folder, self.times = row, folder, times

    def __call__(self, columns: Columns) -> Columns:
        time.sleep(0.002 * len(np.asarray(columns["value"])))
        if self.row in np.asarray(columns["value"]) and self._hangs():
            time.sleep(3600)
        return columns

    def _hangs(self) -> bool:
        runs = len(list(self.folder.iterdir()))
        (self.folder / str(runs)).touch()
        return runs < self.times


@pytest.mark.parametrize("scheduler", ["actor", "trainer"])
def test_a_worker_that_hangs_once_is_replaced_and_every_row_comes_once(
    ray_cluster: str, tmp_path: Path, scheduler: Any
) -> None:
    engine = small_engine(ray_cluster, hung_seconds=2.0, scheduler=scheduler)
    stage = HangsAt(700, tmp_path, times=1)
    feed = engine.start(plan({"a": ROWS}, stages=[Map("s", stage)], workers=(3, 3)))
    taken = drained(feed)
    assert offsets(taken) == ROWS
    assert not [f for s in taken for f in s.failures]
    assert feed.pools()["stages"].replaced == 1


def test_a_row_that_hangs_every_time_becomes_a_dead_letter(
    ray_cluster: str, tmp_path: Path
) -> None:
    engine = small_engine(ray_cluster, hung_seconds=0.7, scheduler="trainer")
    stage = HangsAt(700, tmp_path, times=99)
    feed = engine.start(plan({"a": ROWS}, stages=[Map("s", stage)], workers=(3, 3)))
    taken = drained(feed)
    (letter,) = [f for s in taken for f in s.failures]
    assert (letter.offset, letter.stage, letter.original) == (700, "s", {"value": 700})
    assert letter.reason == "killed its process or hung, 2 times in this stage"
    assert offsets(taken) == [o for o in ROWS if o != 700]


def test_patience_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="hung_seconds must be positive"):
        RayEngine(hung_seconds=0)

"""Ranks tell each other where their time goes, and what they wait for each other."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.ranks_job import RANKS
from tests.snapshots import BEGAN, busy, idle
from torch.nn.parallel import DistributedDataParallel

from forebay import Pipeline
from forebay.observe.ddp import _Hook, _HostWaits, measure_communication
from forebay.observe.monitor import Monitor
from forebay.observe.ranks import StoreRanks, of_job, own_store
from forebay.stepclock import HostClock, StepTimes
from forebay.testing import FakeDevice, FakeMark, FakeTimeline, MemorySource, TurnableClock

_dist: Any = dist
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(300)  # three processes import what DDP needs, 20 s of CPU time


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Mapping[str, Any]]:
    """What each rank of a job of three processes saw; nothing of rank 2, which ends first."""
    folder = tmp_path_factory.mktemp("job")
    store = _dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks_job", str(store.port), str(r), folder / str(r)],
            cwd=ROOT,
        )
        for r in range(RANKS)
    ]
    try:
        assert [p.wait(timeout=280) for p in ranks] == [0] * RANKS
    finally:
        for p in ranks:
            p.kill()
    return {int(f.name): json.loads(f.read_text()) for f in folder.iterdir()}


def test_each_rank_sees_which_one_starves(job: Mapping[int, Mapping[str, Any]]) -> None:
    for rank in (0, 1):
        starved = dict(job[rank]["ranks"])
        assert max(starved, key=starved.__getitem__) == 1
        assert len(starved) == RANKS


def test_a_rank_that_ends_is_absent_and_the_others_go_on(
    job: Mapping[int, Mapping[str, Any]],
) -> None:
    assert job[0]["left"] == job[1]["left"] == [0, 1]


def test_gradients_are_those_of_ddp_without_the_hook(job: Mapping[int, Mapping[str, Any]]) -> None:
    assert job[0]["equal"]
    assert job[1]["equal"]


def test_what_a_rank_waits_for_a_late_one_is_communication(
    job: Mapping[int, Mapping[str, Any]],
) -> None:
    assert job[0]["communicated"] > job[1]["communicated"] > 0


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=_dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Bucket:
    """Of gradients, as DDP gives them to a hook."""

    def __init__(self, last: bool) -> None:
        self._last = last

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return torch.ones(4)


def test_communication_that_backward_hides_does_not_count(one_rank: None) -> None:
    told, each_look_a_second_later = HostClock(), count().__next__
    hook = _Hook(dist.group.WORLD, _HostWaits(told, each_look_a_second_later))
    for last in (False, False, True):
        hook.reduce(Bucket(last)).wait()
    assert told._communicated == 1.0


def test_a_group_may_end_as_soon_as_its_last_bucket_is_reduced() -> None:
    for _ in range(30):  # one of the backend's threads that is the last to know it would abort us
        dist.init_process_group("gloo", store=_dist.HashStore(), rank=0, world_size=1)
        hook = _Hook(dist.group.WORLD, _HostWaits(HostClock()))
        hook.reduce(Bucket(True)).wait()
        del hook
        dist.destroy_process_group()


class Reducing(FakeTimeline):
    """Of a device that has worked for 5 ms from mark to mark: that is what reducing takes."""

    def mark(self) -> FakeMark | None:
        self.device.launch(0.005)
        return super().mark()


def test_on_a_device_communication_is_its_own_time_and_never_waited_for(one_rank: None) -> None:
    device, clock = FakeDevice(TurnableClock()), HostClock()
    loader = Pipeline(MemorySource({"a": [1]})).batch(1).loader(step_clock=lambda: clock)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    measure_communication(model, loader, timeline=Reducing(device))
    told = []
    for step in range(4):
        model(torch.ones(2, 4)).sum().backward()
        told.append(clock._communicated)
        if step >= 2:  # until then the device is behind
            device.synchronize()
    assert told == [None, None, None, pytest.approx(3 * 0.005)]


class Ranks:
    """Ranks in one process, on one store, by one clock."""

    def __init__(self, n: int) -> None:
        self.store, self.clock = _dist.HashStore(), TurnableClock()
        self.ranks = [StoreRanks(self.store, r, n, self.clock) for r in range(n)]
        self.seconds = 0.0

    def turn(self, *ranks: int, seconds: float = 1.0) -> list[list[int]]:
        """Time goes on, and these ranks tell and hear: of whom each of them knows."""
        self.clock.turn(seconds)
        self.seconds += seconds
        return [[seen.rank for seen in self.ranks[r].exchange(busy(self.seconds))] for r in ranks]


def test_the_shares_are_those_of_the_last_seconds() -> None:
    ranks = StoreRanks(_dist.HashStore(), 0, 2, TurnableClock())
    for second in range(40):  # it starves from the 20th on
        starved = max(second - 20.0, 0.0)
        steps = StepTimes(
            steps=second, seconds=second, wait=0.0, starved=starved, compute=second - starved
        )
        seen = ranks.exchange(busy(second, steps=steps))
    assert [(r.starved, r.compute, r.communication, r.at) for r in seen] == [
        (1.0, 0.0, None, BEGAN + 39)
    ]


def test_a_rank_that_has_not_told_yet_is_absent_and_nobody_waits_for_it() -> None:
    ranks = Ranks(3)
    assert ranks.turn(0, 1) == [[], []]  # shares are differences
    assert ranks.turn(0, 1) == [[0], [0, 1]]
    assert ranks.turn(0, 1) == [[0, 1], [0, 1]]


def test_a_rank_whose_shares_are_unknown_tells_nothing() -> None:
    ranks = Ranks(2)
    ranks.turn(0)
    for i in range(3):
        assert ranks.ranks[1].exchange(idle(i)) == ()
    assert ranks.turn(0) == [[0]]


def test_a_rank_that_falls_silent_is_absent_until_it_tells_again() -> None:
    ranks = Ranks(2)
    for _ in range(3):
        ranks.turn(0, 1)
    for _ in range(9):
        assert ranks.turn(0) == [[0, 1]]
    assert ranks.turn(0, seconds=2.0) == [[0]]
    assert ranks.turn(1, 0)[1] == [0, 1]


def test_a_rank_that_ends_says_so() -> None:
    ranks = Ranks(2)
    for _ in range(3):
        ranks.turn(0, 1)
    ranks.ranks[1].exchange(busy(ranks.seconds, ended="done"))
    assert ranks.turn(0) == [[0]]


def test_many_ranks_ask_less_often() -> None:
    ranks = Ranks(320)
    for _ in range(2):
        ranks.turn(0, 1, seconds=10.0)
    assert ranks.turn(0, 1, seconds=9.0) == [[0], [0, 1]]
    assert ranks.turn(0, 1, seconds=1.0) == [[0, 1], [0, 1]]


def test_without_a_process_group_nobody_tells() -> None:
    ranks = of_job()
    assert ranks is not None
    assert ranks.exchange(busy()) == ()


def test_the_store_of_a_job_is_asked_over_a_connection_of_our_own(tmp_path: Path) -> None:
    tcp = _dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for store in (tcp, _dist.FileStore(str(tmp_path / "store"), 1), _dist.HashStore()):
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            own = own_store()
        finally:
            dist.destroy_process_group()
        waits = threading.Thread(target=store.wait, args=(["forebay/0/0"],), daemon=True)
        waits.start()
        own.set("0", b"told")  # would wait with it on the same connection
        waits.join()
        assert store.get("forebay/0/0") == b"told"


def test_a_store_that_is_gone_ends_the_telling_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = _dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = _dist.TCPStore("127.0.0.1", store.port, wait_for_workers=False)
    loader = Pipeline(MemorySource({"a": list(range(9))})).batch(1).loader()
    ranks = StoreRanks(ours, 0, 2)
    with Monitor(loader, interval=0.05, ranks=ranks, gpus=False) as monitor, loader:
        del store
        while "do not hear of each other any more" not in caplog.text:
            time.sleep(0.01)
        assert len(list(loader)) == 9
    assert monitor.history()[-1].batches == 9
    assert ranks.exchange(busy(ended="done")) == ()  # to end after the store is no trouble


def test_what_was_told_by_a_job_that_is_over_is_not_heard(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_store().set("1", b"old")
    assert own_store().check(["1"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not own_store().check(["1"])

"""What NVML tells of the GPUs, and what it does not; through the real pynvml."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec
import pynvml
import pytest
from tests.fake_nvml import FakeGpus

from forebay.nvml import GpuSeen, GpuWatch, library, visible

TWO = ["GPU-fake-0", "GPU-fake-1"]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    return FakeGpus(tmp_path, monkeypatch)


@contextmanager
def watching() -> Iterator[GpuWatch]:
    watch = GpuWatch(seconds=0.01)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
        watch.join()


def first(
    watch: GpuWatch, right: Callable[[Mapping[str, GpuSeen]], object] = bool
) -> Mapping[str, GpuSeen]:
    """The first look that is as wanted; the test's timeout is its limit."""
    while not right(seen := watch.seen()):
        time.sleep(0.002)
    return seen


def trouble_of(watch: GpuWatch) -> str:
    """What it says once it has tried."""
    while not watch.trouble:
        time.sleep(0.002)
    return watch.trouble


def test_use_memory_and_power_are_told_in_shares_bytes_and_watts(gpus: FakeGpus) -> None:
    gpus.say(**{"0.util": 37, "0.used": 5e9, "0.milliwatts": 250_000})
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.uuid, seen.busy, seen.watts) == ("GPU-fake-0", 0.37, 250.0)
    assert (seen.memory_used, seen.memory_total) == (5_000_000_000, 80_000_000_000)


def test_it_goes_on_asking(gpus: FakeGpus) -> None:
    gpus.say(**{"0.util": 37})
    with watching() as watch:
        first(watch, lambda seen: seen and seen["GPU-fake-0"].busy == 0.37)
        gpus.say(**{"0.util": 90})
        first(watch, lambda seen: seen and seen["GPU-fake-0"].busy == 0.9)


@pytest.mark.parametrize("named", ["1,0", "GPU-fake-1,GPU-fake-0", "GPU-fake-1, 0"])
def test_devices_come_in_the_order_that_cuda_shows_them(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    gpus.say(count=2, **{"0.util": 10, "1.util": 20})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with watching() as watch:
        assert [(g.uuid[-1], g.busy) for g in first(watch).values()] == [("1", 0.2), ("0", 0.1)]


def test_a_device_that_is_hidden_from_the_process_is_not_told(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.say(count=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with watching() as watch:
        assert list(first(watch)) == ["GPU-fake-1"]


def test_names_are_read_as_cuda_reads_them() -> None:
    assert visible(TWO, None) == TWO
    assert visible(TWO, "") == visible(TWO, "-1") == visible(TWO, "NoDevFiles") == []
    assert visible(TWO, "1,7,0") == ["GPU-fake-1"]
    assert visible(TWO, "1,1") == []
    assert visible(TWO, "GPU-fake") == []
    assert visible(["GPU-ab12", "GPU-cd34"], "GPU-cd") == ["GPU-cd34"]
    assert visible(TWO, "MIG-5c89") == ["MIG-5c89"]


def test_what_a_device_does_not_support_is_none_and_the_rest_is_told(gpus: FakeGpus) -> None:
    gpus.say(**{"0.err.util": pynvml.NVML_ERROR_NOT_SUPPORTED, "0.milliwatts": 90_000})
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.busy, seen.watts, seen.trouble) == (None, 90.0, "")


def test_a_device_that_is_lost_is_unknown_and_the_other_is_told(gpus: FakeGpus) -> None:
    asked = ("util", "memory", "power", "limit", "celsius", "reasons", "processes", "gpm")
    lost = {f"0.err.{what}": pynvml.NVML_ERROR_GPU_IS_LOST for what in asked}
    gpus.say(count=2, **{**lost, "1.util": 50})
    with watching() as watch:
        seen = first(watch)
    assert seen["GPU-fake-0"] == GpuSeen(uuid="GPU-fake-0", trouble="GPU is lost")
    assert seen["GPU-fake-1"].busy == 0.5


def test_a_device_whose_handle_is_lost_keeps_its_number(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.say(count=2, **{"0.err.handle": pynvml.NVML_ERROR_GPU_IS_LOST, "1.util": 50})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with watching() as watch:
        assert first(watch)["GPU-fake-1"].busy == 0.5


def test_a_device_that_comes_back_is_told_again(gpus: FakeGpus) -> None:
    gpus.say(**{"0.err.util": pynvml.NVML_ERROR_GPU_IS_LOST, "0.util": 50})
    with watching() as watch:
        first(watch, lambda seen: seen and seen["GPU-fake-0"].trouble == "GPU is lost")
        gpus.say(**{"0.util": 50})
        first(watch, lambda seen: seen["GPU-fake-0"].busy == 0.5)


def test_limits_and_heat_are_told_and_what_keeps_the_clocks_down(gpus: FakeGpus) -> None:
    idle, power_cap, hot = 0x1, 0x4, 0x20
    gpus.say(**{"0.limit": 350_000, "0.celsius": 83, "0.reasons": idle | power_cap | hot})
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.watts_limit, seen.celsius) == (350.0, 83.0)
    assert seen.throttled == ("power cap", "thermal")


def test_an_idle_device_is_not_throttled(gpus: FakeGpus) -> None:
    gpus.say(**{"0.reasons": 0x1})
    with watching() as watch:
        (seen,) = first(watch).values()
    assert seen.throttled == ()


def test_the_share_of_multiprocessors_that_work_is_told_where_it_is_counted(gpus: FakeGpus) -> None:
    gpus.say(count=2, **{"0.sm": 12.5, "0.util": 100})
    with watching() as watch:
        seen = first(watch, lambda seen: seen and seen["GPU-fake-0"].sm_active is not None)
    assert (seen["GPU-fake-0"].busy, seen["GPU-fake-0"].sm_active) == (1.0, 0.125)
    assert (seen["GPU-fake-1"].sm_active, seen["GPU-fake-1"].trouble) == (None, "")


def test_a_share_that_was_not_counted_is_none(gpus: FakeGpus) -> None:
    gpus.say(**{"0.sm": 12.5, "0.sm.code": pynvml.NVML_ERROR_NO_DATA})
    with watching() as watch:
        looks = [first(watch)]
        while len(looks) < 3:
            looks.append(first(watch, lambda seen: seen is not looks[-1]))
    assert [seen["GPU-fake-0"].sm_active for seen in looks] == [None, None, None]


def test_of_a_part_of_a_gpu_no_use_and_power_are_told_that_others_cause(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"0.util": 97, "0.used": 70e9, "0.milliwatts": 600_000, "0.mig": 2, "0.sm": 90}
    gpus.say(**{**whole, "0.1.util": 0, "0.1.used": 3e9, "0.1.total": 10e9, "0.1.sm": 40})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-fake-0-1")
    with watching() as watch:
        seen = first(watch, lambda s: s and s["MIG-fake-0-1"].sm_active)["MIG-fake-0-1"]
    assert (seen.mig, seen.busy, seen.watts, seen.watts_limit) == (True, None, None, None)
    assert (seen.memory_used, seen.memory_total) == (3_000_000_000, 10_000_000_000)
    assert (seen.sm_active, seen.trouble) == (0.4, "")


@pytest.mark.parametrize("shown", [None, "0"])
def test_a_gpu_that_is_divided_is_its_first_part(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, shown: str | None
) -> None:
    gpus.say(**{"0.mig": 2, "0.used": 70e9, "0.0.used": 3e9})
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.uuid, seen.memory_used) == ("MIG-fake-0-0", 3_000_000_000)


@pytest.mark.parametrize("nothing", [2**64 - 1, 81e9])
def test_a_number_that_stands_for_nothing_or_cannot_be_is_none(
    gpus: FakeGpus, nothing: float
) -> None:
    gpus.say(**{"0.used": nothing, "0.milliwatts": 2**32 - 1, "0.limit": 2**32 - 1, "0.util": 101})
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.memory_used, seen.watts, seen.watts_limit, seen.busy) == (None, None, None, None)
    assert seen.memory_total == 80_000_000_000


def test_memory_that_is_not_told_is_none(gpus: FakeGpus) -> None:
    gpus.say(**{"0.used": 2**64 - 1, "0.total": 2**64 - 1})
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.memory_used, seen.memory_total) == (None, None)


def processes(*found: tuple[float, float]) -> dict[str, float]:
    said = {"0.processes": float(len(found))}
    for i, (pid, used) in enumerate(found):
        said |= {f"0.process{i}.pid": pid, f"0.process{i}.used": used}
    return said


def test_this_process_is_found_among_those_of_the_device(gpus: FakeGpus) -> None:
    gpus.say(**processes((1, 9e9), (os.getpid(), 5e9), (os.getpid() + 1, 7e9)))
    with watching() as watch:
        (seen,) = first(watch).values()
    assert seen.memory_mine == 5_000_000_000


@pytest.mark.parametrize(
    "scrambled",
    [
        [],
        [(0, 5e9)],
        [(2**32 - 1, 5e9)],
        [(5_000_000, os.getpid())],
        [(os.getpid(), 2**64 - 1)],
        [(os.getpid(), 2**63)],
        [(os.getpid(), 5e9), (os.getpid(), 6e9)],
    ],
)
def test_a_list_of_processes_that_cannot_be_says_nothing_of_this_one(
    gpus: FakeGpus, scrambled: list[tuple[float, float]]
) -> None:
    gpus.say(**processes(*scrambled))
    with watching() as watch:
        (seen,) = first(watch).values()
    assert (seen.memory_mine, seen.trouble) == (None, "")


def test_a_driver_that_is_older_than_the_binding_tells_what_it_can_and_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = FakeGpus(tmp_path, monkeypatch, old=True)
    gpus.say(driver=450, **{"0.util": 37, "0.sm": 50})
    with caplog.at_level(logging.INFO, "forebay"), watching() as watch:
        (seen,) = first(watch).values()
        gpus.say(driver=450, **{"0.util": 38})
        first(watch, lambda seen: seen["GPU-fake-0"].busy == 0.38)
    assert (seen.busy, seen.memory_used, seen.watts) == (0.37, 1_000_000_000, 70.0)
    assert (seen.memory_mine, seen.throttled, seen.sm_active) == (None, None, None)
    said = [r.message for r in caplog.records if "nvmlDeviceGetComputeRunning" in r.message]
    assert len(said) == 1
    assert f"driver 450.01, nvidia-ml-py {version('nvidia-ml-py')}" in said[0]


def test_what_was_seen_passes_through_json() -> None:
    seen = GpuSeen(uuid="GPU-fake-0", busy=0.5, throttled=("thermal",), mig=False)
    assert msgspec.convert(msgspec.to_builtins(seen), GpuSeen) == seen


def test_a_driver_that_is_not_loaded_is_said_and_stops_nothing(gpus: FakeGpus) -> None:
    gpus.say(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with watching() as watch:
        assert "NVML says: Driver Not Loaded" in trouble_of(watch)
        assert watch.seen() == {}


def test_without_the_drivers_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    with watching() as watch:
        assert "NVML Shared Library Not Found" in trouble_of(watch)


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_without_pynvml_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "pynvml", None)
    with watching() as watch:
        assert "pip install 'forebay[gpu]'" in trouble_of(watch)

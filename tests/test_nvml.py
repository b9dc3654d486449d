"""What NVML tells of the GPUs, and what it does not; through the real pynvml."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest
from tests.fake_nvml import FakeGpus

from forebay import nvml
from forebay.nvml import GpuSeen, GpuWatch, visible

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
    assert (seen.busy, seen.watts, seen.trouble) == (None, 90.0, "Not Supported")


def test_a_device_that_is_lost_is_unknown_and_the_other_is_told(gpus: FakeGpus) -> None:
    lost = {f"0.err.{what}": pynvml.NVML_ERROR_GPU_IS_LOST for what in ("util", "memory", "power")}
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
    monkeypatch.setattr(nvml, "pynvml", None)
    with watching() as watch:
        assert "pip install 'forebay[gpu]'" in trouble_of(watch)

"""What is said of a user's loader follows from what was measured of it, and from no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forebay.diagnose.foreign.child import Description, Failure
from forebay.diagnose.foreign.judging import judge
from forebay.diagnose.foreign.seen import Seen
from forebay.diagnose.foreign.setting import Setting
from forebay.diagnose.foreign.window import MemoryPoint, Window
from forebay.diagnose.foreign.words import rate, span

PRESENT = Setting(num_workers=4)
MIB = 1 << 20


def window(rate: float, setting: Setting = PRESENT, **more: Any) -> Window:
    """A second in which batches came at this rate."""
    values = {"batches": 100, "seconds": 100 / rate, "cpu_seconds": 0.1, "rows": 8, "bytes": 4096}
    return Window(setting=setting, first_seconds=0.1, **{**values, **more})


def described(**more: Any) -> Description:
    values: dict[str, Any] = {
        "kind": "DataLoader",
        "dataset": "Images",
        "iterable": False,
        "length": 1000,
        "batch_size": 8,
        "setting": PRESENT,
        "has_step": True,
        "has_order": True,
        "rebuilds": "",
        "start_methods": ("fork", "forkserver", "spawn"),
        "threads": (),
        "cuda_started": False,
        "cuda": False,
    }
    return Description(**{**values, **more})


def seen(rate: float = 100.0, step: float | None = 0.02, **more: Any) -> Seen:
    """A loader that gives so many batches a second to a step that takes so long."""
    base = window(rate)
    stepped: list[Window] = []
    if step is not None:
        each = max(step, 1 / rate)
        stepped = [window(1 / each, wait_seconds=(each - step) * 100)] * 3
    values = {"cpus": 8.0, "description": described(), "base": base, "stepped": stepped}
    return Seen(spec="x:y", ceiling=step, **{**values, **more})


def turns(rates: Sequence[float], **changes: Any) -> dict[Setting, list[Window]]:
    """The present setting at 100 a second, and another one."""
    other = PRESENT.with_(**changes)
    return {PRESENT: [window(100.0)] * len(rates), other: [window(r, other) for r in rates]}


FASTER = (200.0, 205.0, 195.0)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"num_workers": 8}, "workers"),
        ({"num_workers": 0}, "handover"),
        ({"persistent_workers": True}, "restart"),
        ({"prefetch_factor": 8}, "prefetch"),
        ({"in_order": False}, "order"),
        ({"multiprocessing_context": "forkserver"}, "start_method"),
    ],
)
def test_the_limit_is_what_makes_it_faster_when_it_is_changed(
    changes: dict[str, Any], cause: str
) -> None:
    found = judge(seen(step=0.001, turns=turns(FASTER, **changes)))
    assert (found.cause, found.arguments) == (cause, changes)
    assert "2 (" in found.sentence and "waits for data 90 %" in found.sentence
    assert found.advice and found.forebay and not found.healthy


def test_a_difference_that_the_measurements_do_not_show_is_none() -> None:
    found = judge(seen(step=None, turns=turns((80.0, 240.0, 120.0), num_workers=8)))
    assert found.cause == "no_better" and found.arguments == {}


def test_a_step_that_does_not_wait_gets_no_advice_however_much_faster_the_loader_could_be() -> None:
    found = judge(seen(rate=100, step=0.02, turns=turns(FASTER, num_workers=8)))
    assert found.cause == "healthy" and found.arguments == {}


def test_a_gpu_that_is_busy_while_the_host_waits_does_not_starve() -> None:
    # The host waits 82 % of the time, but steps come as fast as with their batch at hand.
    waits = [window(50.0, wait_seconds=1.64)] * 3
    found = judge(seen(rate=50.0, step=0.02, stepped=waits))
    assert found.cause == "healthy" and found.starved == 0


def test_a_step_that_is_slower_for_want_of_cpus_does_not_wait_for_data() -> None:
    slow = [window(25.0, wait_seconds=0.04)] * 3  # twice as long, with its batch there
    found = judge(seen(rate=100.0, step=0.02, stepped=slow))
    assert found.cause == "healthy" and found.starved == pytest.approx(0.01)


def test_the_setting_with_the_fewest_changes_is_advised_of_those_that_are_as_fast() -> None:
    both = PRESENT.with_(num_workers=8, in_order=False)
    measured = turns(FASTER, num_workers=8) | {both: [window(r, both) for r in FASTER]}
    found = judge(seen(step=0.001, turns=measured))
    assert found.arguments == {"num_workers": 8}


def test_what_feeds_the_step_is_enough_though_more_would_be_faster() -> None:
    both = PRESENT.with_(num_workers=16, in_order=False)
    measured = turns((400.0, 410.0, 390.0), in_order=False)
    measured |= {both: [window(r, both) for r in (900.0, 910.0, 890.0)]}
    assert judge(seen(step=0.004, turns=measured)).arguments == {"in_order": False}
    assert judge(seen(step=0.001, turns=measured)).arguments == both.changes(PRESENT)


def test_large_batches_and_tiny_ones_are_handed_over_at_a_loss_for_different_reasons() -> None:
    without = turns(FASTER, num_workers=0)
    tiny = judge(seen(step=0.001, turns=without))
    large = judge(seen(step=0.001, turns=without, base=window(100.0, bytes=64 * MIB)))
    assert "less work than handing it over" in tiny.sentence and "larger" in tiny.advice
    assert "copied between processes" in large.sentence and "uint8" in large.advice


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"base": window(100.0, cpu_seconds=7.8)}, "cpu"),
        ({"base": window(100.0, cpu_seconds=0.5)}, "dataset"),
    ],
)
def test_where_no_setting_helps_the_cpus_tell_what_the_limit_is(
    more: dict[str, Any], cause: str
) -> None:
    found = judge(seen(step=0.001, **more))
    assert found.cause == cause and found.arguments == {}


@pytest.mark.parametrize(("usual", "cause"), [(0.009, "fetching"), (0.0001, "irregular")])
def test_a_loader_that_is_fast_enough_on_average_is_told_by_its_waits(
    usual: float, cause: str
) -> None:
    stepped = [window(33.0, wait_seconds=1.0, usual_wait=usual, longest_wait=0.9)] * 3
    found = judge(seen(rate=100.0, step=0.02, stepped=stepped))
    assert found.cause == cause and "33 % of the time" in found.sentence


def test_pools_of_threads_in_each_worker_are_found_by_doing_without() -> None:
    single = [window(r) for r in FASTER]
    found = judge(seen(step=0.001, turns={PRESENT: [window(100.0)] * 3}, one_thread=single))
    assert found.cause == "threads" and "OMP_NUM_THREADS=1" in found.advice


def test_pinning_is_advised_where_steps_are_faster_with_it() -> None:
    pairs = [(window(100.0), window(r)) for r in FASTER]
    found = judge(seen(step=0.001, pinned=pairs))
    assert found.cause == "pinning" and found.arguments == {"pin_memory": True}


def growing(private: Callable[[int], int], rss: Callable[[int], int]) -> Window:
    points = [MemoryPoint(batches=n, private=private(n), rss=rss(n)) for n in range(60)]
    return window(100.0, memory=tuple(points))


def test_memory_that_grows_is_told_beside_what_limits_the_loader() -> None:
    leak = growing(lambda n: (100 + n) * MIB, lambda n: (300 + n) * MIB)
    found = judge(seen(step=0.001, turns=turns(FASTER, num_workers=8), memory=leak))
    assert found.cause == "workers"
    assert found.sentence.endswith("its memory grows by 1000 MiB per 1,000 batches.")
    assert judge(seen(memory=leak)).cause == "memory"


@pytest.mark.parametrize(
    "private",
    [
        lambda n: 100 * MIB + n * 100,  # hundreds of bytes
        lambda n: (100 + min(n, 25)) * MIB,  # fills up
        lambda n: (100 + n % 10) * MIB,  # is given back with each epoch
    ],
)
def test_memory_that_fills_up_once_does_not_grow(private: Callable[[int], int]) -> None:
    assert judge(seen(memory=growing(private, private))).cause == "healthy"


def test_of_what_was_interrupted_only_what_was_shown_is_told() -> None:
    assert judge(seen(step=0.001, interrupted=True)).cause == "unfinished"
    assert judge(seen(step=None, interrupted=True)).cause == "unfinished"
    shown = judge(seen(step=0.001, turns=turns(FASTER, num_workers=8), interrupted=True))
    assert shown.cause == "workers" and "not everything was tried" in shown.evidence[-1]


def test_a_loader_is_only_said_to_fail_without_workers_if_it_was_tried() -> None:
    error = Failure(kind="error", what="KeyError: 3")
    failed = Seen(spec="x:y", cpus=8, description=described(), base=error, interrupted=True)
    assert judge(failed).advice == ""
    failed.ways_out[PRESENT.with_(num_workers=0)] = error
    assert "without workers, too" in judge(failed).advice


def test_of_a_factory_that_gave_no_loader_there_is_no_comparison() -> None:
    hang = Failure(kind="hang", what="for 180 s nothing came after starting")
    assert judge(Seen(spec="x:y", cpus=8, base=hang)).forebay == ""


def test_figures_are_plain_numbers_in_the_unit_that_fits() -> None:
    assert [rate(11432.0), rate(6.472)] == ["11,432 batches/s", "6.47 batches/s"]
    assert [span(8.77e-5), span(0.0323), span(2.5)] == ["87.7 µs", "32.3 ms", "2.5 s"]


def test_risks_are_told_as_what_was_not_shown() -> None:
    risky = described(threads=("prefetcher",), cuda_started=True)
    pinned = described(setting=PRESENT.with_(pin_memory=True))
    assert ["prefetcher" in g or "CUDA" in g for g in judge(seen(description=risky)).guesses] == [
        True,
        True,
    ]
    assert "does nothing" in judge(seen(description=pinned)).guesses[0]
    huge = judge(seen(base=window(100.0, bytes=1 << 40)))
    assert any("--shm-size" in g for g in huge.guesses)


def test_a_worker_that_found_no_shared_memory_is_told_as_that() -> None:
    killed = Failure(kind="error", what="RuntimeError: DataLoader worker is killed by: Bus error.")
    found = judge(Seen(spec="x:y", cpus=8, description=described(), base=killed))
    assert found.cause == "died" and "--shm-size" in found.advice


def test_the_way_out_that_keeps_the_workers_is_advised() -> None:
    ways: dict[Setting, Window | Failure] = {
        PRESENT.with_(num_workers=0): window(10.0),
        PRESENT.with_(multiprocessing_context="forkserver"): window(10.0),
    }
    hang = Failure(kind="hang", what="for 30 s nothing came after starting the loader")
    found = judge(Seen(spec="x:y", cpus=8, description=described(), base=hang, ways_out=ways))
    assert found.arguments == {"multiprocessing_context": "forkserver"}

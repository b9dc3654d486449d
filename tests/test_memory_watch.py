"""Memory of a trainer and its workers: counted once, its peak seen, its growth told from noise."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from forebay.diagnose.memory import MemoryWatch, grows, slope
from forebay.observe.memory import PssWatch, family, memory_of, memory_of_all

MIB = 1 << 20
HOLDER = "import sys; held = b'x' * ({mib} << 20); print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def holder() -> Iterator[Callable[[int], int]]:
    """`holder(mib) -> pid`: a child process that holds so much memory."""
    held: list[subprocess.Popen[bytes]] = []

    def start(mib: int) -> int:
        code = HOLDER.format(mib=mib)
        held.append(
            subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        assert held[-1].stdout is not None
        assert held[-1].stdout.readline() == b"ready\n"
        return held[-1].pid

    yield start
    for process in held:
        process.communicate()


def test_children_are_counted_with_the_process_that_started_them(
    holder: Callable[[int], int],
) -> None:
    before = memory_of_all(family(os.getpid()))
    pid = holder(64)
    after = memory_of_all(family(os.getpid()))
    assert before is not None and after is not None
    assert pid in family(os.getpid())
    assert 60 * MIB < after.pss - before.pss < 140 * MIB


def test_memory_that_a_fork_shares_is_counted_once() -> None:
    held = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(b"x" * len(held))
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        child, both = memory_of(pid), memory_of_all(family(os.getpid()))
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert child is not None and both is not None
    assert child.rss - child.pss > 30 * MIB  # half of it belongs to the parent
    assert both.rss - both.pss > 60 * MIB


def test_memory_is_told_apart_by_kind(tmp_path: Path) -> None:
    before = memory_of(os.getpid())
    shared = mmap.mmap(-1, 32 * MIB)
    shared.write(b"x" * len(shared))
    file = tmp_path / "data"
    file.write_bytes(b"x" * (16 * MIB))
    with file.open("rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        mapped.read()
        after = memory_of(os.getpid())
    assert before is not None and after is not None
    assert after.shared - before.shared == pytest.approx(32 * MIB, abs=MIB)
    assert after.file - before.file == pytest.approx(16 * MIB, abs=MIB)


def test_a_process_that_is_gone_is_left_out() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert memory_of(gone.pid) is None
    assert memory_of_all([gone.pid]) is None
    assert memory_of_all([gone.pid, os.getpid()]) is not None


def test_a_reading_that_takes_long_is_made_less_often() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.5  # so long takes a reading
        return now

    watch = PssWatch(every=10.0, clock=clock)
    first = watch.look()
    held = b"x" * (64 * MIB)
    now = 45.0
    assert watch.look() == first
    now = 52.0
    assert first is not None and (watch.look() or 0) > first + len(held) // 2


def test_the_peak_is_seen_and_of_what_kind_it_was() -> None:
    with MemoryWatch(every=0.01) as watch:
        held = mmap.mmap(-1, 64 * MIB)
        held.write(b"x" * len(held))
        seen = len(watch.samples())
        while len(watch.samples()) < seen + 2:
            time.sleep(0.01)
        held.close()
    peak, last = watch.peak(), watch.samples()[-1].memory
    assert peak is not None
    assert peak.shared - last.shared > 60 * MIB
    assert peak.pss - last.pss > 60 * MIB


def test_what_an_allocator_takes_is_no_growth_and_a_leak_is() -> None:
    kept: list[bytes] = []
    for kib, leaks in ((100, False), (6000, True)):
        with MemoryWatch(every=0.01) as watch:
            while len(watch.samples()) < 24:
                kept.append(b"x" * (kib << 10))
                seen = len(watch.samples())
                while len(watch.samples()) == seen:
                    time.sleep(0.002)
        assert watch.grows() == leaks


def test_growth_is_told_from_noise_and_from_a_single_jump() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 5, 60)
    minutes = np.arange(60) / 6
    grown = slope(list(zip(minutes, 100 + 12 * minutes + noise, strict=True)))
    assert grown is not None and grown.low < 12 < grown.high < 14
    assert grows(list(zip(minutes, 100 + 12 * minutes + noise, strict=True)))
    assert not grows(list(zip(minutes, 100 + noise, strict=True)))
    assert not grows(list(zip(minutes, np.where(minutes < 5, 100, 400) + noise, strict=True)))


def test_memory_that_is_given_back_again_and_again_does_not_grow() -> None:
    assert not grows([(x, 100.0 + x % 10) for x in range(40)])
    assert not grows([(x, 100.0 + x % 20) for x in range(40)])


def test_one_peak_does_not_look_like_growth() -> None:
    points = [(x, 1000.0 if x == 17 else 10.0) for x in range(20)]
    flat = slope(points)
    assert flat is not None and flat.value == flat.low == flat.high == 0


def test_of_a_few_looks_no_growth_is_told() -> None:
    assert slope([(0, 1), (1, 2), (2, 3)]) is None
    assert not grows([(0, 1), (1, 2), (2, 3)])

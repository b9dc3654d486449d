"""What a trainer's device starves, by its own time: not what the trainer waits."""

from __future__ import annotations

import pickle

import pytest

from forebay import Pipeline
from forebay.cudaclock import cuda_clock
from forebay.stepclock import DeviceClock
from forebay.testing import FakeDevice, MemorySource, TurnableClock


class Trainer:
    """Waits for input, launches a step, and does not wait for it unless told to."""

    def __init__(self) -> None:
        self.time = TurnableClock()
        self.device = FakeDevice(self.time)
        self.clock = DeviceClock(self.device.timeline, self.time)

    def step(
        self,
        waits: float,
        works: float,
        launches: float = 0.0,
        copies: float = 0.0,
        syncs: bool = False,
    ) -> None:
        self.clock.wait_begins()
        self.time.turn(waits)
        self.device.copy(copies)
        self.clock.wait_ends()
        self.time.turn(launches)
        self.device.launch(works)
        if syncs:
            self.device.synchronize()

    def finish(self) -> None:
        """Until the device has done all that it was given."""
        self.device.synchronize()

    @property
    def starved(self) -> float | None:
        """As a share of all time."""
        found = self.clock.starved_seconds()
        return None if found is None else found / self.time()

    @property
    def waited(self) -> float:
        return self.clock.waited_seconds() / self.time()


def test_a_trainer_that_launches_ahead_waits_most_of_the_time_and_starves_hardly() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.0164, works=0.020, launches=0.0036)
    trainer.finish()
    assert trainer.waited == pytest.approx(0.82, abs=0.01)
    assert trainer.device.busy_seconds / trainer.time() > 0.98
    assert trainer.starved == pytest.approx(0.0, abs=0.005)


def test_a_device_that_is_faster_than_its_input_starves_for_the_difference() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.030, works=0.020)
    trainer.finish()
    assert trainer.waited > 0.99
    assert trainer.starved == pytest.approx(1 / 3, abs=0.01)


def test_a_step_that_waits_for_its_device_starves_as_long_as_it_waits() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.010, works=0.030, syncs=True)
    assert trainer.waited == pytest.approx(0.25, abs=0.01)
    assert trainer.starved == pytest.approx(0.25, abs=0.01)


def test_what_a_slow_host_costs_is_no_starving() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.0001, works=0.010, launches=0.015)
    assert 1 - trainer.device.busy_seconds / trainer.time() == pytest.approx(1 / 3, abs=0.01)
    assert trainer.starved == pytest.approx(0.0, abs=0.01)


def test_a_copy_to_the_device_starves_it_no_longer_than_the_trainer_waited() -> None:
    trainer = Trainer()
    for _ in range(50):
        trainer.step(waits=0.0001, works=0.010, copies=0.005)
    trainer.finish()
    assert trainer.clock.starved_seconds() == pytest.approx(50 * 0.0001)


def test_a_wait_that_goes_on_counts_from_when_the_device_was_seen_idle() -> None:
    trainer = Trainer()
    trainer.device.launch(1.0)
    trainer.clock.wait_begins()
    trainer.time.turn(0.5)
    assert trainer.clock.starved_seconds() == 0.0
    trainer.time.turn(0.7)
    assert trainer.clock.starved_seconds() == 0.0
    trainer.time.turn(4.0)
    assert trainer.clock.starved_seconds() == pytest.approx(4.0)
    trainer.clock.wait_ends()
    assert trainer.clock.starved_seconds() == pytest.approx(4.2)


def test_a_device_far_behind_is_busy_and_its_marks_do_not_pile_up() -> None:
    trainer = Trainer()
    for _ in range(1000):
        trainer.step(waits=0.001, works=1.0)
    assert len(trainer.clock._counts.pending) == 64
    trainer.finish()
    assert trainer.starved == pytest.approx(0.0, abs=1e-5)


def test_a_device_that_catches_up_in_a_long_wait_starves_for_the_rest_of_it() -> None:
    trainer = Trainer()
    for _ in range(100):
        trainer.step(waits=0.0, works=1.0)
    trainer.step(waits=150.0, works=0.0)
    assert trainer.clock.starved_seconds() == pytest.approx(50.0)


@pytest.mark.parametrize("missing", [4, 5])
def test_a_wait_without_its_marks_makes_the_sum_unknown_and_not_zero(missing: int) -> None:
    trainer = Trainer()
    trainer.device.timeline.fails_at = missing
    trainer.step(waits=0.010, works=0.001)
    assert trainer.clock.starved_seconds() is not None
    for _ in range(5):
        trainer.step(waits=0.010, works=0.001)
    assert trainer.clock.starved_seconds() is None
    assert trainer.waited > 0


def test_without_a_cuda_device_its_clock_knows_the_waits_and_nothing_of_starving() -> None:
    clock = cuda_clock()
    clock.wait_begins()
    clock.wait_ends()
    assert clock.waited_seconds() > 0
    assert clock.starved_seconds() is None


def test_a_loader_for_a_cuda_device_measures_on_it_and_another_on_the_host() -> None:
    of = Pipeline(MemorySource({"a": [1, 2, 3]})).batch(1)
    assert isinstance(of.loader(device="cuda:1")._counts.clock, DeviceClock)
    assert not isinstance(of.loader(device="cpu")._counts.clock, DeviceClock)
    assert not isinstance(of.loader()._counts.clock, DeviceClock)


def test_a_loader_for_a_cuda_device_can_be_sent_to_another_process() -> None:
    loader = Pipeline(MemorySource({"a": [1, 2, 3]})).batch(1).loader(device="cuda")
    assert pickle.loads(pickle.dumps(loader))._counts.clock.starved_seconds() == 0.0

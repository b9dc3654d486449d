"""What a trainer's time goes to, by its device's own time: not by what the trainer waits."""

from __future__ import annotations

import pickle
import threading
import time

import pytest

from forebay import Pipeline
from forebay.cudaclock import cuda_clock
from forebay.observe.monitor import Monitor
from forebay.stepclock import DeviceClock, HostClock, StepTimes
from forebay.testing import FakeDevice, MemorySource, TurnableClock


class Trainer:
    """Waits for input, copies it, launches a step, and does not wait for it unless told to."""

    def __init__(self, on: type[DeviceClock] | type[HostClock] = DeviceClock) -> None:
        self.time = TurnableClock()
        self.device = FakeDevice(self.time)
        self.clock: DeviceClock | HostClock = HostClock(self.time)
        if on is DeviceClock:
            self.clock = DeviceClock(self.device.timeline, self.time)

    def step(
        self,
        waits: float,
        works: float,
        launches: float = 0.0,
        copies: float | None = None,
        pauses: float | None = None,
        syncs: bool = False,
    ) -> None:
        self.clock.wait_begins()
        self.time.turn(waits)
        self.clock.wait_ends()
        if copies is not None:
            self.clock.copy_begins()
            self.device.copy(copies)
            self.clock.copy_ends()
        self.time.turn(launches)
        self.device.launch(works)
        if syncs:
            self.device.synchronize()
        if pauses is not None:
            self.clock.pause_begins("checkpoint")
            self.device.synchronize()
            self.time.turn(pauses)
            self.clock.pause_ends()

    def finish(self) -> StepTimes:
        """Until the device has done all that it was given."""
        self.device.synchronize()
        self.clock.wait_begins()
        return self.clock.times()

    @property
    def starved(self) -> float | None:
        """As a share of all time."""
        found = self.clock.starved_seconds()
        return None if found is None else found / self.time()

    @property
    def waited(self) -> float:
        return self.clock.waited_seconds() / self.time()


def shares(times: StepTimes) -> list[float | None]:
    parts = (times.starved, times.copy, times.compute, times.communication, times.other)
    return [None if part is None else round(part / times.seconds, 2) for part in parts]


def test_a_trainer_that_launches_ahead_waits_most_of_the_time_and_starves_hardly() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.0164, works=0.020, launches=0.0036)
    times = trainer.finish()
    assert times.wait / times.seconds == pytest.approx(0.82, abs=0.01)
    assert trainer.device.busy_seconds / trainer.time() > 0.98
    assert shares(times) == [0.0, 0.0, 1.0, None, 0.0]


def test_a_device_that_is_faster_than_its_input_starves_for_the_difference() -> None:
    trainer = Trainer()
    for _ in range(1000):
        trainer.step(waits=0.030, works=0.020)
    times = trainer.finish()
    assert times.wait / times.seconds > 0.98
    assert shares(times) == [0.33, 0.0, 0.67, None, 0.0]


def test_a_step_that_waits_for_its_device_starves_as_long_as_it_waits() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.010, works=0.030, syncs=True)
    times = trainer.finish()
    assert times.wait / times.seconds == pytest.approx(0.25, abs=0.01)
    assert shares(times) == [0.25, 0.0, 0.75, None, 0.0]


def test_what_a_slow_host_costs_is_no_starving_and_counts_as_the_step() -> None:
    trainer = Trainer()
    for _ in range(200):
        trainer.step(waits=0.0001, works=0.010, launches=0.015)
    times = trainer.finish()
    assert 1 - trainer.device.busy_seconds / trainer.time() == pytest.approx(1 / 3, abs=0.01)
    assert shares(times) == [0.0, 0.0, 1.0, None, 0.0]


def test_a_device_that_is_looked_at_tells_what_a_slow_host_costs() -> None:
    trainer = Trainer()
    for tick in range(25_000):  # steps of 25 ms; the host launches their work after 15 ms
        if tick % 25 == 0:
            trainer.step(waits=0.0, works=0.0)
        if tick % 25 == 15:
            trainer.device.launch(0.010)
        if tick % 7 == 0:
            trainer.clock.look()
        trainer.time.turn(0.001)
    times = trainer.finish()
    assert shares(times)[2] == pytest.approx(0.4, abs=0.03)
    assert shares(times)[4] == pytest.approx(0.6, abs=0.03)
    assert times.pauses == {}


def test_a_monitor_looks_at_the_device_of_its_loader() -> None:
    device = FakeDevice()
    of = Pipeline(MemorySource({"a": [1, 2, 3]})).batch(1)
    loader = of.loader(passes=None, step_clock=lambda: DeviceClock(device.timeline))
    with loader, Monitor(loader, interval=0.02, gpus=False):
        while not loader.stats().steps.other:
            for _ in loader:
                time.sleep(0.01)  # the host's own work, before it launches the device's
                device.launch(0.001)
    assert loader.stats().steps.pauses == {}


def test_a_device_that_works_ahead_is_not_idle_however_often_it_is_looked_at() -> None:
    trainer = Trainer()
    for _ in range(100):
        trainer.step(waits=0.0, works=0.020, launches=0.010)
        trainer.clock.look()
    assert trainer.finish().other == 0.0


def test_looks_in_a_wait_or_a_pause_say_nothing_of_the_host() -> None:
    trainer = Trainer()
    trainer.step(waits=0.0, works=0.001, pauses=0.0)
    trainer.clock.pause_begins("evaluation")
    trainer.time.turn(1.0)
    trainer.clock.look()
    trainer.clock.pause_ends()
    trainer.clock.wait_begins()
    trainer.time.turn(1.0)
    trainer.clock.look()
    assert sum(trainer.clock.times().pauses.values()) == trainer.clock.times().other


def test_the_copy_is_what_the_device_takes_for_it_wherever_the_host_is_meanwhile() -> None:
    trainer = Trainer()
    for _ in range(100):
        trainer.step(waits=0.001, works=0.010, copies=0.005)
        trainer.step(waits=0.001, works=0.010, copies=0.005, syncs=True)
    assert shares(trainer.finish()) == [0.03, 0.32, 0.65, None, 0.0]


def test_work_that_comes_from_elsewhere_in_a_wait_starves_no_longer_than_the_trainer_waited() -> (
    None
):
    trainer = Trainer()
    for _ in range(50):
        trainer.clock.wait_begins()
        trainer.device.launch(0.005)
        trainer.time.turn(0.001)
        trainer.clock.wait_ends()
        trainer.device.synchronize()
    assert shares(trainer.finish()) == [0.2, 0.0, 0.8, None, 0.0]


def test_a_pause_begins_when_the_device_comes_to_it_and_has_its_name() -> None:
    trainer = Trainer()
    for _ in range(100):
        trainer.step(waits=0.0, works=0.060, pauses=0.040)
    times = trainer.finish()
    assert shares(times) == [0.0, 0.0, 0.6, None, 0.4]
    assert times.pauses == {"checkpoint": pytest.approx(4.0)}


def test_communication_that_was_told_is_no_compute() -> None:
    trainer = Trainer()
    for _ in range(100):
        trainer.step(waits=0.0, works=0.010)
        trainer.clock.add_communication(0.003)
    assert shares(trainer.finish()) == [0.0, 0.0, 0.7, 0.3, 0.0]


@pytest.mark.parametrize("on", [DeviceClock, HostClock])
def test_the_parts_add_up_to_all_of_the_time(on: type[DeviceClock] | type[HostClock]) -> None:
    trainer = Trainer(on)
    for i in range(50):
        pauses = 0.1 if i % 10 == 0 else None
        trainer.step(waits=0.01, works=0.02, copies=0.003, pauses=pauses, syncs=i % 2 == 0)
        trainer.clock.add_communication(0.001)
    times = trainer.finish()
    parts = (times.starved, times.copy, times.compute, times.communication, times.other)
    assert sum(p for p in parts if p is not None) == pytest.approx(times.seconds)
    assert times.seconds == pytest.approx(trainer.time())
    assert times.steps == 50
    assert times.on_device is (on is DeviceClock)


@pytest.mark.parametrize("on", [DeviceClock, HostClock])
def test_no_part_ever_falls_whenever_it_is_asked_for(
    on: type[DeviceClock] | type[HostClock],
) -> None:
    trainer, told = Trainer(on), []
    turn = trainer.time.turn

    def turn_and_ask(seconds: float) -> None:
        for part in (seconds / 2, seconds / 2) if seconds > 1e-6 else (seconds,):
            turn(part)
            told.append(trainer.clock.times())

    trainer.time.turn = turn_and_ask  # type: ignore[method-assign]
    for i in range(30):
        trainer.step(waits=0.03, works=0.02, launches=0.01, copies=0.004, pauses=0.05 * (i % 2))
        trainer.clock.add_communication(0.01)
    for part in ("seconds", "wait", "starved", "copy", "compute", "other"):
        values = [getattr(t, part) for t in told]
        assert values == sorted(values), part


def test_the_last_steps_can_be_asked_for_one_by_one() -> None:
    trainer = Trainer()
    for works in (0.01, 0.02, 0.03):
        trainer.step(waits=0.005, works=works, copies=0.001, syncs=True)
    trainer.finish()
    trainer.clock.wait_ends()
    recent = [[round(x, 6) for x in step] for step in trainer.clock.recent()]
    assert recent == [[0.005, 0.001, 0.01, 0], [0.005, 0.001, 0.02, 0], [0.005, 0.001, 0.03, 0]]


def test_a_pause_within_a_pause_takes_its_own_time_and_gives_the_rest_back() -> None:
    time = TurnableClock()
    clock = HostClock(time)
    clock.wait_begins()
    clock.wait_ends()
    clock.pause_begins("evaluation")
    time.turn(3.0)
    clock.pause_begins("checkpoint")
    time.turn(2.0)
    clock.pause_ends()
    time.turn(1.0)
    assert clock.times().pauses == {"evaluation": 4.0, "checkpoint": 2.0}
    clock.pause_ends()
    time.turn(5.0)
    assert (clock.times().compute, clock.times().other) == (5.0, 6.0)


def test_what_comes_before_the_first_wait_is_no_part_of_training() -> None:
    for trainer in (Trainer(), Trainer(HostClock)):
        trainer.clock.pause_begins("restore")
        trainer.time.turn(1.0)
        trainer.clock.pause_ends()
        trainer.time.turn(1.0)
        assert trainer.clock.times().seconds == 0.0


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
    trainer.clock.wait_begins()
    assert trainer.clock.starved_seconds() == pytest.approx(4.2)


@pytest.mark.parametrize("ahead", [0.0, 5.0])
def test_a_device_far_behind_is_busy_and_its_marks_do_not_pile_up(ahead: float) -> None:
    trainer = Trainer()
    trainer.device.launch(ahead)
    for _ in range(1000):
        trainer.step(waits=0.001, works=1.0)
    assert isinstance(trainer.clock, DeviceClock)
    assert trainer.clock._ledger is not None
    assert len(trainer.clock._ledger.cuts) == 256
    times = trainer.finish()
    assert times.starved == pytest.approx(0.0 if ahead else 0.001)
    assert times.seconds == pytest.approx(trainer.time() - ahead)


def test_a_device_that_catches_up_in_a_long_wait_starves_for_the_rest_of_it() -> None:
    trainer = Trainer()
    for _ in range(300):
        trainer.step(waits=0.0, works=1.0)
    trainer.step(waits=350.0, works=0.0)
    assert trainer.finish().starved == pytest.approx(50.0)


@pytest.mark.parametrize("missing", [4, 5])
def test_a_mark_that_is_missing_makes_the_parts_unknown_and_not_zero(missing: int) -> None:
    trainer = Trainer()
    trainer.device.timeline.fails_at = missing
    trainer.step(waits=0.010, works=0.001)
    assert trainer.clock.starved_seconds() is not None
    for _ in range(5):
        trainer.step(waits=0.010, works=0.001)
    times = trainer.clock.times()
    assert (times.starved, times.copy, times.compute, times.on_device) == (None, None, None, False)
    assert times.wait > 0
    assert times.steps == 5


def test_another_thread_asks_the_device_nothing_while_the_trainer_is_in_a_step() -> None:
    trainer = Trainer()
    asked = []
    reached = trainer.device.timeline.reached
    trainer.step(waits=0.1, works=0.1)
    trainer.device.timeline.reached = lambda mark: asked.append(mark) or reached(mark)  # type: ignore
    thread = threading.Thread(target=trainer.clock.times)
    thread.start()
    thread.join()
    assert not asked
    trainer.clock.wait_begins()
    assert asked


def test_without_a_cuda_device_its_clock_knows_the_waits_and_nothing_of_starving() -> None:
    clock = cuda_clock()
    clock.wait_begins()
    clock.wait_ends()
    clock.look()
    assert clock.waited_seconds() > 0
    assert clock.starved_seconds() is None
    assert clock.recent() == ()


def test_a_loader_for_a_cuda_device_measures_on_it_and_another_on_the_host() -> None:
    of = Pipeline(MemorySource({"a": [1, 2, 3]})).batch(1)
    assert isinstance(of.loader(device="cuda:1")._counts.clock, DeviceClock)
    assert not isinstance(of.loader(device="cpu")._counts.clock, DeviceClock)
    assert not isinstance(of.loader()._counts.clock, DeviceClock)


def test_a_loader_for_a_cuda_device_can_be_sent_to_another_process() -> None:
    loader = Pipeline(MemorySource({"a": [1, 2, 3]})).batch(1).loader(device="cuda")
    assert pickle.loads(pickle.dumps(loader))._counts.clock.starved_seconds() == 0.0

"""One training loop, fed in turns: by the whole pipeline, and by less and less of it.

The training function is given a ``DoctorsLoader`` in place of its loader. That gives it batches in
short phases, each of one kind, all kinds in every round, so that whatever changes on the machine
meanwhile changes all of them. The first steps of a phase are not measured.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forebay.diagnose.profile import StepProfiler
from forebay.diagnose.silence import WORTH_SECONDS, Silence, Silent
from forebay.diagnose.supplies import Frozen, Live, Supply
from forebay.errors import StateError
from forebay.loader import Loader
from forebay.stepclock import DeviceTimeline, StepClock, StepTimes
from forebay.tensors import Batch
from forebay.training import Stop, Stopper, TrainingLoader

Kind: TypeAlias = Literal["full", "no source", "no stages", "frozen"]
"""``full``: everything. ``no source``: records from memory, through the stages. ``no stages``:
finished slices from memory, put together and handed over. ``frozen``: one batch, again and again.
"""
KINDS: tuple[Kind, ...] = ("full", "no source", "no stages", "frozen")
_AHEAD = 4
"""Steps that the host may be ahead of the device: no more, or a phase would end with work of many
seconds still to be done."""
_LOOK_SECONDS = 0.001
_WARM_UP_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long is measured."""

    rounds: int = 5
    """How often each kind has its turn."""
    steps: int | None = None
    """Steps of each phase; None: as many as ``seconds`` have, ``least_steps`` at least."""
    seconds: float = 1.0
    least_steps: int = 5
    patience: float = 10.0
    """No phase goes on for longer, if a step ended in it; and so long a first record may take."""

    def over(self, steps: int, seconds: float) -> bool:
        """Whether a phase may end."""
        if seconds >= self.patience and steps:
            return True
        if self.steps is not None:
            return steps >= self.steps
        return steps >= self.least_steps and seconds >= self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What was measured in one phase. Seconds, all without named pauses."""

    kind: Kind
    round: int
    steps: int
    rows: int
    seconds: float
    parts: StepTimes
    """What the step clock told of it."""
    step_seconds: tuple[float, ...]
    wait_seconds: tuple[float, ...]
    """Of the trainer's thread, for each step."""
    began: float
    """Wall-clock seconds."""
    ended: float

    @property
    def per_step(self) -> float:
        """Seconds of a step on average."""
        return self.seconds / self.steps


@contextmanager
def _looked_at(clock: StepClock) -> Iterator[None]:
    """Meanwhile a thread looks every millisecond whether the device idles within a step."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            clock.look()

    thread = threading.Thread(target=look, name="forebay-look", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass(slots=True)
class _Device:
    """The device's end of the loop, if there is one: how far it is behind the host."""

    timeline: DeviceTimeline | None
    marks: deque[Any] = field(default_factory=deque)

    def pace(self) -> None:
        """Wait while the host is too far ahead."""
        self._mark()
        while len(self.marks) > _AHEAD:
            self._await(self.marks.popleft())

    def catch_up(self) -> None:
        """Wait until it has done all that it was given."""
        self._mark()
        while self.marks:
            self._await(self.marks.popleft())

    def _mark(self) -> None:
        if self.timeline is not None and (mark := self.timeline.mark()) is not None:
            self.marks.append(mark)

    def _await(self, mark: Any) -> None:
        while self.timeline is not None and not self.timeline.reached(mark):
            time.sleep(_LOOK_SECONDS)


class DoctorsLoader(TrainingLoader):
    """The loader that the training function is given; ends when all was measured.

    Args:
        loader: of the whole pipeline.
        supplies: by kind, beside ``full`` and ``frozen``.
        clock: the step clock of all loaders.
        timeline: of the trainer's device; None: it works on the host.
        profiler: records some steps of the whole pipeline after all else.
        grows: whether records may come to the source meanwhile.
        tell: is told what is done, a line each, on any thread.
    """

    def __init__(
        self,
        loader: Loader,
        stopper: Stopper,
        schedule: Schedule,
        *,
        supplies: Mapping[Kind, Supply],
        clock: StepClock,
        timeline: DeviceTimeline | None,
        profiler: StepProfiler | None = None,
        grows: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(loader, stopper)
        self._tell = tell
        self._schedule, self._clock, self._device = schedule, clock, _Device(timeline)
        self._profiler, self._frozen = profiler, Frozen(clock)
        self._live = Live(loader, grows=grows, patience=schedule.patience, tell=tell)
        self._supplies: dict[Kind, Supply] = {
            "full": self._live, **supplies, "frozen": self._frozen,
        }  # fmt: skip
        self._given = self._all()
        self.phases: list[Phase] = []
        """What was measured so far."""
        self.paused: Mapping[str, float] = {}
        """Seconds of named pauses for each step since the training function's first ones."""
        self.origins: dict[str, int] = {}
        """Rows of the whole pipeline by split."""
        self.silence: Silence | None = None
        """What it ended in, if nothing came any more."""

    def __iter__(self) -> Iterator[Batch]:
        return _Batches(self)

    def state_dict(self) -> dict[str, Any]:
        """Refused: nothing that is trained here may replace a model that was trained on data.

        Raises:
            StateError: always; says the way out.
        """
        raise StateError(
            "under the doctor nothing is saved: it feeds the model the same records again and "
            "again. Let the function save by the parameter 'checkpoint', which saves nothing here; "
            "or look at the real run: forebay doctor http://HOST:PORT, or its state file"
        )

    def commit(self, batches: int = 1) -> None:
        """Nothing is trained for good here."""

    def close(self) -> None:
        """Stop every thread and client, also of a phase that was not ended."""
        self._given.close()
        super().close()

    def _next_given(self) -> Batch:
        if self.stopping:
            raise StopIteration
        try:
            with self._stopper.waiting():
                batch = next(self._given)
        except Stop:
            silence = self._live.silence()
            if silence is not None and silence.seconds >= WORTH_SECONDS:
                self.silence = silence
            raise StopIteration from None
        except Silent:
            self.silence = self._live.silence()
            raise StopIteration from None
        except StopIteration:
            raise
        except Exception as e:
            self.error = e
            raise
        self.batches += 1
        return batch

    def _all(self) -> Generator[Batch, None, None]:
        self._tell("the training function's first steps")
        yield from self._warm_up()
        began, steps = self._clock.times(), self.batches
        for i in range(self._schedule.rounds):
            self._tell(f"round {i + 1} of {self._schedule.rounds}")
            # There and back: what drifts over a round is not always to the same one's disadvantage.
            for kind in self._supplies if i % 2 == 0 else reversed(self._supplies):
                yield from self._phase(kind, i)
                pauses = _since(self._clock.times(), began).pauses
                self.paused = {k: v / (self.batches - steps) for k, v in pauses.items()}
        if self._profiler is not None:
            self._tell("a few steps with the profiler")
            yield from self._profiled(self._profiler)

    def _warm_up(self) -> Iterator[Batch]:
        """The training function's own first steps, which allocate and compile."""
        supply = self._supplies["full"]
        supply.begin()
        try:
            began = time.monotonic()
            for _ in range(_WARM_UP_STEPS):
                batch = supply.next()
                self._frozen.keep(batch)
                yield batch
                if time.monotonic() - began >= self._schedule.patience:
                    break
        finally:
            supply.end()

    def _phase(self, kind: Kind, number: int) -> Iterator[Batch]:
        supply = self._supplies[kind]
        looked_at = _looked_at if kind == "frozen" and self._device.timeline else nullcontext
        supply.begin()
        try:
            yield from self._unmeasured(supply)
            with looked_at(self._clock):
                yield from self._measured(supply, kind, number)
        finally:
            supply.end()

    def _unmeasured(self, supply: Supply) -> Iterator[Batch]:
        """The first steps of a phase, in which what is kept ready is filled up or used up."""
        until = time.monotonic() + self._schedule.patience / 3
        for _ in range(2 * self.options.prefetch + 2):
            yield supply.next()
            self._device.pace()
            if time.monotonic() >= until:
                break

    def _profiled(self, profiler: StepProfiler) -> Iterator[Batch]:
        supply = self._supplies["full"]
        supply.begin()
        try:
            yield from self._unmeasured(supply)
            with profiler:
                done = False
                while not done:
                    yield supply.next()
                    done = profiler.step()
        finally:
            supply.end()

    def _measured(self, supply: Supply, kind: Kind, number: int) -> Iterator[Batch]:
        self._device.catch_up()
        steps: list[float] = []
        waits: list[float] = []
        rows, before, wall = 0, self._clock.times(), time.time()
        began = now = time.monotonic()
        while not self._schedule.over(len(steps), now - began):
            batch = supply.next()
            waits.append(time.monotonic() - now)
            self._count(kind, batch)
            rows += batch.rows
            yield batch
            self._device.pace()
            steps.append(time.monotonic() - now)
            now = time.monotonic()
        self._device.catch_up()
        took, parts = time.monotonic() - began, _since(self._clock.times(), before)
        self.phases.append(
            Phase(
                kind=kind,
                round=number,
                steps=len(steps),
                rows=rows,
                seconds=max(took - sum(parts.pauses.values()), 1e-9),
                parts=parts,
                step_seconds=tuple(steps),
                wait_seconds=tuple(waits),
                began=wall,
                ended=time.time(),
            )
        )

    def _count(self, kind: Kind, batch: Batch) -> None:
        if kind != "full":
            return
        names = batch.origins.splits
        for i in batch.origins.split_index.tolist():
            self.origins[names[i]] = self.origins.get(names[i], 0) + 1


class _Batches(Iterator[Batch]):
    def __init__(self, loader: DoctorsLoader) -> None:
        self._loader = loader

    def __next__(self) -> Batch:
        return self._loader._next_given()


def _since(now: StepTimes, before: StepTimes) -> StepTimes:
    """What came after ``before``."""

    def less(name: str) -> float | None:
        a, b = getattr(before, name), getattr(now, name)
        return None if b is None else max(0.0, b - (a or 0.0))

    return StepTimes(
        steps=now.steps - before.steps,
        seconds=now.seconds - before.seconds,
        wait=now.wait - before.wait,
        starved=less("starved"),
        copy=less("copy"),
        compute=less("compute"),
        communication=less("communication"),
        other=less("other"),
        pauses={k: v - before.pauses.get(k, 0.0) for k, v in now.pauses.items()},
        on_device=now.on_device,
    )

"""Runs the demo: a broker, a producer, and a trainer that is killed again and again.

What was trained is counted from the trainer's own log of record ids, never from offsets.
"""

from __future__ import annotations

import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay.errors import ForebayError
from forebay.letterbox import read_letters
from forebay.runlog import kept_ids
from forebay_kafka.demo.producer import KEY, Order
from forebay_kafka.demo.task import Task
from forebay_kafka.devbroker import DevBrokerProcess

TOPIC = "pictures"
PARTITIONS = 4
_BROKEN_SHARE = 0.001


class DemoFailed(ForebayError):
    """A process of the demo ended in a way it should not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the demo is to go."""

    images: int
    kills: int
    per_second: float
    seed: int
    folder: Path


@dataclass(slots=True, kw_only=True)
class Scene:
    """What is known at a moment, for the display; None is unknown."""

    act: str = "starting a broker"
    produced: int = 0
    trained: int = 0
    kills: int = 0
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The closing count."""

    produced: int
    trained: int
    lost: int
    repeated: int
    dead_letters: int
    kills: int
    seconds: float
    images_per_second: float | None
    """None where the runs were too short to tell."""
    images_per_second_by_hand: float
    starvation: float | None
    """Share of the time in which the model waited although records were there."""
    starvation_by_hand: float
    accuracy: float

    @property
    def exact(self) -> bool:
        """Whether every record was trained once, or is a dead letter."""
        return self.lost == 0 and self.repeated == 0


class Director:
    """Plays the script; ``scene`` may be read at any time."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._random = random.Random(script.seed)
        self._waits: list[tuple[float, float, int]] = []
        self.scene = Scene()

    def play(self) -> Iterator[Ending | None]:
        """Run the demo; gives None at every change worth showing, and the ending at last.

        Raises:
            DemoFailed: a process ended that should not have; says what it printed last.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            broker = stack.enter_context(DevBrokerProcess())
            _make_topic(broker.bootstrap)
            producer = stack.enter_context(_Child("producer", self._order(broker.bootstrap)))
            yield from self._fill(producer)
            by_hand = yield from self._by_hand(stack, broker.bootstrap, producer)
            for _ in range(self._script.kills):
                yield from self._run_and_kill(stack, broker.bootstrap, producer)
            self.scene.act = "waiting for the producer to finish"
            while (line := producer.line(1.0)) is not None or producer.running:
                self._produced(line)
                yield None
            producer.check()
            self._produced(self._script.images)
            yield from self._run_to_the_end(stack, broker.bootstrap)
            yield self._ending(by_hand, time.monotonic() - began)

    def _order(self, bootstrap: str) -> Order:
        script = self._script
        return Order(
            bootstrap=bootstrap,
            topic=TOPIC,
            images=script.images,
            broken=max(1, int(script.images * _BROKEN_SHARE)),
            per_second=script.per_second,
            seed=script.seed,
        )

    def _task(self, bootstrap: str, *, until_end: bool) -> Task:
        script = self._script
        return Task(
            bootstrap=bootstrap,
            topic=TOPIC,
            folder=str(script.folder),
            until_end=until_end,
            seed=script.seed,
        )

    def _fill(self, producer: _Child) -> Iterator[None]:
        """Let some pictures arrive first, so that nobody waits for the producer."""
        self.scene.act = "producing pictures"
        while self.scene.produced < self._script.images // 4:
            self._produced(producer.line(30.0))
            producer.check()
            yield None

    def _by_hand(
        self, stack: ExitStack, bootstrap: str, producer: _Child
    ) -> Generator[None, None, dict[str, float]]:
        self.scene.act = "training by a loop written by hand, to compare"
        child = stack.enter_context(_Child("byhand", self._task(bootstrap, until_end=False)))
        result: dict[str, float] | None = None
        while child.running or result is None:
            result = child.line(0.5) or result
            self._drain(producer)
            child.check()
            yield None
        return result

    def _run_and_kill(self, stack: ExitStack, bootstrap: str, producer: _Child) -> Iterator[None]:
        resumed = "resuming" if self.scene.kills else "training"
        self.scene.act = f"{resumed}, to be killed at a random moment"
        trainer = stack.enter_context(_Child("trainer", self._task(bootstrap, until_end=False)))
        lifetime = self._random.uniform(2.0, 5.0)
        dies_at: float | None = None
        while dies_at is None or time.monotonic() < dies_at:
            report = trainer.line(0.1)
            if report is not None:
                self._reported(report)
                dies_at = dies_at or time.monotonic() + lifetime
            trainer.check()
            self._drain(producer)
            yield None
        trainer.kill()
        self.scene.kills += 1
        self.scene.act = f"killed the trainer (SIGKILL) after step {self.scene.report['step']}"
        self._start_of_run()
        yield None

    def _run_to_the_end(self, stack: ExitStack, bootstrap: str) -> Iterator[None]:
        self.scene.act = "resuming, to the end of the topic"
        trainer = stack.enter_context(_Child("trainer", self._task(bootstrap, until_end=True)))
        while (report := trainer.line(0.5)) is not None or trainer.running:
            if report is not None:
                self._reported(report)
            yield None
        trainer.check()

    def _reported(self, report: dict[str, Any]) -> None:
        before = self.scene.report
        if before.get("rows", report["rows"]) < report["rows"] and before.get("lag") != 0:
            self._waits.append(
                (
                    report["wait_seconds"] - before["wait_seconds"],
                    report["seconds"] - before["seconds"],
                    report["rows"] - before["rows"],
                )
            )
        self.scene.report = report
        self.scene.trained = len(set(kept_ids(self._task("", until_end=True).log)))

    def _start_of_run(self) -> None:
        """What the last run said of itself says nothing of the next."""
        self.scene.report = {}

    def _drain(self, producer: _Child) -> None:
        while (line := producer.line(0.0)) is not None:
            self._produced(line)
        producer.check()

    def _produced(self, line: Any) -> None:
        if isinstance(line, int):
            self.scene.produced = line

    def _ending(self, by_hand: dict[str, float], seconds: float) -> Ending:
        task = self._task("", until_end=True)
        trained = Counter(kept_ids(task.log))
        dead = _ids_of_letters(task.dead_letters)
        waited = sum(wait for wait, _, _ in self._waits)
        spent = sum(seconds for _, seconds, _ in self._waits)
        rows = sum(n for _, _, n in self._waits)
        return Ending(
            produced=self._script.images,
            trained=len(trained),
            lost=len(set(range(self._script.images)) - set(trained) - dead),
            repeated=sum(n - 1 for n in trained.values()) + len(dead & set(trained)),
            dead_letters=len(dead),
            kills=self.scene.kills,
            seconds=round(seconds, 1),
            images_per_second=round(rows / spent, 1) if spent else None,
            images_per_second_by_hand=round(by_hand["rows"] / by_hand["seconds"], 1),
            starvation=round(waited / spent, 3) if spent else None,
            starvation_by_hand=round(by_hand["wait_seconds"] / by_hand["seconds"], 3),
            accuracy=round(self.scene.report["accuracy"], 3),
        )


class _Child:
    """A process of the demo that prints JSON lines; killed on exit, if it still runs."""

    def __init__(self, module: str, argument: msgspec.Struct) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"forebay_kafka.demo.{module}",
                msgspec.json.encode(argument).decode(),
            ],
            stdin=subprocess.PIPE,  # never written to: its end is the parent's
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: queue.Queue[Any] = queue.Queue()
        self._errors: list[bytes] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def line(self, timeout: float) -> Any:
        """The next line it printed, or None if none came in time."""
        try:
            return self._lines.get(timeout=timeout) if timeout else self._lines.get_nowait()
        except queue.Empty:
            return None

    def check(self) -> None:
        """Fail if it ended with an error."""
        code = self._process.poll()
        if code:
            self._readers[1].join()
            said = b"".join(self._errors).decode(errors="replace").strip().splitlines()
            raise DemoFailed(
                f"the demo's {self._name} ended with code {code}: " + " / ".join(said[-3:])
            )

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no good-bye."""
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self._lines.put(msgspec.json.decode(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


def _make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    created[TOPIC].result(10)


def _ids_of_letters(folder: Path) -> set[int]:
    keys = [letter.failure.original["key"] for letter in read_letters(folder)]
    return {int.from_bytes(key[: KEY.itemsize // 2], "little") for key in keys}

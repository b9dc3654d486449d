"""Runs the demo: a broker, a producer, and a trainer that is killed again and again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay.demo.child import Child
from forebay.demo.runs import Runs, Scene
from forebay.letterbox import read_letters
from forebay.runlog import kept_ids
from forebay_kafka.demo.producer import KEY, Order
from forebay_kafka.demo.task import Task
from forebay_kafka.devbroker import DevBrokerProcess

TOPIC = "pictures"
PARTITIONS = 4
_BROKEN_SHARE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How the demo is to go."""

    images: int
    kills: int
    per_second: float
    seed: int
    folder: Path


@dataclass(slots=True, kw_only=True)
class KafkaScene(Scene):
    act: str = "starting a broker"
    produced: int = 0


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
        self.scene = KafkaScene()
        self._runs = Runs("forebay_kafka.demo.trainer", self.scene, script.seed)

    def play(self) -> Iterator[Ending | None]:
        """Run the demo; gives None at every change worth showing, and the ending at last.

        Raises:
            DemoFailed: a process ended that should not have; says what it printed last.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            broker = stack.enter_context(DevBrokerProcess())
            _make_topic(broker.bootstrap)
            producer = stack.enter_context(
                Child("forebay_kafka.demo.producer", self._order(broker.bootstrap))
            )
            yield from self._fill(producer)
            by_hand = yield from self._by_hand(stack, broker.bootstrap, producer)
            for _ in range(self._script.kills):
                task = self._task(broker.bootstrap, until_end=False)
                yield from self._runs.run_and_kill(stack, task, lambda: self._drain(producer))
            self.scene.act = "waiting for the producer to finish"
            while (line := producer.line(1.0)) is not None or producer.running:
                self._produced(line)
                yield None
            producer.check()
            self._produced(self._script.images)
            self.scene.act = "resuming, to the end of the topic"
            yield from self._runs.run_to_the_end(
                stack, self._task(broker.bootstrap, until_end=True)
            )
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

    def _fill(self, producer: Child) -> Iterator[None]:
        """Let some pictures arrive first, so that nobody waits for the producer."""
        self.scene.act = "producing pictures"
        while self.scene.produced < self._script.images // 4:
            self._produced(producer.line(30.0))
            producer.check()
            yield None

    def _by_hand(
        self, stack: ExitStack, bootstrap: str, producer: Child
    ) -> Generator[None, None, dict[str, float]]:
        self.scene.act = "training by a loop written by hand, to compare"
        child = stack.enter_context(
            Child("forebay_kafka.demo.byhand", self._task(bootstrap, until_end=False))
        )
        result: dict[str, float] | None = None
        while child.running or result is None:
            result = child.line(0.5) or result
            self._drain(producer)
            child.check()
            yield None
        return result

    def _drain(self, producer: Child) -> None:
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
        return Ending(
            produced=self._script.images,
            trained=len(trained),
            lost=len(set(range(self._script.images)) - set(trained) - dead),
            repeated=sum(n - 1 for n in trained.values()) + len(dead & set(trained)),
            dead_letters=len(dead),
            kills=self.scene.kills,
            seconds=round(seconds, 1),
            images_per_second=self._runs.rows_per_second,
            images_per_second_by_hand=round(by_hand["rows"] / by_hand["seconds"], 1),
            starvation=self._runs.starvation,
            starvation_by_hand=round(by_hand["wait_seconds"] / by_hand["seconds"], 3),
            accuracy=round(self.scene.report["accuracy"], 3),
        )


def _make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    created[TOPIC].result(10)


def _ids_of_letters(folder: Path) -> set[int]:
    keys = [letter.failure.original["key"] for letter in read_letters(folder)]
    return {int.from_bytes(key[: KEY.itemsize // 2], "little") for key in keys}

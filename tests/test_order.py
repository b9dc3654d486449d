"""A slow row stalls nobody in arrival order, and the state remembers what was overtaken."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forebay import Loader, Pipeline, Plan, Position, Slice, ThreadEngine
from forebay.columns import Columns
from forebay.rng import Run
from forebay.stage import Map
from forebay.state import State
from forebay.testing import MemoryReader, MemorySource


class Gate:
    """A stage that waits at chosen values until it is opened."""

    def __init__(self, *stuck: int) -> None:
        self._stuck, self.opened = frozenset(stuck), threading.Event()

    def __call__(self, columns: Columns) -> Columns:
        if self._stuck & set(np.asarray(columns["value"]).tolist()):
            self.opened.wait(60)
        return columns


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate(20)
    yield gate
    gate.opened.set()


def loader(gate: Gate, order: str, **options: Any) -> Loader:
    source = MemorySource({"a": list(range(60)), "b": list(range(100, 130))}, slice_rows=5)
    pipeline = Pipeline(source).map(gate, name="gate").batch(10)
    return pipeline.loader(order=order, workers=2, **options)


def values(batches: list[Any]) -> list[int]:
    return [v for b in batches for v in b["value"].tolist()]


def test_later_slices_of_the_same_split_overtake_a_stuck_one_in_arrival_order(gate: Gate) -> None:
    with loader(gate, "arrival") as of:
        batches = iter(of)
        got = values([next(batches) for _ in range(8)])
        assert set(range(20, 25)) & set(got) == set()
        assert len(got) == 80
        gate.opened.set()
        assert sorted(got + values(list(batches))) == [*range(60), *range(100, 130)]


def test_the_state_remembers_what_was_overtaken_and_a_resume_brings_exactly_that(
    gate: Gate,
) -> None:
    first = loader(gate, "arrival")
    batches = iter(first)
    got = values([next(batches) for _ in range(8)])
    state = first.state_dict()
    assert sum(first.lag().values()) == 10
    gate.opened.set()
    first.close()
    at = state["splits"]["a"]
    assert at["pending"] == [[at["offset"] - 20, 5, 0]]
    with loader(gate, "arrival") as second:
        second.load_state_dict(state)
        assert sorted(got + values(list(second))) == [*range(60), *range(100, 130)]


def test_in_split_order_a_stuck_slice_holds_up_its_own_split_only(gate: Gate) -> None:
    with loader(gate, "split") as of:
        batches = iter(of)
        got = values([next(batches) for _ in range(5)])
        assert sorted(got) == [*range(20), *range(100, 130)]
        gate.opened.set()
        assert values(list(batches)) == list(range(20, 60))


def test_a_stuck_slice_is_overtaken_by_a_bounded_number_of_bytes(gate: Gate) -> None:
    source = MemorySource({"a": list(range(100_000))}, slice_rows=10)  # 1,240 bytes a slice
    plan = Plan(
        source=source,
        stages=[Map("gate", gate)],
        positions={},
        owns=lambda split: True,
        run=Run(),
        order="arrival",
        max_bytes=40_000,
        workers=(2, 2),
    )
    feed = ThreadEngine().start(plan)
    furthest = 0
    while (s := feed.take(2.0)) is not None:
        furthest = max(furthest, s.next_offset)
        feed.release(s)
    gate.opened.set()
    feed.close()
    assert 500 < furthest < 20 + 5 * 40_000 // 124


class Beginning(MemoryReader):
    """Split ``a`` is another log after 100 rows: it begins at offset 1,000."""

    def poll(self, timeout: float) -> Slice | None:
        s = super().poll(timeout)
        if s is None or s.split != "a" or s.start < 100:
            return s
        start, stop = s.start + 900, s.next_offset + 900
        offsets = s.offsets + 900
        return replace(s, start=start, offsets=offsets, next_offset=stop, resets=start == 1_000)


class BeginsAnew(MemorySource):
    def open(self, positions: Any, owns: Any) -> MemoryReader:
        return Beginning(self, {k: Position(0, base=0) for k in self.data})


def test_a_split_that_begins_anew_does_so_in_its_turn_of_the_deterministic_order() -> None:
    data = {"a": list(range(300)), "b": list(range(1_000, 1_300))}

    def given(slice_rows: int) -> tuple[list[int], Any]:
        of = (
            Pipeline(BeginsAnew(data, slice_rows=slice_rows))
            .batch(10)
            .loader(order="deterministic")
        )
        return values(list(of)), of.state_dict()["splits"]["a"]

    rows, state = given(10)
    assert sorted(rows) == [*data["a"], *data["b"]]
    assert [v for v in rows if v < 1_000] == data["a"]
    assert state == {"offset": 1_200, "base": 1_000}
    assert given(50) == given(100) == (rows, state)


def test_a_split_that_begins_anew_is_read_whole_though_its_old_position_was_beyond() -> None:
    class Resumed(MemorySource):
        def open(self, positions: Any, owns: Any) -> MemoryReader:
            return Shrunk(self, {"a": replace(positions["a"], offset=0)})

    class Shrunk(MemoryReader):
        def positions(self) -> Mapping[str, Position]:
            return {"a": Position(50, base=0)}

        def poll(self, timeout: float) -> Slice | None:
            s = super().poll(timeout)
            return s if s is None else replace(s, resets=s.start == 0)

    of = Pipeline(Resumed({"a": list(range(80))})).batch(10).loader()
    of.load_state_dict(State(splits={"a": Position(50, base=0)}).to_json())
    assert values(list(of)) == list(range(80))
    assert of.state_dict()["splits"]["a"] == {"offset": 80, "base": 0}


class LateReader(MemoryReader):
    """Its split ``b`` is found only while reading."""

    def positions(self) -> Mapping[str, Position]:
        return {k: p for k, p in super().positions().items() if k != "b" or p.offset}


class LateSource(MemorySource):
    def open(self, positions: Mapping[str, Position], owns: Any) -> MemoryReader:
        reader = super().open(positions, owns)
        reader.__class__ = LateReader
        return reader


def test_the_state_knows_where_a_split_began_that_was_found_while_reading() -> None:
    gate = Gate(100)
    source = LateSource({"a": list(range(30)), "b": list(range(100, 130))}, slice_rows=5)
    pipeline = Pipeline(source).map(gate, name="gate").batch(10)
    first = pipeline.loader(order="arrival", workers=2)
    batches = iter(first)
    got = values([next(batches) for _ in range(5)])
    assert set(got) & set(range(100, 105)) == set()
    state = first.state_dict()
    gate.opened.set()
    first.close()
    with pipeline.loader(order="arrival", workers=2) as second:
        second.load_state_dict(state)
        assert sorted(got + values(list(second))) == [*range(30), *range(100, 130)]

"""The books from a finished slice to the state, without threads: rows, letters and room add up.

Slices come in any order an engine may give them, records become none, one or several rows, some
fail, offsets have holes; every run of a chain has its own order, shuffle, batch size and ranks.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay import ErrorBudget, Position, Slice, merge_states
from forebay.batcher import Batching, Group, groups
from forebay.deadletter import BudgetMeter
from forebay.engine import PoolStats, StageStats
from forebay.intake import Intake
from forebay.merge import Merge
from forebay.shuffle import Shuffle, supplies
from forebay.slice import Failure
from forebay.state import State
from forebay.supply import Ledger, Progress

ORDERS = ["split", "arrival", "deterministic"]
SHUFFLES = [None, Shuffle(rows=2), Shuffle(rows=7, seed=1), Shuffle(rows=60)]
ROOMY = 1 << 40


@dataclass(frozen=True)
class Record:
    """One record of a split, and what the stages make of it."""

    offset: int
    rows: int
    fails: bool


@dataclass(frozen=True)
class Log:
    """All records of a split, and the offset after the last."""

    records: Sequence[Record]
    end: int


def made_logs(dice: random.Random) -> dict[str, Log]:
    logs = {}
    for name in "abcd"[: dice.randint(1, 4)]:
        offsets = np.cumsum(
            [dice.choice([1, 1, 1, 5]) for _ in range(dice.choice([0, 1, 60, 200]))]
        )
        records = [
            Record(int(o), dice.choice([0, 0, 1, 1, 1, 2, 3, 9]), dice.random() < 0.05)
            for o in offsets
        ]
        logs[name] = Log(records, records[-1].offset + dice.choice([1, 3]) if records else 0)
    return logs


def cut(dice: random.Random, split: str, log: Log, low: int) -> Iterator[Slice]:
    """The log from ``low`` on in finished slices of some records each, or of none."""
    left = [r for r in log.records if r.offset >= low]
    at = low
    while at < log.end:
        n = dice.choice([0, 1, 3, 10, 40])
        part, left = left[:n], left[n:]
        stop = log.end if not left else left[0].offset
        if part and left and dice.random() < 0.5:
            stop = part[-1].offset + 1
        if stop > at:
            yield finished(split, part, at, stop)
        at = stop


def finished(split: str, records: Sequence[Record], start: int, stop: int) -> Slice:
    rows = [(r.offset, i) for r in records for i in range(r.rows)]
    return Slice(
        split=split,
        columns={"nth": np.array([i for _, i in rows])} if rows else {},
        offsets=np.array([o for o, _ in rows], np.int64),
        start=start,
        next_offset=stop,
        failures=tuple(
            Failure(offset=r.offset, stage="s", reason="bad", original={})
            for r in records
            if r.fails
        ),
    )


class ReadyFeed:
    """Finished slices of several splits, handed out in any order that is allowed."""

    full = False

    def __init__(
        self, dice: random.Random, logs: Mapping[str, Log], state: State, order: str
    ) -> None:
        self._dice, self._order, self._tickets = dice, order, 0
        self.positions = {k: state.splits.get(k, Position(0, base=0)) for k in logs}
        self._left = {k: list(cut(dice, k, logs[k], p.low)) for k, p in self.positions.items()}
        self.out: set[int] = set()
        """Tickets whose room was not given back."""

    @property
    def done(self) -> bool:
        return not any(self._left.values())

    def exhausted(self) -> Collection[str]:
        return [k for k, slices in self._left.items() if not slices]

    def take(self, timeout: float) -> Slice | None:
        filled = [slices for slices in self._left.values() if slices]
        if not filled:
            return None
        slices = self._dice.choice(filled)
        place = self._dice.randrange(min(len(slices), 6)) if self._order == "arrival" else 0
        self._tickets += 1
        self.out.add(self._tickets)
        return replace(slices.pop(place), ticket=self._tickets)

    def release(self, s: Slice) -> None:
        if s.ticket:
            self.out.remove(s.ticket)

    def want(self, splits: Collection[str]) -> None: ...
    def resize(self, pool: str, workers: int) -> None: ...
    def close(self) -> None: ...

    def pools(self) -> Mapping[str, PoolStats]:
        return {}

    def stages(self) -> Mapping[str, StageStats]:
        return {}

    def fetched(self) -> Mapping[str, int]:
        return {}

    def reader_counts(self) -> Mapping[str, float]:
        return {}

    def ends(self) -> Mapping[str, int]:
        return {}

    def bytes_in_flight(self) -> int:
        return 0


def grouped(
    feed: ReadyFeed,
    state: State,
    order: str,
    shuffle: Shuffle | None,
    batching: Batching,
    room: int,
) -> Iterator[Group]:
    """What the loader puts together from a feed."""
    meter = BudgetMeter(ErrorBudget(share=1.0))
    intake = Intake(feed, feed.positions, meter, lambda: False, lambda: True)
    ledger = Ledger(feed.positions, state.windows, state.open_windows)
    rows = supplies(
        Merge(intake, feed.positions) if order == "deterministic" else intake,
        ledger,
        shuffle=shuffle,
        pass_index=0,
        max_bytes=ROOMY if order == "deterministic" else room,
        strict=order == "deterministic",
    )
    return groups(rows, ledger, batching)


def after(state: State, progress: Progress) -> State:
    return replace(
        state,
        splits={**state.splits, **progress.splits},
        windows=progress.windows,
        open_windows=progress.open_windows,
    )


class Chain:
    """Runs that follow each other, each from the state of the one before."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.logs = made_logs(self.dice)
        self.states = [State()]
        self.rows: Counter[tuple[str, int, int]] = Counter()
        self.letters: Counter[tuple[str, int]] = Counter()

    def run(self, ranks: int = 1, stop: int | None = None) -> None:
        """One run on so many ranks, each until it gave ``stop`` batches, or to the end."""
        merged = State.from_json(
            merge_states([json.loads(json.dumps(s.to_json())) for s in self.states])
        )
        names = sorted(self.logs)
        self.states = [
            self._rank({k: self.logs[k] for k in names[rank::ranks]}, merged, stop)
            for rank in range(ranks)
        ]

    def _rank(self, logs: Mapping[str, Log], merged: State, stop: int | None) -> State:
        order, shuffle = self.dice.choice(ORDERS), self.dice.choice(SHUFFLES)
        batching = Batching(
            size=self.dice.choice([1, 3, 8, 50]),
            drop_last=stop is not None and self.dice.random() < 0.2,
        )
        state = merged.only(lambda k: k in logs)
        feed = ReadyFeed(self.dice, logs, state, order)
        state = replace(state, splits=feed.positions)
        room = self.dice.choice([200, 2_000, ROOMY])
        batches = 0
        for group in grouped(feed, state, order, shuffle, batching, room):
            if batches == stop:
                return state
            state = self._delivered(group, feed, state)
            batches += group.rows > 0
        assert batching.drop_last or not feed.out
        return state

    def _delivered(self, group: Group, feed: ReadyFeed, state: State) -> State:
        for s in group.finished:
            feed.release(s)
        self.letters.update((split, failure.offset) for split, failure in group.failures)
        nth: list[Any] = [n for columns in group.columns for n in np.asarray(columns["nth"])]
        self.rows.update((*origin, int(n)) for origin, n in zip(group.origins(), nth, strict=True))
        return state if group.progress is None else after(state, group.progress)


def expected(logs: Mapping[str, Log]) -> tuple[Counter[Any], set[tuple[str, int]]]:
    rows = Counter(
        (k, r.offset, i) for k, log in logs.items() for r in log.records for i in range(r.rows)
    )
    return rows, {(k, r.offset) for k, log in logs.items() for r in log.records if r.fails}


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(min_value=0, max_value=1 << 32))
def test_a_chain_of_runs_delivers_every_row_once_and_ends_with_clean_books(seed: int) -> None:
    chain = Chain(seed)
    for _ in range(chain.dice.randint(0, 5)):
        ranks = chain.dice.randint(1, len(chain.logs))
        chain.run(ranks, stop=chain.dice.choice([0, 1, 2, 3, 5, 9, 20]))
    chain.run()
    rows, letters = expected(chain.logs)
    assert chain.rows == rows
    assert set(chain.letters) == letters
    (state,) = chain.states
    assert {k: p.offset for k, p in state.splits.items()} == {
        k: v.end for k, v in chain.logs.items()
    }
    assert not any(p.pending for p in state.splits.values())
    assert state.open_windows == ()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(min_value=0, max_value=1 << 32))
def test_a_run_that_nothing_ends_writes_each_letter_once(seed: int) -> None:
    chain = Chain(seed)
    chain.run()
    assert max(chain.letters.values(), default=1) == 1

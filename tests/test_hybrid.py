"""History, then live: no record is missed at the seam or repeated, whatever happens around it."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay import (
    ConfigError,
    Loader,
    Pipeline,
    Plan,
    Position,
    Slice,
    SourceError,
    StateError,
    ThreadEngine,
)
from forebay import merge_states as merged_states
from forebay.columns import Columns, as_numpy
from forebay.hybrid import AtOffsets, ByOffset, ByTime, Handover, HybridReader, HybridSource
from forebay.rng import Run
from forebay.source import Owns, Reader, Source, Split
from forebay.stage import Map
from forebay.state import State, advanced
from forebay.testing import Fail, MemorySource

ORDERS = ["split", "arrival", "deterministic"]
LENGTHS = {"p0": 40, "p1": 25, "p2": 6}
"""Records of each live split."""
KEPT = {"p0": 23, "p1": 25}
"""How many of them the history holds; it has no record of ``p2``."""
NOON = 1_700_000_000_000
BY_OFFSET = ByOffset(split="{partition}")


def record(split: str, offset: int) -> dict[str, Any]:
    """A record; times go forth and back, and are the same on both sides."""
    time = NOON + 10 * offset + (15 if offset % 2 else 0)
    return {"id": f"{split}@{offset}", "partition": split, "offset": offset, "timestamp": time}


def records(split: str, offsets: Sequence[int]) -> list[dict[str, Any]]:
    return [record(split, o) for o in offsets]


@dataclass(frozen=True, slots=True)
class TimedSource(MemorySource):
    """A source in memory that can begin at a time."""

    def starting_at(self, timestamp_ms: int) -> TimedSource:
        def first(rows: Sequence[Any]) -> int:
            late = (i for i, row in enumerate(rows) if row["timestamp"] >= timestamp_ms)
            return next(late, len(rows))

        return replace(self, start={k: first(rows) for k, rows in self.data.items()})


@dataclass(frozen=True, slots=True)
class Gone:
    """A source that was there once."""

    bounded: bool = True

    def splits(self) -> Sequence[Split]:
        raise SourceError("the table was deleted")

    def open(self, positions: Mapping[str, Position], owns: Owns) -> Reader:
        raise SourceError("the table was deleted")


LIVE = TimedSource({k: records(k, range(n)) for k, n in LENGTHS.items()}, slice_rows=5)


def history(kept: Mapping[str, int] | None = None, **options: Any) -> MemorySource:
    """The first records of each live split, in turn, in two splits of different lengths."""
    kept = KEPT if kept is None else kept
    rounds = range(max(kept.values(), default=0))
    rows = [record(k, o) for o in rounds for k, n in kept.items() if o < n]
    return MemorySource(
        {"early": rows[: len(rows) // 4], "later": rows[len(rows) // 4 :]}, **options
    )


def times_before(at: int) -> MemorySource:
    """A history of all records from before a time, and of some later ones."""
    rows = [r for k, n in LENGTHS.items() for r in records(k, range(n))]
    return MemorySource({"early": [r for r in rows if r["timestamp"] < at + 50]})


CHAINS: dict[str, HybridSource] = {
    "offset": HybridSource(history(), LIVE, BY_OFFSET),
    "offsets": HybridSource(history(), LIVE, AtOffsets({"p0": 23, "p1": 25})),
    "time": HybridSource(times_before(NOON + 130), LIVE, ByTime(NOON + 130)),
}
ALL = Counter(f"{k}@{o}" for k, n in LENGTHS.items() for o in range(n))


def loader(source: Source, *, shuffle: int = 0, size: int = 8, **options: Any) -> Loader:
    pipeline = Pipeline(source).map(lambda c: c, name="same").batch(size)
    if shuffle:
        pipeline = pipeline.shuffle(shuffle, seed=3)
    return pipeline.loader(**options)


def ids(batches: Any) -> list[str]:
    return [i for batch in batches for i in batch["id"]]


def stopped_after(batches: int, of: Loader) -> tuple[list[str], dict[str, Any]]:
    """What a loader gave in its first batches, and its state then, as a checkpoint has it."""
    seen = ids(itertools.islice(iter(of), batches))
    state = json.loads(json.dumps(of.state_dict()))
    of.close()
    return seen, state


def resumed(state: Mapping[str, Any], of: Loader) -> list[str]:
    of.load_state_dict(state)
    with of:
        return ids(of)


def everything(split: Split) -> bool:
    return True


def read(reader: HybridReader) -> Iterator[Slice]:
    """All slices of a bounded reader, as an engine would take them."""
    known = set(reader.positions())
    while True:
        s = reader.poll(5.0)
        if s is not None:
            known.add(s.split)
            yield s
        elif known and known <= set(reader.finished_splits()):
            reader.close()
            return


def ids_of(slices: Sequence[Slice]) -> list[str]:
    return [str(i) for s in slices if len(s) for i in as_numpy(s.columns["id"])]


# -- exactly once ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shuffle", [0, 20])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_record_comes_once_whatever_batch_the_run_stops_after(
    chain: str, shuffle: int, order: str
) -> None:
    for stop in range(sum(ALL.values()) // 8 + 2):
        seen, state = stopped_after(stop, loader(CHAINS[chain], shuffle=shuffle, order=order))
        rest = resumed(state, loader(CHAINS[chain], shuffle=shuffle, order=order))
        assert Counter(seen + rest) == ALL, stop


@pytest.mark.parametrize("chain", CHAINS)
def test_a_state_from_between_any_two_slices_leads_to_every_record_once(chain: str) -> None:
    source = CHAINS[chain]
    reader = source.open({}, everything)
    began, slices = reader.positions(), list(read(reader))
    for n in range(len(slices) + 1):
        state = State(splits=advanced(began, slices[:n]))
        saved = State.from_json(json.loads(json.dumps(state.to_json()))).splits
        rest = list(read(source.open(saved, everything)))
        assert Counter(ids_of(slices[:n]) + ids_of(rest)) == ALL, n


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shuffle", [0, 20])
def test_a_history_that_grows_meanwhile_is_not_repeated(shuffle: int, order: str) -> None:
    grown = HybridSource(history({**KEPT, "p0": 38}), LIVE, BY_OFFSET)
    grown = replace(grown, history=with_tail(history(), records("p0", range(23, 38))))
    for stop in range(sum(ALL.values()) // 8 + 2):
        seen, state = stopped_after(stop, loader(CHAINS["offset"], shuffle=shuffle, order=order))
        rest = resumed(state, loader(grown, shuffle=shuffle, order=order))
        assert Counter(seen + rest) == ALL, stop


def with_tail(source: MemorySource, rows: Sequence[Any]) -> MemorySource:
    """The history after more rows were appended to its last split."""
    return replace(source, data={**source.data, "later": [*source.data["later"], *rows]})


RUNS = st.fixed_dictionaries(
    {
        "stop": st.integers(0, 8),
        "size": st.integers(1, 12),
        "workers": st.integers(1, 4),
        "shuffle": st.sampled_from([0, 2, 9, 33]),
        "order": st.sampled_from(ORDERS),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chain=st.sampled_from(sorted(CHAINS)), runs=st.lists(RUNS, max_size=6))
def test_restarts_with_other_settings_each_time_lose_and_repeat_nothing(
    chain: str, runs: list[dict[str, Any]]
) -> None:
    seen: list[str] = []
    state: dict[str, Any] = State().to_json()
    for run in runs:
        stop = run.pop("stop")
        of = loader(CHAINS[chain], **run)
        of.load_state_dict(state)
        got, state = stopped_after(stop, of)
        seen += got
    assert Counter(seen + resumed(state, loader(CHAINS[chain]))) == ALL


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    chain=st.sampled_from(["offsets", "time"]),
    ranks=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    stops=st.lists(st.integers(1, 9), min_size=9, max_size=9),
    order=st.sampled_from(ORDERS),
    shuffle=st.sampled_from([0, 15]),
)
def test_ranks_share_history_and_live_and_may_change_in_number(
    chain: str, ranks: list[int], stops: list[int], order: str, shuffle: int
) -> None:
    seen: list[str] = []
    states = [State().to_json()]
    remaining = iter(stops)
    for world in ranks:
        merged, states = merged_states(states), []
        for rank in range(world):
            of = loader(
                CHAINS[chain], order=order, shuffle=shuffle, size=4, rank=rank, world_size=world
            )
            of.load_state_dict(merged)
            got, state = stopped_after(next(remaining), of)
            seen += got
            states.append(state)
    assert Counter(seen + resumed(merged_states(states), loader(CHAINS[chain]))) == ALL


def test_a_second_pass_reads_the_history_to_the_end_that_it_had_in_the_first() -> None:
    first = loader(passed(0), passes=2)
    seen, state = ids(first), first.state_dict()
    assert state["pass"] == 1
    assert Counter(seen + resumed(state, loader(passed(15), passes=2))) == ALL + ALL


def passed(grown: int) -> HybridSource:
    """The chain with a history that has grown by so many rows that live has given."""
    more = with_tail(history(), records("p0", range(23, 23 + grown)))
    return replace(CHAINS["offset"], history=more)


def test_two_passes_read_history_and_live_twice() -> None:
    for stop in range(2 * sum(ALL.values()) // 8 + 2):
        seen, state = stopped_after(stop, loader(CHAINS["offset"], passes=2))
        of = loader(CHAINS["offset"], passes=2)
        of.load_state_dict(state)
        rest = ids(of) if of.state_dict()["pass"] < 2 else []
        if of.state_dict()["pass"] == 1:
            rest += ids(of)
        assert Counter(seen + rest) == ALL + ALL, stop


# -- the seam ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shuffle", [0, 20])
def test_all_of_the_history_comes_before_the_first_live_record(shuffle: int, order: str) -> None:
    given = ids(loader(CHAINS["offset"], shuffle=shuffle, order=order, workers=4, size=5))
    of_history = {f"{k}@{o}" for k, n in KEPT.items() for o in range(n)}
    assert set(given[: len(of_history)]) == of_history


@pytest.mark.parametrize("order", ORDERS)
def test_live_waits_for_the_last_row_of_the_history_however_long_a_stage_takes(
    order: Literal["split", "arrival", "deterministic"],
) -> None:
    gate = threading.Event()

    def slow(columns: Columns) -> Columns:
        if "p0@22" in as_numpy(columns["id"]).tolist():
            gate.wait(60)
        return columns

    feed = ThreadEngine().start(
        Plan(
            source=CHAINS["offset"],
            stages=[Map("slow", slow)],
            positions={},
            owns=everything,
            run=Run(),
            order=order,
            workers=(3, 3),
        )
    )
    taken: list[Slice] = []
    while sum(map(len, taken)) < sum(KEPT.values()) - 8:
        taken += filter(None, [feed.take(10)])
    taken += [s for _ in range(3) if (s := feed.take(0.1)) is not None]
    assert {s.split for s in taken} == {"early", "later"}
    gate.set()
    while not feed.done:
        taken += filter(None, [feed.take(10)])
    feed.close()
    assert Counter(ids_of(taken)) == ALL


@pytest.mark.parametrize("shuffle", [0, 20])
def test_the_deterministic_order_is_the_same_for_any_timing_and_across_a_restart(
    shuffle: int,
) -> None:
    def run(slice_rows: int = 7, **options: Any) -> Loader:
        chain = HybridSource(
            history({"p0": 250, "p1": 90}, slice_rows=slice_rows),
            MemorySource(
                {k: records(k, range(n)) for k, n in {"p0": 300, "p1": 170}.items()}, slice_rows
            ),
            BY_OFFSET,
        )
        return loader(chain, shuffle=shuffle, order="deterministic", size=20, **options)

    whole = ids(run())
    assert len(set(whole)) == len(whole) == 470
    assert ids(run(slice_rows=2, workers=4, prefetch=5)) == whole
    for stop in range(len(whole) // 20 + 1):
        seen, state = stopped_after(stop, run(slice_rows=13))
        assert seen + resumed(state, run(slice_rows=64, workers=1)) == whole


def test_the_history_is_not_opened_again_once_the_state_knows_live() -> None:
    seen, state = stopped_after(7, loader(CHAINS["offset"]))
    assert "p0" in state["splits"]
    rest = resumed(state, loader(replace(CHAINS["offset"], history=Gone())))
    assert Counter(seen + rest) == ALL


def test_a_history_that_is_gone_too_early_is_its_own_error() -> None:
    _, state = stopped_after(2, loader(CHAINS["offset"]))
    with pytest.raises(SourceError, match="the table was deleted"):
        resumed(state, loader(replace(CHAINS["offset"], history=Gone())))


@dataclass(frozen=True, slots=True)
class Unreachable(TimedSource):
    """A live source that can be listed, and not opened."""

    def open(self, positions: Mapping[str, Position], owns: Owns) -> Any:
        raise SourceError("no broker answers")


def test_a_live_source_that_cannot_be_opened_at_the_seam_loses_nothing() -> None:
    of = loader(replace(CHAINS["offset"], live=Unreachable(LIVE.data)), size=4)
    seen = []
    with pytest.raises(SourceError, match="no broker answers"):
        for batch in of:
            seen += ids([batch])
    of.close()
    assert Counter(seen + resumed(of.state_dict(), loader(CHAINS["offset"]))) == ALL


def test_a_history_that_fails_half_way_goes_on_there() -> None:
    whole = history()
    rows = list(whole.data["later"])
    broken = replace(whole, data={**whole.data, "later": [*rows[:15], Fail("disk"), *rows[15:]]})
    of = loader(replace(CHAINS["offset"], history=broken), size=3)
    seen = []
    with pytest.raises(SourceError, match="disk"):
        for batch in of:
            seen += ids([batch])
    assert Counter(seen + resumed(of.state_dict(), loader(CHAINS["offset"]))) == ALL


def test_a_chain_never_ends_if_live_does_not_and_ends_with_it_if_it_does() -> None:
    assert CHAINS["offset"].bounded
    endless = replace(CHAINS["offset"], live=replace(LIVE, bounded=False))
    assert not endless.bounded
    with loader(endless, size=1) as of:
        assert Counter(ids(itertools.islice(iter(of), sum(ALL.values())))) == ALL


def test_lag_counts_the_history_and_then_what_waits_in_live() -> None:
    with loader(CHAINS["offset"], prefetch=1) as of:
        batches = iter(of)
        next(batches)
        assert sum(of.lag().values()) == sum(KEPT.values()) - 8
        for _ in range(6):
            next(batches)
        assert sum(of.lag().values()) == sum(ALL.values()) - 7 * 8


def test_a_chain_can_be_pickled() -> None:
    for chain in CHAINS.values():
        assert pickle.loads(pickle.dumps(chain)) == chain


@dataclass(frozen=True, slots=True)
class Tokened(MemorySource):
    """A source whose positions, and each pending range in them, need a token of its own."""

    name: str = ""

    def open(self, positions: Mapping[str, Position], owns: Owns) -> Any:
        tokens = [t for p in positions.values() for t in (p.token, *(r.token for r in p.pending))]
        assert all(t is None or t["of"] == self.name for t in tokens), tokens
        return TokenedReader(self.name, MemorySource.open(self, positions, owns))


class TokenedReader:
    """A reader in memory whose slices have tokens."""

    def __init__(self, name: str, reader: Any) -> None:
        self._name, self._reader = name, reader

    def poll(self, timeout: float) -> Slice | None:
        s: Slice | None = self._reader.poll(timeout)
        return s and replace(s, token={"of": self._name, "at": s.next_offset})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def test_each_source_gets_its_own_tokens_back_also_those_of_ranges_that_were_overtaken() -> None:
    chain = HybridSource(
        Tokened(history().data, name="history"), Tokened(LIVE.data, name="live"), BY_OFFSET
    )
    reader = chain.open({}, everything)
    began, slices = dict(reader.positions()), list(read(reader))
    end = advanced(began, slices)["later"].token
    assert end == {"of": {"of": "history", "at": 36}, "seen": {"p0": 22, "p1": 24}, "end": 36}
    phases = [s.phase for s in slices]
    assert phases == sorted(phases)
    for phase in (0, 3):
        first, last = phases.index(phase), len(phases) - phases[::-1].index(phase)
        given = [*slices[:first], *slices[first + 1 : last]]
        saved = State.from_json(
            json.loads(json.dumps(State(splits=advanced(began, given)).to_json()))
        )
        assert any(p.pending for p in saved.splits.values())
        rest = slices_not_delivered(saved.splits, read(chain.open(saved.splits, everything)))
        assert Counter(ids_of(given) + ids_of(rest)) == ALL


def slices_not_delivered(saved: Mapping[str, Position], slices: Iterator[Slice]) -> list[Slice]:
    return [
        part for s in slices for part in (saved[s.split].remaining(s) if s.split in saved else [s])
    ]


# -- where live begins -------------------------------------------------------------------------


def began(source: HybridSource, saved: Mapping[str, Position] | None = None) -> dict[str, int]:
    """Where each live split began."""
    slices = list(read(source.open(saved or {}, everything)))
    return {s.split: s.start for s in reversed(slices) if s.split in LENGTHS}


def test_a_split_that_the_history_never_had_begins_at_its_first_record() -> None:
    assert began(CHAINS["offset"]) == {"p0": 23, "p1": 25, "p2": 0}


def test_rows_of_the_history_may_lie_in_any_order() -> None:
    rows = [*records("p0", range(10, 23)), *records("p1", range(25)), *records("p0", range(10))]
    chain = HybridSource(MemorySource({"early": rows}), LIVE, BY_OFFSET)
    assert began(chain) == {"p0": 23, "p1": 25, "p2": 0}


def test_live_begins_by_its_own_rule_after_a_history_without_a_row() -> None:
    live = replace(LIVE, start={"p0": 30, "p1": 20, "p2": 5})
    empty = HybridSource(MemorySource({"early": []}), live, BY_OFFSET)
    assert began(empty) == {"p0": 30, "p1": 20, "p2": 5}


COLUMNS: dict[str, Any] = {
    "plain": lambda names: pa.array(names),
    "large": lambda names: pa.array(names, pa.large_string()),
    "dictionary": lambda names: pa.array(names).dictionary_encode(),
    "bytes": lambda names: pa.array([n.encode() for n in names]),
    "objects": lambda names: np.array(names, dtype=object),
}


@pytest.mark.parametrize("form", COLUMNS)
def test_split_ids_are_read_from_columns_of_any_form(form: str) -> None:
    topics = ["t", "t", "u", "t"]
    s = Slice(
        split="early",
        columns={
            "topic": COLUMNS[form](topics),
            "partition": pa.array([0.0, 1.0, 0.0, 0.0]),
            "offset": np.array([5, 7, 9, 4], np.int32),
        },
        offsets=np.arange(4),
        start=0,
        next_offset=4,
    )
    assert ByOffset().seen(s) == {"kafka:t/0": 5, "kafka:t/1": 7, "kafka:u/0": 9}
    assert ByOffset(split="all").seen(s) == {"all": 9}


def cut_at(column: Any) -> list[int]:
    """Which rows of a column of times the history gives, cut half a second after the epoch."""
    columns = {"timestamp": column}
    n = len(column)
    s = Slice(split="h", columns=columns, offsets=np.arange(n), start=0, next_offset=n)
    of_history, live = ByTime(500).history_part(s), ByTime(500).live_part(s)
    assert sorted([*of_history.offsets.tolist(), *live.offsets.tolist()]) == list(range(n))
    assert (live.start, live.next_offset) == (0, n)
    return [int(o) for o in of_history.offsets]


def test_times_of_any_unit_are_cut_at_the_same_moment() -> None:
    micros = [499_999, 500_000, 500_999, 0]
    assert cut_at(np.array([499, 500, 501, 0])) == [0, 3]
    assert cut_at(pa.array(micros, pa.timestamp("us"))) == [0, 3]
    assert cut_at(pa.array([m * 1000 for m in micros], pa.timestamp("ns", "UTC"))) == [0, 3]
    assert cut_at(pa.array([0, 1], pa.timestamp("s", "UTC"))) == [0]
    assert cut_at(np.array([499_999, 500_000], "datetime64[us]")) == [0]


def test_a_time_may_be_a_datetime_of_any_zone() -> None:
    east = timezone(timedelta(hours=5))
    assert ByTime(datetime(1970, 1, 1, 5, 0, 0, 500_000, east)).ms == 500
    assert ByTime(datetime(1970, 1, 1, 5, 0, 0, 500_001, east)).ms == 501


def test_rows_with_an_event_time_are_told_by_it() -> None:
    s = Slice(
        split="p0",
        columns={"value": np.arange(3)},
        offsets=np.arange(3),
        start=0,
        next_offset=3,
        event_times=np.array([1, 9, 5]),
    )
    live = ByTime(5).live_part(s)
    assert live.offsets.tolist() == [1, 2]
    assert live.event_times is not None
    assert live.event_times.tolist() == [9, 5]


def test_columns_that_only_the_hand_over_needs_can_be_left_out() -> None:
    pipeline = Pipeline(history()).chain(LIVE, handover=BY_OFFSET, columns=["id"])
    with pipeline.batch(200).loader() as of:
        (batch,) = of
    assert set(batch) == {"id"}
    assert Counter(batch["id"]) == ALL


def test_names_of_any_split_can_be_paused() -> None:
    reader = CHAINS["offset"].open({}, everything)
    reader.pause(["early", "later", "p0", "p1", "nobody"])
    assert reader.poll(0.01) is None
    reader.pause(["early", "p1"])
    slices = [s for _ in range(50) if (s := reader.poll(0.001)) is not None]
    assert {s.split for s in slices} == {"later"}
    reader.pause(["p1"])
    slices += [s for _ in range(100) if (s := reader.poll(0.001)) is not None]
    assert {s.split for s in slices if len(s)} == {"early", "later", "p0", "p2"}
    reader.close()


# -- what is refused ---------------------------------------------------------------------------


def refusal(chain: HybridSource, saved: Mapping[str, Any] | None = None, **options: Any) -> str:
    of = loader(chain, **options)
    of.load_state_dict(saved or State().to_json())
    with pytest.raises((ConfigError, StateError, SourceError)) as refused:
        list(of)
    return str(refused.value)


def test_a_history_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match="Say where it ends: until='latest'"):
        HybridSource(replace(history(), bounded=False), LIVE, BY_OFFSET)


def test_a_split_in_both_is_refused() -> None:
    chain = replace(CHAINS["offset"], history=MemorySource({"p0": []}))
    assert "both have the split 'p0'" in refusal(chain)


def test_offsets_in_the_rows_need_a_rank_that_reads_all_of_the_history() -> None:
    said = [refusal(CHAINS["offset"], rank=rank, world_size=2) for rank in range(2)]
    assert all("or give the offsets: handover=AtOffsets" in text for text in said)


def test_once_live_is_known_any_number_of_ranks_goes_on() -> None:
    seen, state = stopped_after(8, loader(CHAINS["offset"], size=7))
    for rank in range(3):
        seen += resumed(state, loader(CHAINS["offset"], rank=rank, world_size=3))
    assert Counter(seen) == ALL


def test_a_state_from_the_middle_of_the_crossing_needs_the_ranks_it_was_saved_with() -> None:
    _, state = stopped_after(8, loader(CHAINS["offset"]))
    for name in ("early", "later", "p1"):
        del state["splits"][name]
    with pytest.raises(StateError, match="does not know yet where p1 begins"):
        resumed(state, loader(CHAINS["offset"]))


def test_a_split_added_since_the_crossing_begins_at_its_first_record() -> None:
    seen, state = stopped_after(8, loader(CHAINS["offset"]))
    grown = replace(LIVE, data={**LIVE.data, "p3": records("p3", range(4))})
    for name in ("early", "later"):
        del state["splits"][name]
    rest = resumed(state, loader(replace(CHAINS["offset"], live=grown)))
    assert Counter(seen + rest) == ALL + Counter(f"p3@{o}" for o in range(4))


def test_a_history_of_other_splits_than_live_has_is_refused() -> None:
    chain = replace(CHAINS["offset"], handover=ByOffset(split="kafka:clicks/{partition}"))
    assert "the history's rows are of kafka:clicks/p0" in refusal(chain)


def test_offsets_of_splits_that_live_has_not_are_refused() -> None:
    chain = replace(CHAINS["offset"], handover=AtOffsets({"p0": 1, "p9": 4}))
    assert "names 'p9', which the live source has not" in refusal(chain)


def test_a_live_source_that_cannot_begin_at_a_time_is_refused() -> None:
    chain = replace(CHAINS["time"], live=MemorySource(LIVE.data))
    assert "a MemorySource cannot begin at a time" in refusal(chain)


def test_a_row_without_an_offset_is_refused_by_its_place() -> None:
    rows = [*records("p0", range(3)), {**record("p0", 3), "offset": None}]
    chain = HybridSource(MemorySource({"early": rows}), LIVE, BY_OFFSET)
    assert "early@3: column 'offset' is null" in refusal(chain)


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    chain = replace(CHAINS["offset"], handover=ByOffset(offset="at", split="{partition}"))
    assert "needs column 'at', the rows have 'id', 'partition', 'offset'" in refusal(chain)
    chain = replace(CHAINS["offset"], columns=["id", "label"])
    assert "names 'label', the rows have 'id'" in refusal(chain)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ByOffset(split="{"), "is no format string"),
        (lambda: ByOffset(split="{0}"), "must name columns in braces"),
        (lambda: AtOffsets({}), "name live splits and offsets"),
        (lambda: AtOffsets({"p0": -1}), "a whole number from 0 up"),
        (lambda: ByTime(datetime(2026, 1, 1)), "a datetime with a time zone"),
        (lambda: ByTime(-5), "milliseconds since 1970"),
    ],
)
def test_a_wrong_rule_is_refused_where_it_is_written(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_damaged_hand_over_is_refused() -> None:
    _, state = stopped_after(2, loader(CHAINS["offset"]))
    state["tokens"] = [{"seen": 5} for _ in state["tokens"]]
    assert "hand-over is damaged" in refusal(CHAINS["offset"], state)


def test_any_rule_can_be_a_hand_over() -> None:
    rules: list[Handover] = [BY_OFFSET, AtOffsets({"p0": 1}), ByTime(1)]
    assert [rule.whole_history for rule in rules] == [True, False, False]

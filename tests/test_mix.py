"""A mix keeps the shares of its members in the rows that batches get, and resumes all of them."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.mixtures import (
    LENGTHS,
    WEIGHTS,
    counts,
    loader,
    member,
    members,
    mixture,
    resumed,
    rows,
    stopped_after,
)
from torch.utils.data import DataLoader

from forebay import (
    ConfigError,
    Pipeline,
    Position,
    Slice,
    SourceError,
    StateError,
    merge_states,
    mix,
)
from forebay.hybrid import AtOffsets, HybridSource
from forebay.mixing import Mix
from forebay.mixing.repeat import Repeated
from forebay.mixing.shares import Shares
from forebay.state import Mixture, Range, State
from forebay.testing import Fail, MemoryReader, MemorySource, Stall

ORDERS = ["split", "arrival", "deterministic"]


# -- shares ------------------------------------------------------------------------------------


def sequence(weights: Mapping[str, float], quantum: int, turns: int) -> list[str]:
    """The member of each row of the first turns."""
    shares, given_rows = Shares.of(weights, set(weights), quantum), []
    for _ in range(turns):
        shares = shares.begun(set(weights))
        assert shares.turn is not None
        given_rows += [shares.turn] * shares.left
        shares = shares.after(shares.turn, shares.left)
    return given_rows


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
    quantum=st.sampled_from([1, 4, 16]),
)
def test_no_member_is_ever_ahead_by_a_quantum_or_behind_by_more_than_the_bound(
    weights: list[float], quantum: int
) -> None:
    named = {f"m{i}": w for i, w in enumerate(weights)}
    given_rows, k = sequence(named, quantum, 200), len(named)
    behind = quantum * sum(1 / i for i in range(2, k + 1))
    ahead = quantum * (1 - 1 / k)
    for name, weight in named.items():
        share = weight / sum(weights)
        for n, got in enumerate(accumulate(m == name for m in given_rows), start=1):
            # 1e-6 of rows: weights are counted in millionths
            assert -behind - n * 1e-6 <= got - share * n <= ahead + n * 1e-6


@settings(max_examples=30, deadline=None)
@given(weight=st.floats(0.02, 0.98), quantum=st.sampled_from([1, 8, 16]))
def test_two_members_keep_their_shares_over_any_window_to_within_one_quantum(
    weight: float, quantum: int
) -> None:
    given_rows = sequence({"a": weight, "b": 1 - weight}, quantum, 400)
    before = [0, *accumulate(m == "a" for m in given_rows)]
    for window in (1_000, 100, 30):
        for start in range(0, len(before) - window, 7):
            got = before[start + window] - before[start]
            assert abs(got - weight * window) <= quantum + window * 1e-6


@pytest.mark.parametrize("order", ORDERS)
def test_shares_are_of_the_rows_that_batches_get_whatever_the_stages_drop(order: str) -> None:
    sources = {"live": member("live", [4_000, 2_000]), "replay": member("replay", [900])}
    built = Pipeline(mix(sources, {"live": 0.7, "replay": 0.3})).filter(
        lambda c: (np.asarray(c["value"]) % 10 == 0) | (len(c["value"]) > 7)
    )
    kept = built.filter(lambda row: row["value"] % 5 == 0, per="row", name="fifth")
    with kept.batch(50).loader(order=order) as of:
        given_rows = rows(b for _, b in zip(range(8), of, strict=False))
    live = np.cumsum([m == "live" for m in members(given_rows)])
    assert np.abs(live - 0.7 * np.arange(1, len(live) + 1)).max() <= 8


@pytest.mark.parametrize("members_", [1, 2, 3])
def test_every_quantum_and_slice_size_gives_the_same_sequence_of_members(members_: int) -> None:
    def given_members(**options: Any) -> list[str]:
        return members(rows(loader(mixture(members_, **options))))

    assert given_members(slice_rows=1) == given_members(slice_rows=64)


def test_a_new_weight_counts_from_the_restart_on_without_making_up_for_the_past() -> None:
    def source(live: float) -> Any:
        long = {"live": member("live", [3_000]), "replay": member("replay", [3_000])}
        return mix(long, {"live": live, "replay": 1 - live})

    _, state = stopped_after(100, loader(source(0.9)))
    of = loader(source(0.5))
    of.load_state_dict(state)
    given_rows, _ = stopped_after(10, of)
    assert abs(counts(given_rows)["live"] - 40) <= 16


# -- resume ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shuffle", [0, 20])
@pytest.mark.parametrize("members_", [1, 2, 3])
def test_every_row_comes_once_whatever_batch_a_mixed_run_stops_after(
    members_: int, shuffle: int, order: str
) -> None:
    def run() -> Any:
        return loader(mixture(members_, when_dry="others"), shuffle=shuffle, order=order)

    whole = Counter(rows(run()))
    assert sum(whole.values()) == sum(sum(v) for v in list(LENGTHS.values())[:members_])
    for stop in range(0, sum(whole.values()) // 8 + 2, 3):
        seen, state = stopped_after(stop, run())
        assert Counter(seen + resumed(state, run())) == whole, stop


@pytest.mark.parametrize("when_dry", ["wait", "others", "repeat"])
@pytest.mark.parametrize("shuffle", [0, 20])
@pytest.mark.parametrize("expands", [False, True])
def test_a_resumed_run_goes_on_in_the_very_same_sequence(
    expands: bool, shuffle: int, when_dry: Any
) -> None:
    def run(**options: Any) -> Any:
        source = mixture(3, options.pop("slice_rows", 7), when_dry=when_dry)
        return loader(source, expands=expands, shuffle=shuffle, order="deterministic", **options)

    whole = rows(run())
    assert rows(run(workers=4, slice_rows=3, prefetch=5)) == whole
    for stop in range(0, len(whole) // 8 + 2, 2):
        seen, state = stopped_after(stop, run(slice_rows=3))
        assert seen + resumed(state, run(workers=1, slice_rows=64)) == whole, stop


@pytest.mark.parametrize("order", ["split", "arrival"])
@pytest.mark.parametrize("shuffle", [0, 20])
def test_the_sequence_of_members_goes_on_in_any_order_of_rows(shuffle: int, order: str) -> None:
    def run() -> Any:
        return loader(mixture(3), shuffle=shuffle, order=order, size=5)

    whole = rows(run())
    for stop in range(0, len(whole) // 5 + 2, 4):
        seen, state = stopped_after(stop, run())
        rest = resumed(state, run())
        assert max(Counter(seen + rest).values()) == 1
        assert counts(seen + rest) == counts(whole)
        if not shuffle:
            assert members(seen + rest) == members(whole), stop


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    before=st.integers(1, 3),
    after=st.integers(1, 3),
    stops=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    shuffle=st.sampled_from([0, 25]),
    order=st.sampled_from(ORDERS),
)
def test_ranks_mix_what_they_own_and_may_change_in_number(
    before: int, after: int, stops: list[int], shuffle: int, order: str
) -> None:
    def run(rank: int, world: int) -> Any:
        source = mixture(2, when_dry="others")
        return loader(source, shuffle=shuffle, order=order, rank=rank, world_size=world)

    parts = [stopped_after(stops[rank], run(rank, before)) for rank in range(before)]
    merged = merge_states([state for _, state in parts])
    seen = [row for got, _ in parts for row in got]
    for rank in range(after):
        seen += resumed(merged, run(rank, after))
    assert Counter(seen) == Counter(rows(loader(mixture(2, when_dry="others"))))


@pytest.mark.parametrize("members_", [1, 2])
@pytest.mark.parametrize("stop", [0, 1, 5, 13])
def test_a_data_loader_may_stand_around_a_mixed_run_at_any_save_point(
    stop: int, members_: int
) -> None:
    first = loader(mixture(members_, when_dry="others"))
    wrapped: Any = DataLoader(first, batch_size=None)
    seen = rows(b for _, b in zip(range(stop), wrapped, strict=False))
    state = first.state_dict()
    first.close()
    again = loader(mixture(members_, when_dry="others"))
    again.load_state_dict(state)
    rest: Any = DataLoader(again, batch_size=None)
    whole = rows(loader(mixture(members_, when_dry="others")))
    assert Counter(seen + rows(rest)) == Counter(whole)


def test_a_checkpoint_of_one_member_alone_goes_on_inside_a_mix() -> None:
    seen, state = stopped_after(6, loader(member("live", LENGTHS["live"])))
    rest = resumed(state, loader(mixture(2, when_dry="others")))
    assert Counter(seen + rest) == Counter(rows(loader(mixture(2, when_dry="others"))))


def test_the_state_of_a_mix_is_small_and_the_states_of_all_ranks_merge() -> None:
    _, state = stopped_after(3, loader(mixture(3)))
    assert state["mix"].keys() == {"owed", "turn"}
    assert merge_states([state]) == state
    one = Mixture(owed={"a": 10, "b": -10}, turn="a", left=3, ended=frozenset("c"))
    two = Mixture(owed={"a": 30, "c": -30}, ended=frozenset("d"))
    merged = Mixture.merged([one, two])
    assert merged == Mixture(owed={"a": 20, "b": -10, "c": -30}, ended=frozenset("d"))


def test_a_damaged_state_of_the_mix_is_refused_in_words() -> None:
    _, state = stopped_after(1, loader(mixture(2)))
    state["mix"]["owed"]["live"] = "much"
    with pytest.raises(StateError, match=r"state of the mix is damaged"):
        loader(mixture(2)).load_state_dict(state)


# -- dry members -------------------------------------------------------------------------------


def test_the_run_ends_with_the_first_member_that_ends_where_shares_are_kept() -> None:
    given_rows = rows(loader(mixture(2), order="deterministic"))
    got = counts(given_rows)
    assert got["replay"] == sum(LENGTHS["replay"])
    assert abs(got["live"] - 2 * got["replay"]) <= 2 * 16


def test_a_member_that_stalls_is_waited_for_and_the_shares_hold() -> None:
    gate = threading.Event()
    live = MemorySource({"live/0": [*range(40), Stall(gate), *range(40, 300)]}, bounded=False)
    source = mix({"live": live, "replay": member("replay", [500])}, {"live": 3, "replay": 1})
    with loader(source) as of:
        batches = iter(of)
        given_rows = rows(next(batches) for _ in range(5))
        threading.Timer(0.5, gate.set).start()
        given_rows += rows(next(batches) for _ in range(20))
    live_rows = np.cumsum([m == "live" for m in members(given_rows)])
    assert np.abs(live_rows - 0.75 * np.arange(1, len(live_rows) + 1)).max() <= 8


def test_others_fill_in_while_a_member_has_nothing_and_its_return_is_no_flood() -> None:
    gate = threading.Event()
    live = MemorySource({"live/0": [*range(40), Stall(gate), *range(40, 4_000)]}, bounded=False)
    sources = {"live": live, "replay": member("replay", [4_000])}
    source = mix(sources, {"live": 3, "replay": 1}, when_dry="others")
    with loader(source, max_bytes=20_000) as of:
        batches = iter(of)
        filled = rows(next(batches) for _ in range(100))
        assert counts(filled) == {"live": 40, "replay": 760}
        gate.set()
        after: list[Any] = []
        while counts(after)["live"] < 600:
            after += rows([next(batches)])
    back = members(after)[members(after).index("live") :]
    assert abs(back.count("live") - 0.75 * len(back)) <= 9 * 16


def test_an_ended_member_is_left_out_and_the_run_ends_when_all_ended() -> None:
    given_rows = rows(loader(mixture(3, when_dry="others"), order="deterministic"))
    assert counts(given_rows) == {k: sum(v) for k, v in LENGTHS.items()}
    after_replay = len(given_rows) - members(given_rows)[::-1].index("replay")
    rest = members(given_rows)[after_replay : after_replay + 28]
    assert abs(rest.count("third") - len(rest) / 7) <= 16


def test_a_bounded_member_begins_anew_for_as_long_as_the_others_go_on() -> None:
    given_rows = rows(loader(mixture(2, when_dry="repeat"), order="deterministic"))
    got = Counter(given_rows)
    assert counts(given_rows)["live"] == sum(LENGTHS["live"])
    assert abs(counts(given_rows)["replay"] - 105) <= 16
    replayed = [n for row, n in got.items() if row[0].startswith("replay")]
    assert len(replayed) == sum(LENGTHS["replay"])
    assert max(replayed) - min(replayed) <= 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shuffle", [0, 30])
def test_a_repeated_member_resumes_in_its_round_whatever_the_splits_are_at(
    shuffle: int, order: str
) -> None:
    live = member("live", [100_000])

    def run() -> Any:
        source = mix(
            {"live": live, "replay": member("replay", [17, 40, 0, 5])},
            {"live": 1, "replay": 1},
            when_dry="repeat",
        )
        return loader(source, shuffle=shuffle, order=order)

    seen: list[Any] = []
    state = None
    for stop in (3, 11, 8, 2, 19, 12, 23):
        of = run()
        if state:
            of.load_state_dict(state)
        got, state = stopped_after(stop, of)
        seen += got
    for split, length in {"replay/0": 17, "replay/1": 40, "replay/3": 5}.items():
        offsets = [offset for name, offset, _ in seen if name == split]
        times = Counter(offsets)
        assert len(times) == length
        assert max(times.values()) - min(times.values()) <= 1 + bool(shuffle)
        if not shuffle and order != "arrival":
            assert offsets == [i % length for i in range(len(offsets))]


def test_a_split_that_is_a_round_behind_catches_up_before_the_next_round() -> None:
    ahead = {"replay/0": Position(2, base=0, token={"round": 3}), "replay/1": Position(1, base=0)}
    source = mix(
        {"live": member("live", [60]), "replay": member("replay", [4, 3])},
        {"live": 1, "replay": 1},
        when_dry="repeat",
    )
    of = loader(source, order="deterministic")
    given_rows = resumed(State(splits=ahead).to_json(), of)
    replayed = [(s[-1], o) for s, o, _ in given_rows if s.startswith("replay")]
    second = [("1", 0), ("1", 1), ("1", 2)]
    assert replayed[:4] == [("0", 2), ("0", 3), ("1", 1), ("1", 2)]
    assert replayed[4:13] == second * 3
    assert replayed[13:20] == [("0", 0), ("0", 1), ("0", 2), ("0", 3), *second]


class Scripted:
    """Finished slices in a fixed order; of the splits in ``finished`` nothing more comes."""

    def __init__(self, slices: list[Slice], finished: set[str]) -> None:
        self._slices, self._finished = slices, finished

    def next(self, want: Collection[str] = ()) -> Slice | None:
        if want and set(want) <= self._finished and all(s.split not in want for s in self._slices):
            return None
        return self._slices.pop(0) if self._slices else None


def beginning(split: str, number: int) -> Slice:
    nothing = np.zeros(0, np.int64)
    token = {"round": number}
    return Slice(
        split=split, columns={}, offsets=nothing, start=0, next_offset=0, token=token, resets=True
    )


def test_the_beginnings_of_a_round_come_together_whatever_was_read_ahead_of_them() -> None:
    def of(split: str, start: int, number: int) -> Slice:
        at = np.arange(start, start + 2, dtype=np.int64)
        token = {"round": number}
        columns = {"value": at}
        return Slice(
            split=split,
            columns=columns,
            offsets=at,
            start=start,
            next_offset=start + 2,
            token=token,
        )

    ahead = [beginning("b", 1), of("b", 0, 1), beginning("b", 2), of("b", 0, 2)]
    both = [beginning("b", 3), of("b", 0, 3), beginning("a", 3), of("a", 0, 3)]
    live = MemorySource({"c": []}, bounded=False)
    sources = {"live": live, "replay": MemorySource({"a": [0, 1], "b": [0, 1]})}
    source = mix(sources, {"live": 0.001, "replay": 0.999}, when_dry="repeat")
    at = {"a": Position(2, token={"round": 2}), "b": Position(2), "c": Position(0)}
    mixed = Mix(Scripted([*ahead, *both], {"a", "b"}), source, at, None, deterministic=True)
    came: list[tuple[str, int, int]] = []
    while len(came) < 8 and (s := mixed.next()) is not None:
        came.append((s.split, (s.token or {})["round"], len(s)))
    alone = [("b", 1, 0), ("b", 1, 2), ("b", 2, 0), ("b", 2, 2)]
    assert came == [*alone, ("a", 3, 0), ("b", 3, 0), ("a", 3, 2), ("b", 3, 2)]


def test_a_round_is_not_told_as_finished_before_the_next_begins() -> None:
    reader = Repeated("replay", member("replay", [3, 9]), {}, lambda split: True)
    told = []
    while (s := reader.poll(0)) is not None:
        told.append((s.split[-1], s.next_offset, list(reader.finished_splits())))
    assert told == [("0", 3, ["replay/0"]), ("1", 7, ["replay/0"]), ("1", 9, [])]
    assert reader.finished_splits() == []
    begun = [reader.poll(0) for _ in range(3)]
    assert [s.resets for s in begun if s is not None] == [True, True, False]


class WithTokens(MemorySource):
    """Its slices have tokens of their own; it takes no others back."""

    def open(self, positions: Any, owns: Any) -> MemoryReader:
        for p in positions.values():
            assert {t for r in p.undelivered() if r.token for t in r.token} <= {"own"}
        reader = super().open(positions, owns)
        reader.__class__ = TokenReader
        return reader


class TokenReader(MemoryReader):
    def poll(self, timeout: float) -> Slice | None:
        s = super().poll(timeout)
        return s if s is None else replace(s, token={"own": 1})


def test_a_repeated_source_gets_its_own_tokens_back_and_the_state_knows_the_round() -> None:
    def run() -> Any:
        sources = {"live": member("live", [400]), "replay": WithTokens({"replay/0": [*range(10)]})}
        return loader(mix(sources, {"live": 1, "replay": 1}, when_dry="repeat"))

    _, state = stopped_after(6, run())
    assert state["tokens"] == [{"own": 1, "round": 1}]
    of = run()
    of.load_state_dict(state)
    _, again = stopped_after(1, of)
    assert again["tokens"] == [{"own": 1, "round": 2}]


def test_the_round_is_part_of_every_token_of_a_position_and_the_source_sees_none() -> None:
    token = {"own": 1, "round": 2}
    at = Position(6, pending=(Range(2, 4, 0, token),), token=token, base=0)
    source = WithTokens({"replay/0": [*range(10)]})
    reader = Repeated("replay", source, {"replay/0": at}, lambda split: True)
    assert reader.positions() == {"replay/0": at}


def test_a_word_that_a_member_is_dry_is_heard_though_earlier_ranges_are_pending() -> None:
    nothing = np.zeros(0, np.int64)
    dry = Slice(split="live/0", columns={}, offsets=nothing, start=9, next_offset=9)
    assert Position(9, pending=(Range(2, 4),), base=0).remaining(dry) == [dry]


@pytest.mark.parametrize("order", ORDERS)
def test_a_member_that_had_ended_is_back_if_it_has_more_at_the_restart(order: str) -> None:
    def run(length: int) -> Any:
        sources = {"live": member("live", [300]), "replay": member("replay", [length])}
        return loader(mix(sources, {"live": 1, "replay": 1}, when_dry="others"), order=order)

    seen, state = stopped_after(12, run(20))
    assert state["mix"]["ended"] == ["replay"]
    rest = resumed(state, run(90))
    assert counts(seen + rest) == {"live": 300, "replay": 90}
    assert abs(counts(rest[:80])["replay"] - 40) <= 16


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_a_member_without_rows_cannot_be_repeated(lengths: list[int]) -> None:
    live = member("live", [30])
    empty = member("replay", lengths or [5])
    source = mix({"live": live, "replay": empty}, {"live": 1, "replay": 1}, when_dry="repeat")
    built = Pipeline(source).filter(lambda row: row["value"] > 5, per="row")
    with pytest.raises(SourceError, match=r"'replay'.*(no rows, so|gave no row)"):
        list(built.batch(4).loader())


# -- bounds, trouble and mistakes --------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("when_dry", ["wait", "others", "repeat"])
def test_a_window_too_small_for_all_members_locks_nobody_out(when_dry: Any, order: str) -> None:
    source = mixture(3, when_dry=when_dry)
    roomy = counts(rows(loader(source, order=order)))
    assert counts(rows(loader(source, order=order, max_bytes=2_000))) == roomy


class Counted(MemorySource):
    """Counts how often splits were paused at a poll: what is read beyond a full window."""

    def open(self, positions: Any, owns: Any) -> MemoryReader:
        reader = super().open(positions, owns)
        reader.__class__ = CountedReader
        return reader


class CountedReader(MemoryReader):
    polls = beyond = 0

    def pause(self, splits: Any) -> None:
        CountedReader.polls += 1
        CountedReader.beyond += bool(splits)
        super().pause(splits)


def test_members_are_read_as_the_stages_use_them_so_that_the_window_holds_all_of_them() -> None:
    CountedReader.polls = CountedReader.beyond = 0
    rare = Counted({"live/0": list(range(40_000))}, slice_rows=20)
    plenty = MemorySource({"replay/0": list(range(-40_000, 0))}, slice_rows=20)
    built = Pipeline(mix({"live": rare, "replay": plenty}, {"live": 1, "replay": 1}))
    kept = built.filter(
        lambda row: row["value"] < 0 or row["value"] % 20 == 0, per="row", name="rare"
    )
    with kept.batch(10).loader(max_bytes=60_000, workers=1) as of:
        given_rows = rows(b for _, b in zip(range(60), of, strict=False))
    assert abs(counts(given_rows)["live"] - 300) <= 8
    assert CountedReader.beyond < 0.2 * CountedReader.polls


class OwnSplitsOnly(MemorySource):
    """Its reader refuses to pause what is not its own, as that of a topic does."""

    def open(self, positions: Any, owns: Any) -> MemoryReader:
        reader = super().open(positions, owns)
        reader.__class__ = OwnSplitsOnlyReader
        return reader


class OwnSplitsOnlyReader(MemoryReader):
    def pause(self, splits: Any) -> None:
        assert set(splits) <= self.positions().keys()
        super().pause(splits)


def test_a_member_is_asked_to_pause_its_own_splits_only() -> None:
    live = OwnSplitsOnly({"live/0": list(range(300)), "live/1": list(range(300))}, slice_rows=20)
    replay = OwnSplitsOnly({"replay/0": list(range(-600, 0))}, slice_rows=20)
    mixed = mix({"live": live, "replay": replay}, {"live": 1, "replay": 1}, when_dry="others")
    assert counts(rows(loader(mixed, max_bytes=2_000))) == {"live": 600, "replay": 600}


@pytest.mark.parametrize("order", ORDERS)
def test_an_error_of_one_member_is_raised_after_its_good_rows_and_closes_the_others(
    order: str,
) -> None:
    opened: list[MemoryReader] = []

    class Watched(MemorySource):
        def open(self, *args: Any) -> MemoryReader:
            opened.append(super().open(*args))
            return opened[-1]

    live = Watched({"live/0": [*range(48), Fail("gone")]})
    replay = Watched({"replay/0": list(range(500))})
    of = loader(mix({"live": live, "replay": replay}, {"live": 1, "replay": 1}), order=order)
    batches = iter(of)
    given_rows = rows([next(batches)])
    assert [r.closed for r in opened] == [False, False]
    with pytest.raises(SourceError, match="live/0@48: gone"):
        while True:
            given_rows += rows([next(batches)])
    assert counts(given_rows)["live"] == 48
    assert [r.closed for r in opened] == [True, True]


def test_a_member_that_cannot_be_opened_closes_those_that_were() -> None:
    opened: list[MemoryReader] = []

    class Watched(MemorySource):
        def open(self, *args: Any) -> MemoryReader:
            opened.append(super().open(*args))
            return opened[-1]

    class Broken(MemorySource):
        def open(self, *_: Any) -> Any:
            raise SourceError("no such table")

    sources = {"live": Watched({"live/0": [1]}), "replay": Broken({"replay/0": [1]})}
    with pytest.raises(SourceError, match="no such table"):
        next(iter(loader(mix(sources, {"live": 1, "replay": 1}))))
    assert [r.closed for r in opened] == [True]


def test_two_members_with_one_split_are_refused_at_opening_with_its_name() -> None:
    twice = {"live": member("x", [9]), "replay": member("x", [9])}
    with pytest.raises(ConfigError, match=r"'live' and 'replay' both have the split 'x/0'"):
        next(iter(loader(mix(twice, {"live": 1, "replay": 1}))))


def test_a_position_that_no_member_has_goes_to_the_likeliest_which_refuses_it() -> None:
    likely = State(splits={"replay/7": Position(3, base=0)}).to_json()
    with pytest.raises(StateError, match=r"'replay/7', the source has only replay/0"):
        resumed(likely, loader(mixture(2)))
    foreign = State(splits={"zzz": Position(3, base=0)}).to_json()
    with pytest.raises(StateError, match=r"'zzz', which no member of the mix has \(live, replay\)"):
        resumed(foreign, loader(mixture(2)))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"live": 1}, "the weight of 'replay' is missing"),
        ({"live": 1, "replay": 1, "reply": 1}, r"'reply', which is none .* did you mean 'replay'"),
        ({"live": -1, "replay": 1}, "weight of 'live' must be a positive number, not -1"),
        ({"live": 0, "replay": 0}, "weight of 'live' must be a positive number, not 0"),
        ({"live": float("nan"), "replay": 1}, "not nan"),
        ({"live": "1", "replay": 1}, "not '1'"),
    ],
)
def test_wrong_weights_are_refused_by_name(weights: Any, words: str) -> None:
    sources = {"live": member("live", [1]), "replay": member("replay", [1])}
    with pytest.raises(ConfigError, match=words):
        mix(sources, weights)


def test_what_cannot_be_mixed_is_refused() -> None:
    one: Any = {"live": member("live", [1])}
    with pytest.raises(ConfigError, match="no sources"):
        mix({}, {})
    with pytest.raises(ConfigError, match=r"sources\['live'\] is a list"):
        mix({"live": []}, {"live": 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="'live' is a mix itself"):
        mix({"live": mix(one, {"live": 1})}, {"live": 1})
    with pytest.raises(ConfigError, match="when_dry must be one of wait, others, repeat"):
        mix(one, {"live": 1}, when_dry="stop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="quantum must be a positive whole number, not 0"):
        mix(one, {"live": 1}, quantum=0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ["split", "arrival", "deterministic"])
def test_a_chain_of_history_and_live_may_be_a_member(order: str, seed: int) -> None:
    history = MemorySource({"h": list(range(40))}, slice_rows=3)
    live = MemorySource({"l": list(range(100, 130))}, slice_rows=4)
    chain = HybridSource(history, live, AtOffsets({"l": 10}))
    replay = MemorySource({"r": list(range(1000, 1060))}, slice_rows=5)
    source = mix({"chain": chain, "replay": replay}, {"chain": 2, "replay": 1}, when_dry="others")
    pipeline = Pipeline(source).shuffle(11, seed=seed).batch(7)
    first = pipeline.loader(order=order)
    batches = iter(first)
    got = [v for _ in range(3 + 4 * seed) for v in next(batches)["value"].tolist()]
    state = first.state_dict()
    first.close()
    second = pipeline.loader(order=order)
    second.load_state_dict(state)
    got += [v for batch in second for v in batch["value"].tolist()]
    assert sorted(got) == [*range(40), *range(110, 130), *range(1000, 1060)]


def test_a_part_of_a_chain_cannot_be_a_mix() -> None:
    inner = mix({"a": MemorySource({"a": [1]})}, {"a": 1})
    chain = HybridSource(inner, MemorySource({"b": [2]}), AtOffsets({"b": 0}))
    with pytest.raises(ConfigError, match="the history of a chain cannot be a mix"):
        next(iter(Pipeline(chain).batch(1).loader()))


def test_a_mix_is_configuration_only_and_can_be_pickled() -> None:
    source = pickle.loads(pickle.dumps(mixture(2)))
    assert source == mixture(2)
    assert WEIGHTS["live"] == source.weights["live"]
    assert counts(rows(loader(source))) == counts(rows(loader(mixture(2))))


def test_lag_and_ends_are_those_of_all_members(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="forebay"), loader(mixture(2)) as of:
        batches = iter(of)
        given_rows = rows([next(batches)])
        behind = sum(sum(LENGTHS[k]) for k in ("live", "replay")) - len(given_rows)
        assert sum(of.lag().values()) == behind
        assert set(of.lag()) == {f"{k}/{i}" for k in ("live", "replay") for i in range(3)} - {
            "live/2"
        }


def test_a_rank_that_owns_nothing_of_a_member_mixes_the_rest() -> None:
    source = mixture(3, when_dry="others")
    given_rows = [rows(loader(source, rank=rank, world_size=2)) for rank in range(2)]
    assert [set(members(g)) for g in given_rows] != [set(WEIGHTS)] * 2
    assert Counter(given_rows[0] + given_rows[1]) == Counter(rows(loader(source)))

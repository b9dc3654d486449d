"""The state: valid at any time, plain JSON, small, and refused in words where it does not fit."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

from forebay import Loader, Pipeline, Position, Slice, SourceError, StateError, merge_states
from forebay.state import State
from forebay.testing import Fail, MemorySource

TEN = {"a": list(range(40)), "b": list(range(100, 140))}


def loader(data: dict[str, list[int]] = TEN, size: int = 8, **options: Any) -> Loader:
    return Pipeline(MemorySource(data)).batch(size).loader(**options)


def values(batches: Any) -> list[int]:
    return [v for b in batches for v in b["value"].tolist()]


def test_a_state_is_valid_before_the_first_batch_and_resumes_at_the_start() -> None:
    state = loader().state_dict()
    again = loader()
    again.load_state_dict(state)
    assert sorted(values(again)) == sorted(TEN["a"] + TEN["b"])


def test_loading_and_asking_again_gives_the_same_state_however_often() -> None:
    first = loader()
    next(iter(first))
    state = first.state_dict()
    for _ in range(5):
        again = loader()
        again.load_state_dict(state)
        assert again.state_dict() == state
        state = again.state_dict()


def test_two_states_taken_without_a_batch_between_are_equal() -> None:
    first = loader()
    batches = iter(first)
    next(batches)
    assert first.state_dict() == first.state_dict()


def at(start: int, stop: int, file: int) -> Slice:
    offsets = np.arange(start, stop, dtype=np.int64)
    return Slice(
        split="a",
        columns={"value": offsets},
        offsets=offsets,
        start=start,
        next_offset=stop,
        token={"file": file},
    )


def test_every_range_keeps_the_token_that_is_valid_where_it_begins() -> None:
    position = Position(0, token={"file": 0}).advance(at(0, 4, 0)).advance(at(10, 14, 2))
    assert position.low_token == {"file": 0}
    assert [r.token for r in position.undelivered()] == [{"file": 0}, {"file": 2}]
    filled = position.advance(at(4, 7, 1))
    assert filled.low == 7
    assert filled.low_token == {"file": 1}
    assert filled.token == {"file": 2}
    saved = json.loads(json.dumps(State(splits={"a": filled}).to_json()))
    assert State.from_json(saved).splits["a"] == filled


def test_a_state_saved_at_the_end_resumes_to_nothing() -> None:
    first = loader()
    assert len(list(first)) == 10
    again = loader()
    again.load_state_dict(first.state_dict())
    assert list(again) == []


def test_the_state_counts_delivered_rows_inside_a_large_slice() -> None:
    data = {"a": list(range(1_000))}
    first = Pipeline(MemorySource(data, slice_rows=1_000)).batch(7).loader()
    for count, batch in enumerate(first, start=1):
        assert (
            first.state_dict()["splits"]["a"]["offset"] == 7 * count == int(batch["value"][-1]) + 1
        )
        if count == 40:
            break


def test_every_owned_split_is_in_the_state_after_the_first_batch_also_idle_ones() -> None:
    source = MemorySource({"busy": list(range(9)), "idle": [1, 2, 3]}, start={"busy": 0, "idle": 3})
    first = Pipeline(source).batch(4).loader()
    next(iter(first))
    assert first.state_dict()["splits"]["idle"] == {"offset": 3, "base": 3}


def test_a_state_of_64_splits_is_at_most_10_kilobytes_of_json() -> None:
    data = {f"kafka:clicks/{i}": list(range(20)) for i in range(64)}
    first = loader(data)
    list(first)
    assert len(json.dumps(first.state_dict())) < 10_000


def test_tokens_are_listed_once_and_come_back_to_their_splits() -> None:
    old, new = {"epoch": 1}, {"epoch": 2}
    positions = {
        "a": Position(1, token=old),
        "b": Position(2, token=new),
        "c": Position(3, token=old),
    }
    state = json.loads(json.dumps(State(splits=positions).to_json()))
    assert state["tokens"] == [old, new]
    assert State.from_json(state).splits == positions


def test_a_position_keeps_its_token_until_a_slice_brings_another() -> None:
    def moved(start: int, token: Any) -> Slice:
        nothing = np.zeros(0, np.int64)
        return Slice(
            split="a", columns={}, offsets=nothing, start=start, next_offset=start + 1, token=token
        )

    position = Position(0).advance(moved(0, {"epoch": 1})).advance(moved(1, None))
    assert position == Position(2, token={"epoch": 1})
    assert position.advance(moved(2, {"epoch": 2})).token == {"epoch": 2}


def test_loading_a_state_after_the_start_is_refused() -> None:
    first = loader()
    batches = iter(first)
    next(batches)
    with pytest.raises(StateError, match="after iteration has begun"):
        first.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"version": 99}, "version 99, this Forebay reads version 1"),
        ({"model": 1}, "no state of a Forebay loader"),
        ([1, 2], "no state of a Forebay loader"),
        ({"version": 1, "pass": 0, "batches": 0, "splits": {"a": {"offset": "x"}}}, "split 'a'"),
        ({"version": 1, "pass": 0, "batches": 0}, "damaged"),
    ],
)
def test_a_state_that_is_none_is_refused_in_words(state: Any, words: str) -> None:
    with pytest.raises(StateError, match=words):
        loader().load_state_dict(state)


def test_a_state_of_other_splits_is_refused_and_names_both() -> None:
    first = loader()
    list(first)
    other = loader({"z": [1, 2]})
    other.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match=r"'a'.*only z"):
        next(iter(other))


def test_resuming_says_where_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    first = loader()
    next(iter(first))
    again = loader()
    again.load_state_dict(first.state_dict())
    with caplog.at_level(logging.INFO, logger="forebay"):
        next(iter(again))
    assert "resumed at a@7, b@1" in caplog.text


def test_changed_stages_inside_a_shuffle_window_are_noticed() -> None:
    pipeline = Pipeline(MemorySource(TEN)).shuffle(40).batch(8)
    first = pipeline.loader()
    next(iter(first))
    changed = Pipeline(MemorySource(TEN)).filter(lambda c: np.asarray(c["value"]) > 5)
    again = changed.shuffle(40).batch(8).loader()
    again.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match=r"window with \d+ rows of a; the same records now give"):
        next(iter(again))


def test_states_of_ranks_that_delivered_the_same_split_do_not_merge() -> None:
    first = loader()
    next(iter(first))
    with pytest.raises(StateError, match="same splits: a, b"):
        merge_states([first.state_dict(), first.state_dict()])


def test_only_committed_batches_count_where_the_loader_is_told_so() -> None:
    first = loader(state_of="committed")
    batches = iter(first)
    got = [next(batches) for _ in range(4)]
    first.commit(2)
    state = first.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert state["batches"] == 2
    assert sorted(values(got[:2]) + values(again)) == sorted(TEN["a"] + TEN["b"])


def test_committing_more_than_was_yielded_is_refused() -> None:
    first = loader(state_of="committed")
    next(iter(first))
    with pytest.raises(StateError, match=r"commit\(2\), but 1 yielded"):
        first.commit(2)


def test_batches_yielded_before_an_error_or_another_state_cannot_be_committed_after_it() -> None:
    source = MemorySource({"a": [*range(16), Fail("gone"), *range(16, 40)]})
    of = Pipeline(source).batch(8).loader(state_of="committed")
    batches = iter(of)
    assert values([next(batches), next(batches)]) == list(range(16))
    with pytest.raises(SourceError):
        next(batches)
    assert values([next(batches)]) == list(range(8))
    with pytest.raises(StateError, match="1 yielded"):
        of.commit(2)
    of.close()
    of.load_state_dict(of.state_dict())
    with pytest.raises(StateError, match="0 yielded"):
        of.commit()

"""The order in which slices are given, and what becomes of them when a log is not the same."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.slice import Slice
from forebay.state import Position
from forebay_kafka.drain import Run
from forebay_kafka.gaps import Gap, Log, find_gap
from forebay_kafka.outbox import Outbox
from forebay_kafka.positions import Identity, Partition, token
from forebay_kafka.tracks import Track

OLD, NEW = Identity("old", "here"), Identity("new", "here")


def track(number: int = 0, next: int = 0, bound: int | None = None) -> Track:
    return Track(Partition("clicks", number), OLD, next, bound)


def run(number: int, start: int, stop: int) -> Run:
    offsets = np.arange(start, stop)
    return Run(
        partition=Partition("clicks", number),
        columns={"offset": offsets},
        offsets=offsets,
        times=offsets,
        next_offset=stop,
        epoch=0,
        tombstones=0,
        nbytes=0,
    )


def recreated(position: int) -> Gap:
    log = Log(identity=NEW, low=0, high=9, end=9)
    gap = find_gap("kafka:clicks/0", Position(position, token=token(OLD, 0)), log)
    assert gap is not None
    return gap


def given(outbox: Outbox, held: tuple[str, ...] = ()) -> list[Slice]:
    return list(iter(lambda: outbox.next(held), None))


def test_slices_of_held_splits_wait_in_their_order() -> None:
    outbox, a, b = Outbox("fail"), track(0), track(1)
    for t, start in ((a, 0), (b, 0), (a, 5), (b, 5)):
        outbox.put(t, run(t.partition.number, start, start + 5))
    assert [(s.split, s.start) for s in given(outbox, (a.split,))] == [(b.split, 0), (b.split, 5)]
    assert [(s.split, s.start) for s in given(outbox)] == [(a.split, 0), (a.split, 5)]


@pytest.mark.parametrize(("next", "bound", "expected"), [(3, None, [3, 4]), (0, 2, [0, 1])])
def test_only_what_lies_between_position_and_bound_is_given(
    next: int, bound: int | None, expected: list[int]
) -> None:
    outbox, t = Outbox("fail"), track(next=next, bound=bound)
    outbox.put(t, run(0, 0, 5))
    (s,) = given(outbox)
    assert s.offsets.tolist() == expected
    assert s.event_times is not None
    assert s.event_times.tolist() == expected
    assert (s.start, s.next_offset) == (next, bound or 5)


def test_slices_of_a_log_that_is_gone_are_not_given_before_the_new_one() -> None:
    outbox, t, other = Outbox("earliest"), track(), track(1)
    outbox.put(t, run(0, 0, 5))
    outbox.put(other, run(1, 0, 5))
    outbox.leap(t, recreated(5), 5, 0)
    outbox.put(t, run(0, 0, 3))
    assert [(s.split, s.start, s.next_offset, s.resets) for s in given(outbox)] == [
        (other.split, 0, 5, False),
        (t.split, 0, 0, True),
        (t.split, 0, 3, False),
    ]
    assert outbox.stats({}).resets == 1


def test_a_position_without_an_epoch_beyond_the_end_is_a_cut_log() -> None:
    log = Log(identity=OLD, low=0, high=9, end=9)
    gap = find_gap("kafka:clicks/0", Position(12), log)
    assert gap is not None
    assert (gap.start, gap.stop, gap.earliest, gap.resets) == (9, 12, 0, True)


def test_a_position_on_another_cluster_says_so() -> None:
    saved = Position(3, token=token(Identity("old", "there"), 0))
    gap = find_gap("kafka:clicks/0", saved, Log(identity=NEW, low=0, high=9, end=9))
    assert gap is not None
    assert "another Kafka cluster" in str(gap.error())


def test_where_the_brokers_give_no_topic_ids_nothing_is_made_up() -> None:
    saved = Position(3, token=token(Identity("old", None), None))
    log = Log(identity=Identity(None, None), low=0, high=9, end=9)
    assert find_gap("kafka:clicks/0", saved, log) is None

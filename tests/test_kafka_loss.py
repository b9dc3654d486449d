"""Records that are gone: a named error, or a chosen policy that counts them; never silence."""

from __future__ import annotations

import pytest
from tests.kafka_client import produce
from tests.kafka_support import (
    kafka,
    numbered,
    opened,
    read,
    slices_of,
    slices_until,
    state_after,
    transaction,
    values,
)
from tests.topics import Topics

from forebay.errors import DataLossError
from forebay.state import Position, Range
from forebay_kafka.devbroker import DevBrokerProcess


@pytest.fixture
def bootstrap(dev_broker: DevBrokerProcess) -> str:
    return dev_broker.bootstrap


@pytest.fixture
def topic(make_topic: Topics) -> str:
    """A topic with the records 0 to 99 in its only partition."""
    name = make_topic()
    produce(make_topic.bootstrap, name, numbered(100))
    return name


def split(topic: str) -> str:
    return f"kafka:{topic}/0"


def saved_at(bootstrap: str, topic: str, rows: int) -> dict[str, Position]:
    """The state of a run that trained on so many rows."""
    with opened(kafka(bootstrap, topic)) as reader:
        slices = [s.head(rows) for s in slices_of(reader, rows=rows)[:1]]
        return state_after(reader, slices)


def test_retention_that_passed_the_position_is_an_error_with_the_lost_range(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 10)
    dev_broker.faults.delete_records(topic, 0, 50)
    with pytest.raises(DataLossError, match="on_gap='earliest'") as e:
        read(kafka(bootstrap, topic), saved)
    assert (e.value.split, e.value.start, e.value.stop) == (split(topic), 10, 50)


@pytest.mark.parametrize(
    ("on_gap", "expected", "lost"), [("earliest", range(50, 100), 40), ("latest", [], 90)]
)
def test_retention_can_be_passed_over_and_the_loss_is_counted(
    dev_broker: DevBrokerProcess,
    bootstrap: str,
    topic: str,
    on_gap: str,
    expected: range | list[int],
    lost: int,
) -> None:
    saved = saved_at(bootstrap, topic, 10)
    dev_broker.faults.delete_records(topic, 0, 50)
    with opened(kafka(bootstrap, topic, on_gap=on_gap), saved) as reader:
        slices = slices_of(reader)
        assert reader.stats().lost == lost
        assert state_after(reader, slices)[split(topic)].offset == 100
    assert values(slices) == [b"%d" % i for i in expected]
    assert slices[0].start == 10, "the slices answer for the lost offsets, too"


def test_what_was_delivered_before_retention_came_is_not_counted_as_lost(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = {split(topic): Position(40, pending=(Range(10, 20),))}
    dev_broker.faults.delete_records(topic, 0, 50)
    with opened(kafka(bootstrap, topic, on_gap="earliest"), saved) as reader:
        slices = slices_of(reader)
        assert reader.stats().lost == 10 + 10
        assert state_after(reader, slices)[split(topic)] == Position(100, token=slices[-1].token)


def test_retention_that_overtakes_a_running_reader_is_an_error(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    source = kafka(bootstrap, topic, slice_rows=10, start={topic: {0: 90}}, until=None)
    with opened(source) as reader:
        assert len(slices_of(reader, rows=10)) == 1
        reader.pause([split(topic)])
        produce(bootstrap, topic, numbered(100, start=100))
        dev_broker.faults.delete_records(topic, 0, 150)
        reader.pause([])
        with pytest.raises(DataLossError, match="retention passed the position 100"):
            slices_of(reader, rows=1)


def test_a_running_reader_goes_on_behind_the_gap_where_that_was_chosen(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    source = kafka(bootstrap, topic, slice_rows=10, until=None, on_gap="earliest")
    with opened(source) as reader:
        slices = slices_of(reader, rows=100)
        reader.pause([split(topic)])
        produce(bootstrap, topic, numbered(100, start=100))
        dev_broker.faults.delete_records(topic, 0, 150)
        reader.pause([])
        slices += slices_of(reader, rows=50)
        assert reader.stats().lost == 50
        assert state_after(reader, slices)[split(topic)].offset == 200
    assert values(slices) == [*numbered(100), *numbered(50, start=150)]


def test_a_topic_that_was_re_created_is_never_resumed_silently(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 20)
    dev_broker.faults.recreate_topic(topic)
    produce(bootstrap, topic, numbered(50, start=1000))
    with pytest.raises(DataLossError, match="deleted and re-created"):
        read(kafka(bootstrap, topic), saved)


def test_a_re_created_topic_is_read_from_its_first_record_where_that_was_chosen(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 20)
    dev_broker.faults.recreate_topic(topic)
    produce(bootstrap, topic, numbered(50, start=1000))
    with opened(kafka(bootstrap, topic, on_gap="earliest"), saved) as reader:
        slices = slices_of(reader)
        assert reader.stats().resets == 1
    assert slices[0].resets
    assert values(slices) == numbered(50, start=1000)
    assert saved[split(topic)].advance(slices[0]).offset == 0


@pytest.mark.parametrize("on_gap", ["fail", "earliest"])
def test_a_topic_that_is_re_created_under_a_running_reader_is_noticed(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str, on_gap: str
) -> None:
    with opened(kafka(bootstrap, topic, until=None, on_gap=on_gap)) as reader:
        position = state_after(reader, slices_of(reader, rows=100))[split(topic)]
        dev_broker.faults.recreate_topic(topic)
        produce(bootstrap, topic, numbered(150, start=1000))
        if on_gap == "fail":
            with pytest.raises(DataLossError, match="deleted and re-created"):
                slices_until(reader, lambda s: False)
            return
        slices = slices_until(reader, lambda s: bool(s) and s[-1].next_offset == 150)
    kept = [i for i, s in enumerate(slices) if s.resets][-1]
    assert (slices[kept].start, slices[kept].next_offset) == (0, 0)
    assert values(slices[kept:]) == numbered(150, start=1000)
    for s in slices:
        position = position.advance(s)
    assert position.offset == 150


def test_a_truncated_log_is_an_error_that_names_where_it_was_cut(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 100)
    dev_broker.faults.truncate(topic, 0, 60)
    produce(bootstrap, topic, numbered(70, start=1000))
    with pytest.raises(DataLossError, match="cut at offset 60") as e:
        slices_until_failure(bootstrap, topic, saved)
    assert (e.value.start, e.value.stop) == (60, 100)


def test_a_bounded_run_notices_a_cut_though_nothing_is_left_for_it_to_read(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 100)
    dev_broker.faults.truncate(topic, 0, 60)
    produce(bootstrap, topic, numbered(10, start=1000))
    with pytest.raises(DataLossError, match="the log was cut"):
        read(kafka(bootstrap, topic, until="latest"), saved)
    again = kafka(bootstrap, topic, until="latest", on_gap="earliest")
    assert values(read(again, saved)) == numbered(60) + numbered(10, start=1000)


def slices_until_failure(bootstrap: str, topic: str, saved: dict[str, Position]) -> None:
    with opened(kafka(bootstrap, topic, until=None), saved) as reader:
        slices_until(reader, lambda s: False)


def test_a_truncated_log_is_read_on_from_the_cut_where_that_was_chosen(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 100)
    dev_broker.faults.truncate(topic, 0, 60)
    produce(bootstrap, topic, numbered(70, start=1000))
    with opened(kafka(bootstrap, topic, on_gap="earliest"), saved) as reader:
        slices = slices_of(reader)
        assert reader.stats().resets == 1
    assert values(slices) == numbered(70, start=1000)
    position = saved[split(topic)]
    for s in slices:
        position = position.advance(s)
    assert position.offset == 130


def test_a_log_that_is_cut_under_a_running_reader_is_noticed(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    with opened(kafka(bootstrap, topic, until=None)) as reader:
        slices_of(reader, rows=100)
        dev_broker.faults.truncate(topic, 0, 60)
        with pytest.raises(DataLossError, match="the log was cut at offset 60"):
            slices_until(reader, lambda s: False)


def test_a_new_leader_alone_loses_nothing(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    saved = saved_at(bootstrap, topic, 100)
    dev_broker.faults.truncate(topic, 0, 100)  # a new leader epoch, and not a record less
    produce(bootstrap, topic, numbered(5, start=100))
    with opened(kafka(bootstrap, topic), saved) as reader:
        slices = slices_of(reader)
        epochs = [(s.token or {}).get("epoch") for s in slices]
    assert values(slices) == numbered(5, start=100)
    assert epochs == [1]


def test_a_position_behind_markers_of_a_new_leader_is_not_taken_for_a_cut(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    dev_broker.faults.truncate(topic, 0, 100)
    transaction(bootstrap, topic, numbered(5, start=100), commit=False)
    with opened(kafka(bootstrap, topic)) as reader:
        saved = state_after(reader, slices_of(reader))
    assert saved[split(topic)].offset == 106
    produce(bootstrap, topic, numbered(5, start=106))
    assert values(read(kafka(bootstrap, topic), saved)) == numbered(5, start=106)


def test_a_slice_never_spans_two_leader_epochs(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    dev_broker.faults.truncate(topic, 0, 100)
    produce(bootstrap, topic, numbered(5, start=100))
    slices = read(kafka(bootstrap, topic))
    assert [(len(s), (s.token or {}).get("epoch")) for s in slices] == [(100, 0), (5, 1)]


def test_an_offset_to_start_at_that_is_gone_is_a_loss(
    dev_broker: DevBrokerProcess, bootstrap: str, topic: str
) -> None:
    dev_broker.faults.delete_records(topic, 0, 50)
    with pytest.raises(DataLossError, match="from offset 10 to 49"):
        read(kafka(bootstrap, topic, start={topic: {0: 10}}))

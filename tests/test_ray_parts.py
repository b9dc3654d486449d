"""The parts of the Ray engine that need no cluster: parcels, books, attempts, what Ray is like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay import ConfigError, DataLossError, Position, Slice, StageError
from forebay.ray import _compat
from forebay.ray.carried import Carried
from forebay.ray.choice import by_leases, fed_live
from forebay.ray.parcels import cell_of, content_of, number_of, packed, to_table, unpacked
from forebay.ray.reading import Reading, Wish
from forebay.ray.turns import Turns
from forebay.slice import Failure
from forebay.testing import Fail, MemorySource

WISH = Wish(
    number=1,
    paused=frozenset(),
    max_slices=100,
    max_bytes=1 << 20,
    max_rows=1000,
    cut_bytes=1 << 20,
    wait=0.0,
    linger=0.0,
)


def slice_of(columns: Any, start: int = 0) -> Slice:
    rows = len(next(iter(columns.values())))
    at = np.arange(start, start + rows)
    return Slice(
        split="a",
        columns=columns,
        offsets=at,
        start=start,
        next_offset=start + rows,
        token={"e": 1},
    )


def there_and_back(s: Slice) -> Slice:
    (given,) = content_of(to_table(7, [packed(s)]))
    return unpacked(given)


@pytest.mark.parametrize(
    "column",
    [
        np.arange(6.0).reshape(3, 2),
        np.array([1, 2, 3], ">i2"),
        np.array(["2026-01-01", "2026-01-02", "NaT"], "datetime64[us]"),
        np.array([b"", None, b"ab\x00"], object),
        np.array(["é", None, ""], object),
        np.array([1, None, "mixed"], object),
        pa.array([b"a", None, b"c"]),
        pa.array([[1], [], None], pa.list_(pa.int8())),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2), np.float32)),
    ],
    ids=str,
)
def test_a_column_comes_back_as_it_was(column: Any) -> None:
    given: Any = there_and_back(slice_of({"c": column})).columns["c"]
    assert type(given) is type(column)
    if isinstance(column, np.ndarray):
        assert given.dtype == column.dtype
        np.testing.assert_array_equal(given, column)
    else:
        assert given.equals(column)


def test_a_slice_comes_back_with_its_place_and_its_failures() -> None:
    failed = Failure(offset=1, stage="s", reason="r", original={"v": b"x"})
    s = replace(slice_of({"c": np.arange(3)}), failures=(failed,), event_times=np.arange(3), skip=2)
    given = there_and_back(s)
    assert (given.start, given.next_offset, given.skip, given.token) == (0, 3, 2, {"e": 1})
    assert given.failures == (failed,)
    assert given.event_times is not None
    assert given.event_times.tolist() == [0, 1, 2]


def test_arrays_are_not_copied_and_read_only() -> None:
    table = to_table(7, [packed(slice_of({"c": np.zeros((100, 100))}))])
    whole = cell_of(table)
    column = unpacked(content_of(table)[0]).columns["c"]
    assert isinstance(column, np.ndarray)
    assert whole.address <= column.__array_interface__["data"][0] < whole.address + whole.size
    assert not column.flags.writeable
    assert number_of(table) == 7


def test_a_cut_arrow_column_takes_only_its_own_rows_along() -> None:
    column = pa.array([b"x" * 1000] * 1000)[10:12]
    assert to_table(1, [packed(slice_of({"c": column}))]).nbytes < 5000


@pytest.mark.parametrize(
    "error",
    [
        DataLossError("a", 3, 9, "gone", "Do so."),
        StageError("decode", "a", 7, "it broke"),
        KeyError("k"),
    ],
)
def test_an_error_arrives_as_it_was_raised(error: Exception) -> None:
    given = Carried.of(error).error()
    assert (type(given), str(given), vars(given)) == (type(error), str(error), vars(error))


def test_what_was_not_ready_is_read_again_after_a_new_start() -> None:
    turns = Turns("arrival", 1 << 20, {"a": Position(0, base=0)})
    admitted = [turns.admit(slice_of({"c": np.arange(10)}, at).bare(), 100) for at in (0, 10, 20)]
    turns.complete(admitted[1], [admitted[1].bare], 100)
    turns.drop_unready()
    reading = Reading((MemorySource({"a": range(30)}, slice_rows=10), lambda split: True))
    reading.open(turns.secured, turns.secured)
    report, _ = reading.read(WISH)
    assert [(n.bare.start, n.bare.next_offset) for n in report.notes] == [(0, 10), (20, 30)]
    assert turns.take().start == 10
    assert turns.charged == 100


def test_what_was_read_before_an_error_is_given_first() -> None:
    reading = Reading((MemorySource({"a": [1, 2, Fail("gone")]}), lambda split: True))
    reading.open({}, {})
    first, second = reading.read(WISH)[0], reading.read(WISH)[0]
    assert [n.rows for n in first.notes] == [2]
    assert first.error is None
    assert second.error is not None
    assert "a@2: gone" in str(second.error.error())


def test_a_large_slice_is_cut_and_its_rest_comes_next() -> None:
    reading = Reading((MemorySource({"a": range(100)}, slice_rows=100), lambda split: True))
    reading.open({}, {})
    small = replace(WISH, max_rows=30)
    reports = [reading.read(small)[0] for _ in range(4)]
    assert [n.rows for r in reports for n in r.notes] == [30, 30, 30, 10]
    assert [sorted(r.finished) for r in reports] == [[], [], [], ["a"]]


def test_the_installed_ray_is_as_it_is_known() -> None:
    assert _compat.probe() == []
    assert not by_leases("auto")
    assert by_leases("always")


def test_a_ray_that_changed_is_run_by_leases_and_what_changed_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_compat.InputDataBuffer, "has_next", None)
    assert by_leases("auto")
    assert "InputDataBuffer.has_next changed. It runs by leases instead" in caplog.text


def test_a_ray_that_changed_is_refused_where_leases_are_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_compat.InputDataBuffer, "has_next", None)
    with pytest.raises(ConfigError, match=r"InputDataBuffer\.has_next changed\. Install a version"):
        by_leases("never")


@pytest.mark.parametrize("scheduler", ["actor", "trainer"])
def test_what_is_fed_live_is_found_by_name(scheduler: Any) -> None:
    assert callable(fed_live(scheduler))

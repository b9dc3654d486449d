"""Generated tables for what no public one has, with deltalake's own scan as the second opinion."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.delta_commits import (
    add,
    commit,
    create,
    file_of,
    file_with,
    remove,
    vector,
    vector_in_file,
)
from tests.delta_slices import ids, next_rows, opened
from tests.delta_tables import append, loader, read, read_with_kills

from forebay.state import State
from forebay_delta import DeltaSource


def scanned(path: Path) -> list[int]:
    """What another reader finds."""
    found = pa.table(DeltaTable(path).scan(columns=["id"]).read_all())["id"]
    return [int(i) for i in found.to_numpy()]


def test_files_elsewhere_are_found_by_their_absolute_paths(tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "clone", tmp_path / "origin with space"
    create(table, features=())
    rows = pa.table(
        {"id": pa.array(range(10), pa.int64()), "text": [f"row {i}" for i in range(10)]}
    )
    far = file_with(table, rows, folder=elsewhere)
    commit(table, add(far), add(file_of(table, range(10, 20))), operation="CLONE")
    source = DeltaSource(str(table), until="latest")
    assert sorted(read(source)) == list(range(20)) == sorted(scanned(table))
    assert Counter(read_with_kills(source)) == Counter(range(20))


@pytest.mark.parametrize("start", ["snapshot", {"version": 0}])
def test_a_deletion_vector_over_many_row_groups_hides_exactly_its_rows(
    tmp_path: Path, start: object
) -> None:
    table, total = tmp_path / "t", 9000
    create(table)
    rows = pa.table({"id": pa.array(range(total), pa.int64()), "text": ["x"] * total})
    hidden = {0, 999, 1000, total - 1, *np.random.default_rng(5).choice(total, 4500).tolist()}
    file = file_with(table, rows, row_group_size=500)
    commit(table, add(file, vector_in_file(table, sorted(hidden))))
    left = [i for i in range(total) if i not in hidden]
    source = DeltaSource(str(table), until="latest", start=start, slice_rows=700)  # type: ignore[arg-type]
    assert read(source) == left == sorted(scanned(table))
    with loader(source, size=1013) as of:
        next(iter(of))
        state = of.state_dict()
    assert read(source, state) == left[1013:]
    with opened(source, State.from_json(state).splits) as reader:
        assert ids(next_rows(reader))[0] == left[1013], "what was given before is not read again"


def test_a_vector_that_grows_is_one_file_still(tmp_path: Path) -> None:
    table = tmp_path / "t"
    create(table)
    file = file_of(table, range(10))
    commit(table, add(file))
    before = None
    for hidden in ([3], [0, 3], [0, 3, 9]):
        after = vector(*hidden)
        commit(table, remove(file, before), add(file, after), operation="DELETE")
        before = after
    source = DeltaSource(str(table), until="latest")
    assert read(source) == [1, 2, 4, 5, 6, 7, 8] == sorted(scanned(table))


def test_two_thousand_commits_are_followed_in_order(tmp_path: Path) -> None:
    table, commits = tmp_path / "t", 2000
    create(table, features=())
    for i in range(commits):
        commit(table, add(file_of(table, [2 * i, 2 * i + 1])), version=i + 1)
    tail = DeltaSource(str(table), start={"version": 0}, until="latest")
    whole = DeltaSource(str(table), until="latest")
    assert read(tail) == list(range(2 * commits))
    assert sorted(read(whole)) == list(range(2 * commits)) == sorted(scanned(table))
    with loader(tail, size=1501) as of:
        next(iter(of))
        state = of.state_dict()
    assert read(tail, state) == list(range(1501, 2 * commits))


def test_writers_side_by_side_are_followed_while_they_write(tmp_path: Path) -> None:
    append(tmp_path, [0])
    threads = [threading.Thread(target=_write, args=(tmp_path, n)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    source = DeltaSource(str(tmp_path), until={"version": 30}, poll_seconds=0.01)
    got = read(source)
    for thread in threads:
        thread.join()
    assert Counter(got) == Counter(scanned(tmp_path))


def _write(path: Path, number: int) -> None:
    for i in range(10):
        rows = pa.table({"id": [number * 100 + i], "text": ["x"]})
        write_deltalake(path, rows, mode="append")

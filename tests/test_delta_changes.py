"""What each kind of commit gives under each change policy: the table of the documentation.

Every run reads the ids 0 to 9 of two files, is killed in the middle of what the commit gives,
and resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.delta_commits import (
    add,
    cdc,
    commit,
    create,
    file_of,
    remove,
    vector,
    vector_in_file,
)
from tests.delta_tables import loader

from forebay_delta import DeltaSource
from forebay_delta.changes import Changes, ChangeType
from forebay_delta.errors import ChangeRefused

POLICIES: tuple[Changes, ...] = get_args(Changes)
CHANGE_TYPES: tuple[ChangeType, ...] = get_args(ChangeType)
REFUSED = "refused"
Given = list[int] | list[tuple[str, int]] | str


@dataclass(frozen=True, kw_only=True)
class Case:
    """A commit, and what it gives under each policy."""

    name: str
    make: Callable[[Path], Any]
    error: Given = REFUSED
    ignore_deletes: Given = REFUSED
    skip: Given = field(default_factory=list)
    reemit: Given
    unseen: Given = REFUSED
    cdf: Given


def case(name: str, make: Callable[[Path], Any], **given: Any) -> Case:
    """A case; ``all`` is what every policy gives but the feed, which calls it inserts."""
    everywhere = given.pop("all", None)
    if everywhere is not None:
        given = dict.fromkeys(POLICIES, everywhere) | {"cdf": inserts(everywhere)} | given
    return Case(name=name, make=make, **given)


def expected(case: Case, policy: Changes) -> Given:
    given = getattr(case, policy)
    return given if given == REFUSED else sorted(given)


def changed(change: str, rows: Any) -> list[tuple[str, int]]:
    return [(change, i) for i in rows]


def inserts(rows: Any) -> list[tuple[str, int]]:
    return changed("insert", rows)


def deletes(rows: Any) -> list[tuple[str, int]]:
    return changed("delete", rows)


# -- written by deltalake ---------------------------------------------------------------------


def by_deltalake(path: Path, feed: bool) -> None:
    """Ids 0 to 4 and 5 to 9, a file each."""
    settings = {"delta.enableChangeDataFeed": "true"} if feed else None
    for ids in (range(5), range(5, 10)):
        write_deltalake(path, table(ids), mode="append", configuration=settings)


def table(ids: Any, text: str = "row") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{text} {i}" for i in ids]})


def write(ids: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda path: write_deltalake(path, table(ids), **options)


def delete(predicate: str | None = None) -> Callable[[Path], Any]:
    return lambda path: DeltaTable(path).delete(predicate)


def update(path: Path) -> None:
    DeltaTable(path).update(predicate="id = 5", updates={"text": "'new'"})


def merge(ids: list[int], *, updates: bool) -> Callable[[Path], Any]:
    def run(path: Path) -> None:
        of = DeltaTable(path).merge(
            table(ids, "new"), "t.id = s.id", source_alias="s", target_alias="t"
        )
        of = of.when_not_matched_insert_all()
        (of.when_matched_update_all() if updates else of).execute()

    return run


def restore(path: Path) -> None:
    """Back to version 1, from a version in which the ids 5 to 9 were deleted."""
    DeltaTable(path).restore(1)


OPTIMIZED = [
    case("compaction", lambda path: DeltaTable(path).optimize.compact(), all=[]),
    case("z-order", lambda path: DeltaTable(path).optimize.z_order(["id"]), all=[]),
    case(
        "vacuum",
        lambda path: DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False),
        all=[],
    ),
]
COPY_ON_WRITE = [
    case("append", write([10, 11], mode="append"), all=[10, 11]),
    case("merge that only inserts", merge([10, 11], updates=False), all=[10, 11]),
    case(
        "delete of a whole file",
        delete("id >= 5"),
        ignore_deletes=[],
        reemit=[],
        unseen=[],
        cdf=deletes(range(5, 10)),
    ),
    case(
        "delete of all",
        delete(),
        ignore_deletes=[],
        reemit=[],
        unseen=[],
        cdf=deletes(range(10)),
    ),
    case("delete of a row", delete("id = 5"), reemit=[6, 7, 8, 9], cdf=deletes([5])),
    case(
        "update of a row",
        update,
        reemit=[5, 6, 7, 8, 9],
        cdf=changed("update_preimage", [5]) + changed("update_postimage", [5]),
    ),
    case(
        "merge",
        merge([5, 10], updates=True),
        reemit=[5, 6, 7, 8, 9, 10],
        cdf=[("insert", 10), ("update_preimage", 5), ("update_postimage", 5)],
    ),
    case(
        "overwrite",
        write([20, 21], mode="overwrite"),
        reemit=[20, 21],
        unseen=[20, 21],
        cdf=deletes(range(10)) + inserts([20, 21]),
    ),
    case(
        "overwrite where, in the middle of a file",
        write([8, 9], mode="overwrite", predicate="id >= 8"),
        reemit=[5, 6, 7, 8, 9],
        cdf=deletes([8, 9]) + inserts([8, 9]),
    ),
]
FEED_OFF = [
    case("append, feed off", write([10, 11], mode="append"), all=[10, 11]),
    case("delete of a row, feed off", delete("id = 5"), reemit=[6, 7, 8, 9], cdf=REFUSED),
    case("update of a row, feed off", update, reemit=[5, 6, 7, 8, 9], cdf=REFUSED),
    case("merge, feed off", merge([5, 10], updates=True), reemit=[5, 6, 7, 8, 9, 10], cdf=REFUSED),
    case(
        "overwrite where, feed off",
        write([8, 9], mode="overwrite", predicate="id >= 8"),
        reemit=[5, 6, 7, 8, 9],
        cdf=REFUSED,
    ),
    case(
        "overwrite, feed off",
        write([20, 21], mode="overwrite"),
        reemit=[20, 21],
        unseen=[20, 21],
        cdf=deletes(range(10)) + inserts([20, 21]),
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "case", [*OPTIMIZED, *COPY_ON_WRITE, *FEED_OFF], ids=lambda case: case.name
)
def test_a_commit_of_deltalake_gives_what_the_policy_says(
    tmp_path: Path, case: Case, policy: Changes
) -> None:
    by_deltalake(tmp_path / "t", feed="feed off" not in case.name)
    assert given(tmp_path / "t", case.make, policy) == expected(case, policy)


@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        ("error", REFUSED),
        ("ignore_deletes", REFUSED),
        ("skip", []),
        ("reemit", [5, 6, 7, 8, 9]),
        ("unseen", REFUSED),
        ("cdf", inserts(range(5, 10))),
    ],
)
def test_a_restore_that_brings_files_back_is_no_append(
    tmp_path: Path, policy: Changes, rows: Given
) -> None:
    by_deltalake(tmp_path / "t", feed=True)
    DeltaTable(tmp_path / "t").delete("id >= 5")
    assert given(tmp_path / "t", restore, policy, first=range(5)) == rows


# -- deletion vectors, written by hand -----------------------------------------------------------


def by_hand(path: Path, *, feed: bool = False) -> None:
    """Ids 0 to 4 and 5 to 9, a file each; the second has lost the row of id 9."""
    settings = {"delta.enableChangeDataFeed": "true"} if feed else {}
    create(path, configuration=settings)
    commit(path, add(file_of(path, range(5))))
    commit(path, add(file_of(path, range(5, 10)), vector(4)))


def second(path: Path) -> Mapping[str, Any]:
    """The file with the ids 5 to 9."""
    lines = (path / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    body: dict[str, Any] = json.loads(lines[1])["add"]
    return {k: v for k, v in body.items() if k not in ("deletionVector", "dataChange")}


def dv_delete(path: Path) -> None:
    """Ids 5 and 7."""
    file = second(path)
    hidden = vector_in_file(path, [0, 2, 4])
    commit(path, remove(file, vector(4)), add(file, hidden), operation="DELETE")


def dv_update(path: Path) -> None:
    """Id 6, into a new file."""
    file = second(path)
    actions = [remove(file, vector(4)), add(file, vector(1, 4)), add(file_of(path, [6], "new"))]
    commit(path, *actions, operation="UPDATE")


def dv_merge(path: Path) -> None:
    """Id 6 updated, id 12 inserted, and every row of the second file but these deleted."""
    file = second(path)
    commit(
        path,
        remove(file, vector(4)),
        add(file_of(path, [6, 12], "new")),
        operation="MERGE",
        operationMetrics={"numTargetRowsCopied": "0"},
    )


def dv_restore(path: Path) -> None:
    """The row of id 9 is back."""
    file = second(path)
    commit(path, remove(file, vector(4)), add(file), operation="RESTORE")


def dv_purge(path: Path) -> None:
    """The deleted row leaves the file."""
    file = second(path)
    new = add(file_of(path, range(5, 9)), data_change=False)
    commit(path, remove(file, vector(4), data_change=False), new, operation="REORG")


def dv_update_with_feed(path: Path) -> None:
    """Id 6, told by a file of the feed too."""
    file = second(path)
    told = cdc(path, [("update_preimage", 6), ("update_postimage", 6)])
    actions = [remove(file, vector(4)), add(file, vector(1, 4)), add(file_of(path, [6], "new"))]
    commit(path, *actions, told, operation="UPDATE")


VECTORS = [
    case(
        "delete",
        dv_delete,
        reemit=[6, 8],
        unseen=[],
        cdf=deletes([5, 7]),
    ),
    case("update", dv_update, reemit=[5, 7, 8, 6], unseen=[6], cdf=deletes([6]) + inserts([6])),
    case(
        "merge",
        dv_merge,
        reemit=[6, 12],
        unseen=[6, 12],
        cdf=deletes([5, 6, 7, 8]) + inserts([6, 12]),
    ),
    case("restore", dv_restore, reemit=[5, 6, 7, 8, 9], unseen=[], cdf=inserts([9])),
    case("purge", dv_purge, all=[]),
    case(
        "update with a feed",
        dv_update_with_feed,
        reemit=[5, 7, 8, 6],
        unseen=[6],
        cdf=changed("update_preimage", [6]) + changed("update_postimage", [6]),
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case.name)
def test_a_commit_with_deletion_vectors_gives_what_the_policy_says(
    tmp_path: Path, case: Case, policy: Changes
) -> None:
    by_hand(tmp_path / "t")
    found = given(tmp_path / "t", case.make, policy, first=range(9))
    assert found == expected(case, policy)


# -- the run --------------------------------------------------------------------------------------


def given(
    path: Path, make: Callable[[Path], Any], policy: Changes, first: Any = range(10)
) -> Given:
    """What the commit gives to a run that has read the table, and is killed at every batch.

    In the order of their numbers: that in a rewritten file is its writer's affair.
    """
    source = DeltaSource(
        str(path), until="latest", changes=policy, change_types=CHANGE_TYPES, slice_rows=3
    )
    read, end = to_end(source, None)
    assert sorted(i for _, i in read) == list(first)
    make(path)
    found: list[tuple[str, int]] = []
    state = end
    try:
        while (step := one_batch(source, state))[0]:
            found += step[0]
            state = step[1]
    except ChangeRefused as e:
        assert not found
        newest = max(path.glob("_delta_log/*.json")).stem
        assert f"version {int(newest)} (" in str(e)
        return REFUSED
    assert sorted(to_end(source, end)[0]) == sorted(found)
    return sorted(found) if policy == "cdf" else sorted(i for _, i in found)


def to_end(source: DeltaSource, state: Any) -> tuple[list[tuple[str, int]], Any]:
    """All rows, and the state behind them."""
    with loader(source, size=4) as of:
        if state is not None:
            of.load_state_dict(state)
        return [row for batch in of for row in rows_of(batch)], of.state_dict()


def one_batch(source: DeltaSource, state: Any) -> tuple[list[tuple[str, int]], Any]:
    """The next two rows of a run that ends behind them."""
    with loader(source, size=2) as of:
        of.load_state_dict(state)
        batch = next(iter(of), None)
        return ([] if batch is None else rows_of(batch)), json.loads(json.dumps(of.state_dict()))


def rows_of(batch: Mapping[str, Any]) -> list[tuple[str, int]]:
    ids = batch["id"].tolist()
    return list(zip(batch.get("_change_type", [""] * len(ids)), ids, strict=True))

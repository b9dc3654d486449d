"""A table's schema changes under a reader: kept, evolved, or a barrier that names the version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.delta_commits import add, commit, create, file_with, metadata_of
from tests.delta_tables import loader

from forebay import Pipeline
from forebay_delta import DeltaSource
from forebay_delta.errors import SchemaChanged

OLD = {"id": "integer", "text": "string"}
NAMES = {"id": "col-1", "text": "col-2", "late": "col-3"}
Row = dict[str, Any]


def part(table: Path, ids: range, **columns: pa.DataType) -> Mapping[str, Any]:
    """A file: column ``id`` and others, whose values are the id, or its text."""
    named = {"id": pa.int32(), **columns}
    physical = {n: NAMES[n] if mapped(table) else n for n in named}
    rows = {physical[n]: value_of(t, ids) for n, t in named.items()}
    return add(file_with(table, pa.table(rows)))


def value_of(t: pa.DataType, ids: range) -> pa.Array[Any]:
    return pa.array([str(i) for i in ids] if t == pa.string() else list(ids), t)


def mapped(table: Path) -> bool:
    return "columnMapping" in (table / "_delta_log" / f"{0:020d}.json").read_text()


def grown(path: Path) -> DeltaSource:
    """D06: version 1 {id: int}, version 2 with a column more, version 3 with a wider id."""
    create(path, {"id": "integer"}, features=())
    commit(path, part(path, range(4)))
    commit(
        path,
        metadata_of({"id": "integer", "y": "double"}),
        part(path, range(4, 8), y=pa.float64()),
    )
    commit(
        path,
        metadata_of({"id": "long", "y": "double"}),
        part(path, range(8, 12), id=pa.int64(), y=pa.float64()),
    )
    return DeltaSource(str(path), start={"version": 0}, until="latest")


def rows_of(source: DeltaSource, state: Any = None, size: int = 4) -> tuple[list[Row], list[Any]]:
    """All rows, and the state behind each batch."""
    rows: list[Row] = []
    states = []
    with loader(source, size=size) as of:
        if state is not None:
            of.load_state_dict(state)
        for batch in of:
            values = {n: c if isinstance(c, list) else c.tolist() for n, c in batch.items()}
            rows += [
                dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)
            ]
            states.append(json.loads(json.dumps(of.state_dict())))
    return rows, states


def resumed_anywhere(source: DeltaSource) -> list[Row]:
    """All rows; a run resumed behind any batch of two gives exactly the rest."""
    whole, states = rows_of(source, size=2)
    for done, state in enumerate(states, start=1):
        assert rows_of(source, state, size=2)[0] == whole[done * 2 :]
    return whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def test_keep_reads_on_with_the_columns_and_types_of_the_start(path: Path) -> None:
    assert resumed_anywhere(grown(path)) == [{"id": i} for i in range(12)]


def test_evolve_gives_new_columns_from_their_commit_on(path: Path) -> None:
    source = replace(grown(path), schema="evolve")
    before = [{"id": i} for i in range(4)]
    assert resumed_anywhere(source) == before + [{"id": i, "y": float(i)} for i in range(4, 12)]


def test_evolve_ends_a_batch_where_the_columns_change(path: Path) -> None:
    rows, _ = rows_of(replace(grown(path), schema="evolve"), size=3)
    assert [r["id"] for r in rows] == list(range(12))


def test_evolve_ends_a_shuffle_window_where_the_columns_change(path: Path) -> None:
    pipeline = Pipeline(replace(grown(path), schema="evolve")).shuffle(50).batch(5)
    for stop in range(1, 4):
        with pipeline.loader() as first:
            batches = [b for _, b in zip(range(stop), first, strict=False)]
            state = first.state_dict()
        with pipeline.loader() as second:
            second.load_state_dict(state)
            batches += list(second)
        assert sorted(i for b in batches for i in b["id"].tolist()) == list(range(12))
        assert [("y" in b) for b in batches] == sorted("y" in b for b in batches)


def test_a_run_that_begins_later_has_the_columns_of_then(path: Path) -> None:
    source = replace(grown(path), start={"snapshot": 2})
    expected: list[Row] = [{"id": i, "y": None if i < 4 else float(i)} for i in range(12)]
    found = sorted(rows_of(source)[0], key=lambda row: row["id"])
    assert [{**r, "y": None if r["y"] != r["y"] else r["y"]} for r in found] == expected


def test_a_wider_type_evolves_and_values_beyond_the_old_one_stop_what_is_kept(path: Path) -> None:
    create(path, OLD, features=())
    commit(path, part(path, range(4), text=pa.string()))
    big = pa.table({"id": [2**40], "text": ["big"]})
    commit(path, metadata_of({**OLD, "id": "long"}), add(file_with(path, big)))
    source = DeltaSource(str(path), start={"version": 0}, until="latest")
    evolved = rows_of(replace(source, schema="evolve"))[0]
    assert evolved[-1] == {"id": 2**40, "text": "big"}
    with pytest.raises(SchemaChanged, match="id"):
        rows_of(source)


BREAKING = [
    pytest.param({"id": "integer"}, {}, "text is dropped", id="drop"),
    pytest.param(
        {"id": "integer", "name": "string"},
        {"name": "col-2"},
        "text is renamed to name",
        id="rename",
    ),
    pytest.param({**OLD, "text": "binary"}, {}, "text is binary, was string", id="type"),
    pytest.param({**OLD, "id": "short"}, {}, "id is short, was integer", id="narrower"),
]


@pytest.mark.parametrize("schema", ["keep", "evolve", "stop"])
@pytest.mark.parametrize(("columns", "physical", "words"), BREAKING)
def test_a_change_that_breaks_is_a_barrier_that_names_version_and_column(
    path: Path, columns: dict[str, str], physical: dict[str, str], words: str, schema: Any
) -> None:
    barrier(path, metadata_of(columns, physical={**NAMES, **physical}))
    stops_at_the_barrier(path, schema, words)


@pytest.mark.parametrize("schema", ["keep", "evolve", "stop"])
def test_other_partition_columns_are_a_barrier(path: Path, schema: Any) -> None:
    barrier(path, metadata_of(OLD, physical=NAMES, by=["text"]))
    stops_at_the_barrier(path, schema, r"partitioned by \(text\), was \(\)")


def test_stop_stops_at_a_new_column_too(path: Path) -> None:
    barrier(path, metadata_of({**OLD, "late": "integer"}, physical=NAMES))
    stops_at_the_barrier(path, "stop", r"late is new \(integer\).*schema='evolve'")


def test_what_is_not_read_may_change(path: Path) -> None:
    barrier(path, metadata_of({"id": "integer"}, physical=NAMES))
    source = DeltaSource(str(path), start={"version": 0}, until="latest", columns=["id"])
    assert resumed_anywhere(source) == [{"id": i} for i in range(8)]


def barrier(path: Path, metadata: Mapping[str, Any]) -> None:
    """Ids 0 to 3 in version 1; in version 2 the metadata, and ids 4 to 7."""
    create(path, OLD, features=("columnMapping",), physical=NAMES)
    commit(path, part(path, range(4), text=pa.string()))
    commit(path, metadata, part(path, range(4, 8)))


def stops_at_the_barrier(path: Path, schema: Any, words: str) -> None:
    """All before it was given, nothing of it; once it is accepted, reading goes on behind it."""
    source = DeltaSource(str(path), start={"version": 0}, until="latest", schema=schema)
    for size in (1, 2, 4):
        given, state = until_error(source, None, size, words)
        assert given == [0, 1, 2, 3]
        for _ in range(2):
            assert until_error(source, state, size, words) == ([], state)
        earlier = replace(source, accept_schema=1)
        assert until_error(earlier, state, size, words) == ([], state)
        accepted = replace(source, accept_schema=2)
        rows, states = rows_of(accepted, state, size=1)
        assert [next(iter(r.values())) for r in rows] == [4, 5, 6, 7]
        # Behind the barrier it needs to be accepted no more.
        assert len(rows_of(source, states[0])[0]) == 3


def until_error(source: DeltaSource, state: Any, size: int, words: str) -> tuple[list[int], Any]:
    """The ids before the error, and the state behind them."""
    given: list[int] = []
    with loader(source, size=size) as of:
        if state is not None:
            of.load_state_dict(state)
        with pytest.raises(SchemaChanged, match=rf"version 2 changes the schema: .*{words}"):
            for batch in of:
                given += batch["id"].tolist()
                state = json.loads(json.dumps(of.state_dict()))
    return given, state

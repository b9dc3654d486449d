"""Other writers' tables, read through the source: whole, commit by commit, as a change feed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from tests.delta_fixtures import Fixtures, canonical_rows, fixture_names, fixtures, needs_fixtures
from tests.delta_slices import table_of
from tests.delta_tables import loader

from forebay_delta import DeltaSource
from forebay_delta.changes import ChangeType
from forebay_delta.errors import DataFileGone, SchemaChanged, UnsupportedTable, VersionGone
from forebay_delta.log import DeltaLog
from forebay_delta.store import open_store

pytestmark = needs_fixtures

LINEAGE = {"_delta_version", "_delta_file", "_delta_row"}
CHANGE_TYPES: tuple[ChangeType, ...] = get_args(ChangeType)
REFUSED: dict[str, tuple[type[Exception], str]] = {
    "golden-versions-not-contiguous": (VersionGone, "version 1 is gone from the log"),
    "golden-canonicalized-paths-special-a": (DataFileGone, r"data file /some/unqualified/"),
    "kernel-table-with-geo": (UnsupportedTable, "geospatial"),
    "delta-rs-spark-shredded-variant-preview-delta": (UnsupportedTable, "variantShredding"),
    "delta-rs-simple_table_features": (UnsupportedTable, "reader version 5"),
}
APPEND_ONLY = {
    "dat-all_primitive_types",
    "dat-basic_append",
    "dat-check_constraints",
    "dat-generated_columns",
    "dat-multi_partitioned_2",
    "dat-timestamp_ntz",
    "golden-table-with-columnmapping-mode-id",
    "golden-v2-checkpoint-json",
    "golden-v2-checkpoint-parquet",
    "golden-data-reader-escaped-chars",
    "golden-data-reader-timestamp_ntz",
    "golden-data-reader-timestamp_ntz-name-mode",
    "golden-multi-part-checkpoint",
    "golden-time-travel-schema-changes-b",
    "golden-kernel-timestamp-int96",
    "golden-parquet-all-types",
    "golden-data-reader-map",
    "golden-data-reader-nested-struct",
    "golden-decimal-various-scale-precision",
    "golden-125-iterator-bug",
    "kernel-cdf-table-data-change",
    "kernel-v2-checkpoints-json-with-sidecars",
    "kernel-v2-checkpoints-json-without-sidecars",
    "kernel-v2-checkpoints-parquet-without-sidecars",
    "kernel-v2-checkpoints-parquet-with-last-checkpoint",
    "kernel-v2-classic-checkpoint-parquet",
    "kernel-timestamp-partitioned-table",
    "kernel-type-widening",
    "kernel-app-txn-checkpoint",
    "kernel-partition_cm-id",
    "kernel-partition_cm-name",
    "kernel-external-table-different-nullability",
    "kernel-mixed-nulls",
    "kernel-void-column",
    "kernel-partitioned_with_materialize_feature",
    "delta-rs-delta-0.8.0-special-partition",
    "delta-rs-delta-0.8.0-numeric-partition",
    "delta-rs-delta-2.2.0-partitioned-types",
    "delta-rs-table_with_column_mapping",
    "delta-rs-table_with_edge_timestamps",
    "delta-rs-spark-variant-checkpoint",
    "delta-golden-type-widening",
    "delta-golden-table-with-icebegcompatv2enabled",
    "delta-golden-commit-info-containing-arbitrary-operationparams-types",
}
RENAMED = "delta-rs-table_with_partitioning_mapping"
FEED = {"start": {"version": 0}, "changes": "cdf", "change_types": CHANGE_TYPES}
KILLED = [
    pytest.param("kernel-table-with-dv-small", {}, id="deletion-vectors"),
    pytest.param("golden-dv-with-columnmapping", {}, id="deletion-vectors-and-mapping"),
    pytest.param("golden-log-replay-dv-key-cases", {}, id="one-file-with-many-vectors"),
    pytest.param("golden-table-with-columnmapping-mode-id", {}, id="mapping-by-id"),
    pytest.param("golden-time-travel-partition-changes-b", {}, id="partitions"),
    pytest.param("golden-multi-part-checkpoint", {}, id="checkpoint-in-parts"),
    pytest.param("kernel-mixed-nulls", {"start": {"version": 0}}, id="tail"),
    pytest.param("kernel-cdf-table-with-cdc-and-dvs", FEED, id="feed-with-vectors"),
    pytest.param("kernel-cdf-table-partitioned", FEED, id="feed-with-partitions"),
    pytest.param("kernel-cdf-table-with-dv", FEED, id="feed-told-from-vectors"),
]


@pytest.fixture(scope="module")
def tables() -> Iterator[Fixtures]:
    with fixtures() as unpacked:
        yield unpacked


@pytest.mark.parametrize("name", fixture_names("spark", "agreed", "single-reader"))
def test_a_whole_table_has_the_rows_that_its_writer_meant(tables: Fixtures, name: str) -> None:
    fixture = tables[name]
    found = table_of(DeltaSource(fixture.table, until="latest"))
    assert canonical_rows(found) == fixture.expected_rows()


@pytest.mark.parametrize("name", fixture_names("spark", "agreed", "single-reader"))
def test_a_loader_makes_a_batch_of_every_table(tables: Fixtures, name: str) -> None:
    source = DeltaSource(tables[name].table, until="latest", lineage=True)
    expected = tables[name].expected_rows()
    with loader(source, size=10_000) as of:
        batches = list(of)
    assert sum(b.rows for b in batches) == len(expected)
    schema = DeltaLog(open_store(tables[name].table)).snapshot().metadata.schema
    names = {f["name"] for f in schema["fields"] if f["type"] != "void"}
    for batch in batches:
        assert names <= {c for c in batch if not c.endswith("_mask")} - LINEAGE


@pytest.mark.parametrize("name", fixture_names("refuse"))
def test_what_cannot_be_read_right_is_refused_by_name(tables: Fixtures, name: str) -> None:
    kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        table_of(DeltaSource(tables[name].table, until="latest"))


@pytest.mark.parametrize("name", sorted(APPEND_ONLY))
def test_all_commits_together_are_the_whole_table(tables: Fixtures, name: str) -> None:
    fixture = tables[name]
    newest = DeltaLog(open_store(fixture.table)).latest_version()
    source = DeltaSource(fixture.table, start={"version": 0}, until="latest", accept_schema=newest)
    assert canonical_rows(table_of(source)) == fixture.expected_rows()


def test_all_append_only_tables_are_followed_from_their_first_commit(tables: Fixtures) -> None:
    found = {
        fixture.name
        for fixture in tables.all
        if fixture.truth != "refuse" and append_only(fixture.table)
    }
    assert found == APPEND_ONLY | {RENAMED}


def append_only(table: str) -> bool:
    """Whether the log reaches back to version 0 and no commit ever removed rows."""
    log = DeltaLog(open_store(table))
    commits = [log.commit(v) for v in log.versions()]
    removing = [
        a for c in commits if c for a in c.files if a.kind == "remove" and a.file.data_change
    ]
    return bool(commits) and log.versions().start == 0 and not removing


def test_a_renamed_partition_column_stops_the_tail_until_it_is_accepted(tables: Fixtures) -> None:
    source = DeltaSource(tables[RENAMED].table, start={"version": 0}, until="latest")
    with pytest.raises(SchemaChanged, match=r"version 3 .*id is renamed to newid"):
        table_of(source)
    accepted = table_of(replace(source, accept_schema=3))
    assert set(accepted.column_names) == {"id", "newid", "description"}
    assert accepted.num_rows == len(tables[RENAMED].expected_rows())


def test_every_change_feed_is_the_one_that_spark_gives(tables: Fixtures) -> None:
    for feed in tables.change_feeds:
        source = DeltaSource(
            tables[f"kernel-{feed['table']}"].table,
            start={"version": feed["start"]},
            until="latest" if feed["end"] is None else {"version": feed["end"]},
            changes="cdf",
            change_types=CHANGE_TYPES,
            lineage=True,
        )
        found = table_of(source)
        names = [{"_commit_version": "_delta_version"}.get(c, c) for c in feed["columns"]]
        rows = zip(*(found[n].to_pylist() for n in names), strict=True)
        assert sorted([str(v) for v in row] for row in rows) == sorted(feed["rows"]), feed["table"]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("name", "options"), KILLED)
def test_a_resume_behind_any_batch_gives_exactly_the_rest(
    tables: Fixtures, name: str, options: dict[str, Any], size: int
) -> None:
    source = DeltaSource(tables[name].table, until="latest", lineage=True, **options)
    whole, states = [], []
    with loader(source, size=size) as of:
        for batch in of:
            whole.append(where(batch))
            states.append(json.dumps(of.state_dict()))
    assert len(states) >= 2
    for done, state in enumerate(states, start=1):
        with loader(source, size=4) as of:
            of.load_state_dict(json.loads(state))
            rest = [row for batch in of for row in where(batch)]
        assert rest == [row for rows in whole[done:] for row in rows]


def where(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What tells each row from all others."""
    change = batch.get("_change_type", [None] * len(batch["_delta_file"]))
    version, row = batch["_delta_version"].tolist(), batch["_delta_row"].tolist()
    return list(zip(version, batch["_delta_file"], row, change, strict=True))

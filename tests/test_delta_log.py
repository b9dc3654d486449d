"""The log: what a table was at a version, and a clear error wherever that cannot be known."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.delta_fixtures import Fixtures, fixture_names, fixtures
from tests.delta_logs import PROTOCOL, VECTORS, HandWritten, add, info, metadata, remove, vector
from tests.delta_s3 import s3_server

from forebay.errors import SourceError
from forebay_delta.actions import Metadata, Protocol
from forebay_delta.errors import BrokenTable, UnsupportedTable, VersionGone
from forebay_delta.log import DeltaLog
from forebay_delta.store import open_store
from forebay_delta.support import check_supported
from forebay_delta.vectors import load_deletion_vector

CHECKPOINT = "{:020d}.checkpoint.parquet"


@pytest.fixture(scope="module")
def tables() -> Iterator[Fixtures]:
    with fixtures() as found:
        yield found


@pytest.fixture
def table(tmp_path: Path) -> HandWritten:
    return HandWritten(tmp_path / "table")


def checkpoint(table: HandWritten, version: int) -> Path:
    """Lets deltalake write a checkpoint, without the hint to it; returns the file."""
    DeltaTable(table.root, version=version).create_checkpoint()
    (table.folder / "_last_checkpoint").unlink(missing_ok=True)
    return table.folder / CHECKPOINT.format(version)


def ten_commits(table: HandWritten, checkpoint_at: int = 4) -> None:
    table.begin(add("f0"))
    for version in range(1, 10):
        table.commit(version, add(f"f{version}"))
    checkpoint(table, checkpoint_at)


# Tables of other writers


@pytest.mark.parametrize("name", fixture_names("spark", "agreed", "single-reader"))
def test_every_readable_table_has_the_files_and_metadata_that_deltalake_sees(
    tables: Fixtures, name: str
) -> None:
    store = open_store(tables[name].table)
    snapshot = DeltaLog(store).snapshot()
    theirs = DeltaTable(tables[name].table)
    assert snapshot.version == theirs.version()
    assert snapshot.metadata.id == str(theirs.metadata().id)
    assert len(snapshot.files) == theirs.get_add_actions().num_rows
    assert DeltaLog(store).metadata(snapshot.version) == (snapshot.protocol, snapshot.metadata)
    for file in snapshot.files:
        if file.deletion_vector:
            load_deletion_vector(store, file.deletion_vector)


@pytest.mark.parametrize("name", fixture_names("spark", "agreed", "single-reader"))
def test_a_checkpoint_says_the_same_as_the_commits_before_it(
    tables: Fixtures, name: str, tmp_path: Path
) -> None:
    copy = tmp_path / "table" / "_delta_log"
    shutil.copytree(Path(tables[name].table) / "_delta_log", copy)
    for file in copy.glob("*.checkpoint*"):
        file.unlink()
    if not (copy / f"{0:020d}.json").exists():
        pytest.skip("its first commits were cleaned up")
    with_it, without = (
        DeltaLog(open_store(root)).snapshot() for root in (tables[name].table, copy.parent)
    )
    assert [f.key for f in with_it.files] == [f.key for f in without.files]
    assert [f.partition_values for f in with_it.files] == [
        f.partition_values for f in without.files
    ]
    assert with_it.transactions == without.transactions


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("golden-versions-not-contiguous", VersionGone, "version 1 is gone from the log"),
        ("kernel-table-with-geo", UnsupportedTable, "'geospatial'"),
        (
            "delta-rs-spark-shredded-variant-preview-delta",
            UnsupportedTable,
            "'variantShredding-preview'",
        ),
        ("delta-rs-simple_table_features", UnsupportedTable, "reader version 5"),
    ],
)
def test_a_table_that_cannot_be_read_right_is_refused_in_words(
    tables: Fixtures, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        DeltaLog(open_store(tables[name].table)).snapshot()


def test_a_table_whose_data_files_are_gone_is_left_to_the_reader_of_data(tables: Fixtures) -> None:
    missing = tables["golden-canonicalized-paths-special-a"].table
    (file,) = DeltaLog(open_store(missing)).snapshot().files
    with pytest.raises(FileNotFoundError):
        open_store(missing).open_data(file.path)


# Replay

ACTIONS = st.lists(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("abcd"), st.sampled_from([None, 1, 2])),
        max_size=4,
        unique_by=lambda action: action[1:],
    ),
    min_size=1,
    max_size=7,
)


@given(ACTIONS, st.integers(0, 6))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_last_action_on_a_path_and_its_vector_decides_with_and_without_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[Any]], at: int
) -> None:
    table = HandWritten(tmp_path_factory.mktemp("replay") / "t")
    table.commit(0, VECTORS, metadata())
    alive: dict[tuple[str, int | None], int] = {}
    for version, actions in enumerate(commits, start=1):
        lines = []
        for is_add, path, number in actions:
            dv = {} if number is None else {"deletionVector": vector(number)}
            lines.append(add(path, version % 3, **dv) if is_add else remove(path, **dv))
            alive.pop((path, number), None)
            if is_add:
                alive[path, number] = version % 3
        table.commit(version, info(version), *lines)
    if at <= len(commits):
        checkpoint(table, at)
    files = table.log.snapshot().files
    found = {
        (f.path, f.deletion_vector.offset if f.deletion_vector else None): f.modified_ms
        for f in files
    }
    assert found == alive
    assert [(f.modified_ms, f.path) for f in files] == sorted((m, p) for (p, _), m in alive.items())


def test_files_come_by_modification_time_and_path_whoever_told_of_them(table: HandWritten) -> None:
    table.begin(add("b", 2), add("a", 2), add("z", 1))
    table.commit(1, add("aa", 2), add("c", 0))
    before = table.paths()
    assert before == ["c", "z", "a", "aa", "b"]
    checkpoint(table, 0)
    assert table.paths() == before


def test_a_snapshot_at_an_older_version_has_the_files_of_then(table: HandWritten) -> None:
    ten_commits(table)
    table.commit(10, remove("f0"), add("f10"))
    for version in (0, 3, 4, 5, 9):
        assert table.paths(version) == [f"f{n}" for n in range(version + 1)]
    assert table.paths() == [f"f{n}" for n in (1, 10, *range(2, 10))]


def test_many_files_can_be_indexed_sliced_and_walked_through(table: HandWritten) -> None:
    table.begin(*(add(f"f{n:04}", n) for n in range(700)))
    table.commit(1, *(add(f"g{n:04}", n) for n in range(0, 700, 7)))
    checkpoint(table, 0)
    files = table.log.snapshot().files
    walked = list(files)
    assert len(files) == len(walked) == 800
    assert [files[i] for i in range(800)] == walked
    assert files[-1] == walked[-1]
    assert files[250:520:3] == walked[250:520:3]
    with pytest.raises(IndexError):
        files[800]


def test_a_file_of_a_checkpoint_has_all_that_its_action_had(table: HandWritten) -> None:
    stats = json.dumps({"numRecords": 7, "minValues": {"id": 1}})
    action = add("a%20b", 5, stats=stats, deletionVector=vector(3), partitionValues={"p": None})
    table.commit(0, VECTORS, metadata(), action)
    (from_commit,) = table.log.snapshot().files
    checkpoint(table, 0)
    table.remove_commits(0)
    (from_checkpoint,) = table.log.snapshot().files
    assert from_checkpoint.statistics() == {**from_commit.statistics(), "minValues": {"id": 1}}
    assert from_checkpoint.key == from_commit.key == ("a%20b", "uab^-aqEH.-t@S}K{vb[*k^@3")
    assert dict(from_checkpoint.partition_values) == {"p": None}
    assert (from_checkpoint.size, from_checkpoint.modified_ms) == (100, 5)


def test_the_files_that_deltalake_writes_deletes_and_compacts_are_followed(tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    for n in range(12):
        write_deltalake(root, pa.table({"id": [n, n + 100]}), mode="append")
    DeltaTable(root).delete("id = 3")
    DeltaTable(root).optimize.compact()
    DeltaTable(root).create_checkpoint()
    write_deltalake(root, pa.table({"id": [7]}), mode="append")
    for version in range(15):
        theirs = DeltaTable(root, version=version).get_add_actions()
        paths = {f.path for f in DeltaLog(open_store(root)).snapshot(version).files}
        assert paths == set(pa.table(theirs).column("path").to_pylist())


def test_the_last_version_of_each_application_survives_a_checkpoint(table: HandWritten) -> None:
    table.begin({"txn": {"appId": "a", "version": 1}}, {"txn": {"appId": "b", "version": 5}})
    table.commit(1, {"txn": {"appId": "a", "version": 2}})
    checkpoint(table, 1)
    table.commit(2, {"txn": {"appId": "b", "version": 6}})
    assert table.log.snapshot().transactions == {"a": 2, "b": 6}


def test_compacted_commits_checksums_and_hints_are_not_read(table: HandWritten) -> None:
    ten_commits(table)
    for name in (
        "_last_checkpoint",
        f"{0:020d}.{5:020d}.compacted.json",
        f"{9:020d}.crc",
        f"{9:020d}.checkpoint.tmp.parquet",
        f"{10:020d}.json.tmp",
    ):
        (table.folder / name).write_text("{ broken")
    assert table.log.latest_version() == 9
    assert len(table.paths()) == 10


# Checkpoints that are broken


def test_a_corrupt_checkpoint_is_replaced_by_an_older_one_with_a_warning(
    table: HandWritten, caplog: pytest.LogCaptureFixture
) -> None:
    ten_commits(table)
    newer = checkpoint(table, 8)
    newer.write_bytes(b"PAR1 not parquet")
    table.remove_commits(0, 1, 2)
    with caplog.at_level(logging.WARNING):
        assert len(table.paths()) == 10
    assert str(newer) in caplog.text


def test_an_empty_checkpoint_is_none(table: HandWritten, caplog: pytest.LogCaptureFixture) -> None:
    ten_commits(table)
    (table.folder / CHECKPOINT.format(8)).touch()
    assert len(table.paths()) == 10
    assert not caplog.records


def test_of_two_checkpoints_of_a_version_the_one_that_can_be_read_is_taken(
    table: HandWritten,
) -> None:
    ten_commits(table)
    other = f"{4:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (table.folder / other).write_text("{ broken")
    table.remove_commits(0, 1, 2, 3, 4)
    assert len(table.paths()) == 10


def test_a_corrupt_checkpoint_that_nothing_can_replace_is_named(table: HandWritten) -> None:
    ten_commits(table)
    (table.folder / CHECKPOINT.format(4)).write_bytes(b"PAR1 not parquet")
    table.remove_commits(0, 1)
    with pytest.raises(BrokenTable, match=r"4\.checkpoint\.parquet.*versions 0 to 1.*are gone"):
        table.log.snapshot()


def test_a_checkpoint_in_parts_counts_only_with_all_of_them(
    tables: Fixtures, tmp_path: Path
) -> None:
    root = tmp_path / "table"
    shutil.copytree(tables["golden-multi-part-checkpoint"].table, root)
    parts = sorted((root / "_delta_log").glob("*.checkpoint.*.parquet"))
    whole = DeltaLog(open_store(root)).snapshot()
    assert len(parts) > 1
    parts[0].unlink()
    assert [f.key for f in DeltaLog(open_store(root)).snapshot().files] == [
        f.key for f in whole.files
    ]
    for commit in (root / "_delta_log").glob("0*0.json"):
        commit.unlink()
    with pytest.raises(VersionGone, match="version 0 is gone"):
        DeltaLog(open_store(root)).snapshot()


def test_a_checkpoint_without_its_sidecar_is_broken_by_name(
    tables: Fixtures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "table"
    shutil.copytree(tables["kernel-v2-checkpoints-json-with-sidecars"].table, root)
    whole = DeltaLog(open_store(root)).snapshot()
    shutil.rmtree(root / "_delta_log" / "_sidecars")
    again = DeltaLog(open_store(root)).snapshot()
    assert [f.key for f in again.files] == [f.key for f in whole.files]
    assert "_sidecars" in caplog.text


# Checkpoints of typed columns


def test_statistics_and_partition_values_may_be_there_as_columns_only(table: HandWritten) -> None:
    at = datetime(2024, 1, 2, 3, 4, 5, 600, tzinfo=timezone.utc)
    values = {"d": date(2024, 1, 2), "t": at, "b": True, "n": None, "m": Decimal("1.50"), "i": 7}
    low = {"d": date(2024, 1, 2), "m": Decimal("12345678901234567.89"), "t": at, "x": None}
    body = {
        "path": "f",
        "size": 1,
        "modificationTime": 3,
        "partitionValues_parsed": values,
        "stats_parsed": {"numRecords": 2, "minValues": low},
    }
    write_checkpoint(table, 3, {"add": body})
    (file,) = table.log.snapshot().files
    assert dict(file.partition_values) == {
        "d": "2024-01-02",
        "t": "2024-01-02 03:04:05.000600",
        "b": "true",
        "n": None,
        "m": "1.50",
        "i": "7",
    }
    assert '"m":12345678901234567.89' in (file.stats or "")
    assert file.statistics()["minValues"]["d"] == "2024-01-02"
    assert file.statistics()["minValues"]["t"] == "2024-01-02T03:04:05.000600Z"
    assert file.num_records == 2


def test_files_without_a_modification_time_come_first_from_a_checkpoint_too(
    table: HandWritten,
) -> None:
    timed = {"add": {"path": "a", "size": 1, "modificationTime": 1}}
    without = {"add": {"path": "b", "size": 1, "modificationTime": None}}
    write_checkpoint(table, 3, timed, without)
    assert table.paths() == ["b", "a"]


def write_checkpoint(table: HandWritten, version: int, *adds: dict[str, Any]) -> None:
    """A Parquet checkpoint with the columns that these actions have, and no others."""
    table_id = {k: v for k, v in metadata()["metaData"].items() if v and k != "format"}
    rows = [PROTOCOL, {"metaData": table_id}, *adds]
    path = table.folder / CHECKPOINT.format(version)
    pq.write_table(pa.Table.from_pylist(rows, _schema(rows[:3])), path)


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    fields = {name: pa.array([body]).type for row in rows for name, body in row.items()}
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()])


# What the log still holds


def test_versions_are_those_whose_commits_are_left_without_a_gap(table: HandWritten) -> None:
    ten_commits(table)
    assert table.log.versions() == range(10)
    table.remove_commits(0, 1, 2, 3)
    assert table.log.versions() == range(4, 10)
    table.remove_commits(6)
    assert table.log.versions() == range(7, 10)


def test_a_checkpoint_alone_is_a_table_without_commits(table: HandWritten) -> None:
    ten_commits(table, checkpoint_at=9)
    table.remove_commits(*range(10))
    log = table.log
    assert (log.latest_version(), log.versions()) == (9, range(10, 10))
    assert len(table.paths()) == 10
    assert log.metadata(9)[1].partition_columns == ("p",)


def test_a_version_before_the_cleanup_of_the_log_is_gone(table: HandWritten) -> None:
    ten_commits(table)
    table.remove_commits(0, 1, 2, 3)
    with pytest.raises(VersionGone, match="versions 0 to 3 are gone from the log") as failure:
        table.log.snapshot(3)
    assert (failure.value.start, failure.value.stop) == (None, None)
    assert failure.value.split == str(table.root)
    with pytest.raises(VersionGone, match="versions 0 to 3"):
        table.log.metadata(3)


def test_a_gap_between_a_checkpoint_and_a_version_is_named(table: HandWritten) -> None:
    ten_commits(table)
    table.remove_commits(6, 7)
    assert len(table.paths(5)) == 6
    with pytest.raises(VersionGone, match="versions 6 to 7 are gone"):
        table.log.snapshot()


@pytest.mark.parametrize("version", [-1, 10])
def test_a_version_that_never_was_is_refused_with_the_newest(
    table: HandWritten, version: int
) -> None:
    ten_commits(table)
    with pytest.raises(SourceError, match=f"no version {version}: the newest is 9"):
        table.log.snapshot(version)


def test_where_there_is_no_table_the_error_says_so_and_where(tmp_path: Path) -> None:
    for call in (DeltaLog.latest_version, DeltaLog.snapshot, DeltaLog.versions):
        with pytest.raises(SourceError, match=f"{tmp_path}/none is no Delta table"):
            call(DeltaLog(open_store(tmp_path / "none")))


# Commits


def test_a_commit_keeps_its_actions_in_the_order_of_its_lines(table: HandWritten) -> None:
    cdc = {"cdc": {"path": "c", "partitionValues": {"p": ""}, "size": 3, "dataChange": False}}
    table.begin(
        {"txn": {"appId": "a", "version": 4}},
        remove("r"),
        add("b", 3, dataChange=False),
        cdc,
        info(7, inCommitTimestamp=8, operationMetrics={"numFiles": "1"}),
        {"domainMetadata": {"domain": "x", "configuration": "", "removed": False}},
        add("a"),
    )
    commit = table.log.commit(0)
    assert commit is not None
    assert [(a.kind, a.file.path) for a in commit.files] == [
        ("remove", "r"),
        ("add", "b"),
        ("cdc", "c"),
        ("add", "a"),
    ]
    assert [a.file.data_change for a in commit.files] == [True, False, False, True]
    assert (commit.timestamp_ms, commit.operation, commit.metrics) == (
        8,
        "WRITE",
        {"numFiles": "1"},
    )
    assert commit.transactions == {"a": 4}
    assert commit.metadata is not None and commit.protocol is not None


def test_a_commit_that_is_not_there_is_none(table: HandWritten) -> None:
    table.begin()
    assert table.log.commit(1) is None
    assert (table.log.has_commit(0), table.log.has_commit(1)) == (True, False)


def test_a_file_of_a_rewrite_is_a_part_of_the_table_like_any_other(table: HandWritten) -> None:
    table.begin(add("a", dataChange=False))
    assert [file.data_change for file in table.log.snapshot().files] == [True]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"add": {"path": "x"', "line 2 is no JSON"),
        ("[1, 2]", "line 2 is no JSON object"),
        ('{"add": {"size": 3}}', "line 2: an action lacks 'path'"),
        ('{"metaData": {"id": "x", "schemaString": "{"}}', "line 2: an action"),
        ('{"add": 3}', "line 2: an action"),
        ('{"protocol": {"minReaderVersion": "x"}}', "line 2: an action"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(table: HandWritten, line: str, why: str) -> None:
    table.begin()
    path = table.folder / f"{1:020d}.json"
    path.write_text(json.dumps(add("a")) + "\n" + line + "\n")
    with pytest.raises(BrokenTable, match=f"{path}, {why}"):
        table.log.commit(1)
    with pytest.raises(BrokenTable, match=f"{path}, {why}"):
        table.log.snapshot()


def test_an_empty_commit_file_is_broken(table: HandWritten) -> None:
    table.begin()
    (table.folder / f"{1:020d}.json").touch()
    with pytest.raises(BrokenTable, match=r"1\.json is empty"):
        table.log.commit(1)


# Protocol and metadata


@pytest.mark.parametrize(
    ("actions", "lacks"),
    [([PROTOCOL], "no metadata"), ([metadata()], "no protocol")],
)
def test_a_log_without_protocol_or_metadata_is_broken(
    table: HandWritten, actions: list[Any], lacks: str
) -> None:
    table.commit(0, *actions)
    for call in (DeltaLog.snapshot, DeltaLog.metadata):
        with pytest.raises(BrokenTable, match=f"has {lacks} at version 0"):
            call(table.log, 0)


def test_metadata_without_a_schema_breaks_the_table_but_not_its_log(table: HandWritten) -> None:
    bare = {"metaData": {"id": "x", "partitionColumns": [], "configuration": {}}}
    table.commit(0, PROTOCOL, bare)
    assert table.log.commit(0) is not None
    with pytest.raises(BrokenTable, match="has no schema at version 0"):
        table.log.snapshot()
    table.commit(1, metadata())
    assert table.log.snapshot().metadata.schema["type"] == "struct"


def test_metadata_is_that_of_the_version_also_behind_a_checkpoint(table: HandWritten) -> None:
    ten_commits(table)
    table.commit(10, metadata(a_b="1"))
    table.commit(11, add("x"))
    for version, configuration in ((2, {}), (4, {}), (9, {}), (10, {"a.b": "1"})):
        assert table.log.metadata(version)[1].configuration == configuration
    assert table.log.metadata(11) == (table.log.snapshot().protocol, table.log.snapshot().metadata)


def test_every_unknown_feature_is_named(table: HandWritten) -> None:
    features = ["zebra", "deletionVectors", "apple", "catalogManaged"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
    table.commit(0, {"protocol": protocol}, metadata())
    with pytest.raises(UnsupportedTable, match=r"'apple'.*'catalogManaged'.*'zebra'") as failure:
        table.log.snapshot()
    assert "deletionVectors" not in str(failure.value)
    assert table.log.commit(0) is not None


@pytest.mark.parametrize("version", [0, 4, 99])
def test_an_unknown_reader_version_is_refused(version: int) -> None:
    protocol = Protocol(reader_version=version, writer_version=7)
    with pytest.raises(UnsupportedTable, match=f"s3://b/t needs reader version {version}"):
        check_supported(protocol, Metadata(id="x", schema={}), "s3://b/t")


def test_an_unknown_column_mapping_is_refused_whatever_the_protocol_says() -> None:
    table = Metadata(id="x", schema={}, configuration={"delta.columnMapping.mode": "position"})
    with pytest.raises(UnsupportedTable, match="column mapping mode 'position'"):
        check_supported(Protocol(reader_version=1, writer_version=2), table, "t")


# Time


def recorded(get: Callable[[str], bytes], paths: list[str]) -> Callable[[str], bytes]:
    def read(path: str) -> bytes:
        paths.append(path)
        return get(path)

    return read


def timed(table: HandWritten, *times: int | None, **configuration: str) -> None:
    table.begin(info(times[0]), **configuration)
    for version, time in enumerate(times[1:], start=1):
        table.commit(version, add(f"f{version}"), info(time))


@pytest.mark.parametrize(
    ("at", "version"), [(0, 0), (10, 0), (11, 1), (20, 1), (29, 2), (30, 2), (31, 3)]
)
def test_a_time_is_the_first_version_made_then_or_later(
    table: HandWritten, at: int, version: int
) -> None:
    timed(table, 10, 20, 30)
    assert table.log.version_at(at) == version


def test_where_a_clock_ran_backwards_a_commit_is_a_millisecond_newer(table: HandWritten) -> None:
    timed(table, 10, 50, 20, 52)
    assert [table.log.version_at(t) for t in (20, 50, 51, 52, 53)] == [1, 1, 2, 3, 4]


def test_in_commit_timestamps_count_more_than_those_of_the_writer(table: HandWritten) -> None:
    table.begin(info(999, inCommitTimestamp=10), delta_enableInCommitTimestamps="true")
    for version in range(1, 50):
        table.commit(version, info(5, inCommitTimestamp=10 + version * 10))
    assert [table.log.version_at(t) for t in (1, 10, 15, 20, 500, 501)] == [0, 0, 1, 1, 49, 50]


def test_with_in_commit_timestamps_few_commits_are_read(
    table: HandWritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in range(200):
        table.commit(version, info(inCommitTimestamp=version * 10))
    on = metadata(delta_enableInCommitTimestamps="true")
    table.commit(200, PROTOCOL, on, info(inCommitTimestamp=2000))
    store = open_store(table.root)
    read: list[str] = []
    monkeypatch.setattr(store, "get", recorded(store.get, read))
    assert DeltaLog(store).version_at(1_501) == 151
    assert len(read) < 12


def test_in_commit_timestamps_that_began_later_count_from_there(table: HandWritten) -> None:
    timed(table, 10, 35, 20)
    on = {"delta_enableInCommitTimestamps": "true"}
    since = metadata(**on)
    since["metaData"]["configuration"]["delta.inCommitTimestampEnablementVersion"] = "3"
    table.commit(3, info(7, inCommitTimestamp=40), since)
    table.commit(4, info(7, inCommitTimestamp=50))
    times = (10, 11, 21, 36, 37, 40, 41, 50, 51)
    assert [table.log.version_at(t) for t in times] == [0, 1, 1, 2, 3, 3, 4, 4, 5]


def test_a_commit_without_a_time_has_that_of_its_file_and_a_warning(
    table: HandWritten, caplog: pytest.LogCaptureFixture
) -> None:
    timed(table, None, None)
    for version in range(2):
        os.utime(table.folder / f"{version:020d}.json", (100 + version, 100 + version))
    assert [table.log.version_at(t) for t in (100_000, 100_001, 101_001)] == [0, 1, 2]
    assert "does not say when it was made" in caplog.text


def test_a_time_before_what_the_log_still_holds_is_gone(table: HandWritten) -> None:
    timed(table, *range(10, 110, 10))
    checkpoint(table, 5)
    table.remove_commits(0, 1, 2, 3, 4)
    assert table.log.version_at(60) == 5
    with pytest.raises(VersionGone, match="versions 0 to 4 are gone"):
        table.log.version_at(59)
    table.remove_commits(5, 6, 7, 8, 9)
    with pytest.raises(VersionGone, match="versions 0 to 5"):
        table.log.version_at(59)


# Places


def test_a_table_in_a_store_opens_with_a_list_and_one_read_for_each_commit(tmp_path: Path) -> None:
    with s3_server() as server:
        place = server.place()
        local = HandWritten(tmp_path / "t")
        ten_commits(local)
        local.remove_commits(0, 1)
        for file in local.folder.iterdir():
            place.put(f"_delta_log/{file.name}", file.read_bytes())
        log = DeltaLog(open_store(place.uri, place.storage_options))
        start = len(place.requests())
        assert [f.path for f in log.snapshot().files] == local.paths()
        asked = [line.split()[0] for line in place.requests()[start:]]
        assert len(asked) == 1 + 2 + 5
        assert log.has_commit(10) is False
        with pytest.raises(VersionGone, match="s3://"):
            log.snapshot(3)


FORK = """
import os, sys
from forebay_delta.log import DeltaLog
from forebay_delta.store import open_store
count = lambda: len(list(DeltaLog(open_store(sys.argv[1])).snapshot().files))
assert count() == 10
child = os.fork()
if child == 0:
    os._exit(0 if count() == 10 else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_can_read_the_log_that_its_parent_has_read(table: HandWritten) -> None:
    ten_commits(table)
    subprocess.run([sys.executable, "-c", FORK, str(table.root)], check=True, timeout=60)

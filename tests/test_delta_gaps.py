"""What is gone before it was delivered: a named error, or a chosen policy that counts it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.delta_commits import add, commit, create, file_of, metadata_of
from tests.delta_s3 import S3Place, s3_server
from tests.delta_slices import ids, next_rows, opened, slices_of
from tests.delta_tables import append, loader, read, table
from tests.delta_tables import ids as ids_of

from forebay.state import Position, State, advanced
from forebay_delta import DeltaSource, tail
from forebay_delta.errors import (
    BrokenTable,
    DataFileGone,
    SchemaChanged,
    TableReplaced,
    VersionGone,
)

SPLIT = "delta:t/0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def following(path: Path | str, **options: Any) -> DeltaSource:
    """A source of all commits, in files of ten rows each."""
    return DeltaSource(str(path), start={"version": 0}, poll_seconds=0.01, **options)


def state_after(source: DeltaSource, rows: int) -> dict[str, Any]:
    """The state of a run that trained on so many rows, as it is stored."""
    with loader(source, size=rows) as of:
        next(iter(of))
        stored: dict[str, Any] = json.loads(json.dumps(of.state_dict()))
        return stored


def positions(state: Mapping[str, Any]) -> Mapping[str, Position]:
    return State.from_json(state).splits


def commit_file(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def vacuum(path: Path) -> None:
    table(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


# -- vacuum ----------------------------------------------------------------------------------------


def compacted_and_vacuumed(path: Path) -> None:
    """Two files of ten rows, gone into one; only that is left."""
    append(path, range(10))
    append(path, range(10, 20))
    table(path).optimize.compact()
    vacuum(path)


def test_a_file_that_vacuum_took_is_named_with_its_version_and_the_way_out(path: Path) -> None:
    compacted_and_vacuumed(path)
    source = following(path, until="latest")
    with pytest.raises(
        DataFileGone, match=r"version 0: .*part-.*written .* ago.*on_gap='skip'"
    ) as e:
        read(source)
    assert (e.value.split, e.value.start, e.value.stop) == (SPLIT, 0, 10)


@pytest.mark.parametrize(
    ("on_gap", "expected", "lost"), [("skip", [20], (20, 2)), ("snapshot", range(21), (10, 1))]
)
def test_what_vacuum_took_can_be_passed_over_and_is_counted(
    path: Path, on_gap: Any, expected: Any, lost: tuple[int, int]
) -> None:
    compacted_and_vacuumed(path)
    append(path, [20])
    with opened(following(path, until="latest", on_gap=on_gap)) as reader:
        slices = list(slices_of(reader))
        stats = reader.stats()
    assert sorted(i for s in slices if len(s) for i in ids(s)) == list(expected)
    assert (stats.lost_rows, stats.lost_files) == lost
    assert stats.resets == (on_gap == "snapshot")


def test_a_table_that_is_vacuumed_again_and_again_is_read_anew_each_time(path: Path) -> None:
    compacted_and_vacuumed(path)
    with opened(following(path, on_gap="snapshot")) as reader:
        for restart in (1, 2):
            while (s := reader.poll(1.0)) is None or not s.resets:
                assert s is None or not len(s)
            assert reader.stats().resets == restart
            if restart == 1:  # what it begins to read now is gone before it opens it
                compacted_and_vacuumed(path)
        rows = ids(next_rows(reader))
        while len(rows) < 40:
            rows += ids(next_rows(reader))
    assert sorted(rows) == sorted([*range(20)] * 2)


def test_a_reader_in_the_middle_loses_only_what_it_had_not_opened(path: Path) -> None:
    for i in range(5):
        append(path, range(i * 10, i * 10 + 10))
    source = following(path, until={"version": 4}, slice_rows=5, threads=1, readahead_files=1)
    with opened(source) as reader:
        first = next_rows(reader)
        table(path).optimize.compact()
        vacuum(path)
        for _ in range(2):
            with pytest.raises(DataFileGone) as e:
                list(slices_of(reader))
        state = advanced(reader.positions(), [first])
    assert e.value.start is not None and e.value.start >= 10, "an open file is read on"
    with opened(replace(source, on_gap="skip"), state) as reader:
        assert [s for s in slices_of(reader) if len(s)] == []
        assert reader.stats().lost_rows == 50 - len(first)


def test_a_resume_in_a_file_that_is_gone_counts_the_rest_of_it(path: Path) -> None:
    append(path, range(10))
    append(path, range(10, 20))
    state = state_after(following(path), 4)
    table(path).optimize.compact()
    vacuum(path)
    source = following(path, until="latest", on_gap="skip")
    with opened(source, positions(state)) as reader:
        assert [len(s) for s in slices_of(reader) if len(s)] == []
        assert reader.stats().lost_rows == 16
    with pytest.raises(DataFileGone, match="up to 6 records from offset 4"):
        read(replace(source, on_gap="fail"), state)


# -- log retention ---------------------------------------------------------------------------------


def cleaned(path: Path, *, delivered: int) -> dict[str, Any]:
    """Versions 0 to 12, of which retention took 3 to 9; the state of a run that lags behind."""
    for i in range(11):
        append(path, range(i * 10, i * 10 + 10))
    table(path).create_checkpoint()
    state = state_after(following(path), delivered * 10)
    append(path, range(110, 120))
    append(path, range(120, 130))
    for version in range(3, 10):
        commit_file(path, version).unlink()
    return state


@pytest.mark.parametrize(("delivered", "missing"), [(4, "versions 4 to 9"), (5, "versions 5 to 9")])
def test_commits_that_retention_took_are_named(path: Path, delivered: int, missing: str) -> None:
    state = cleaned(path, delivered=delivered)
    with pytest.raises(VersionGone, match=f"{missing} are gone from the log.*on_gap='skip'"):
        read(following(path, until="latest"), state)


def test_commits_that_retention_took_can_be_passed_over_and_are_counted(path: Path) -> None:
    state = cleaned(path, delivered=5)
    source = following(path, until="latest", on_gap="skip")
    with opened(source, positions(state)) as reader:
        slices = list(slices_of(reader))
        assert reader.stats().lost_versions == 5
        after = advanced(reader.positions(), slices)
    assert [i for s in slices if len(s) for i in ids(s)] == list(range(100, 130))
    assert after[SPLIT].offset == 80


def test_the_whole_table_can_be_read_anew_instead(path: Path) -> None:
    state = cleaned(path, delivered=5)
    source = following(path, until="latest", on_gap="snapshot")
    assert sorted(read(source, state)) == list(range(130))


def test_a_position_behind_what_retention_took_is_not_disturbed(path: Path) -> None:
    state = cleaned(path, delivered=10)
    assert read(following(path, until="latest"), state) == list(range(100, 130))


def test_commits_that_go_while_a_reader_waits_for_them_are_found_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_LISTING_EVERY", 3)
    append(path, range(10))
    with opened(following(path)) as reader:
        next_rows(reader)
        append(path, range(10, 20))
        append(path, range(20, 30))
        table(path).create_checkpoint()
        commit_file(path, 1).unlink()
        with pytest.raises(VersionGone, match="version 1 is gone"):
            next_rows(reader)


def test_a_schema_that_changed_in_the_skipped_commits_stops_the_reader(path: Path) -> None:
    create(path, {"id": "long", "text": "string"}, file_of(path, range(10)))
    state = state_after(following(path), 10)
    commit(path, metadata_of({"id": "string", "text": "string"}))
    commit(path)
    table(path).create_checkpoint()
    commit_file(path, 1).unlink()
    source = following(path, until="latest", on_gap="skip")
    with pytest.raises(SchemaChanged, match=r"version 2 .*id is string, was long"):
        read(source, state)


# -- another table in its place --------------------------------------------------------------------


def make_anew(path: Path, commits: int) -> None:
    """Drop the table; make another one with so many commits at the same place."""
    shutil.rmtree(path)
    for i in range(commits):
        append(path, range(1000 + i * 10, 1010 + i * 10))


@pytest.mark.parametrize("commits", [1, 3, 8])
def test_a_resume_on_a_table_that_was_made_anew_is_refused(path: Path, commits: int) -> None:
    for i in range(5):
        append(path, range(i * 10, i * 10 + 10))
    state = state_after(following(path), 30)
    make_anew(path, commits)
    with pytest.raises(TableReplaced, match=r"its id was .*, it is .*on_gap='snapshot'"):
        read(following(path, until="latest"), state)
    with pytest.raises(TableReplaced):
        read(following(path, until="latest", on_gap="skip"), state)
    anew = read(following(path, until="latest", on_gap="snapshot"), state)
    assert sorted(anew) == list(range(1000, 1000 + 10 * commits))


@pytest.mark.parametrize("commits", [1, 3, 8])
def test_a_reader_notices_that_its_table_was_made_anew(
    path: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_LISTING_EVERY", 3)
    for i in range(2):
        append(path, range(i * 10, i * 10 + 10))
    with opened(following(path)) as reader:
        assert ids(next_rows(reader)) + ids(next_rows(reader)) == list(range(20))
        until_idle(reader)
        make_anew(path, commits)
        with pytest.raises(TableReplaced):
            next_rows(reader)


def test_a_reader_that_is_far_behind_never_mixes_two_tables(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_STALE_SECONDS", 0.0)
    for i in range(40):
        append(path, range(i * 10, i * 10 + 10))
    with opened(following(path, on_gap="skip", threads=1, readahead_files=1)) as reader:
        first = ids(next_rows(reader))
        make_anew(path, 41)
        with pytest.raises(TableReplaced):
            while max(first) < 1000:
                first += ids(next_rows(reader))
    assert max(first) < 1000


def test_files_that_are_gone_with_their_table_are_not_passed_over(path: Path) -> None:
    for i in range(5):
        append(path, range(i * 10, i * 10 + 10))
    source = following(path, until={"version": 4}, on_gap="skip", threads=1, readahead_files=1)
    with opened(source) as reader:
        next_rows(reader)
        make_anew(path, 5)
        with pytest.raises(TableReplaced):
            list(slices_of(reader))
        assert reader.stats().lost_rows == 0


def test_a_log_that_lost_its_end_is_broken_and_not_waited_for(path: Path) -> None:
    for i in range(5):
        append(path, range(i * 10, i * 10 + 10))
    state = state_after(following(path), 50)
    for version in (3, 4):
        commit_file(path, version).unlink()
    for on_gap in ("fail", "skip", "snapshot"):
        with pytest.raises(BrokenTable, match="ends at version 2, and version 4 was read before"):
            read(following(path, on_gap=on_gap), state)


def test_a_start_that_is_still_to_come_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_LISTING_EVERY", 1)
    append(path, range(10))
    with opened(DeltaSource(str(path), start={"version": 3}, poll_seconds=0.01)) as reader:
        until_idle(reader)
        for i in range(1, 4):
            append(path, range(i * 10, i * 10 + 10))
        assert ids(next_rows(reader)) == list(range(30, 40))


def until_idle(reader: Any) -> None:
    """Wait until the reader has polled for a commit that is not there, a few times."""
    for _ in range(5):
        while (s := reader.poll(0.02)) is not None:
            assert not len(s)


def test_a_schema_that_the_log_forgot_is_that_of_before_the_position(path: Path) -> None:
    create(path, {"id": "long", "text": "string"}, file_of(path, range(10)))
    state = state_after(following(path), 10)
    for version in range(1, 4):
        commit(path, add(file_of(path, [version * 10])))
    with loader(following(path, until={"version": 2}), size=2) as of:
        of.load_state_dict(state)
        assert ids_of(of) == [10, 20]
        state = of.state_dict()
    table(path).create_checkpoint()
    for version in range(3):
        commit_file(path, version).unlink()
    columns = {"id": "long", "text": "string", "score": "double"}
    commit(path, metadata_of(columns), add(file_of(path, [40])))
    with loader(following(path, until="latest"), size=9) as of:
        of.load_state_dict(state)
        (batch,) = list(of)
    assert batch["id"].tolist() == [30, 40]
    assert set(batch) == {"id", "text"}


# -- a fast writer, an idle table ------------------------------------------------------------------


def test_a_writer_that_never_rests_does_not_keep_rows_from_the_reader(path: Path) -> None:
    append(path, range(10))
    rest = threading.Event()

    def write() -> None:
        for i in range(1, 10_000):
            append(path, range(i * 10, i * 10 + 10))
            if rest.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with opened(following(path, slice_rows=7)) as reader:
            given = [next_rows(reader) for _ in range(40)]
    finally:
        rest.set()
        writer.join()
    assert max(len(s) for s in given) <= 7
    rows = [i for s in given for i in ids(s)]
    assert rows == list(range(len(rows)))


@pytest.fixture(scope="module")
def place() -> Iterator[S3Place]:
    with s3_server() as server:
        yield server.place()


def test_an_idle_table_costs_one_request_a_poll(place: S3Place) -> None:
    append(place.uri, range(3), storage_options=place.storage_options)
    source = DeltaSource(
        place.uri,
        storage_options=place.storage_options,
        start="latest",
        poll_seconds=0.001,
    )
    with opened(source) as reader:
        assert reader.poll(0.0) is None
        before = len(place.requests())
        while len(polls := place.requests()[before:]) < 20:
            assert reader.poll(0.05) is None
    lists = [each for each in polls if "list-type" in each]
    assert {each[-25:] for each in polls if each not in lists} == {f"{1:020d}.json"}
    assert len(lists) <= len(polls) / 25 + 1, "now and then it looks whether the log was cleaned"

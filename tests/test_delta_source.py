"""A Delta table is followed exactly once: a whole version, then each commit, across restarts."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.delta_tables import append, ids, loader, read, read_with_kills, table

from forebay import ConfigError, Pipeline, StateError, merge_states
from forebay.columns import Columns, as_numpy
from forebay_delta import ChangeRefused, DataFileGone, DeltaSource


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of three commits: ids 0 to 299."""
    at = tmp_path / "events"
    for i in range(3):
        append(at, range(i * 100, i * 100 + 100))
    return at


def test_a_snapshot_gives_every_row_once(path: Path) -> None:
    assert sorted(read(DeltaSource(str(path), until="latest"))) == list(range(300))


def test_commits_from_a_version_on_come_in_order(path: Path) -> None:
    source = DeltaSource(str(path), start={"version": 1}, until="latest")
    assert read(source) == list(range(100, 300))


def test_latest_gives_only_what_is_committed_from_now_on(path: Path) -> None:
    source = DeltaSource(str(path), start="latest", poll_seconds=0.01)
    with loader(source, size=10) as of:
        batches = iter(of)
        threading.Timer(0.2, append, [path, range(300, 310)]).start()
        assert next(batches)["id"].tolist() == list(range(300, 310))


def test_a_bounded_source_ends_with_its_version_whatever_is_committed_later(path: Path) -> None:
    assert len(read(DeltaSource(str(path), start={"version": 0}, until={"version": 1}))) == 200
    assert len(read(DeltaSource(str(path), until={"version": 1}))) == 200


@pytest.mark.parametrize("order", ["split", "arrival", "deterministic"])
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_any_batch_inside_files_lose_and_repeat_nothing(
    path: Path, order: str, seed: int
) -> None:
    source = DeltaSource(str(path), until="latest", slice_rows=9)
    got = read_with_kills(source, seed, order=order)
    assert Counter(got) == Counter(range(300))


@pytest.mark.parametrize("batches", range(1, 15))
def test_a_record_that_becomes_several_rows_resumes_between_them(path: Path, batches: int) -> None:
    source = DeltaSource(str(path), start={"version": 2}, until="latest", slice_rows=8)
    pipeline = Pipeline(source).expand(lambda row: [row] * 3, per="row").batch(4)
    with pipeline.loader() as first:
        got = ids([b for _, b in zip(range(batches), first, strict=False)])
        state = first.state_dict()
    with pipeline.loader() as second:
        second.load_state_dict(state)
        assert Counter(got + ids(second)) == Counter(list(range(200, 300)) * 3)


def test_what_was_overtaken_comes_again_and_nothing_else(path: Path) -> None:
    stuck, gate = {210, 130}, threading.Event()

    def wait(columns: Columns) -> Columns:
        if stuck & set(as_numpy(columns["id"]).tolist()):
            gate.wait(60)
        return columns

    source = DeltaSource(str(path), start={"version": 1}, until="latest", slice_rows=8)
    pipeline = Pipeline(source).map(wait, name="wait").batch(5)
    first = pipeline.loader(order="arrival", workers=3)
    batches = iter(first)
    got = ids([next(batches) for _ in range(25)])
    assert not stuck & set(got)
    state = first.state_dict()
    gate.set()
    first.close()
    with pipeline.loader(order="arrival", workers=3) as second:
        second.load_state_dict(state)
        assert Counter(got + ids(second)) == Counter(range(100, 300))


def test_a_resume_goes_on_with_commits_made_meanwhile(path: Path) -> None:
    source = DeltaSource(str(path), until="latest")
    with loader(source, size=50) as first:
        got = ids([next(iter(first))])
        state = first.state_dict()
    append(path, range(300, 400))
    table(path).optimize.compact()
    append(path, range(400, 500))
    got += read(source, state)
    assert Counter(got) == Counter(range(500))


def test_a_compaction_gives_nothing_again(path: Path) -> None:
    source = DeltaSource(str(path), until="latest", poll_seconds=0.01)
    with loader(source) as first:
        got = ids(first)
        state = first.state_dict()
    table(path).optimize.compact()
    append(path, range(300, 310))
    assert read(source, state) == list(range(300, 310))
    assert len(got) == 300


def test_the_state_names_the_file_and_row_it_stands_at(path: Path) -> None:
    with loader(DeltaSource(str(path), until="latest"), size=150) as of:
        next(iter(of))
        state = json.loads(json.dumps(of.state_dict()))
    position = state["splits"]["delta:events/0"]
    token = state["tokens"][position["token"]]
    assert (token["version"], token["index"], token["snapshot"]) == (2, 1, True)
    assert position["offset"] - token["first"] == 50
    assert token["table"] == table(path).metadata().id


def test_a_position_at_the_end_of_a_version_needs_that_version_no_more(path: Path) -> None:
    source = DeltaSource(str(path), until="latest")
    with loader(source, size=300) as of:
        next(iter(of))
        state = of.state_dict()
    table(path).optimize.compact()
    table(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    append(path, [300])
    assert read(source, state) == [300]


def test_commits_without_rows_move_the_position(path: Path) -> None:
    source = DeltaSource(str(path), start={"version": 2}, until="latest")
    with loader(source) as of:
        list(of)
        state = of.state_dict()
    table(path).optimize.compact()
    table(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with loader(source) as of:
        of.load_state_dict(state)
        assert list(of) == []
        state = of.state_dict()
    newest = table(path).version()
    token = state["tokens"][state["splits"]["delta:events/0"]["token"]]
    assert (token["version"], token["index"]) == (newest + 1, 0)


def test_lineage_columns_lead_back_to_the_row_in_its_file(path: Path) -> None:
    source = DeltaSource(str(path), until="latest", lineage=True, columns=["id"])
    with loader(source, size=300) as of:
        batch = next(iter(of))
    assert set(batch["_delta_version"].tolist()) == {2}
    assert sorted(batch["_delta_row"].tolist()) == sorted(list(range(100)) * 3)
    assert {(path / f).exists() for f in batch["_delta_file"]} == {True}


def test_columns_and_filter_give_only_what_was_asked_for(path: Path) -> None:
    source = DeltaSource(
        str(path), until="latest", columns=["text"], filter=[("id", ">=", 250), ("id", "<", 260)]
    )
    with loader(source, size=100) as of:
        batch = next(iter(of))
        state = of.state_dict()
    assert batch.keys() == {"text"}
    assert sorted(batch["text"]) == [f"row {i}" for i in range(250, 260)]
    assert read(DeltaSource(str(path), until="latest"), state) == []


def test_files_that_a_filter_excludes_are_not_opened(path: Path) -> None:
    oldest = min(path.glob("*.parquet"), key=lambda f: f.stat().st_mtime_ns)
    oldest.unlink()  # ids 0 to 99
    assert read(DeltaSource(str(path), until="latest", filter=[("id", ">", 290)])) == list(
        range(291, 300)
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_shards_and_may_change_in_number(path: Path, ranks: int) -> None:
    source = DeltaSource(str(path), start={"snapshot": 2}, until="latest", shards=6)
    got, states = [], []
    for rank in range(2):
        with loader(source, size=10, rank=rank, world_size=2) as of:
            got += ids([b for _, b in zip(range(3), of, strict=False)])
            states.append(of.state_dict())
    append(path, range(300, 350))
    merged = merge_states(states)
    for rank in range(ranks):
        with loader(source, size=10, rank=rank, world_size=ranks) as of:
            of.load_state_dict(merged)
            got += ids(of)
    assert Counter(got) == Counter(range(350))


def test_ranks_that_would_begin_at_different_versions_are_refused(path: Path) -> None:
    source = DeltaSource(str(path), shards=4)
    with pytest.raises(ConfigError, match=r"source\.resolved\(\).*start=\{'snapshot': 2\}"):
        next(iter(loader(source, rank=0, world_size=2)))
    fixed = source.resolved()
    assert fixed.start == {"snapshot": 2}
    assert pickle.loads(pickle.dumps(fixed)) == fixed


def test_another_number_of_shards_is_refused(path: Path) -> None:
    with loader(DeltaSource(str(path), shards=2)) as of:
        next(iter(of))
        state = of.state_dict()
    again = loader(DeltaSource(str(path), shards=3))
    again.load_state_dict(state)
    with pytest.raises(StateError, match=r"shards=2.*shards=3"):
        next(iter(again))


def test_further_passes_begin_where_the_first_began(path: Path) -> None:
    source = DeltaSource(str(path), start={"version": 1}, until="latest")
    with loader(source, passes=3) as of:
        assert [sorted(ids(of)) for _ in range(3)] == [list(range(100, 300))] * 3


def test_a_shuffle_window_resumes_inside_a_table(path: Path) -> None:
    source = DeltaSource(str(path), until="latest", slice_rows=16)
    whole = list(_shuffled(source, 300))
    assert list(_shuffled(source, 11)) == whole
    assert sorted(whole) == list(range(300))
    assert whole != sorted(whole)


def test_a_window_over_several_shards_resumes_where_each_of_them_stands(tmp_path: Path) -> None:
    for i in range(30):
        append(tmp_path, range(i * 10, i * 10 + 10))
    source = DeltaSource(str(tmp_path), until="latest", shards=3)
    assert Counter(_shuffled(source, 1)) == Counter(range(300))


def _shuffled(source: DeltaSource, stop_after: int) -> Iterator[int]:
    """All ids, shuffled, by runs that end after so many rows."""
    state = None
    while True:
        of = Pipeline(source).shuffle(64, seed=3).batch(7).loader()
        if state is not None:
            of.load_state_dict(state)
        given = 0
        for batch in of:
            yield from batch["id"].tolist()
            state = of.state_dict()
            given += len(batch["id"])
            if given >= stop_after:
                break
        else:
            return
        of.close()


def test_a_refused_commit_can_be_gone_past_alone_and_the_next_is_refused_again(
    tmp_path: Path,
) -> None:
    at = tmp_path / "changed"
    append(at, range(10))
    table(at).update(updates={"text": "'new'"}, predicate="id = 3")
    append(at, range(10, 20))
    table(at).delete("id = 12")
    source = DeltaSource(str(at), start={"version": 0}, until="latest")
    with loader(source, size=10) as of:
        batches = iter(of)
        got = ids([next(batches)])
        state = of.state_dict()
        with pytest.raises(ChangeRefused, match="resume with accept_change=1") as refused:
            next(batches)
    assert "unseen" not in str(refused.value)  # it would stop there, too
    with loader(replace(source, accept_change=1), size=10) as of:
        of.load_state_dict(state)
        batches = iter(of)
        got += ids([next(batches)])
        with pytest.raises(ChangeRefused, match="version 3 "):
            next(batches)
    assert got == list(range(20))


@pytest.mark.parametrize("on_gap", ["fail", "snapshot"])
def test_a_file_that_the_newest_version_lacks_is_damage_and_never_read_again_and_again(
    path: Path, on_gap: Any
) -> None:
    max(path.glob("*.parquet"), key=lambda f: f.stat().st_mtime_ns).unlink()
    with loader(DeltaSource(str(path), until="latest", on_gap=on_gap)) as of:
        with pytest.raises(DataFileGone, match="version 2, the newest, still has it"):
            ids(of)
    assert sorted(read(DeltaSource(str(path), until="latest", on_gap="skip"))) == list(range(200))


def test_a_range_without_any_version_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="start names version 4 and until version 2"):
        DeltaSource(str(path), start={"version": 4}, until={"version": 2})
    with pytest.raises(
        ConfigError, match="start names version 99, and reading ends with version 2"
    ):
        read(DeltaSource(str(path), start={"version": 99}, until="latest"))
    assert read(DeltaSource(str(path), start={"version": 3}, until="latest")) == []


def test_a_column_that_is_no_event_time_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"events: event_time: there is no column 'created'"):
        read(DeltaSource(str(path), until="latest", event_time="created"))
    with pytest.raises(ConfigError, match="event_time: column 'text' is string"):
        read(DeltaSource(str(path), until="latest", event_time="text"))


def test_event_times_come_from_a_column(tmp_path: Path) -> None:
    at = tmp_path / "timed"
    write_deltalake(at, pa.table({"id": [1, 2], "ms": [1000, 2000]}))
    source = DeltaSource(str(at), until="latest", event_time="ms")
    with loader(source) as of:
        next(iter(of))
        freshness = of.stats().freshness_seconds
    assert freshness is not None
    assert abs(time.time() - 1.5 - freshness) < 60


@pytest.mark.parametrize("feed", [True, False])
def test_copied_rows_are_never_given_as_inserts_of_a_change_feed(
    tmp_path: Path, feed: bool
) -> None:
    at = tmp_path / "changed"
    append(at, range(100), configuration={"delta.enableChangeDataFeed": str(feed).lower()})
    table(at).update(updates={"text": "'new'"}, predicate="id = 3")
    source = DeltaSource(str(at), start={"version": 0}, until="latest", changes="cdf")
    if feed:
        assert read(source) == [*range(100), 3]
        return
    with loader(source, size=100) as of, pytest.raises(ChangeRefused, match="version 1 "):
        batches = iter(of)
        assert ids([next(batches)]) == list(range(100))
        next(batches)

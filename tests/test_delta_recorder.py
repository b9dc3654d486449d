"""A stream recorded into a Delta table: every row once, whoever writes and whatever crashes."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.delta_files import arrow_peak
from tests.delta_s3 import S3Server, s3_server
from tests.kafka_client import produce
from tests.kafka_support import kafka
from tests.topics import Topics

from forebay import Loader, Pipeline, checkpoint
from forebay.errors import ConfigError, SourceError
from forebay.recording import Recorder
from forebay.slice import Slice, Token
from forebay.testing import MemorySource
from forebay_delta import DeltaSource
from forebay_delta.recorder import DeltaRecorder, DeltaRecording
from forebay_delta.writing import DeltaWriter, Rival
from forebay_kafka.devbroker import DevBrokerProcess

KILLS = 12
DATA = {"a": [b"a%d" % i for i in range(2500)], "b": [b"b%d" % i for i in range(700)]}

# A server that has imported everything forks each trainer: it starts in milliseconds, with no
# thread in it.
SPAWN = mp.get_context("forkserver")
SPAWN.set_forkserver_preload([__name__])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "recorded")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def rows(start: int, stop: int, split: str = "a", token: Token | None = None) -> Slice:
    offsets = np.arange(start, stop, dtype=np.int64)
    return Slice(
        split=split,
        columns={"value": offsets.copy()},
        offsets=offsets,
        start=start,
        next_offset=stop,
        token=token,
    )


def write(uri: str, *slices: Slice, **options: Any) -> None:
    recording = DeltaRecorder(uri, **options).open()
    recording.write(slices)
    recording.close()


def table(uri: str, storage_options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """All rows, by split and offset."""
    found = pa.table(DeltaTable(uri, storage_options=storage_options).scan()).to_pylist()
    return sorted(found, key=lambda row: (row["_split"], row["_offset"]))


def recorded(uri: str, storage_options: dict[str, str] | None = None) -> list[tuple[str, int]]:
    """Split and offset of every row, sorted."""
    return [(row["_split"], row["_offset"]) for row in table(uri, storage_options)]


def offsets(uri: str, split: str = "a") -> list[int]:
    """The offsets that are recorded of a split, sorted."""
    return [at for name, at in recorded(uri) if name == split]


def everything(data: Mapping[str, Sequence[Any]] = DATA) -> list[tuple[str, int]]:
    return [(split, at) for split in sorted(data) for at in range(len(data[split]))]


def loader(recorder: Recorder, size: int = 16, **options: Any) -> Loader:
    return (
        Pipeline(MemorySource(DATA, slice_rows=20)).record(recorder).batch(size).loader(**options)
    )


# -- every row once --------------------------------------------------------------------------------


def test_a_run_that_reads_again_what_is_recorded_records_it_once(uri: str) -> None:
    dice, state = random.Random(1), None
    for _ in range(12):
        recorder = DeltaRecorder(uri, flush_rows=dice.choice([30, 100, 10_000]))
        with loader(recorder, dice.randint(1, 40)) as of:
            if state is not None:
                of.load_state_dict(state)
            for n, _batch in enumerate(of, 1):
                if n % 3 == 0 and dice.random() < 0.5:
                    state = of.state_dict()
                if n == dice.randint(1, 20):
                    break
    with loader(DeltaRecorder(uri)) as of:
        of.load_state_dict(state or {})
        list(of)
    assert recorded(uri) == everything()


def train(folder: Path, flush_rows: int, dies_after: float | None) -> None:
    """Train from the checkpoint on, and die by SIGKILL that many seconds after the first batch."""
    recorder = DeltaRecorder(
        str(folder / "table"),
        flush_rows=flush_rows,
        flush_seconds=0.05 if flush_rows < 1000 else 60,
    )
    of, saved = loader(recorder), checkpoint.load(folder / "state")
    if saved is not None:
        of.load_state_dict(saved)
    for n, _batch in enumerate(of):
        if n == 0 and dies_after is not None:
            threading.Timer(dies_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if n % 4 == 3:
            checkpoint.save(folder / "state", of.state_dict())
    of.close()
    checkpoint.save(folder / "state", of.state_dict())


def run(*args: Any) -> int | None:
    process = SPAWN.Process(target=train, args=args)
    process.start()
    process.join(60)
    assert not process.is_alive()
    return process.exitcode


def test_a_chain_of_kills_leaves_every_row_in_the_table_once(tmp_path: Path) -> None:
    dice, kills = random.Random(7), 0
    for _ in range(KILLS):
        code = run(tmp_path, dice.choice([40, 40, 10_000]), dice.uniform(0.0, 0.25))
        kills += code == -signal.SIGKILL
    assert run(tmp_path, 40, None) == 0
    assert kills >= 10
    assert recorded(str(tmp_path / "table")) == everything()


def test_two_that_record_the_same_splits_at_once_record_each_row_once(uri: str) -> None:
    start, failures = threading.Barrier(3), list[BaseException]()

    def record(seed: int) -> None:
        dice, recording = random.Random(seed), DeltaRecorder(uri).open()
        start.wait()
        try:
            for split in "ab":
                at = 0
                while at < 120:
                    stop = min(at + dice.randint(1, 30), 120)
                    recording.write([rows(at, stop, split)])
                    at = stop
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=record, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert recorded(uri) == [(split, at) for split in "ab" for at in range(120)]


class Interrupted(DeltaWriter):
    """Somebody else writes each time after the table was looked at, until they have done."""

    others: list[Slice]

    def recorded(self, app_id: str) -> int | None:
        found = super().recorded(app_id)
        if self.others:
            write(self.uri, self.others.pop(0))
        return found


def test_what_somebody_else_records_after_the_table_was_looked_at_is_left_out(uri: str) -> None:
    write(uri, rows(0, 10))
    recording = DeltaRecorder(uri).open()
    recording._table = Interrupted(uri, None, "rows")
    recording._table.others = [rows(5, 25), rows(25, 28)]
    recording.write([rows(8, 20), rows(20, 40)])
    assert offsets(uri) == list(range(40))


def test_what_somebody_else_records_of_another_split_meanwhile_is_left_out_later(uri: str) -> None:
    recording = DeltaRecorder(uri).open()
    recording._table = Interrupted(uri, None, "rows")
    recording._table.others = []
    recording.write([rows(0, 10)])
    recording._table.others = [rows(10, 20)]
    recording.write([rows(0, 5, "b")])
    recording.write([rows(10, 25)])
    assert recorded(uri) == [("a", at) for at in range(25)] + [("b", at) for at in range(5)]


def test_rows_that_are_given_twice_at_once_are_recorded_once(uri: str) -> None:
    write(uri, rows(0, 10), rows(5, 15), rows(0, 3, "b"), rows(12, 14), rows(14, 16))
    assert recorded(uri) == [("a", at) for at in range(16)] + [("b", at) for at in range(3)]


def test_a_commit_that_was_made_though_its_answer_was_lost_is_not_repeated(uri: str) -> None:
    class Unlucky(DeltaWriter):
        def append(self, rows: pa.Table, **options: Any) -> None:
            super().append(rows, **options)
            raise SourceError("the connection was lost")

    recording = DeltaRecorder(uri).open()
    recording._table = Unlucky(uri, None, "rows")
    with pytest.raises(SourceError, match="connection was lost"):
        recording.write([rows(0, 10)])
    recording._table = DeltaWriter(uri, None, "rows")
    recording.write([rows(0, 10), rows(10, 12)])
    assert offsets(uri) == list(range(12))


def test_ranks_that_make_the_table_at_once_make_one(tmp_path: Path) -> None:
    for attempt in range(5):
        uri, start = str(tmp_path / str(attempt)), threading.Barrier(4)

        def record(n: int, uri: str = uri, start: threading.Barrier = start) -> None:
            recording = DeltaRecorder(uri).open()
            start.wait()
            recording.write([rows(0, 5, f"split {n}")])

        threads = [threading.Thread(target=record, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(recorded(uri)) == 20
        logs = sorted((Path(uri) / "_delta_log").glob("*.json"))
        assert ['"metaData"' in log.read_text() for log in logs] == [
            True,
            False,
            False,
            False,
            False,
        ]


def test_who_finds_the_table_made_meanwhile_looks_at_what_is_in_it(uri: str) -> None:
    class Late(DeltaWriter):
        def create(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
            write(uri, rows(0, 10))
            super().create(schema, partition_by)

    recording = DeltaRecorder(uri).open()
    recording._table = Late(uri, None, "rows")
    recording.write([rows(0, 15)])
    assert offsets(uri) == list(range(15))


def test_who_cannot_get_a_commit_through_says_so_in_the_end(uri: str) -> None:
    class Busy(DeltaWriter):
        def append(self, rows: pa.Table, **options: Any) -> None:
            raise Rival("Concurrent transaction failed")

    recording = DeltaRecorder(uri).open()
    recording._table = Busy(uri, None, "rows")
    with pytest.raises(SourceError, match=r"could not be written in 20 attempts.*flush_seconds"):
        recording.write([rows(0, 5)])


def test_a_second_pass_records_nothing_again(uri: str) -> None:
    of = loader(DeltaRecorder(uri), passes=2)
    assert sum(b.rows for _ in range(2) for b in of) == 2 * len(everything())
    of.close()
    assert recorded(uri) == everything()


def test_compaction_checkpoints_and_a_log_that_is_cleaned_up_change_nothing(uri: str) -> None:
    for n in range(4):
        write(uri, rows(0, 10 * n + 10), rows(0, 5, "b"))
        made = DeltaTable(uri)
        made.optimize.compact()
        made.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
        made.create_checkpoint()
        made.cleanup_metadata()
        made.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(list((Path(uri) / "_delta_log").glob("*.json"))) < 8
    assert recorded(uri) == [("a", i) for i in range(40)] + [("b", i) for i in range(5)]


def test_compaction_between_two_writes_of_one_recording_disturbs_neither(uri: str) -> None:
    recording = DeltaRecorder(uri).open()
    for n in range(5):
        recording.write([rows(5 * n, 5 * n + 5)])
        if n % 2:
            DeltaTable(uri).optimize.compact()
    assert offsets(uri) == list(range(25))


def test_a_recording_on_an_object_store_is_exact_too(s3: S3Server) -> None:
    place = s3.place()
    options: dict[str, Any] = {"storage_options": place.storage_options}
    for stop in (3, 9, None):
        with loader(DeltaRecorder(place.uri, flush_rows=300, **options), 100) as of:
            for n, _batch in enumerate(of):
                if n == stop:
                    break
    assert recorded(place.uri, place.storage_options) == everything()


# -- logs that begin anew --------------------------------------------------------------------------


def test_a_topic_that_was_created_anew_is_recorded_beside_the_old_one(uri: str) -> None:
    write(uri, rows(0, 30, token={"id": "old", "epoch": 3}))
    new = [rows(0, 10, token={"id": "new", "epoch": 0}), rows(10, 12, token={"id": "new"})]
    for _ in range(2):
        write(uri, *new[:1])
    assert Counter("new" in r["_token"] for r in table(uri)) == {False: 30, True: 10}


def test_records_that_replace_those_which_were_cut_off_are_recorded_once(uri: str) -> None:
    old, cut = {"id": "t", "epoch": 3}, {"id": "t", "epoch": 4}
    write(uri, rows(0, 30, token=old))
    for _ in range(2):  # the second time as after a crash before the next checkpoint
        write(uri, rows(15, 20, token=old), rows(20, 40, token=cut))
    write(uri, rows(25, 45, token=cut))
    new = [r["_offset"] for r in table(uri) if '"epoch": 4' in r["_token"]]
    assert (len(table(uri)), new) == (30 + 25, list(range(20, 45)))


def test_a_topic_that_is_created_anew_is_recorded_without_a_checkpoint_too(
    uri: str, make_topic: Topics
) -> None:
    topic = make_topic()
    for values in ([b"old 0", b"old 1", b"old 2"], [b"new 0", b"new 1"]):
        produce(make_topic.bootstrap, topic, values)
        for _ in range(2):
            source = kafka(make_topic.bootstrap, topic)
            with Pipeline(source).record(DeltaRecorder(uri)).batch(1).loader() as of:
                assert sum(b.rows for b in of) == len(values)
        make_topic.recreate(topic)
    assert sorted(row["value"] for row in table(uri)) == [
        b"new 0",
        b"new 1",
        b"old 0",
        b"old 1",
        b"old 2",
    ]


def test_a_log_that_was_cut_is_recorded_on_from_the_cut(
    uri: str, make_topic: Topics, dev_broker: DevBrokerProcess
) -> None:
    topic, state = make_topic(), None
    produce(make_topic.bootstrap, topic, [b"old %d" % i for i in range(30)])
    for _ in range(3):  # resumes at the same state twice, as after a crash
        source = kafka(make_topic.bootstrap, topic, on_gap="earliest")
        with Pipeline(source).record(DeltaRecorder(uri)).batch(5).loader() as of:
            if state is not None:
                of.load_state_dict(state)
            list(of)
            if state is None:
                state = of.state_dict()
                dev_broker.faults.truncate(topic, 0, 20)
                produce(make_topic.bootstrap, topic, [b"new %d" % i for i in range(20, 40)])
    found = Counter(row["value"] for row in table(uri))
    old, new = [b"old %d" % i for i in range(30)], [b"new %d" % i for i in range(20, 40)]
    assert found == Counter([*old, *new])


# -- what is in the table --------------------------------------------------------------------------


def test_a_topic_is_replayed_as_it_was(uri: str, make_topic: Topics) -> None:
    topic = make_topic(2)
    for partition in range(2):
        values = [b"\xff%d" % i * i for i in range(50)]
        records = [{"value": v or None, "key": b"k", "headers": [("h", b"1")]} for v in values]
        produce(make_topic.bootstrap, topic, records, partition=partition)
    source = kafka(make_topic.bootstrap, topic)
    with Pipeline(source).record(DeltaRecorder(uri, flush_rows=20)).batch(8).loader() as of:
        live = [row for b in of for row in unbatched(b)]
    names = list(live[0])
    replay = Pipeline(DeltaSource(uri, until="latest", columns=names)).batch(8).loader()
    again = [row for b in replay for row in unbatched(b)]
    for partition in range(2):
        assert of_partition(again, partition) == of_partition(live, partition)
    assert len(again) == 100


def unbatched(batch: Any) -> list[dict[str, Any]]:
    lists = [v if isinstance(v, list) else v.tolist() for v in batch.values()]
    return [dict(zip(batch, row, strict=True)) for row in zip(*lists, strict=True)]


def of_partition(rows: Sequence[dict[str, Any]], partition: int) -> list[dict[str, Any]]:
    return [r for r in rows if r["partition"] == partition]


def test_the_rows_have_their_address_and_the_token_of_their_log(uri: str) -> None:
    write(uri, rows(7, 9, token={"id": "t", "epoch": 2}), rows(0, 1, "b"))
    assert table(uri) == [
        {"value": 7, "_split": "a", "_offset": 7, "_token": '{"epoch": 2, "id": "t"}'},
        {"value": 8, "_split": "a", "_offset": 8, "_token": '{"epoch": 2, "id": "t"}'},
        {"value": 0, "_split": "b", "_offset": 0, "_token": None},
    ]


def test_how_far_each_split_is_stands_in_the_table(uri: str) -> None:
    write(uri, rows(0, 9), rows(5, 8, "b", token={"id": "t", "epoch": 2}), app_id="job")
    log = DeltaTable(uri)
    assert log.version() == 1
    assert log.transaction_version("job:a") == 9
    assert log.transaction_version("job:b:t") == 8
    assert log.transaction_version("job:b:t:epoch") == 2


def test_jobs_of_different_names_record_apart(uri: str) -> None:
    for app_id in ("one", "two", "one"):
        write(uri, rows(0, 3), app_id=app_id)
    assert offsets(uri) == [0, 0, 1, 1, 2, 2]


def test_columns_of_all_kinds_are_stored_without_a_change(uri: str) -> None:
    payloads = np.empty(2, object)
    payloads[:] = [b"\x00a\x00", None]
    columns: dict[str, Any] = {
        "unsigned": np.array([0, 2**64 - 1], np.uint64),
        "small": np.array([0, 65535], np.uint16),
        "half": np.array([0.5, -1], np.float16),
        "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        "none": np.zeros((2, 0), np.float32),
        "payload": payloads,
        "word": pa.array(["x", None]).dictionary_encode(),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 2), np.int32)),
        "nested": pa.array([{"n": [1]}, None], pa.struct([("n", pa.list_(pa.uint8()))])),
        "when": np.array(["2026-01-01T00:00", "NaT"], "datetime64[ms]"),
    }
    write(uri, replace(rows(0, 2), columns=columns))
    first, second = table(uri)
    assert (int(second["unsigned"]), second["small"], second["half"]) == (2**64 - 1, 65535, -1.0)
    assert first["image"] == [[0, 1, 2], [3, 4, 5]] and first["none"] == []
    assert (first["payload"], second["payload"]) == (b"\x00a\x00", None)
    assert (first["word"], second["word"], second["tensor"]) == ("x", None, [1, 1])
    assert (first["nested"], second["nested"]) == ({"n": [1]}, None)
    assert str(first["when"])[:10] == "2026-01-01" and second["when"] is None


def test_slices_whose_columns_differ_only_in_their_physical_form_go_together(uri: str) -> None:
    objects = np.empty(2, object)
    objects[:] = [b"a", b"b"]
    forms: list[Any] = [objects, pa.array([b"c", b"d"]), pa.array([b"e", b"f"], pa.large_binary())]
    parts = [replace(rows(2 * i, 2 * i + 2), columns={"value": v}) for i, v in enumerate(forms)]
    write(uri, *parts)
    assert b"".join(row["value"] for row in table(uri)) == b"abcdef"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"value": pa.array([1, 2]), "more": pa.array([1, 2])}, r"new: more \(long\)"),
        ({"other": pa.array([1, 2])}, r"new: other \(long\); missing: value \(long\)"),
        ({"value": pa.array(["x", "y"])}, r"of another type: value \(string, not long\)"),
        ({"value": pa.array([None, None])}, r"column 'value' of type null cannot be stored"),
        ({"_split": pa.array([1, 2])}, r"has a column '_split', which is a recording's own"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_one_error(
    uri: str, columns: dict[str, Any], told: str
) -> None:
    write(uri, rows(0, 2))
    with pytest.raises(ConfigError, match=told):
        write(uri, replace(rows(2, 4), columns=columns))
    assert offsets(uri) == [0, 1]


def test_splits_with_different_columns_are_told_apart_in_the_error(uri: str) -> None:
    other = replace(rows(0, 2, "b"), columns={"text": pa.array(["x", "y"])})
    with pytest.raises(ConfigError, match=r"b@0 has other columns than a@0: text: large_string"):
        write(uri, rows(0, 2), other)


def test_only_the_wanted_columns_are_stored(uri: str) -> None:
    wide = replace(rows(0, 2), columns={"value": pa.array([1, 2]), "more": pa.array([3, 4])})
    write(uri, wide, columns=["more"])
    assert list(table(uri)[0]) == ["more", "_split", "_offset", "_token"]
    with pytest.raises(ConfigError, match="a has no column 'mroe'; it has value, more"):
        write(uri, replace(rows(2, 4), columns=wide.columns), columns=["mroe"])


def test_payloads_lie_plain_in_row_groups_of_some_megabytes(uri: str) -> None:
    payloads = np.empty(64, object)
    payloads[:] = [os.urandom(1 << 20) for _ in range(64)]
    write(uri, replace(rows(0, 64), columns={"jpeg": payloads}))
    (file,) = Path(uri).glob("*.parquet")
    groups = [pq.ParquetFile(file).metadata.row_group(i) for i in range(6)]
    assert [g.num_rows for g in groups] == [11, 11, 11, 11, 11, 9]
    jpeg = groups[0].column(0)
    assert (jpeg.compression, jpeg.statistics) == ("UNCOMPRESSED", None)
    assert "PLAIN" in jpeg.encodings and "RLE_DICTIONARY" not in jpeg.encodings


def test_a_reader_holds_a_few_pages_of_the_payloads_and_not_a_row_group(uri: str) -> None:
    payloads = np.empty(400, object)
    payloads[:] = [os.urandom(30_000) for _ in range(400)]
    write(uri, replace(rows(0, 400), columns={"jpeg": payloads}))
    (file,) = Path(uri).glob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).total_byte_size > 11 << 20
    with arrow_peak() as peak:
        for _ in pq.ParquetFile(file, buffer_size=1 << 18).iter_batches(16, columns=["jpeg"]):
            pass
        assert peak() < 6 << 20


def test_a_commit_of_many_slices_is_one_file_in_order(uri: str) -> None:
    write(uri, *(rows(i, i + 500) for i in range(0, 100_000, 500)))
    (file,) = Path(uri).glob("*.parquet")
    assert pq.read_table(file, columns=["_offset"])["_offset"].to_pylist() == list(range(100_000))


def test_a_commit_larger_than_a_usual_file_is_one_file_in_order(uri: str) -> None:
    videos = [pa.array([os.urandom(30 << 20)]) for _ in range(5)]
    write(uri, *(replace(rows(i, i + 1), columns={"video": v}) for i, v in enumerate(videos)))
    (file,) = Path(uri).glob("*.parquet")
    assert pq.read_table(file, columns=["_offset"])["_offset"].to_pylist() == list(range(5))


def test_text_can_be_compressed(uri: str) -> None:
    write(uri, rows(0, 2), compression="zstd")
    (file,) = Path(uri).glob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


# -- errors and configuration ----------------------------------------------------------------------


def test_a_run_stops_when_its_rows_do_not_fit_the_table(uri: str) -> None:
    write_deltalake(uri, pa.table({"a": [1]}))
    with pytest.raises(ConfigError, match="recorded rows have other columns than the table"):
        with loader(DeltaRecorder(uri, flush_rows=10)) as of:
            list(of)


def test_a_table_that_cannot_be_written_is_one_error_that_shows_no_credential() -> None:
    options = {
        "AWS_ACCESS_KEY_ID": "AKIA-SECRET-1",
        "AWS_SECRET_ACCESS_KEY": "SECRET-2",
        "AWS_ENDPOINT_URL": "http://user:SECRET-3@127.0.0.1:9/SECRET-2",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    recorder = DeltaRecorder("s3://bucket/table", storage_options=options)
    with pytest.raises(SourceError, match="table s3://bucket/table cannot be opened") as e:
        recorder.open().write([rows(0, 1)])
    assert "SECRET" not in f"{e.value} {e.value.__cause__} {recorder!r}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"uri": ""},
        {"app_id": ""},
        {"compression": "gzip"},
        {"flush_rows": 0},
        {"flush_seconds": -1},
    ],
)
def test_a_wrong_argument_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"DeltaRecorder: {next(iter(wrong))} must"):
        DeltaRecorder(**{"uri": "x", **wrong})


def test_a_recorder_holds_configuration_only(uri: str) -> None:
    recorder = DeltaRecorder(uri)
    assert isinstance(recorder, Recorder) and isinstance(recorder.open(), DeltaRecording)
    assert not Path(uri).exists()

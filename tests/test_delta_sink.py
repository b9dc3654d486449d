"""Dead letters in a Delta table: every byte kept, repeats read once, removed when they pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli_support import MEMORY, Workshop, install_plugins, workshop_at
from tests.delta_s3 import S3Server, s3_server

from forebay import ErrorBudget, Loader, Pipeline
from forebay.deadletter import Letter, Sink
from forebay.errors import ConfigError, SourceError
from forebay.letterbox import FolderSink, key
from forebay.replay import ReadableSink
from forebay.slice import Failure
from forebay.testing import MemorySource
from forebay_delta.deadletters import DeltaSink

RECORD: dict[str, Any] = {
    "topic": "clicks",
    "partition": 3,
    "timestamp": 1_700_000_000_123,
    "timestamp_type": 1,
    "key": b"k",
    "value": b"\xff\x00broken",
    "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
}


def letter(offset: int = 81234, stage: str = "decode", time: float = 1.5, **changes: Any) -> Letter:
    original = {**RECORD, "offset": offset, **changes}
    failure = Failure(offset=offset, stage=stage, reason="no JSON: 'ü'", original=original)
    return Letter(split="kafka:clicks/3", failure=failure, time=time)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments of a sink on a table that is not there yet."""
    if request.param == "folder":
        return {"uri": str(tmp_path / "dead")}
    place = request.getfixturevalue("s3").place()
    return {"uri": place.uri, "storage_options": place.storage_options}


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return DeltaSink(str(tmp_path / "dead"))


def test_letters_come_back_as_they_were(where: dict[str, Any]) -> None:
    sink = DeltaSink(**where)
    assert isinstance(sink, Sink) and isinstance(sink, ReadableSink)
    sent = [letter(), letter(1, value=None, key=None, headers=[]), letter(2, value=b"", extra=2.5)]
    sink.write(sent)
    sink.close()
    assert list(DeltaSink(**where).letters()) == sent


def test_letters_that_were_flushed_outlive_their_sink_and_the_others_do_not(
    where: dict[str, Any],
) -> None:
    sink = DeltaSink(**where)
    sink.write([letter(1)])
    sink.flush()
    sink.write([letter(2)])
    assert [x.failure.offset for x in DeltaSink(**where).letters()] == [1]


def test_a_repeat_is_read_once(sink: DeltaSink) -> None:
    for _ in range(2):
        sink.write([letter(1), letter(2, time=90_000.0), letter(1, stage="other")])
        sink.flush()
    assert DeltaTable(sink.uri).count() == 6
    assert [key(x)[1:] for x in sink.letters()] == [(1, "decode"), (1, "other"), (2, "decode")]


def test_removing_takes_exactly_the_letters_named(where: dict[str, Any]) -> None:
    sink = DeltaSink(**where)
    odd = 'it\'s \\ "a" stage\n-- or 1=1 ü%'
    sent = [letter(1), letter(1, stage=odd), letter(2, time=90_000.0), letter(3)]
    sink.write([*sent, sent[0]])
    sink.flush()
    gone = {key(sent[0]), key(sent[1]), ("kafka:clicks/3", 99, "decode")}
    assert sink.remove(gone) == 2
    assert list(DeltaSink(**where).letters()) == [sent[3], sent[2]]
    assert sink.remove(gone) == 0


def test_a_state_covers_only_letters_that_are_in_the_table(sink: DeltaSink) -> None:
    def fussy(row: Mapping[str, Any]) -> Mapping[str, Any]:
        if row["value"] == 3:
            raise ValueError("three")
        return row

    pipeline = Pipeline(MemorySource({"a": [1, 2, 3, 4, 5]})).map(fussy, per="row")
    of: Loader = pipeline.dead_letters(sink, ErrorBudget(share=1.0)).batch(2).loader()
    with of:
        next(iter(of))
        assert next(iter(of))["value"].tolist() == [4, 5]
        assert not Path(sink.uri).exists()
        of.state_dict()
        assert [x.failure.original for x in DeltaSink(sink.uri).letters()] == [{"value": 3}]


def test_a_full_buffer_is_committed_without_being_told(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "dead"), flush_rows=3, flush_bytes=1000)
    sink.write([letter(i) for i in range(7)])
    assert DeltaTable(sink.uri).count() == 6
    sink.write([letter(8, value=b"x" * 1000)])
    assert DeltaTable(sink.uri).count() == 8


def test_two_processes_share_a_table(sink: DeltaSink) -> None:
    other = DeltaSink(sink.uri)
    for i in range(5):
        for n, each in enumerate((sink, other)):
            each.write([letter(10 * i + n)])
            each.flush()
    sink.write([letter(100)])
    assert other.remove({key(letter(0))}) == 1
    sink.flush()
    offsets = [x.failure.offset for x in other.letters()]
    assert sorted(offsets) == [1, 10, 11, 20, 21, 30, 31, 40, 41, 100]


def test_the_table_is_parted_by_day_and_its_payloads_are_plain_binary(sink: DeltaSink) -> None:
    sink.write([letter(1, time=0.0), letter(2, time=90_000.25)])
    sink.flush()
    table = DeltaTable(sink.uri)
    assert sorted(p["date"] for p in table.partitions()) == ["1970-01-01", "1970-01-02"]
    rows = pa.table(table.scan(["time", "value"], "date = '1970-01-02'"))
    assert str(rows.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert rows["value"].to_pylist() == [RECORD["value"]]


def test_letters_survive_compaction_by_others(sink: DeltaSink) -> None:
    for i in range(4):
        sink.write([letter(i)])
        sink.flush()
    DeltaTable(sink.uri).optimize.compact()
    sink.write([letter(4)])
    sink.flush()
    assert sorted(x.failure.offset for x in sink.letters()) == [0, 1, 2, 3, 4]


values = st.one_of(st.none(), st.binary(max_size=40))
originals = st.fixed_dictionaries(
    {"key": values, "value": values},
    optional={
        "headers": st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=5), "value": values}), max_size=3
        ),
        "other": st.one_of(st.floats(allow_nan=False), st.integers(), st.text(max_size=9)),
    },
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(originals, min_size=1, max_size=5))
def test_any_record_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, records: list[Mapping[str, Any]]
) -> None:
    sink = DeltaSink(str(tmp_path_factory.mktemp("dead") / "table"))
    failures = [Failure(offset=i, stage="s", reason="r", original=r) for i, r in enumerate(records)]
    sink.write([Letter(split="a", failure=f, time=1.0) for f in failures])
    sink.flush()
    assert [x.failure for x in sink.letters()] == failures


def test_a_table_that_cannot_be_reached_is_one_error_without_credentials(
    sink: DeltaSink,
) -> None:
    options = {
        "AWS_ACCESS_KEY_ID": "AKIA-SECRET-1",
        "AWS_SECRET_ACCESS_KEY": "SECRET-2",
        "AWS_ENDPOINT_URL": "http://user:SECRET-3@127.0.0.1:9/SECRET-2",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    away = DeltaSink("s3://bucket/table", storage_options=options)
    away.write([letter()])
    with pytest.raises(SourceError, match=r"table s3://bucket/table cannot be opened: .*") as e:
        away.flush()
    told = f"{e.value} {e.value.__cause__} {away!r}"
    assert "SECRET" not in told and "\x1b" not in told


def test_letters_that_could_not_be_written_are_kept_and_tried_again(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    sink = DeltaSink(str(tmp_path / "in the way" / "dead"))
    sink.write([letter()])
    with pytest.raises(SourceError, match=r"dead letters: the table .* cannot be made"):
        sink.flush()
    (tmp_path / "in the way").unlink()
    sink.flush()
    assert list(sink.letters()) == [letter()]


def test_a_table_of_something_else_is_refused(sink: DeltaSink) -> None:
    write_deltalake(sink.uri, pa.table({"a": [1]}))
    sink.write([letter()])
    with pytest.raises(ConfigError, match=r"dead letters have other columns .*missing: a \(long\)"):
        sink.flush()
    with pytest.raises(ConfigError, match="other columns"):
        list(sink.letters())


def test_a_table_that_is_not_there_is_an_error_to_read(sink: DeltaSink) -> None:
    read: Callable[[], object]
    for read in (lambda: list(sink.letters()), lambda: sink.remove({("a", 1, "s")})):
        with pytest.raises(ConfigError, match=r"no table of dead letters at .*dead"):
            read()


@pytest.mark.parametrize("wrong", [{"uri": ""}, {"flush_rows": 0}, {"flush_bytes": 0}])
def test_a_wrong_argument_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"DeltaSink: {next(iter(wrong))} must be"):
        DeltaSink(**{"uri": "x", **wrong})


def test_a_sink_can_be_pickled_with_its_letters(sink: DeltaSink) -> None:
    sink.write([letter()])
    sink.flush()
    sink.write([letter(1)])
    copy = pickle.loads(pickle.dumps(sink))
    copy.flush()
    assert sorted(x.failure.offset for x in copy.letters()) == [1, 81234]


# -- the command line ------------------------------------------------------------------------------

TOPOLOGY = """
source: {{type: memory, data: {{a: [1, 2, 3, 4]}}}}
stages: [{{map: "{stage}", per: row}}]
dead_letters: {{type: delta, uri: {uri}}}
error_budget: {{share: 1.0}}
batch: 2
"""
MODULE = """
def fussy(row):
    if row["value"] % 2: raise ValueError(f"{row['value']} is odd")
    return row
"""


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    made = workshop_at(tmp_path, capsys, monkeypatch)
    sinks = {"forebay.sinks": {"delta": "forebay_delta.deadletters:DeltaSink"}}
    monkeypatch.syspath_prepend(install_plugins(tmp_path / "more", {**MEMORY, **sinks}))
    made.write("mine.py", MODULE)
    return made


def test_the_command_line_lists_shows_replays_and_removes(shop: Workshop) -> None:
    file = shop.write("t.yaml", TOPOLOGY.format(stage="mine:fussy", uri="dead"))
    done = shop.forebay("run", file, "--json")
    assert (done.code, done.events[-1]["dead_letters"]) == (0, 2), done.err
    counts, first, _ = shop.forebay("dlq", "ls", file, "--json").events
    assert (counts["letters"], first["reason"]) == (2, "ValueError: 1 is odd")
    (shown,) = shop.forebay("dlq", "show", file, "a@2", "--json").events
    assert shown["other"] == {"value": 3}
    assert (
        "2 of 2 dead letters pass now" not in shop.forebay("dlq", "replay", "--topology", file).out
    )

    file.write_text(TOPOLOGY.format(stage="builtins:dict", uri="dead"))
    done = shop.forebay("dlq", "replay", "--topology", file, "--remove-passed")
    assert done.out == "2 of 2 dead letters pass now, removed\n", done.err
    assert shop.forebay("dlq", "ls", file, "--json").events[0]["letters"] == 0


@pytest.mark.parametrize("form", ["{}", "delta:{}"])
def test_the_command_line_takes_the_table_itself(shop: Workshop, form: str) -> None:
    sink = DeltaSink(str(shop.folder / "table"))
    sink.write([letter(1), letter(2)])
    sink.close()
    where = form.format(shop.folder / "table")
    with shop.start("dlq", "ls", where) as listed:
        out, err = listed.communicate(timeout=60)
    assert (out.splitlines()[:1], err) == (["2 dead letters"], "")


def test_letters_are_sent_on_to_a_table_by_its_address(shop: Workshop) -> None:
    old = FolderSink(shop.folder / "old")
    old.write([letter(1), letter(2, value=None)])
    old.close()
    file = shop.write("t.yaml", TOPOLOGY.format(stage="builtins:dict", uri="dead"))
    uri = (shop.folder / "sent").as_uri()
    done = shop.forebay("dlq", "replay", "old", "--topology", file, "--to", f"delta:{uri}")
    assert done.code == 0, done.err
    assert list(DeltaSink(uri).letters()) == list(old.letters())

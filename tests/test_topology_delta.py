"""A topology file says all that a Delta source can be told, and a run of it resumes exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.cli_support import Workshop, workshop_at
from tests.delta_s3 import S3Place, s3_server
from tests.delta_tables import append, table

from forebay import checkpoint
from forebay.errors import ConfigError
from forebay.topology import TopologyError, load
from forebay_delta import DeltaSource

EVERYTHING = """
source:
  type: delta
  uri: s3://lake/events
  storage_options:
    AWS_ACCESS_KEY_ID: ${KEY_ID}
    AWS_SECRET_ACCESS_KEY: ${SECRET}
    AWS_REGION: eu-central-1
    allow_http: "true"
  start: {timestamp: 2026-11-30T08:00:00Z}
  until: {version: 1000}
  columns: [id, created, embedding]
  filter:
    - [country, in, [DE, AT]]
    - [score, ">", 0.5]
    - [comment, is not null]
  changes: cdf
  change_types: [insert]
  schema: evolve
  accept_schema: 7
  accept_change: 6
  on_gap: skip
  shards: 8
  lineage: true
  lengths: {embedding: 768}
  event_time: created
  name: clicks
  poll_seconds: 1
  threads: 4
  readahead_bytes: 256MiB
  readahead_files: 8
  slice_rows: 4096
  slice_bytes: 1MiB
batch: 2
"""


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


@pytest.fixture
def place() -> Iterator[S3Place]:
    with s3_server() as server:
        yield server.place()


def source_of(shop: Workshop, text: str, **env: str) -> Any:
    return load(shop.write("t.yaml", text), env=env).pipeline.source


def with_source(options: str) -> str:
    return f"source: {{type: delta, uri: events, {options}}}\nbatch: 2\n"


def test_every_option_of_the_source_can_be_given_in_a_file(shop: Workshop) -> None:
    source = source_of(shop, EVERYTHING, KEY_ID="AKIA", SECRET="S3CR3T-1")
    assert source == DeltaSource(
        "s3://lake/events",
        storage_options={
            "AWS_ACCESS_KEY_ID": "AKIA",
            "AWS_SECRET_ACCESS_KEY": "S3CR3T-1",
            "AWS_REGION": "eu-central-1",
            "allow_http": "true",
        },
        start={"timestamp": datetime(2026, 11, 30, 8, tzinfo=timezone.utc)},
        until={"version": 1000},
        columns=["id", "created", "embedding"],
        event_time="created",
        filter=[["country", "in", ["DE", "AT"]], ["score", ">", 0.5], ["comment", "is not null"]],
        changes="cdf",
        change_types=["insert"],
        schema="evolve",
        accept_schema=7,
        accept_change=6,
        on_gap="skip",
        shards=8,
        lineage=True,
        lengths={"embedding": 768},
        name="clicks",
        poll_seconds=1.0,
        threads=4,
        readahead_bytes=256 << 20,
        readahead_files=8,
        slice_rows=4096,
        slice_bytes=1 << 20,
    )


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("latest", "latest"),
        ("{version: 3}", {"version": 3}),
        ("{snapshot: 3}", {"snapshot": 3}),
        ("{timestamp: 1764489600000}", {"timestamp": 1764489600000}),
    ],
)
def test_each_way_to_start_can_be_written(shop: Workshop, given: str, start: object) -> None:
    assert source_of(shop, with_source(f"start: {given}")).start == start


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("chnges: cdf", "source.chnges: unknown key; did you mean 'changes'?"),
        ("changes: cfd", "source.changes: must be one of 'error', 'ignore_deletes', 'skip', "),
        ("start: newest", "source.start: DeltaSource('events'): start must be 'snapshot' "),
        (
            "start: {timestamp: yesterday}",
            "source.start.timestamp: DeltaSource('events'): start must",
        ),
        ("until: {snapshot: 3}", "source.until.snapshot: DeltaSource('events'): until must"),
        ("columns: id", "source.columns: must be a list of text, not the text 'id'"),
        ("shards: 0", "source.shards: DeltaSource('events'): shards must be a whole number >= 1"),
        ("storage_options: {allow_http: true}", 'must be text, not true: put it in quotes: "true"'),
        ("storage_options: {AWS_SECRET_ACCESS_KEY: hush}", "a secret must not stand in the file"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(shop: Workshop, options: str, expected: str) -> None:
    with pytest.raises(TopologyError) as caught:
        source_of(shop, with_source(options))
    assert expected in str(caught.value)


def test_validate_opens_no_table(shop: Workshop) -> None:
    done = shop.forebay("validate", shop.write("t.yaml", with_source("filter: [[id, '>', 3]]")))
    assert (done.code, done.err) == (0, "")
    assert "DeltaSource -> batches of 2" in done.out


def test_the_json_schema_knows_every_option(shop: Workshop) -> None:
    schema = json.loads(shop.forebay("schema").out)
    document = yaml.safe_load(EVERYTHING)
    jsonschema.validate(document, schema)
    (delta,) = (
        s
        for s in schema["properties"]["source"]["oneOf"]
        if s["properties"]["type"] == {"const": "delta"}
    )
    assert set(document["source"]) == set(delta["properties"])
    assert "change feed" in delta["properties"]["changes"]["description"]
    document["source"]["changes"] = "cfd"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_a_run_goes_on_with_what_was_committed_since_the_last(shop: Workshop) -> None:
    append(shop.folder / "events", range(10))
    file = shop.write("t.yaml", with_source("until: latest") + "checkpoint: state.json\n")
    assert shop.forebay("run", file, "--json").events[-1]["rows"] == 10
    append(shop.folder / "events", range(10, 13))
    table(shop.folder / "events").optimize.compact()
    assert shop.forebay("run", file, "--json").events[-1]["rows"] == 3
    state = checkpoint.load(shop.folder / "state.json")
    assert state is not None
    assert state["splits"]["delta:events/0"]["offset"] == 13


def test_a_change_that_the_policy_refuses_ends_the_run_with_the_way_out(shop: Workshop) -> None:
    append(shop.folder / "events", range(10))
    table(shop.folder / "events").delete("id = 3")
    file = shop.write("t.yaml", with_source("start: {version: 0}, until: latest"))
    done = shop.forebay("run", file)
    assert done.code == 3
    assert "version 1 (DELETE) removes 1 files and adds 1" in done.err
    assert "Traceback" not in done.err


def test_keys_of_an_object_store_come_from_the_environment_and_are_never_shown(
    shop: Workshop, place: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, options = place.uri, place.storage_options
    append(uri, range(10), storage_options=options)
    lines = "".join(f"    {k}: ${{{k}}}\n" for k in options)
    file = shop.write(
        "t.yaml",
        f"source:\n  type: delta\n  uri: {uri}\n  until: latest\n"
        f"  storage_options:\n{lines}batch: 2\n",
    )
    for key, value in options.items():
        monkeypatch.setenv(key, value)
    assert shop.forebay("run", file, "--json").events[-1]["rows"] == 10
    file.write_text(file.read_text().replace("/table", "/no-table"))
    done = shop.forebay("run", file, "--debug")
    assert done.code == 3
    assert not [v for v in (done.out + done.err).split() if "testing-secret" in v]


def test_a_table_that_is_not_there_is_one_clear_error(shop: Workshop) -> None:
    done = shop.forebay("run", shop.write("t.yaml", with_source("until: latest")))
    assert done.code == 3
    assert "events" in done.err and "Traceback" not in done.err


def test_a_filter_on_a_column_that_is_not_there_names_those_that_are(shop: Workshop) -> None:
    append(shop.folder / "events", range(10))
    file = shop.write("t.yaml", with_source("until: latest, filter: [[ID, '>', 3]]"))
    done = shop.forebay("run", file)
    assert done.code == 2
    assert "no column 'ID'" in done.err and "id, text" in done.err


def test_a_start_that_fits_nothing_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="start must be"):
        DeltaSource("events", start={"version": "3"})

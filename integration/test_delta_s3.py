"""A table on an object store, through the loader: followed, resumed, compacted, a change feed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from tests.delta_s3 import S3Place, S3Server, s3_server
from tests.delta_tables import append, loader, read, read_with_kills

from forebay_delta import DeltaSource
from forebay_delta.errors import DataFileGone


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def place(server: S3Server) -> S3Place:
    """A table of three commits: ids 0 to 299."""
    at = server.place()
    for i in range(3):
        append(at.uri, range(i * 100, i * 100 + 100), storage_options=at.storage_options)
    return at


def of(place: S3Place, **options: Any) -> DeltaSource:
    return DeltaSource(
        place.uri,
        storage_options=place.storage_options,
        until="latest",
        **{"start": {"version": 0}, "slice_rows": 16, **options},
    )


def table(place: S3Place) -> DeltaTable:
    return DeltaTable(place.uri, storage_options=place.storage_options)


@pytest.mark.parametrize("order", ["split", "arrival"])
@pytest.mark.parametrize("start", ["snapshot", {"version": 0}])
def test_kills_inside_files_lose_and_repeat_nothing(place: S3Place, start: Any, order: str) -> None:
    assert Counter(read_with_kills(of(place, start=start), order=order)) == Counter(range(300))


def test_a_resume_goes_on_behind_a_compaction_and_a_checkpoint(place: S3Place) -> None:
    with loader(of(place), size=150) as first:
        got = next(iter(first))["id"].tolist()
        state = first.state_dict()
    table(place).optimize.compact()
    table(place).create_checkpoint()
    append(place.uri, range(300, 400), storage_options=place.storage_options)
    got += read(of(place), state)
    assert Counter(got) == Counter(range(400))


def test_awkward_partition_values_come_back_as_they_went_in(server: S3Server) -> None:
    place = server.place()
    parts = ["a/b", "with space", "50%", "k=v", "ü", None, "%2F"]
    rows = pa.table({"id": range(len(parts)), "part": pa.array(parts, pa.string())})
    options = place.storage_options
    write_deltalake(place.uri, rows, partition_by=["part"], storage_options=options)
    with loader(of(place), size=len(parts)) as reading:
        (batch,) = list(reading)
    assert dict(zip(batch["id"].tolist(), batch["part"], strict=True)) == dict(enumerate(parts))
    assert read(of(place, filter=[("part", "==", "k=v")])) == [3]


def test_the_change_feed_of_an_update_is_read(server: S3Server) -> None:
    place = server.place()
    feed = {"delta.enableChangeDataFeed": "true"}
    append(place.uri, range(10), storage_options=place.storage_options, configuration=feed)
    table(place).update(predicate="id = 5", updates={"text": "'new'"})
    with loader(of(place, changes="cdf"), size=20) as reading:
        (batch,) = list(reading)
    assert batch["id"].tolist() == [*range(10), 5]
    assert (batch["_change_type"][-1], batch["text"][-1]) == ("update_postimage", "new")


def test_a_file_that_is_gone_is_named(place: S3Place) -> None:
    table(place).optimize.compact()
    table(place).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(DataFileGone, match=r"version 0: the data file part-"):
        read(of(place))


def test_a_file_that_goes_while_it_is_read_is_named_as_gone(server: S3Server) -> None:
    at = server.place()
    random = np.random.default_rng(0)
    payloads = pa.array([random.bytes(20_000) for _ in range(1_000)], pa.binary())
    rows = pa.table({"id": range(1_000), "payload": payloads})
    groups = WriterProperties(max_row_group_size=100, compression="UNCOMPRESSED")
    write_deltalake(at.uri, rows, storage_options=at.storage_options, writer_properties=groups)
    source = of(at, readahead_bytes=1, slice_bytes=1 << 16)
    with loader(source, size=10, max_bytes=1 << 18) as reading:
        batches = iter(reading)
        got = next(batches)["id"].tolist()
        (file,) = [name for name in at.names() if name.endswith(".parquet")]
        at.delete(file)
        with pytest.raises(DataFileGone, match=r"version 0: the data file part-"):
            for batch in batches:
                got += batch["id"].tolist()
    assert got == list(range(len(got)))
    assert len(got) < 1_000

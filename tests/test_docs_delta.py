"""The page on Delta tables says what is so: its code runs, its tables name what there is."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from deltalake import DeltaTable, write_deltalake

from forebay.topology import load
from forebay_delta import DeltaSource
from forebay_delta.changes import Changes, ChangeType
from forebay_delta.evolution import SchemaPolicy
from forebay_delta.reader import OnGap

PAGE = (Path(__file__).parent.parent / "docs/delta.md").read_text()


class Enough(Exception):
    """Ends a loop that would follow the table for ever."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the table that the page reads: two appends, an update, an append."""
    monkeypatch.chdir(tmp_path)
    for first in (0, 3000):
        write_deltalake(
            "events",
            events(range(first, first + 3000)),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    DeltaTable("events").update({"label": "1"}, predicate="id < 3")
    write_deltalake("events", events(range(6000, 6100)), mode="append")
    return tmp_path


def events(ids: range) -> pa.Table:
    n = len(ids)
    return pa.table(
        {
            "id": list(ids),
            "label": [0] * n,
            "country": ["DE", "FR"] * (n // 2),
            "score": [0.25, 0.75] * (n // 2),
            "embedding": pa.array([[0.5] * 4] * n, pa.list_(pa.float32())),
        }
    )


def test_the_code_of_the_page_runs(folder: Path) -> None:
    shapes = []

    def train_step(batch: Any) -> None:
        shapes.append(batch["embedding"].shape)
        if len(shapes) == 2:
            raise Enough

    names: dict[str, Any] = {
        "train_step": train_step,
        "time_to_save": True,
        "model": torch.nn.Linear(1, 1),
    }
    for block in blocks("python"):
        with suppress(Enough):
            exec(compile(block, "docs/delta.md", "exec"), names)
    assert shapes == [(256, 4)] * 2
    assert "data" in torch.load(folder / "run.pt")
    assert len(blocks("python")) >= 8


@pytest.mark.parametrize("block", blocks("yaml"))
def test_the_topology_of_the_page_is_valid(block: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(block)
    assert isinstance(load(tmp_path / "t.yaml").pipeline.source, DeltaSource)


def test_every_option_and_choice_is_on_the_page() -> None:
    named = set(re.findall(r"\b(\w+)(?:=|:|`)", PAGE))
    assert typing.get_type_hints(DeltaSource).keys() <= named
    quoted = set(re.findall(r"[`\"](\w+)[`\"]", PAGE))
    for choices in (Changes, SchemaPolicy, OnGap, ChangeType):
        assert {*typing.get_args(choices)} <= quoted | {"fail", "delete", "update_preimage"}


def test_the_defaults_on_the_page_are_those_of_the_source() -> None:
    given = dict(_rows_of("option"))
    source = DeltaSource("events")
    assert given["`readahead_bytes`"] == f"{source.readahead_bytes >> 20} MiB"
    assert given["`poll_seconds`"] == str(source.poll_seconds)
    sizes = f"{source.slice_bytes >> 20} MiB, {source.slice_rows:,}"
    assert given["`slice_bytes`, `slice_rows`"] == sizes


def _rows_of(head: str) -> Iterator[tuple[str, str]]:
    """The first two cells of each line of the table with this head."""
    table = PAGE[PAGE.index(f"| {head} |") :].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield cells[0], cells[1]

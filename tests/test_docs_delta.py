"""The page on Delta tables says what is so: its code runs, its tables name what there is."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from deltalake import DeltaTable, write_deltalake

from forebay import Pipeline
from forebay.topology import load
from forebay_delta import ChangeRefused, DeltaSource
from forebay_delta.changes import Changes, ChangeType
from forebay_delta.evolution import SchemaPolicy
from forebay_delta.reader import OnGap

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/delta.md").read_text()
README = (ROOT / "README.md").read_text().partition("### Delta Lake")[2]


class Enough(Exception):
    """Ends a loop that would follow the table for ever."""


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


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


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    assert "data" in torch.load(tmp_path / "run.pt")
    assert len(blocks("python")) >= 8


def test_the_code_of_the_readme_runs() -> None:
    names: dict[str, Any] = {"Pipeline": Pipeline}
    exec(blocks("python", README)[0], names)
    assert names["source"].lengths == {"embedding": 768}


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


def _overwrite(table: DeltaTable) -> None:
    write_deltalake(table, events(range(40, 50)), mode="overwrite")


def _merge_new(table: DeltaTable) -> None:
    merge = table.merge(events(range(40, 50)), "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_not_matched_insert_all().execute()


# What makes a commit of each kind, by how its line of the table begins; deltalake writes no
# deletion vectors, so that line has tests of its own beside those of the source.
COMMITS: dict[str, list[Callable[[DeltaTable], object]]] = {
    "append; ": [lambda t: write_deltalake(t, events(range(40, 50)), mode="append"), _merge_new],
    "compaction": [lambda t: t.optimize.compact()],
    "DELETE of whole": [lambda t: t.delete("id < 10")],
    "DELETE, UPDATE, MERGE": [
        lambda t: t.delete("id = 3"),
        lambda t: t.update({"label": "1"}, predicate="id = 3"),
    ],
    "overwrite": [_overwrite],
    "RESTORE": [lambda t: t.restore(1)],
}
POLICIES: dict[str, list[str]] = {
    line: cells
    for row in PAGE[PAGE.index("| commit |") :].partition("\n\n")[0].splitlines()[2:]
    for line, *cells in [[cell.strip() for cell in row.strip("|").split("|")]]
}


@pytest.mark.parametrize("kind", COMMITS)
@pytest.mark.parametrize(("column", "policy"), [*enumerate(typing.get_args(Changes))])
def test_each_policy_does_what_the_table_says(
    kind: str, column: int, policy: Changes, tmp_path: Path
) -> None:
    (says,) = (cells[column] for line, cells in POLICIES.items() if line.startswith(kind))
    for i, make in enumerate(COMMITS[kind]):
        table = _table_of_two_appends(tmp_path / str(i), deleted=kind == "RESTORE")
        before = table.version()
        make(table)
        assert table.version() == before + 1
        does = _what_comes(str(tmp_path / str(i)), before + 1, policy)
        assert does == {"stop": "stop", "\N{EN DASH}": "nothing"}.get(says.split(" ")[0], "rows")


def _table_of_two_appends(path: Path, deleted: bool) -> DeltaTable:
    feed = {"delta.enableChangeDataFeed": "true"}
    for first in (0, 10):
        rows = events(range(first, first + 10))
        write_deltalake(path, rows, mode="append", configuration=feed)
    table = DeltaTable(path)
    if deleted:
        table.delete("id = 3")
    return table


def _what_comes(path: str, version: int, policy: Changes) -> str:
    source = DeltaSource(
        path,
        start={"version": version},
        until="latest",
        changes=policy,
        change_types=typing.get_args(ChangeType),
    )
    try:
        rows = sum(len(b["id"]) for b in Pipeline(source).batch(64).loader())
    except ChangeRefused:
        return "stop"
    return "rows" if rows else "nothing"

"""The page on metrics lists what there is, and its code runs.

``python -m tests.test_docs_metrics`` writes the list anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from forebay import Pipeline
from forebay.observe.catalog import METRICS, MOST_SPLITS
from forebay.observe.readings import MOST_PAUSES
from forebay.testing import MemorySource

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
LISTED = re.compile(r"(<!-- metrics: [^\n]*\n)(.*?)(<!-- end of metrics -->)", re.DOTALL)


def listed() -> str:
    """The table of the page, of the metrics that there are."""
    lines = ["| metric | kind | labels | is |", "|---|---|---|---|"]
    for m in METRICS:
        labels = ", ".join(f"`{label}`" for label in m.labels)
        lines.append(f"| `{m.name}` | {m.kind} | {labels} | {m.help} |")
    return "\n".join(lines) + "\n"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def registry() -> Iterator[None]:
    """Prometheus' global registry, and afterwards without what a test put into it."""
    before = set(REGISTRY._collector_to_names)
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def test_the_list_is_that_of_the_code() -> None:
    found = LISTED.search(PAGE.read_text())
    assert found is not None
    assert found[2] == listed(), "python -m tests.test_docs_metrics writes it anew"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: None
) -> None:
    monkeypatch.chdir(tmp_path)
    watched, registered, read = blocks()
    rows: list[int] = []
    for code in (watched.replace(":9464", ":0"), registered):
        with Pipeline(MemorySource({"a": list(range(100))})).batch(10).loader() as loader:
            names: dict[str, Any] = {"loader": loader, "train_step": lambda b: rows.append(b.rows)}
            exec(code, names)
    assert sum(rows) == 200
    exec(read, names)
    assert names["rates"][-1] == 100
    assert b"forebay_rows_total" in generate_latest(REGISTRY)
    assert list(Path("run/tensorboard").glob("events.out.tfevents.*"))


def test_bounds_that_the_page_names_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert f"more than {MOST_SPLITS:,} splits" in text
    assert f"at most {MOST_PAUSES} names" in text


if __name__ == "__main__":
    PAGE.write_text(LISTED.sub(lambda m: m[1] + listed() + m[3], PAGE.read_text()))

"""Reports and charts: what is in them is read as text, never as markup."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forebay.report import Report, charts
from forebay.statistics import Estimate

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "<script>alert('x')</script> a|b *c* `d` & </svg>"


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def sample() -> Report:
    report = Report(f"Title {NASTY}")
    report.section(NASTY)
    report.text(NASTY)
    report.bullets([NASTY])
    report.table(["name", "rows/s"], [[NASTY, 1234.5], ["none", None], ["many", 12000]])
    report.code("a ``` b <i>")
    report.figure("one", charts.bar_chart(NASTY, {NASTY: 3.0}, "rows/s"), NASTY)
    return report


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)


def test_a_page_needs_nothing_else_and_shows_text_as_text(tmp_path: Path) -> None:
    page = (sample().save(tmp_path) / "report.html").read_text(encoding="utf-8")
    tags = Tags(page).found
    assert "script" not in tags and "i" not in tags
    assert {"table", "figure", "svg", "pre"} <= set(tags)
    addresses = re.findall(r"https?://[^\s\"')]+", page)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_markdown_links_the_figures_and_keeps_its_tables_whole(tmp_path: Path) -> None:
    folder = sample().save(tmp_path / "new" / "folder")
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "](figures/one.svg)" in text
    ElementTree.parse(folder / "figures" / "one.svg")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3] * 5
    assert rows[1] == "| --- | ---: |"
    assert "````\na ``` b <i>\n````" in text
    assert "<script>" not in text.replace("\\<", "")


def test_cells_are_shown_as_people_write_numbers() -> None:
    report = Report("r")
    report.table(["a", "b", "c"], [[0.123456, 12000, None], [Estimate(2, 1, 3, 5), True, "x"]])
    (table,) = report.blocks
    assert getattr(table, "rows") == [["0.123", "12,000", "-"], ["2 (1 to 3)", "True", "x"]]  # noqa: B009


def test_a_report_refuses_what_would_not_be_whole() -> None:
    report = Report("r")
    report.figure("a", charts.bar_chart("a", {"b": 1.0}, ""), "")
    with pytest.raises(ValueError, match="two figures are named 'a'"):
        report.figure("a", "", "")
    with pytest.raises(ValueError, match="no name for a figure"):
        report.figure("../a", "", "")
    with pytest.raises(ValueError, match="1 cells do not fit 2 columns"):
        report.table(["a", "b"], [["x"]])


def test_a_line_chart_has_a_line_for_each_name_and_leaves_gaps() -> None:
    lines = {"a": [(0, 1.0), (1, 2.0)], "b": [(0, 1.0), (1, 1.5), (2, math.nan), (3, 4.0)]}
    svg = charts.line_chart("t", lines, "seconds", "rows")
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))) == 3
    assert {"t", "a", "b", "seconds", "rows"} <= set(texts(svg))


def test_lines_differ_in_more_than_colour() -> None:
    lines = {name: [(0.0, 1.0), (1.0, 2.0)] for name in "abcdefg"}
    root = ElementTree.fromstring(charts.line_chart("t", lines, "x", "y"))
    dashes = [line.get("stroke-dasharray") for line in root.iter(f"{SVG}polyline")]
    assert len(set(dashes)) == 7


def test_bars_are_as_long_as_their_values_and_show_their_intervals() -> None:
    svg = charts.bar_chart("t", {"a": 10.0, "b": (20.0, 15.0, 25.0), "c": (5, -math.inf, 9)}, "x")
    root = ElementTree.fromstring(svg)
    bars = [float(r.get("width", 0)) for r in root.iter(f"{SVG}rect") if r.get("rx")]
    assert bars[1] == pytest.approx(2 * bars[0], rel=0.01)
    assert len([p for p in root.iter(f"{SVG}path") if p.get("class") == "fb-bar"]) == 1
    assert "20 x" in texts(svg)


def test_a_stacked_bar_shows_shares_of_the_whole() -> None:
    svg = charts.stacked_bar("t", {"run": {"starved": 0.25, "compute": 0.75}})
    root = ElementTree.fromstring(svg)
    widths = [float(r.get("width", 0)) for r in root.iter(f"{SVG}rect") if r.get("height") == "22"]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert {"25%", "75%", "starved", "compute"} <= set(texts(svg))


@pytest.mark.parametrize("bars", [{}, {"a": 0.0}, {"a": -2.0}, {"a": math.nan}])
def test_a_chart_of_nothing_much_is_a_chart(bars: dict[str, float]) -> None:
    ElementTree.fromstring(charts.bar_chart("t", bars, "x"))
    ElementTree.fromstring(charts.line_chart("t", {k: [(0.0, v)] for k, v in bars.items()}, "", ""))

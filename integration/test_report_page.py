"""A report in a real browser: its tables fit the page of a small laptop."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.browser import BrowserUnavailable, chromium, resize

from forebay.report import Report
from forebay.statistics import Estimate

pytestmark = pytest.mark.timeout(600)
_HIDDEN = "const t = document.querySelector('.wide'); return t.scrollWidth - t.clientWidth"


def test_the_last_column_of_a_table_of_intervals_is_seen(tmp_path: Path) -> None:
    report, e = Report("Comparison"), Estimate(12345.0, 11999.0, 13001.0, 5)
    names = ["baseline", 'stages[0] = {map: "my_training:with_a_long_name", form: numpy}']
    columns = ["variant", "rows/s", "times the baseline", "step p95, ms", "starved, %"]
    report.table(columns, [[name, e, e, e, e] for name in names])
    page = report.save(tmp_path) / "report.html"
    try:
        with chromium() as browser:
            resize(browser, 1100, 700)
            browser.get(page.as_uri())
            hidden = browser.execute_script(_HIDDEN)
    except BrowserUnavailable as missing:
        pytest.skip(f"the report is not tested here: {missing}")
    assert hidden == 0

"""The Delta demo counts every version of a row."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from deltalake import DeltaTable
from integration.demos import DEMO


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_kills_resumes_and_counts_every_version_of_a_row_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ["--json", "--rows", "6000", "--rate", "1500", "--folder", str(run)]
    done = subprocess.run([*DEMO, "delta", *small], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    end = json.loads(line)
    assert (end["rows"], end["lost"], end["repeated"], end["kills"]) == (6000, 0, 0, 2)
    table = DeltaTable(run / "pictures")
    revisions = table.to_pyarrow_table(columns=["revision"])["revision"].to_numpy()
    assert (len(revisions), revisions.sum()) == (6000, end["updates"])
    assert end["trained"] == 6000 + end["updates"] > 6000
    assert end["commits"] == table.version() + 1
    assert end["compactions"] >= 2

"""The Delta demo counts every version of a row, and leaves nothing behind when interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

DEMO = [sys.executable, "-m", "forebay.cli", "demo", "delta"]


def running_demo(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A demo in the middle of its first training, and the processes it has started."""
    environment = {"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"}
    demo = subprocess.Popen(DEMO, stdout=subprocess.PIPE, env=environment, text=True)
    assert demo.stdout is not None
    while "to be killed at a random moment" not in demo.stdout.readline():
        assert demo.poll() is None
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) >= 2
    return demo, children


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_kills_resumes_and_counts_every_version_of_a_row_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ["--json", "--rows", "6000", "--rate", "1500", "--folder", str(run)]
    done = subprocess.run([*DEMO, *small], capture_output=True, text=True, check=False)
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


@pytest.mark.timeout(120)
def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    demo, children = running_demo(tmp_path)
    demo.kill()
    demo.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []


@pytest.mark.timeout(120)
def test_an_interrupted_demo_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    demo, children = running_demo(tmp_path)
    demo.send_signal(signal.SIGINT)
    demo.communicate()
    assert demo.returncode == 130
    assert not [child for child in children if child.is_running()]
    assert list(tmp_path.iterdir()) == []

"""The demo counts exactly, and leaves nothing behind when it is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

DEMO = [sys.executable, "-m", "forebay.cli", "demo"]


def running_demo(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A demo in the middle of its first act, and the processes it has started."""
    environment = {"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"}
    demo = subprocess.Popen(DEMO, stdout=subprocess.PIPE, env=environment, text=True)
    assert demo.stdout is not None
    while "loop written by hand" not in demo.stdout.readline():
        assert demo.poll() is None
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) >= 3
    return demo, children


@pytest.mark.timeout(300)
def test_the_demo_kills_resumes_and_counts_every_picture_once(tmp_path: Path) -> None:
    small = ["--json", "--images", "3000", "--rate", "3000", "--folder", str(tmp_path / "run")]
    done = subprocess.run([*DEMO, *small], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    end = json.loads(line)
    assert (end["produced"], end["lost"], end["repeated"], end["kills"]) == (3000, 0, 0, 2)
    assert end["trained"] + end["dead_letters"] == 3000
    assert end["dead_letters"] == 3
    assert end["seconds"] > 0


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

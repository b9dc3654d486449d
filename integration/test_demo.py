"""The demo counts exactly, and no demo leaves anything behind when it is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from integration.demos import DEMO, running_demo

ACTS = pytest.mark.parametrize(
    ("command", "act", "processes"),
    [
        pytest.param(DEMO, "loop written by hand", 3, id="kafka"),
        pytest.param([*DEMO, "delta"], "to be killed at a random moment", 2, id="delta"),
    ],
)


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


@ACTS
@pytest.mark.timeout(120)
def test_a_killed_demo_leaves_no_process(
    command: list[str], act: str, processes: int, tmp_path: Path
) -> None:
    demo, children = running_demo(command, tmp_path, act, processes)
    demo.kill()
    demo.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []


@ACTS
@pytest.mark.timeout(120)
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    command: list[str], act: str, processes: int, tmp_path: Path
) -> None:
    demo, children = running_demo(command, tmp_path, act, processes)
    demo.send_signal(signal.SIGINT)
    demo.communicate()
    assert demo.returncode == 130
    assert not [child for child in children if child.is_running()]
    assert list(tmp_path.iterdir()) == []

"""A demo as a user starts it, in the middle of its play."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

DEMO = [sys.executable, "-m", "forebay.cli", "demo"]


def running_demo(
    command: Sequence[str], folder: Path, act: str, processes: int
) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A demo that has begun an act, and the processes it has started, at least so many."""
    environment = {"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert demo.stdout is not None
    while act not in demo.stdout.readline():
        assert demo.poll() is None
    children = psutil.Process(demo.pid).children(recursive=True)
    assert len(children) >= processes
    return demo, children

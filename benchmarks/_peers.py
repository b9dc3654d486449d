"""Peers whose packages do not fit beside ours: each in an environment of its own, made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _rounds import Result, result_of

_FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "bench"


class NotMade(Exception):
    """Why an environment cannot be made, as a clause."""


def environment(name: str, wanted: Sequence[str]) -> Path:
    """The Python of an environment with these packages.

    Raises:
        NotMade: there is no uv, or it failed.
    """
    folder = _FOLDER / name
    python, made = folder / "bin" / "python", folder / "made-of.txt"
    if made.exists() and made.read_text() == "\n".join(wanted):
        return python
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is None:
        raise NotMade("whose environment is made with uv: pip install uv")
    try:
        subprocess.run(
            [uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True
        )
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *wanted], check=True)
    except subprocess.CalledProcessError as e:
        raise NotMade(f"whose environment cannot be made: {e}") from e
    made.write_text("\n".join(wanted))
    return python


def environment_if_any(name: str, wanted: Sequence[str], peer: str) -> Path | None:
    """As ``environment``; None, saying that ``peer`` is skipped and why, where it cannot be."""
    try:
        return environment(name, wanted)
    except NotMade as e:
        print(f"SKIPPED: {peer}, {e}", flush=True)
        return None


def run_with(python: Path, script: Path, *args: object, timeout: float) -> Result:
    """Run ``script args...`` in a peer's environment and return what it gave."""
    command = [str(python), str(script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    return result_of(done)

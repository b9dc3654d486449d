"""The real pynvml on a library of our own: shows how answers are handled, not how GPUs answer."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


class FakeGpus:
    """GPUs that answer as they are told. Made once a test; undone with ``monkeypatch``.

    Args:
        old: whether their driver lacks functions that the binding has.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, old: bool = False) -> None:
        self._state = folder / "state"
        monkeypatch.setenv("FAKE_NVML", str(self._state))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(_compiled(folder, old))))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def say(self, **answers: float) -> None:
        """What they answer from now on: ``count=2, **{"0.util": 37}``."""
        new = self._state.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in answers.items()))
        new.rename(self._state)


def _compiled(folder: Path, old: bool) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NVML's answers are not tested here: there is no C compiler (cc or gcc)")
    library = folder / "libnvidia-ml.so.1"
    options = ["-DOLD"] if old else []
    subprocess.run([compiler, *options, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library

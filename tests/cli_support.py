"""For tests of the command line: a memory source as a plug-in, topologies in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  # cannot be imported twice, and a workshop forgets what a test imported

from forebay.cli import invoke


def install_plugins(folder: Path, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Make a package in ``folder`` that has these entry points, by group; to be put on sys.path."""
    info = folder / "forebay_test_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: forebay-test-plugins\nVersion: 1\n"
    )
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in entry_points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))
    return folder


MEMORY = {"forebay.sources": {"memory": "forebay.testing:MemorySource"}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of JSON that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]


class Workshop:
    """A folder with topologies and modules, in which commands run."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture
        self.plugins = install_plugins(folder / "site", MEMORY)

    def write(self, name: str, text: str) -> Path:
        """Write a file, less its common indentation."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def forebay(self, *args: object) -> Outcome:
        """Run a command in this process."""
        self._capture.readouterr()
        code = invoke([str(a) for a in args])
        out, err = self._capture.readouterr()
        return Outcome(code, out, err)

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Start a command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", *map(str, args)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.plugins), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def workshop_at(
    folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
) -> Workshop:
    """A workshop whose plug-ins and modules this process can import, for one test."""
    shop = Workshop(folder, capture)
    patch.chdir(folder)
    patch.setattr(sys, "path", [str(shop.plugins), *sys.path])
    patch.setattr(sys, "modules", dict(sys.modules))
    return shop

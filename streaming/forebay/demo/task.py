"""What every demo's trainer is told, and where it keeps what is needed to go on."""

from __future__ import annotations

from pathlib import Path

import msgspec

BATCH = 64
SHAPES = ("circle", "square", "triangle", "cross")
"""What is on the pictures; a label is a number of one."""


class Task(msgspec.Struct, frozen=True):
    """What to train, less where the records come from."""

    folder: str
    until_end: bool
    """Whether to end with the last record that is there, or to go on for ever."""
    seed: int

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint.pt"

    @property
    def log(self) -> Path:
        return Path(self.folder) / "trained.jsonl"

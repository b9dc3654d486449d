"""What the demo's trainers are told to do."""

from __future__ import annotations

from pathlib import Path

import msgspec

SIZE = 64
"""Height and width of the pictures that the network sees."""
BATCH = 64


class Task(msgspec.Struct, frozen=True):
    """What to train on, and where to keep what is needed to go on."""

    bootstrap: str
    topic: str
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

    @property
    def dead_letters(self) -> Path:
        return Path(self.folder) / "dead-letters"

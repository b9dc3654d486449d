"""What the demo's trainers are told to do."""

from __future__ import annotations

from pathlib import Path

from forebay.demo import task

SIZE = 64
"""Height and width of the pictures that the network sees."""


class Task(task.Task, frozen=True):
    """What to train on, and where to keep what is needed to go on."""

    bootstrap: str
    topic: str

    @property
    def dead_letters(self) -> Path:
        return Path(self.folder) / "dead-letters"

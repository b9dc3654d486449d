"""What the demo's processes are told, and how a version of a row is counted."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from forebay.demo import task

SIZE = 32
"""Height and width of the pictures."""
_REVISIONS = 1000

Ids = TypeVar("Ids", int, "NDArray[np.int64]")


class Task(task.Task, frozen=True):
    """What to train on: a whole version of the table, and what was committed after it."""

    table: str
    snapshot: int


class Order(msgspec.Struct, frozen=True):
    """What to write."""

    table: str
    journal: str
    """A file that says what was committed, see ``journalled``."""
    first: int
    """The id of the first row."""
    rows: int
    per_second: float | None
    """Rows a second, with updates and compactions between them; None: appends only, at once."""
    seed: int


def key_of(ids: Ids, revisions: Ids) -> Ids:
    """One number for a version of a row, which is to be trained once."""
    return ids * _REVISIONS + revisions


def journalled(path: str | Path) -> list[int]:
    """The keys of all versions of rows that the journal says were committed."""
    lines = Path(path).read_bytes().splitlines()
    return [key for line in lines for key in orjson.loads(line)]

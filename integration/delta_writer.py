"""The writers that the kill tests run beside the trainer: appends, compactions, checkpoints."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError

PARTS = ["a/b", "with space", "50%", "k=v", "ü", None, "plain", "%2F", "x" * 60]
"""Values of the partition column that are awkward as parts of a path."""
_LEAST_COMMITS = 4
_MOST_ROWS = 150


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one writer does, until the file ``stop`` appears."""

    uri: str
    number: int
    """Its ids are ``number * 10**6`` and on."""
    folder: Path
    options: Mapping[str, str] = field(default_factory=dict)
    compact_every: int = 5
    checkpoint_every: int = 7
    pause: float = 0.05
    """Seconds between commits: trainers need the CPU, too."""

    @property
    def stop(self) -> Path:
        return self.folder / "stop"

    @property
    def written(self) -> Path:
        """How many ids it wrote; there once it has ended."""
        return self.folder / f"written-{self.number}"

    def ids(self) -> range:
        """The ids it wrote."""
        first = self.number * 10**6
        return range(first, first + int(self.written.read_text()))


def part_of(i: int) -> str | None:
    """The partition of a row with this id: neighbours share one, so that files have many rows."""
    return PARTS[i // 40 % len(PARTS)]


def create(uri: str, options: Mapping[str, str]) -> None:
    """The empty table, version 0."""
    DeltaTable.create(
        uri, _rows(range(0)).schema, partition_by=["part"], storage_options=dict(options)
    )


def run(job: Job) -> None:
    """Append, some rows at a time; compact and write checkpoints now and then."""
    dice = random.Random(job.number)
    first, written, commits = job.number * 10**6, 0, 0
    while commits < _LEAST_COMMITS or not job.stop.exists():
        count = dice.randint(1, _MOST_ROWS)
        append(job, range(first + written, first + written + count))
        written += count
        commits += 1
        time.sleep(job.pause)
        # Only one compacts: deltalake lets two compactions of the same files both succeed, which
        # doubles the table's rows (seen with 1.6.6).
        if job.number == 0 and commits % job.compact_every == 0:
            _compact(job)
        if commits % job.checkpoint_every == job.number:
            _table(job).create_checkpoint()
    job.written.write_text(str(written))


def read(uri: str, options: Mapping[str, str], to: Path) -> None:
    """Write the ids that deltalake finds in the table, as a JSON list."""
    table = DeltaTable(uri, storage_options=dict(options))
    ids = pa.table(table.scan(columns=["id"]).read_all())["id"]
    to.write_text(json.dumps([int(i) for i in ids.to_numpy()]))


def append(job: Job, ids: range) -> None:
    """One commit; tried again for as long as the other writers come first."""
    # Checkpoints and the clean-up after them are made when this says so, and by no hook.
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    while True:
        try:
            write_deltalake(
                _table(job),
                _rows(ids),
                mode="append",
                commit_properties=CommitProperties(max_commit_retries=100),
                post_commithook_properties=hooks,
            )
        except CommitFailedError:
            continue
        return


def _compact(job: Job) -> None:
    """Rewrite the table in fewer files, unless another writer came first."""
    try:
        _table(job).optimize.compact()
    except CommitFailedError:
        return


def _table(job: Job) -> DeltaTable:
    return DeltaTable(job.uri, storage_options=dict(job.options))


def _rows(ids: range) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array([f"row {i}" for i in ids], pa.string()),
            "part": pa.array([part_of(i) for i in ids], pa.string()),
        }
    )

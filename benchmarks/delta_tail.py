"""Following a Delta table: how soon a row is in the trainer's hands, how fast a table is opened.

* **Tail**: a process appends a row, waits for it to be trained, and appends the next, 30 times at
  uneven moments. Counted is from the time of the commit's file, which is a little before it can be
  seen, to the batch that the loader yielded, at ``poll_seconds=0.1``: the median must be below
  300 ms. Its parts: ``reading`` the commit and its file, measured with a reader alone that polls
  all the time; what the ``loader`` adds to that; and ``waiting`` for the next poll, the rest.
* **Opening** a table of 2,000 commits and 20,000 files, in a process of its own each time:
  ``DeltaLog(...).snapshot()``, and ``DeltaSource(...).open()``, over deltalake's ``DeltaTable()``:
  at most 1.0 times as long without a checkpoint, 3 times with one. Best of the rounds. Not counted
  is what Python does only once (pyarrow imports pandas, where it is installed, when it makes its
  first array): each opens a small table first. How long that took is shown, too.

The ratio is the worst of (target / measured), so at least 1 is asked for.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from _delta_log_table import make_log_table
from _delta_tables import FOLDER
from _report import report, table
from _rounds import Result, give, in_process, interleaved
from forebay import Pipeline
from forebay.columns import as_numpy
from forebay_delta import DeltaSource
from forebay_delta.log import DeltaLog, commit_path
from forebay_delta.store import open_store

MOST_SECONDS, POLL_SECONDS = 0.3, 0.1
COMMITS, FILES_PER_COMMIT = 2_000, 10
OPENING = {"no checkpoint": 1.0, "checkpoint": 3.0}
Rows: TypeAlias = "AbstractContextManager[Iterator[int]]"


class Writer:
    """Appends rows from another process."""

    def __init__(self, root: Path) -> None:
        script = Path(__file__).with_name("_delta_tail_writer.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def append(self, number: int) -> None:
        """Begin to write a row; see ``wait``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until the row was written."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


@contextmanager
def tail_table() -> Iterator[tuple[Path, Writer]]:
    """A table of one commit, and its writer, which has imported all it needs."""
    with TemporaryDirectory() as folder:
        root = Path(folder) / "table"
        write_deltalake(root, pa.table({"n": [0]}))
        writer = Writer(root)
        try:
            yield root, writer
        finally:
            writer.close()


def tail(commits: int, poll_seconds: float, rows_of: Callable[[DeltaSource], Rows]) -> list[float]:
    """Seconds from each commit until its row was given."""
    pauses = np.random.default_rng(0).uniform(0.0, 2 * POLL_SECONDS, commits).tolist()
    delays = []
    with tail_table() as (root, writer):
        with rows_of(DeltaSource(str(root), poll_seconds=poll_seconds)) as rows:
            next(rows)
            for number, pause in enumerate(pauses, 1):
                time.sleep(pause)
                writer.append(number)
                found, arrived = next(rows), time.time()
                if found != number:
                    raise RuntimeError(f"row {found} came instead of {number}")
                writer.wait()
                delays.append(arrived - (root / commit_path(number)).stat().st_mtime)
    return delays


@contextmanager
def by_loader(source: DeltaSource) -> Iterator[Iterator[int]]:
    """The rows as a trainer gets them."""
    with Pipeline(source).batch(1).loader() as loader:
        yield (int(batch["n"][0]) for batch in loader)


@contextmanager
def by_reader(source: DeltaSource) -> Iterator[Iterator[int]]:
    """The rows as the loader's reading thread gets them."""
    reader = source.open({}, lambda split: True)

    def rows() -> Iterator[int]:
        while True:
            if s := reader.poll(1.0):
                yield from map(int, as_numpy(s.columns["n"]))

    try:
        yield rows()
    finally:
        reader.close()


def snapshot(root: Path) -> None:
    """The whole table as it is."""
    DeltaLog(open_store(root)).snapshot()


def source(root: Path) -> None:
    """All that is done before the first row is read."""
    DeltaSource(str(root)).open({}, lambda split: True).close()


OPENERS: dict[str, Callable[[Path], object]] = {
    "snapshot": snapshot,
    "source": source,
    "deltalake": lambda root: DeltaTable(root),
}


def contend(name: str, small: Path, large: Path) -> Result:
    """Seconds of opening a small table, the first in its process, and then the large one."""
    return {"first_seconds": _seconds(name, small), "seconds": _seconds(name, large)}


def _seconds(name: str, root: Path) -> float:
    began = time.perf_counter()
    OPENERS[name](root)
    return time.perf_counter() - began


def log_table(kind: str, commits: int) -> Path:
    """A table of so many commits; made once."""
    root = FOLDER / f"log-{commits}x{FILES_PER_COMMIT}-{kind.replace(' ', '-')}"
    if not root.exists():
        print(f"making {root} (once)", file=sys.stderr, flush=True)
        unfinished = root.with_name(f"{root.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        make_log_table(
            unfinished,
            commits=commits,
            files_per_commit=FILES_PER_COMMIT,
            checkpoint=kind == "checkpoint",
        )
        unfinished.rename(root)
    return root


def main() -> int:
    """Measure, print the tables and the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commits", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, small, large = options.contend
        give(contend(name, Path(small), Path(large)))
        return 0
    opened = {}
    for kind in OPENING:
        tables = log_table(kind, 2), log_table(kind, COMMITS)

        def once(name: str, tables: tuple[Path, Path] = tables) -> Result:
            return in_process(__file__, "--contend", name, *tables)

        results = interleaved(list(OPENERS), options.rounds, once)
        opened[kind] = {
            name: {key: min(r[key] for r in of) for key in of[0]} for name, of in results.items()
        }
    always = POLL_SECONDS / 100
    delays = {
        "whole": tail(options.commits, POLL_SECONDS, by_loader),
        "loader": tail(options.commits, always, by_loader),
        "reader": tail(options.commits, always, by_reader),
    }
    return conclude(delays, opened)


def conclude(delays: dict[str, list[float]], opened: dict[str, dict[str, Result]]) -> int:
    """The tables and the line."""
    median = {name: statistics.median(of) for name, of in delays.items()}
    worst = {"tail": MOST_SECONDS / median["whole"]}
    parts = {
        "reading": median["reader"],
        "loader": median["loader"] - median["reader"],
        "waiting": median["whole"] - median["loader"],
    }
    whole = delays["whole"]
    table(
        [
            {
                "median ms": 1000 * median["whole"],
                "worst ms": 1000 * max(whole),
                "target ms": 1000 * MOST_SECONDS,
                **{f"{name} ms": 1000 * seconds for name, seconds in parts.items()},
            }
        ],
        f"Commit to batch, {len(whole)} commits, polled every {1000 * POLL_SECONDS:.0f} ms",
    )
    rows = []
    for kind, seconds in opened.items():
        for name in ("snapshot", "source"):
            ours, theirs = seconds[name], seconds["deltalake"]
            ratio = ours["seconds"] / theirs["seconds"]
            worst[f"{name}, {kind}"] = OPENING[kind] / ratio
            rows.append(
                {
                    "log": kind,
                    "opened by": name,
                    "ms": 1000 * ours["seconds"],
                    "deltalake ms": 1000 * theirs["seconds"],
                    "ours is x": ratio,
                    "at most": OPENING[kind],
                    "first ms": 1000 * ours["first_seconds"],
                    "deltalake first ms": 1000 * theirs["first_seconds"],
                }
            )
    table(rows, f"Opening {COMMITS:,} commits, {COMMITS * FILES_PER_COMMIT:,} files")
    figures = {
        "target_over_measured": worst,
        "tail_median_seconds": median["whole"],
        "tail_parts_seconds": parts,
        "opening_seconds": opened,
        "targets": {"tail_seconds": MOST_SECONDS, **OPENING},
    }
    ratio = min(worst.values())
    return report("delta_tail", ratio, 1.0, ratio >= 1.0, figures)


if __name__ == "__main__":
    sys.exit(main())

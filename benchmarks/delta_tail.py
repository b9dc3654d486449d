"""Following a Delta table: how soon a row is in the trainer's hands, how fast a table is opened.

* **Tail**: a process appends a row, waits for it to be trained, and appends the next, 30 times at
  uneven moments. Counted is from the moment that ``write_deltalake`` returned, in the writer's
  process, to the batch that the loader yielded, at ``poll_seconds=0.1``: the median must be below
  300 ms. Of it, ``log`` is until the commit was found, and its file's rows were read (a reader
  alone, without loader, on the same commits), and the rest is the loader's.
* **Opening** a table of 2,000 commits and 20,000 files, in a process of its own each time:
  ``DeltaLog(...).snapshot()``, and ``DeltaSource(...).open()``, over deltalake's ``DeltaTable()``:
  at most 1.0 times as long without a checkpoint, 3 times with one. Best of the rounds.

The ratio is the worst of (target / measured), so at least 1 is asked for.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from _delta_log_table import make_log_table
from _delta_tables import FOLDER
from _report import report, table
from _rounds import Result, give, in_process, interleaved
from forebay import Pipeline
from forebay_delta import DeltaSource
from forebay_delta.log import DeltaLog
from forebay_delta.store import open_store

MOST_SECONDS, POLL_SECONDS = 0.3, 0.1
COMMITS, FILES_PER_COMMIT = 2_000, 10
OPENING = {"no checkpoint": 1.0, "checkpoint": 3.0}


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
        """Begin to write a row; see ``committed``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    def committed(self) -> float:
        """When the last row's commit was there."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

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


def tail(commits: int) -> dict[str, list[float]]:
    """Seconds from each commit until the loader, and until a reader alone, gave its row."""
    pauses = np.random.default_rng(0).uniform(0.0, 2 * POLL_SECONDS, 2 * commits)
    with tail_table() as (root, writer):
        source = DeltaSource(str(root), poll_seconds=POLL_SECONDS)
        with Pipeline(source).batch(1).loader() as loader:
            rows = (int(batch["n"][0]) for batch in loader)
            whole = list(delays(rows, writer, pauses[:commits]))
        reader = source.open({}, lambda split: True)
        rows = (int(n) for s in iter(lambda: reader.poll(1.0), 0) if s for n in s.columns["n"])
        for _ in range(commits + 1):  # what the loader was given before
            next(rows)
        log = list(delays(rows, writer, pauses[commits:], first=commits + 1, read=True))
        reader.close()
    return {"whole": whole, "log": log}


def delays(
    rows: Iterator[int],
    writer: Writer,
    pauses: np.ndarray,
    first: int = 1,
    read: bool = False,
) -> Iterator[float]:
    """Append a row after each pause, and yield how long it took to come out of ``rows``."""
    if not read:
        next(rows)
    for number, pause in enumerate(pauses, first):
        time.sleep(pause)
        writer.append(number)
        found = next(rows)
        arrived = time.monotonic()
        if found != number:
            raise RuntimeError(f"row {found} came instead of {number}")
        yield max(arrived - writer.committed(), 0.0)


def snapshot(root: Path) -> None:
    """The whole table as it is."""
    DeltaLog(open_store(root)).snapshot()


def source(root: Path) -> None:
    """All that is done before the first row is read."""
    DeltaSource(str(root)).open({}, lambda split: True).close()


OPENERS = {"snapshot": snapshot, "source": source, "deltalake": lambda root: DeltaTable(root)}


def contend(name: str, root: Path) -> Result:
    """Seconds of opening a table once in a process; what it imports was imported."""
    began = time.perf_counter()
    OPENERS[name](root)
    return {"seconds": time.perf_counter() - began}


def large_table(kind: str) -> Path:
    """The table of many commits and files; made once."""
    root = FOLDER / f"log-{COMMITS}x{FILES_PER_COMMIT}-{kind.replace(' ', '-')}"
    if not root.exists():
        print(f"making {root} (once)", file=sys.stderr, flush=True)
        unfinished = root.with_name(f"{root.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        make_log_table(
            unfinished,
            commits=COMMITS,
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
    parser.add_argument("--contend", nargs=2, metavar=("NAME", "ROOT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, folder = options.contend
        give(contend(name, Path(folder)))
        return 0
    opened = {}
    for kind in OPENING:
        root = large_table(kind)

        def once(name: str, root: Path = root) -> Result:
            return in_process(__file__, "--contend", name, root)

        results = interleaved(list(OPENERS), options.rounds, once)
        opened[kind] = {name: min(r["seconds"] for r in of) for name, of in results.items()}
    return conclude(tail(options.commits), opened)


def conclude(delays: dict[str, list[float]], opened: dict[str, dict[str, float]]) -> int:
    """The tables and the line."""
    median = {name: statistics.median(of) for name, of in delays.items()}
    worst = {"tail": MOST_SECONDS / median["whole"]}
    table(
        [
            {
                "from commit to": "batch of the loader" if name == "whole" else "slice of a reader",
                "median ms": 1000 * median[name],
                "worst ms": 1000 * max(of),
                "best ms": 1000 * min(of),
                "target ms": 1000 * MOST_SECONDS if name == "whole" else None,
            }
            for name, of in delays.items()
        ],
        f"Tail, {len(delays['whole'])} commits, polled every {1000 * POLL_SECONDS:.0f} ms",
    )
    rows = []
    for kind, seconds in opened.items():
        for name in ("snapshot", "source"):
            ratio = seconds[name] / seconds["deltalake"]
            worst[f"{name}, {kind}"] = OPENING[kind] / ratio
            rows.append(
                {
                    "log": kind,
                    "opened by": name,
                    "ms": 1000 * seconds[name],
                    "deltalake ms": 1000 * seconds["deltalake"],
                    "ours is x": ratio,
                    "at most": OPENING[kind],
                }
            )
    table(rows, f"Opening {COMMITS:,} commits, {COMMITS * FILES_PER_COMMIT:,} files")
    figures = {
        "target_over_measured": worst,
        "tail_median_seconds": median,
        "tail_loader_share_seconds": median["whole"] - median["log"],
        "opening_seconds": opened,
        "targets": {"tail_seconds": MOST_SECONDS, **OPENING},
    }
    ratio = min(worst.values())
    return report("delta_tail", ratio, 1.0, ratio >= 1.0, figures)


if __name__ == "__main__":
    sys.exit(main())

"""A Delta table of many commits and files, and how long it takes to open it.

The commits are written as JSON by hand: 2,000 of them take a second, not the minutes that a
writer would need. Run as a script, it prints both readers' times side by side.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from forebay_delta.log import DeltaLog, commit_path
from forebay_delta.store import open_store

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("value", "double"), ("day", "string"))
    ],
}


def make_log_table(
    root: Path,
    *,
    commits: int = 2_000,
    files_per_commit: int = 10,
    checkpoint: bool = False,
    data: bool = False,
) -> None:
    """Writes a table of ``commits * files_per_commit`` files, partitioned by ``day``.

    With `data` every file is there, with 10 rows (links to one file); without, only the log is.
    With `checkpoint` deltalake writes one at the newest version.
    """
    (root / "_delta_log").mkdir(parents=True)
    size = _one_file(root / "data.parquet")
    for version in range(commits):
        files = range(version * files_per_commit, (version + 1) * files_per_commit)
        actions = [*_header(version), *(_add(number, version, size) for number in files)]
        text = "\n".join(json.dumps(action) for action in actions)
        (root / commit_path(version)).write_text(text + "\n")
    for number in range(commits * files_per_commit if data else 0):
        link = root / _path(number)
        link.parent.mkdir(exist_ok=True)
        link.hardlink_to(root / "data.parquet")
    if checkpoint:
        DeltaTable(root).create_checkpoint()


def _one_file(path: Path) -> int:
    table = pa.table({"id": list(range(10)), "value": [0.5] * 10})
    pq.write_table(table, path)
    return path.stat().st_size


def _header(version: int) -> list[dict[str, Any]]:
    info = {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE"}
    if version:
        return [{"commitInfo": info}]
    metadata = {
        "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["day"],
        "configuration": {},
        "createdTime": 1_700_000_000_000,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]


def _path(number: int) -> str:
    return f"day=2024-01-{number % 28 + 1:02d}/part-{number:08d}-c000.snappy.parquet"


def _add(number: int, version: int, size: int) -> dict[str, Any]:
    stats = {
        "numRecords": 10,
        "minValues": {"id": number * 10, "value": 0.0},
        "maxValues": {"id": number * 10 + 9, "value": 0.999999},
        "nullCount": {"id": 0, "value": 0},
    }
    add = {
        "path": _path(number),
        "partitionValues": {"day": f"2024-01-{number % 28 + 1:02d}"},
        "size": size,
        "modificationTime": 1_700_000_000_000 + version,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return {"add": add}


def open_with_forebay(root: Path) -> int:
    """Opens the table as a reader does; returns its number of files."""
    return len(DeltaLog(open_store(root)).snapshot().files)


def open_with_deltalake(root: Path) -> int:
    """Opens the table; deltalake counts its files only when asked, which is left out."""
    return DeltaTable(root).version()


_WAYS = {"forebay": open_with_forebay, "deltalake": open_with_deltalake}


def measure_opening(root: Path, rounds: int = 5) -> dict[str, float]:
    """Median seconds of both readers, in turn, each time in a process of its own."""
    times: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(rounds):
        for way in _WAYS:
            command = [sys.executable, __file__, way, str(root)]
            times[way].append(float(subprocess.check_output(command, text=True)))
    return {way: statistics.median(found) for way, found in times.items()}


def _seconds(function: Callable[[Path], int], root: Path) -> float:
    start = perf_counter()
    function(root)
    return perf_counter() - start


def _report() -> None:
    for checkpoint in (False, True):
        with TemporaryDirectory() as folder:
            root = Path(folder) / "table"
            make_log_table(root, checkpoint=checkpoint)
            found = measure_opening(root)
        ratio = found["forebay"] / found["deltalake"]
        print(
            f"{checkpoint=}", *(f"{k} {v * 1000:.0f} ms" for k, v in found.items()), f"{ratio:.2f}x"
        )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(_seconds(_WAYS[sys.argv[1]], Path(sys.argv[2])))
    else:
        _report()

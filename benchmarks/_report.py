"""What every benchmark prints: a table for people, and as its last line one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, object]


def table(rows: Sequence[Row], title: str = "") -> None:
    """Print rows as aligned columns; the keys of the first row are the header.

    Floats get three significant digits, a missing key or None a dash.
    """
    if title:
        print(f"\n{title}", flush=True)
    if not rows:
        print("(no rows)", flush=True)
        return
    header = list(rows[0])
    columns = [[name, *(_cell(row.get(name)) for row in rows)] for name in header]
    lines = list(zip(*map(_aligned, columns), strict=True))
    for line in (lines[0], ["-" * len(cell) for cell in lines[0]], *lines[1:]):
        print("  ".join(line).rstrip())
    print(flush=True)


def report(name: str, ratio: float, target: float, ok: bool, figures: Mapping[str, Any]) -> int:
    """Print the last line; returns the exit code, 0 when ``ok``.

    Args:
        ratio: the one number that was aimed at; the benchmark's docstring says what it is.
        target: what ``ratio`` is compared with.
        figures: everything else that was measured, as plain JSON.
    """
    line = {
        "name": name,
        "ratio": _short(ratio),
        "target": target,
        "ok": ok,
        "figures": _rounded(figures),
    }
    print(json.dumps(line), flush=True)
    return 0 if ok else 1


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _aligned(column: Sequence[str]) -> list[str]:
    """Cells of one width: a column of numbers to the right, words to the left."""
    width = max(map(len, column))
    numbers = all(cell[:1].isdigit() or cell[:1] == "-" for cell in column[1:])
    return [cell.rjust(width) if numbers else cell.ljust(width) for cell in column]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def _short(value: float) -> float:
    return float(f"{value:.4g}")

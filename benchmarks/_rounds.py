"""Contenders side by side: each in a process of its own, all of them in every round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]
"""What one contender measured in one round, as plain JSON."""
_MARK = "@result "


def in_process(
    script: str, *args: object, timeout: float = 600.0, variables: Mapping[str, str] | None = None
) -> Result:
    """Run ``script args...`` with this Python and return what it gave to ``give``.

    Args:
        timeout: seconds after which it is killed.
        variables: to add to its environment.

    One BLAS and OpenMP thread, so that CPU seconds are those of the work that is measured.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    command = [sys.executable, str(Path(script).resolve()), *map(str, args)]
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **single, **(variables or {})}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    return result_of(done)


def result_of(done: subprocess.CompletedProcess[str]) -> Result:
    """What a process that has ended gave to ``give``.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    for line in reversed(done.stdout.splitlines()):
        if done.returncode == 0 and line.startswith(_MARK):
            result: Result = json.loads(line.removeprefix(_MARK))
            return result
    command = " ".join(map(str, done.args))
    raise RuntimeError(f"{command} failed ({done.returncode}): {done.stderr[-2000:]}")


def give(result: Mapping[str, Any]) -> None:
    """Hand the result of this process to ``in_process``."""
    print(_MARK + json.dumps(result), flush=True)


def interleaved(
    contenders: Sequence[str], rounds: int, run: Callable[[str], Result]
) -> dict[str, list[Result]]:
    """All contenders in every round, in turning order, so that a busy spell hits each of them."""
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for round_ in range(rounds):
        at = round_ % len(contenders)
        for name in [*contenders[at:], *contenders[:at]]:
            results[name].append(run(name))
            print(f"  round {round_ + 1}/{rounds}: {name}", file=sys.stderr, flush=True)
    return results


def median(results: Iterable[Result], key: str) -> float:
    """The median of one figure over the rounds."""
    return float(statistics.median(result[key] for result in results))

"""A trace of a run: every observation as a line of JSON, to be simulated again."""

from __future__ import annotations

import json
from pathlib import Path

from forebay.autoscale.observation import Observation
from forebay.errors import ConfigError


class TraceFile:
    """Writes observations as they are made. Each is on disk at once, so a kill costs none.

    A trace that is there already is kept under its name with ``.1`` behind it: a run that is
    started again with the same words must not destroy it.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            if self._path.exists() and self._path.stat().st_size:
                self._path.replace(f"{path}.1")
            self._path.write_text("")
        except OSError as e:
            raise ConfigError(f"the trace {path} cannot be written: {e.strerror}") from e

    def write(self, seen: Observation) -> None:
        """Add an observation."""
        with self._path.open("a") as file:
            file.write(json.dumps(seen.to_json()) + "\n")


def read_trace(path: str | Path) -> list[Observation]:
    """The observations of a file.

    Raises:
        ConfigError: it cannot be read, or a line is no observation.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"the trace {path} cannot be read: {e}") from e
    found = [_observation(path, i, line) for i, line in enumerate(lines, 1) if line.strip()]
    if len(found) < 2:
        raise ConfigError(f"the trace {path} has {len(found)} observations: it needs two and more")
    return found


def _observation(path: str | Path, number: int, line: str) -> Observation:
    try:
        return Observation.from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ConfigError(f"{path}:{number}: no observation of an autoscaler: {e}") from e

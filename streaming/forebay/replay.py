"""Replay: dead letters through the stages as they are now, and where those that pass may go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from forebay.columns import Column
from forebay.deadletter import Letter, Sink
from forebay.errors import ConfigError
from forebay.letterbox import ORIGINAL_TYPES, Key, key
from forebay.rng import Run
from forebay.slice import Slice
from forebay.stage import Stage, from_rows, run_stages

_SLICE_ROWS = 64


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose letters can be read back."""

    def letters(self) -> Iterator[Letter]:
        """The letters that it holds, repeats left out."""

    def remove(self, keys: Collection[Key]) -> int:
        """Take letters out; returns how many there were.

        Raises:
            SourceError: it cannot be done.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of letters: those that pass now, and those that fail, with today's reason."""

    passed: Sequence[Letter]
    failed: Sequence[tuple[Letter, str]]


def readable(sink: object) -> ReadableSink:
    """The sink as one to read from.

    Raises:
        ConfigError: it cannot be read.
    """
    if not isinstance(sink, ReadableSink):
        raise ConfigError(
            f"dead letters in a {type(sink).__name__} cannot be read back: it has no letters() "
            "and remove()"
        )
    return sink


def replay(letters: Sequence[Letter], stages: Sequence[Stage], run: Run | None = None) -> Replayed:
    """Run the records of letters through stages. A record that a filter drops has passed.

    Raises:
        StageError: a stage broke its contract.
    """
    reasons: dict[tuple[str, int], str] = {}
    for s in _slices(letters):
        for failure in run_stages(stages, s, run or Run()).failures:
            reasons[s.split, failure.offset] = f"{failure.stage}: {failure.reason}"
    at = [(letter, reasons.get((letter.split, letter.failure.offset))) for letter in letters]
    return Replayed(
        passed=[letter for letter, reason in at if reason is None],
        failed=[(letter, reason) for letter, reason in at if reason is not None],
    )


def send(letters: Sequence[Letter], sink: Sink) -> None:
    """Write letters to another sink, each record once, and wait until they are stored.

    Raises:
        SourceError: they could not be stored.
    """
    once = {(letter.split, letter.failure.offset): letter for letter in reversed(letters)}
    try:
        sink.write(list(reversed(once.values())))
        sink.flush()
    finally:
        sink.close()


def remove(letters: Sequence[Letter], sink: ReadableSink) -> int:
    """Take letters out of the sink they are in; returns how many there were."""
    return sink.remove({key(letter) for letter in letters})


def _slices(letters: Sequence[Letter]) -> Iterator[Slice]:
    """The records as slices, those of each split in order."""
    splits: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for letter in letters:
        splits[letter.split][letter.failure.offset] = letter.failure.original
    for split, rows in splits.items():
        ordered = sorted(rows)
        for i in range(0, len(ordered), _SLICE_ROWS):
            offsets = ordered[i : i + _SLICE_ROWS]
            yield Slice(
                split=split,
                columns=_columns([rows[at] for at in offsets]),
                offsets=np.array(offsets, dtype=np.int64),
                start=offsets[0],
                next_offset=offsets[-1] + 1,
            )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Columns of the types that a source would give."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column(name, [row.get(name) for row in rows]) for name in names}


def _column(name: str, values: Sequence[Any]) -> Column:
    try:
        typed: pa.Array[Any] = pa.array(values, ORIGINAL_TYPES.get(name))
    except (pa.ArrowException, TypeError, ValueError):  # another source's column of that name
        return from_rows([{name: v} for v in values])[name]
    if typed.null_count == 0 and pa.types.is_integer(typed.type):
        return np.asarray(typed.to_numpy(zero_copy_only=False))
    return typed

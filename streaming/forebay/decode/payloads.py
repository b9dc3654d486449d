"""Payloads: the bytes of a column, read where they lie, and the rows that came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from forebay.columns import Column, Columns, take
from forebay.errors import ConfigError
from forebay.stage import Outcome

Payload: TypeAlias = "bytes | memoryview"
Nulls: TypeAlias = Literal["dead_letter", "skip", "keep"]
"""What becomes of a row whose payload is null (in Kafka a tombstone). ``dead_letter``: it fails;
``skip``: it is left out; ``keep``: it gives a row of nulls. An empty payload is not null."""

TOMBSTONE = 'the value is null (a tombstone); nulls="skip" leaves such rows out'


class BadPayload(ValueError):
    """A payload cannot be decoded. Becomes the reason of a dead letter, never leaves a decoder."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Which rows gave something: ``kept`` in rising order, ``failed`` with the reason."""

    kept: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


def payloads(columns: Columns, name: str) -> list[Payload | None]:
    """The payload of each row: ``bytes`` as they are, Arrow values as views of their buffer.

    Raises:
        ConfigError: there is no such column, or it holds no bytes.
    """
    if name not in columns:
        raise ConfigError(f"there is no column {name!r} to decode; there are {sorted(columns)}")
    column = columns[name]
    if isinstance(column, np.ndarray):
        if column.dtype != object or column.ndim != 1:
            raise _no_bytes(name, f"{column.dtype}{list(column.shape[1:])}")
        values: list[Payload | None] = column.tolist()
        return values
    return _views(_binary(name, column))


def decode_each(
    values: Sequence[Payload | None], nulls: Nulls, decode: Callable[[Payload, int], None]
) -> Decoded:
    """Call ``decode(payload, place)`` for each payload, ``place`` counting those that succeed.

    With ``nulls="keep"`` a null takes a place and ``decode`` is not called for it.
    """
    done = Decoded()
    for i, payload in enumerate(values):
        if payload is None:
            _count_null(done, i, nulls)
            continue
        try:
            decode(payload, len(done.kept))
        except BadPayload as e:
            done.failed[i] = str(e)
        else:
            done.kept.append(i)
    return done


def outcome(
    columns: Columns,
    replaced: str,
    made: Mapping[str, Column],
    kept: Sequence[int],
    failed: Mapping[int, str],
) -> Outcome:
    """The rows ``kept``, with the column ``replaced`` giving way to those ``made`` of it.

    A column that is made takes the place of one of the same name.
    """
    rows = len(columns[replaced])
    rest = {n: c for n, c in columns.items() if n != replaced}
    if len(kept) == rows and kept == list(range(rows)):
        return Outcome(columns={**rest, **made}, failed=failed)
    parents = np.asarray(kept, dtype=np.int64)
    return Outcome(columns={**take(rest, parents), **made}, parents=parents, failed=failed)


def one_of(option: str, value: str, allowed: Sequence[str], why: str = "") -> None:
    """Check an option.

    Raises:
        ConfigError: ``value`` is not one of ``allowed``; ``why`` is added to the message.
    """
    if value not in allowed:
        raise ConfigError(f"{option} must be one of {', '.join(allowed)}, not {value!r}{why}")


def check_nulls(nulls: str, may_keep: bool, why: str = "") -> None:
    """``one_of`` for the option ``nulls``."""
    allowed = ("dead_letter", "skip", "keep") if may_keep else ("dead_letter", "skip")
    one_of("nulls", nulls, allowed, why)


def _count_null(done: Decoded, i: int, nulls: Nulls) -> None:
    if nulls == "dead_letter":
        done.failed[i] = TOMBSTONE
    elif nulls == "keep":
        done.kept.append(i)


def _binary(name: str, column: pa.Array[Any]) -> pa.Array[Any]:
    """The column with plain 32 or 64-bit offsets; binary and text are as good as each other."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    t = column.type
    if pa.types.is_null(t) or pa.types.is_binary_view(t) or pa.types.is_string_view(t):
        return column.cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(t):
        return column.cast(pa.binary())
    plain = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string)
    if any(is_plain(t) for is_plain in plain) or pa.types.is_large_string(t):
        return column
    raise _no_bytes(name, str(t))


def _views(column: pa.Array[Any]) -> list[Payload | None]:
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return [None] * len(column)
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)
    used = bounds[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(b"" if data is None else data).cast("B")
    values: list[Payload | None] = [view[a:b] for a, b in pairwise(used)]
    if column.null_count:
        for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
            values[i] = None
    return values


def _no_bytes(name: str, kind: str) -> ConfigError:
    return ConfigError(
        f"column {name!r} holds {kind}, not payloads; a decoder needs an Arrow column of binary "
        "or text, or a NumPy column of objects that are bytes or None"
    )

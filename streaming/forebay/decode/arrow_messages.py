"""Arrow IPC: a payload is a stream of record batches, and gives all their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.columns import Column, Columns, concat, take
from forebay.decode.payloads import (
    BadPayload,
    Nulls,
    Payload,
    check_nulls,
    decode_each,
    payloads,
)
from forebay.decode.schemas import Schema, arrow_schema
from forebay.rng import RowRandom
from forebay.stage import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowDecoder:
    """The stage that ``arrow_ipc`` describes."""

    name: str
    column: str
    schema: pa.Schema | None
    nulls: Nulls

    def __post_init__(self) -> None:
        check_nulls(self.nulls, may_keep=False, why=": how many rows would a null stand for?")

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        messages: list[list[pa.RecordBatch]] = []
        found = payloads(columns, self.column)
        done = decode_each(found, self.nulls, lambda data, i: messages.append(self._read(data)))
        rows = [sum(batch.num_rows for batch in batches) for batches in messages]
        parents = np.repeat(np.asarray(done.kept, np.int64), rows)
        made = _joined([batch for batches in messages for batch in batches])
        rest = {n: c for n, c in columns.items() if n != self.column and n not in made}
        return Outcome(columns={**take(rest, parents), **made}, parents=parents, failed=done.failed)

    def _read(self, data: Payload) -> list[pa.RecordBatch]:
        """The batches of one payload.

        Raises:
            BadPayload: it is no whole, valid stream of the declared schema.
        """
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
                if self.schema is not None:
                    _check_types(self.schema, stream.schema)
                batches = list(stream)
            for batch in batches:
                # Offsets in a damaged payload may point anywhere: a look now, or a crash later.
                batch.validate(full=True)
        except BadPayload:
            raise
        except (pa.ArrowException, OSError, ValueError) as e:  # ValueError: names not in UTF-8
            raise BadPayload(f"not a whole Arrow IPC stream: {e}") from e
        for batch in batches:
            _check_nulls_within(self.schema, batch)
        return batches


def arrow_ipc(
    column: str,
    schema: Schema | None = None,
    *,
    nulls: Nulls = "dead_letter",
    name: str | None = None,
) -> ArrowDecoder:
    """Decode a column of Arrow IPC streams: each payload gives as many rows as it holds.

    The other columns are repeated for each row. A field of the same name as a column of the
    source takes its place. Send 64 rows or more in a payload: one at a time costs 60 times as
    much.

    Args:
        column: the column of payloads.
        schema: the fields that every payload must have, in this order, as ``pyarrow.Schema``
            or in short (see ``forebay.decode.schemas``); one of another schema fails. None
            takes any, and payloads that differ from each other stop the pipeline.
        nulls: rows without a payload fail ("dead_letter") or are left out ("skip").
        name: the stage's name, by which its dead letters know it.

    Raises:
        ConfigError: the schema or an option is wrong.
    """
    name = name or f"decode.arrow_ipc({column})"
    full = None if schema is None else arrow_schema(schema, name)
    return ArrowDecoder(name=name, column=column, schema=full, nulls=nulls)


def _joined(batches: Sequence[pa.RecordBatch]) -> dict[str, Column]:
    parts = [dict(zip(b.schema.names, b.columns, strict=True)) for b in batches]
    return concat(parts) if parts else {}


def _check_types(wanted: pa.Schema, found: pa.Schema) -> None:
    """Names and types must agree; whether a field may be null is seen by its values."""
    for a, b in zip_longest(wanted, found):
        if a is None or b is None or a.name != b.name or a.type != b.type:
            raise BadPayload(f"it has {_told(b)} where the schema says {_told(a)}")


def _check_nulls_within(schema: pa.Schema | None, batch: pa.RecordBatch) -> None:
    for field, column in zip(schema or (), batch.columns, strict=False):
        if column.null_count and not field.nullable:
            raise BadPayload(f"field {field.name!r} holds nulls, the schema allows none")


def _told(field: pa.Field[Any] | None) -> str:
    return "no field" if field is None else f"a field {field.name!r} of {field.type}"

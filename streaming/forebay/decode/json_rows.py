"""JSON: one payload, one row, by a declared schema."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from forebay.columns import Column, Columns
from forebay.decode.json_columns import columns_of
from forebay.decode.json_types import row_type
from forebay.decode.payloads import (
    BadPayload,
    Decoded,
    Nulls,
    Payload,
    check_nulls,
    decode_each,
    one_of,
    outcome,
    payloads,
)
from forebay.decode.schemas import Schema, arrow_schema
from forebay.errors import ConfigError
from forebay.rng import RowRandom
from forebay.stage import Outcome

Extra: TypeAlias = Literal["ignore", "fail"]

# UnicodeDecodeError: msgspec 0.19 and 0.20 let it through.
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder:
    """The stage that ``json`` describes."""

    name: str
    column: str
    schema: pa.Schema
    extra: Extra
    allow_nan: bool
    nulls: Nulls
    prefix: str

    def __post_init__(self) -> None:
        one_of("extra", self.extra, ("ignore", "fail"))
        check_nulls(self.nulls, may_keep=True)
        row_type(self.schema, self.extra == "fail", self.allow_nan)
        strict = [field.name for field in self.schema if not field.nullable]
        if self.nulls == "keep" and strict:
            raise ConfigError(
                f'{self.name}: nulls="keep" gives rows of nulls, which the fields {strict} do '
                'not allow; declare them nullable, or use nulls="skip"'
            )

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        found = payloads(columns, self.column)
        rows, done = self._parse(found)
        made = self._columns(rows, done)
        named = {self.prefix + name: column for name, column in made.items()}
        return outcome(columns, self.column, named, done.kept, done.failed)

    def _parse(self, found: Sequence[Payload | None]) -> tuple[list[Any], Decoded]:
        """All payloads in one go; one by one where there is a bad one or a null."""
        parse = _parser(self.schema, self.extra == "fail", self.allow_nan)
        if None not in found:
            try:
                return list(map(parse.decode, found)), Decoded(kept=list(range(len(found))))
            except _UNREADABLE:
                pass  # the slow way finds the culprits
        rows: list[Any] = []
        done = decode_each(found, self.nulls, lambda data, i: rows.append(parse.careful(data)))
        return self._with_nulls(rows, found, done), done

    def _with_nulls(
        self, rows: list[Any], found: Sequence[Payload | None], done: Decoded
    ) -> list[Any]:
        if self.nulls != "keep":
            return rows
        parsed = iter(rows)
        empty = row_type(self.schema, self.extra == "fail", self.allow_nan)()
        return [empty if found[i] is None else next(parsed) for i in done.kept]

    def _columns(self, rows: list[Any], done: Decoded) -> dict[str, Column]:
        """The columns of the rows; those that do not fit move from ``kept`` to ``failed``."""
        try:
            return columns_of(rows, self.schema)
        except BadPayload:
            bad = _misfits(rows, self.schema)
        fit = [i for i in range(len(rows)) if i not in bad]
        done.failed.update({done.kept[i]: reason for i, reason in bad.items()})
        done.kept[:] = [done.kept[i] for i in fit]
        return columns_of([rows[i] for i in fit], self.schema)


def json(
    column: str,
    schema: Schema,
    *,
    extra: Extra = "ignore",
    allow_nan: bool = False,
    nulls: Nulls = "dead_letter",
    prefix: str = "",
    name: str | None = None,
) -> JsonDecoder:
    """Decode a column of JSON objects, each payload exactly one, to a column for each field.

    Integers keep every bit; one beyond its type, or written with a fraction or an exponent,
    fails its row. A field of floats takes integers, too. Of a key that is there twice the last
    one counts. A key that is missing is null. Keys that the schema does not name are skipped
    unread. Timestamps and dates are ISO 8601 text or integers in the type's unit, binary is
    base64, decimals are numbers or text.

    Args:
        column: the column of payloads, UTF-8.
        schema: the fields, as ``pyarrow.Schema`` or in short (see ``forebay.decode.schemas``):
            ``{"id": "int64", "label": "int32?"}``. Fields that are never null come as NumPy
            arrays where they are numbers.
        extra: what a key beyond the schema does: "ignore", or "fail" its row.
        allow_nan: take the words NaN and Infinity, which JSON does not know, as numbers. Costs
            nothing for rows without them.
        nulls: rows without a payload fail ("dead_letter"), are left out ("skip"), or become
            rows of nulls ("keep").
        prefix: put before each field's name. A field of the same name as a column of the
            source takes its place; a prefix keeps both.
        name: the stage's name, by which its dead letters know it.

    Raises:
        ConfigError: the schema or an option is wrong.
    """
    name = name or f"decode.json({column})"
    return JsonDecoder(
        name=name,
        column=column,
        schema=arrow_schema(schema, name),
        extra=extra,
        allow_nan=allow_nan,
        nulls=nulls,
        prefix=prefix,
    )


@dataclass(frozen=True, slots=True)
class _Parser:
    """Two ways to parse a payload for one schema."""

    decode: Callable[[Any], Any]
    type: Any
    allow_nan: bool

    def careful(self, data: Payload) -> Any:
        """Parse one payload.

        Raises:
            BadPayload: it is not exactly one object of the declared fields; says why.
        """
        try:
            return self.decode(data)
        except RecursionError as e:
            raise BadPayload("the JSON is nested too deeply") from e
        except (msgspec.ValidationError, UnicodeDecodeError) as e:
            raise BadPayload(str(e)) from e
        except msgspec.DecodeError as e:
            if not bytes(data).strip():
                raise BadPayload(f"the payload is blank ({len(data)} bytes), not JSON") from e
            return self._with_nan(data, e)

    def _with_nan(self, data: Payload, error: msgspec.DecodeError) -> Any:
        if not self.allow_nan:
            raise BadPayload(str(error)) from error
        try:
            return msgspec.convert(stdlib_json.loads(str(data, "utf-8")), self.type)
        except (*_UNREADABLE, ValueError) as e:
            raise BadPayload(str(e)) from error


@lru_cache(maxsize=256)
def _parser(schema: pa.Schema, forbid_extra: bool, allow_nan: bool) -> _Parser:
    row = row_type(schema, forbid_extra, allow_nan)
    return _Parser(msgspec.json.Decoder(row).decode, row, allow_nan)


def _misfits(rows: Sequence[Any], schema: pa.Schema, start: int = 0) -> dict[int, str]:
    """The rows that do not fit their columns, with the reason, found by halving."""
    try:
        columns_of(rows, schema)
    except BadPayload as e:
        if len(rows) == 1:
            return {start: str(e)}
    else:
        return {}
    half = len(rows) // 2
    return {
        **_misfits(rows[:half], schema, start),
        **_misfits(rows[half:], schema, start + half),
    }

"""Partition values: the text of a log as a value of its column's type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa

from forebay_delta.errors import BrokenTable, UnsupportedTable
from forebay_delta.types import Field, Primitive

_ZONE = re.compile(r"(?:[zZ]|[+-]\d\d:?\d\d)$")
_ZERO_ZONE = re.compile(r"(?:[zZ]|[+-]00:?00)$")
_ESCAPED_BYTES = re.compile(r"(?:\\u00[0-9A-Fa-f]{2})+")
_BOOLEANS = {"true": True, "false": False}


def partition_scalar(values: Mapping[str, str | None], field: Field, path: str) -> pa.Scalar[Any]:
    """The value that all rows of the file `path` have in the partition column `field`.

    The text is taken as it is: it is never percent-decoded. Both null and "" mean null.

    Raises:
        BrokenTable: the text is no value of the column's type.
    """
    text = values.get(field.physical, values.get(field.name))
    if not isinstance(field.type, Primitive):
        raise UnsupportedTable(f"partition column {field.name!r} has the type {field.type.arrow}")
    if text is None or text == "":
        return pa.scalar(None, field.type.arrow)
    try:
        return _parse(text, field.type.arrow)
    except (ValueError, KeyError, ArithmeticError, pa.ArrowException) as e:
        raise BrokenTable(
            f"{path}: the log gives partition column {field.name!r} the value {text!r}, which is "
            f"no {field.type.name}"
        ) from e


def _parse(text: str, arrow: pa.DataType) -> pa.Scalar[Any]:
    if isinstance(arrow, pa.TimestampType):
        return _timestamp(text, arrow)
    if isinstance(arrow, pa.Decimal128Type):
        return pa.scalar(_decimal(text, arrow), arrow)
    parse = _PARSERS.get(arrow)
    return pa.scalar(parse(text), arrow) if parse else pa.scalar(text).cast(arrow)


def _timestamp(text: str, arrow: pa.TimestampType[Any, Any]) -> pa.Scalar[Any]:
    """A time without a zone is UTC, whatever zone its writer was in: the log does not say."""
    if not _ZONE.search(text):
        return pa.scalar(text).cast(pa.timestamp("us")).cast(arrow)
    if arrow.tz is None and not _ZERO_ZONE.search(text):
        raise ValueError(f"{text!r} has a zone")
    return pa.scalar(text).cast(pa.timestamp("us", "UTC")).cast(arrow)


def _decimal(text: str, arrow: pa.Decimal128Type[Any, Any]) -> Decimal:
    with localcontext() as context:
        context.prec = 76
        value = Decimal(text)
        exact = value.quantize(Decimal(1).scaleb(-arrow.scale))
    if exact != value:
        raise ValueError(f"{text!r} has more than {arrow.scale} decimals")
    return exact


def _binary(text: str) -> bytes:
    """Some writers escape each byte (``\\u00FF``), others take the bytes for UTF-8."""
    if _ESCAPED_BYTES.fullmatch(text):
        return bytes(int(code, 16) for code in text.split(r"\u")[1:])
    return text.encode()


_PARSERS: Mapping[pa.DataType, Callable[[str], Any]] = {
    pa.string(): str,
    pa.binary(): _binary,
    pa.float32(): float,
    pa.float64(): float,
    pa.bool_(): lambda text: _BOOLEANS[text.lower()],
}

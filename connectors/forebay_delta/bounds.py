"""What is known of a column's values without reading them: the least, the greatest, the nulls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from forebay_delta.types import Field

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known of some values; by default nothing. Errs on the side of "may be"."""

    low: Any = None
    """None of the values is below it; None if that is not known."""
    high: Any = None
    """None of the values is above it; but a text that begins with it may be there, because
    writers shorten long texts. None if that is not known."""
    exact: bool = False
    """``low`` and ``high`` are values that occur, and there is no NaN."""
    may_be_null: bool = True
    may_be_value: bool = True

    def may_hold(self, operator: str, values: tuple[Any, ...]) -> bool:
        """Whether one of the values may satisfy a comparison or a set operator of a filter."""
        if operator in ("!=", "not in"):
            return not (self.exact and self.low == self.high and self.low in values)
        return any(_MAY[operator](self, v) for v in values)

    def may_reach(self, value: Any) -> bool:
        """Whether a value may be equal to this one or greater."""
        return self.high is None or bool(value <= self.high) or self._begins(value)

    def may_exceed(self, value: Any) -> bool:
        """Whether a value may be greater than this one."""
        return self.high is None or bool(value < self.high) or self._begins(value)

    def may_fall_to(self, value: Any) -> bool:
        """Whether a value may be equal to this one or smaller."""
        return self.low is None or bool(self.low <= value)

    def may_fall_below(self, value: Any) -> bool:
        """Whether a value may be smaller than this one."""
        return self.low is None or bool(self.low < value)

    def _begins(self, value: Any) -> bool:
        return isinstance(value, str) and value.startswith(self.high) and not self.exact


_MAY: Mapping[str, Callable[[Bounds, Any], bool]] = {
    "==": lambda b, v: b.may_fall_to(v) and b.may_reach(v),
    "in": lambda b, v: b.may_fall_to(v) and b.may_reach(v),
    "<": Bounds.may_fall_below,
    "<=": Bounds.may_fall_to,
    ">": Bounds.may_exceed,
    ">=": Bounds.may_reach,
}

UNKNOWN = Bounds()


def of_value(value: Any) -> Bounds:
    """All values are this one; None: all are null."""
    if value is None:
        return Bounds(may_be_value=False)
    return Bounds(low=value, high=value, exact=True, may_be_null=False)


def of_statistics(field: Field, statistics: Mapping[str, Any]) -> Bounds:
    """What the log's statistics of a file say of a column; deleted rows are counted too."""
    nulls = _part(statistics, "nullCount", field)
    rows = statistics.get("numRecords")
    low = _part(statistics, "minValues", field)
    high = _part(statistics, "maxValues", field)
    return Bounds(
        low=None if low is None else _LOW.get(_kind(field), _unknown)(low, field.type.arrow),
        high=None if high is None else _HIGH.get(_kind(field), _unknown)(high, field.type.arrow),
        may_be_null=nulls != 0 or not isinstance(nulls, int),
        may_be_value=not isinstance(nulls, int) or nulls != rows,
    )


def _part(statistics: Mapping[str, Any], name: str, field: Field) -> Any:
    part = statistics.get(name)
    return part.get(field.physical) if isinstance(part, Mapping) else None


def _kind(field: Field) -> str:
    arrow = field.type.arrow
    if pa.types.is_boolean(arrow):
        return "boolean"
    if pa.types.is_integer(arrow):
        return "integer"
    if pa.types.is_floating(arrow):
        return "floating"
    if pa.types.is_decimal(arrow):
        return "decimal"
    return field.type.name if hasattr(field.type, "name") else ""


# One function for each kind of JSON value; None where it is not what was expected.


def _unknown(value: Any, arrow: pa.DataType) -> Any:
    return None


def _of(*types: type) -> Callable[[Any, pa.DataType], Any]:
    return lambda value, arrow: value if type(value) in types else None


def _float(value: Any, arrow: pa.DataType) -> float | None:
    if type(value) not in (int, float):
        return None
    return float(np.float32(value)) if pa.types.is_float32(arrow) else float(value)


def _date(value: Any, arrow: pa.DataType) -> date | None:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _decimal(value: Any, ulps: int) -> Decimal | None:
    """Some writers, and the parsing of JSON, pass decimals through a float."""
    if type(value) is int:
        return Decimal(value)
    return Decimal(value + ulps * math.ulp(value)) if type(value) is float else None


def _moment(value: Any, arrow: pa.DataType, slack: timedelta) -> datetime | None:
    """Some writers cut times to milliseconds."""
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00")) + slack
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    utc = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return utc if arrow.tz else utc.astimezone(timezone.utc).replace(tzinfo=None)  # type: ignore[attr-defined]


_LOW: Mapping[str, Callable[[Any, pa.DataType], Any]] = {
    "boolean": _of(bool),
    "integer": _of(int),
    "floating": _float,
    "decimal": lambda value, arrow: _decimal(value, -4),
    "string": _of(str),
    "date": _date,
    "timestamp": lambda value, arrow: _moment(value, arrow, -_MILLISECOND),
    "timestamp_ntz": lambda value, arrow: _moment(value, arrow, -_MILLISECOND),
}
_HIGH: Mapping[str, Callable[[Any, pa.DataType], Any]] = {
    **_LOW,
    "decimal": lambda value, arrow: _decimal(value, 4),
    "timestamp": lambda value, arrow: _moment(value, arrow, _MILLISECOND),
    "timestamp_ntz": lambda value, arrow: _moment(value, arrow, _MILLISECOND),
}

"""Filters: which rows are wanted, as alternatives of terms on columns.

``[("country", "==", "DE"), ("age", ">", 30)]`` wants rows for which all terms hold; a list of such
lists, rows for which all terms of at least one list hold. The operators are ``==`` (or ``=``),
``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``not in`` with a list of values, and
``is null``, ``is not null`` without a value.

As in SQL, a null matches no operator but ``is null``, ``!=`` and ``not in`` included. A NaN is
unequal to every number, and neither smaller nor greater.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.errors import ConfigError
from forebay_delta.actions import DataFile, Metadata
from forebay_delta.bounds import UNKNOWN, Bounds, of_statistics, of_value
from forebay_delta.convert import repeated
from forebay_delta.partition import partition_scalar
from forebay_delta.types import Field, Primitive, fields_of

Terms: TypeAlias = "tuple[Term, ...]"
Array: TypeAlias = Any

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SETS = ("in", "not in")
_NULLS = ("is null", "is not null")
OPERATORS = (*_COMPARE, *_SETS, *_NULLS)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on one column."""

    field: Field
    operator: str
    values: tuple[Any, ...]
    """One value for a comparison, any number for a set, none for a null test."""

    def mask(self, column: Array) -> NDArray[np.bool_]:
        """Which values of the column match."""
        found = self._matches(column)
        out: NDArray[np.bool_] = found.fill_null(False).to_numpy(zero_copy_only=False)
        return out

    def may_match(self, bounds: Bounds) -> bool:
        """Whether a value within these bounds can match; True if that is not known."""
        if self.operator == "is null":
            return bounds.may_be_null
        if not bounds.may_be_value:
            return False
        return self.operator == "is not null" or bounds.may_hold(self.operator, self.values)

    def _matches(self, column: Array) -> Array:
        arrow = self.field.type.arrow
        if self.operator in _NULLS:
            return column.is_null() if self.operator == "is null" else column.is_valid()
        if self.operator in _COMPARE:
            return _COMPARE[self.operator](column, pa.scalar(self.values[0], arrow))
        member: Array = pc.is_in(column, value_set=pa.array(self.values, arrow))
        return member if self.operator == "in" else pc.and_(pc.invert(member), column.is_valid())


class Filter:
    """Alternatives, each a list of terms that must all hold. Immutable."""

    def __init__(self, alternatives: Sequence[Terms]) -> None:
        self.alternatives = tuple(alternatives)

    @classmethod
    def parse(cls, value: Any, metadata: Metadata) -> Filter:
        """The filter that a user wrote, for the table with this schema.

        Raises:
            ConfigError: a term is wrong; names it and what would be right.
        """
        fields = fields_of(metadata.schema, mapped=metadata.mapping_mode != "none")
        known = {f.name: f for f in fields}
        return cls([tuple(_term(t, known) for t in terms) for terms in _alternatives(value)])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns it looks at, each once."""
        terms = [t for terms in self.alternatives for t in terms]
        return tuple(dict.fromkeys(t.field.name for t in terms))

    def may_match(self, file: DataFile) -> bool:
        """Whether the file can hold a row that is wanted, by what the log says of it.

        Raises:
            BrokenTable: a partition value is none of its column's type.
        """
        statistics = _statistics(file)
        return self.within({f.name: _log_bounds(f, file, statistics) for f in self._fields()})

    def within(self, bounds: Mapping[str, Bounds]) -> bool:
        """Whether rows whose columns lie within these bounds can be wanted."""
        return any(
            all(t.may_match(bounds.get(t.field.name, UNKNOWN)) for t in terms)
            for terms in self.alternatives
        )

    def mask(self, columns: Mapping[str, Array], rows: int) -> NDArray[np.bool_]:
        """Which rows are wanted, given the columns it looks at."""
        wanted = np.zeros(rows, np.bool_)
        for terms in self.alternatives:
            all_hold = np.ones(rows, np.bool_)
            for term in terms:
                all_hold &= term.mask(columns[term.field.name])
            wanted |= all_hold
        return wanted

    def given(self, constants: Mapping[str, pa.Scalar[Any]]) -> Filter:
        """The filter for rows that all have these values, which it no longer looks at."""
        left: list[Terms] = []
        for terms in self.alternatives:
            fixed = [t for t in terms if t.field.name in constants]
            if all(t.mask(repeated(constants[t.field.name], 1))[0] for t in fixed):
                left.append(tuple(t for t in terms if t.field.name not in constants))
        return Filter(left)

    @property
    def wants_all(self) -> bool:
        """Whether it wants every row, whatever it holds."""
        return any(not terms for terms in self.alternatives)

    def _fields(self) -> list[Field]:
        fields = {t.field.name: t.field for terms in self.alternatives for t in terms}
        return list(fields.values())


def _statistics(file: DataFile) -> Mapping[str, Any]:
    """Some writers put NaN and Infinity there, which is no JSON; then nothing is known."""
    try:
        return file.statistics()
    except ValueError:
        return {}


def _log_bounds(field: Field, file: DataFile, statistics: Mapping[str, Any]) -> Bounds:
    if field.physical in file.partition_values or field.name in file.partition_values:
        return of_value(partition_scalar(file.partition_values, field, file.path).as_py())
    return of_statistics(field, statistics)


def _alternatives(value: Any) -> list[Sequence[Any]]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ConfigError(f"filter {value!r} is no list of terms: write [('country', '==', 'DE')]")
    if all(_is_term(t) for t in value):
        return [value]
    for terms in value:
        if not isinstance(terms, (list, tuple)) or not terms or not all(map(_is_term, terms)):
            raise ConfigError(
                f"in filter {value!r}, {terms!r} is no term (column, operator, value), nor a list "
                "of them"
            )
    return list(value)


def _is_term(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and 2 <= len(value) <= 3
        and all(isinstance(part, str) for part in value[:2])
    )


def _term(term: Sequence[Any], known: Mapping[str, Field]) -> Term:
    name, operator = term[0], " ".join(term[1].lower().split())
    operator = "==" if operator == "=" else operator
    if name not in known:
        raise ConfigError(
            f"filter term {term!r}: the table has no column {name!r}. Its columns are: "
            f"{', '.join(known)}"
        )
    if operator not in OPERATORS:
        raise ConfigError(
            f"filter term {term!r}: unknown operator {term[1]!r}. There are: {', '.join(OPERATORS)}"
        )
    return Term(known[name], operator, _values(term, operator, known[name]))


def _values(term: Sequence[Any], operator: str, field: Field) -> tuple[Any, ...]:
    if operator in _NULLS:
        if len(term) == 3 and term[2] is not None:
            raise ConfigError(f"filter term {term!r}: {operator!r} takes no value")
        return ()
    if len(term) < 3:
        raise ConfigError(f"filter term {term!r}: {operator!r} needs a value")
    many = operator in _SETS
    if many and not isinstance(term[2], (list, tuple, set, frozenset)):
        raise ConfigError(f"filter term {term!r}: {operator!r} needs a list of values")
    return tuple(_value(v, term, field) for v in (term[2] if many else [term[2]]))


def _value(value: Any, term: Sequence[Any], field: Field) -> Any:
    """The value as its column's type has it: what rows hold compares with it exactly."""
    if value is None:
        raise ConfigError(f"filter term {term!r}: use 'is null' or 'is not null' to test for null")
    if not isinstance(field.type, Primitive) or pa.types.is_null(field.type.arrow):
        raise ConfigError(
            f"filter term {term!r}: column {field.name!r} is {field.type.arrow}, which has no order"
        )
    try:
        return _typed(value, field.type.arrow)
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as e:
        raise ConfigError(
            f"filter term {term!r}: {value!r} is no value of column {field.name!r}, which is "
            f"{field.type.name}"
        ) from e


def _typed(given: Any, arrow: pa.DataType) -> Any:
    value: Any = given.item() if isinstance(given, np.generic) else given
    if not _is_allowed(value, arrow):
        raise TypeError
    if pa.types.is_timestamp(arrow) or pa.types.is_date(arrow):
        return _moment(value, arrow)
    if pa.types.is_decimal(arrow):
        value = Decimal(value)
    if pa.types.is_binary(arrow) and isinstance(value, str):
        value = value.encode()
    if pa.types.is_integer(arrow):
        value = int(value)
    return pa.scalar(value, arrow).as_py()


def _is_allowed(value: Any, arrow: pa.DataType) -> bool:
    allowed = _allowed(arrow)
    return isinstance(value, allowed) and (type(value) is not bool or bool in allowed)


def _allowed(arrow: pa.DataType) -> tuple[type, ...]:
    if pa.types.is_boolean(arrow):
        return (bool,)
    if pa.types.is_integer(arrow):
        return (int,)
    if pa.types.is_floating(arrow):
        return (int, float)
    if pa.types.is_decimal(arrow):
        return (int, str, Decimal)
    if pa.types.is_string(arrow):
        return (str,)
    if pa.types.is_binary(arrow):
        return (bytes, str)
    return (date, datetime, str)


def _moment(value: date | datetime | str, arrow: pa.DataType) -> date | datetime:
    """A date, a time with a zone, or one without, as the column has it."""
    if pa.types.is_date(arrow):
        value = date.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(value, datetime):
            raise TypeError
        return value
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    elif not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if arrow.tz is None and value.tzinfo is not None:  # type: ignore[attr-defined]
        raise TypeError
    return cast("datetime", pa.scalar(value, arrow).as_py())

"""Measures of a table and of a column, as the values that rules compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, TypeAlias

import pyarrow as pa

from flight_server.core.views.numbers import number
from flight_server.core.views.table_summary import Row
from store.model import bounds
from store.model.freshness import is_unconfirmed
from store.model.logical_types import FLOATING, HASHED, MEASURED, NESTED, UNORDERED, Kind, LogicalType, parse

_OF_TABLE: Final = {"row_count": "row_count", "size_bytes": "total_size_bytes", "file_count": "data_file_count"}

OF_DISTRIBUTION: Final = frozenset(
    {"ndv", "distinct_fraction", "mean", "stddev", "avg_width_bytes", "most_common"}
)  # measures that are not counts or bounds
OF_ROWS: Final = frozenset({"ndv", "distinct_fraction"})  # those of OF_DISTRIBUTION that counts limit or divide
_CAPTURED_OF: Final = {"ndv": HASHED, "nan_count": FLOATING}  # the types that have it; all have the other values
_OF_SOURCES: Final = ("SOURCE_NATIVE", "UPSTREAM_METADATA_DERIVED")  # producers whose counts may have deleted rows
_FAR: Final = 2  # times: so many more rows than values can have are no error of a sketch
_OF_ROWS_READ: Final = OF_DISTRIBUTION | {"nan_count"}  # null counts are of all rows, by metadata or scaled


Distinct: TypeAlias = Callable[[], tuple[float, float] | None]


class UnknownValue(Exception):
    """Raised when the value of a measure is unknown; the message says why."""


class NeverKnown(UnknownValue):
    """Raised when no capture can tell the value."""


class DoesNotApply(Exception):
    """Raised when a measure does not apply to a column, such as the mean of strings."""

    pending = False  # True if a capture may tell it all the same


class LeftOut(DoesNotApply):
    """Raised when captures of all columns leave a measure out, such as the nulls of lists."""

    pending = True


def value_in(row: Row, measure: str) -> tuple[Any, str]:
    """The value of a measure in a record of a table or column, and its error.

    Raises:
        UnknownValue: The record does not have it.
        DoesNotApply: Columns of its type have none.
    """
    if measure in _OF_TABLE:
        value = row[_OF_TABLE[measure]]
        if value is None:
            raise UnknownValue("unknown")
        return Fraction(value), ""
    if measure in ("min", "max"):
        return bound(measure, row)
    if measure in ("mean", "stddev"):
        if kind_of(row) not in MEASURED:
            raise DoesNotApply(f"a {kind_of(row)} has no {measure}")
        return float(_known(row, measure)), ""
    if measure == "null_fraction":
        rows, nulls = _known(row, "row_count"), _known(row, "null_count")
        return (Fraction(nulls, rows) if rows else Fraction(0)), ""
    if measure == "distinct_fraction":
        ndv, rows, nulls = _known(row, "ndv"), _known(row, "row_count"), _known(row, "null_count")
        return (Fraction(ndv) / (rows - nulls) if rows > nulls else Fraction(1)), ""
    if measure == "ndv":
        return Fraction(_known(row, "ndv")), ""
    if measure in ("null_count", "nan_count"):
        return Fraction(_known(row, measure)), ""
    return float(_known(row, measure)), ""


def snapshot_of(row: Row, measure: str) -> int | None:
    """The snapshot that a measure in a record of a table or column is of."""
    return row.get(f"{_group(measure)}snapshot_id")


def inherited_from(row: Row | None, measure: str) -> int | None:
    """The snapshot that an inherited measure is of; None if it is of the record's own, or there is no record."""
    if row is None or row.get(f"{_group(measure)}freshness") != "INHERITED":
        return None
    return snapshot_of(row, measure)


def _group(measure: str) -> str:
    return "distribution_" if measure in OF_DISTRIBUTION else ""


def number_in(row: Row, measure: str) -> float | Fraction | None:
    """The value of a measure in a record; None if it is unknown, or no number."""
    try:
        value, _ = value_in(row, measure)
    except (UnknownValue, DoesNotApply):
        return None
    return value if isinstance(value, float | Fraction) else None


def is_uncertain(row: Row, measure: str) -> bool:
    """True if a stored record has a measure of a part of the rows, or a bound that may lie beyond all values."""
    if measure in ("min", "max"):
        return row[f"{measure}_is_exact"] is False or is_unconfirmed(row)
    return measure in _OF_ROWS_READ and row["completeness"] == "PARTIAL"


def bound(measure: str, row: Row) -> tuple[Any, str]:
    """A bound: a number of numeric types, else a value that compares as its type does."""
    text = row[measure]
    if text is not None and is_unconfirmed(row):
        raise UnknownValue(f"the {measure} is by a writer that is not known to be right; reading the column tells")
    if text is None:
        if _is_all_null(row):
            raise DoesNotApply("all values are null")
        if kind_of(row) in UNORDERED:
            raise DoesNotApply(f"values of type {kind_of(row)} have no order")
        raise UnknownValue("unknown")
    return value_of(text, row), "inexact" if row[f"{measure}_is_exact"] is False else ""


def extent(measure: str, row: Row, is_sample: bool, distinct: Distinct) -> tuple[Any, Any] | None:
    """The least and the greatest value that a measure may have, None for no end; None if its value is certain.

    Args:
        row: Its record, with the counts of the snapshot that the measure is of.
        is_sample: True if the record, or its distribution, is of a part of the rows.
        distinct: Gives the numbers of distinct values that agree with the column's sketch; None without one.
    """
    if measure in ("min", "max"):
        if row[f"{measure}_is_exact"] is not False:
            return None
        low, high = (None if row[name] is None else value_of(row[name], row) for name in ("min", "max"))
        return low, high
    if measure in ("ndv", "distinct_fraction"):
        if row["ndv_exact"] and not is_sample:
            return None
        least, most = _ends_of_ndv(row, distinct())
        if measure == "ndv":
            return least, most
        low, high = (None if end is None else value_in(row | {"ndv": end}, measure)[0] for end in (least, most))
        return low, high
    return (None, None) if is_sample and measure in _OF_ROWS_READ else None


def is_unique(row: Row, distinct: Distinct) -> bool | None:
    """True if no value of a column occurs twice, False if one does; None if its counts do not tell.

    Args:
        row: Its record.
        distinct: As of `extent`.

    Raises:
        DoesNotApply: Values of its type do not compare.
    """
    kind = kind_of(row)
    if kind and kind not in HASHED:
        raise DoesNotApply(f"values of type {kind} do not compare")
    rows, nulls, ndv = row["row_count"], row["null_count"], row["ndv"]
    if row["freshness"] != "EXACT" or row["completeness"] != "COMPLETE" or rows is None or nulls is None:
        return None
    if rows - nulls <= 1:
        return True
    if ndv is None or row["distribution_snapshot_id"] != row["snapshot_id"] or row["producer"] in _OF_SOURCES:
        return None
    if row["ndv_exact"]:
        return bool(ndv == rows - nulls)
    agreeing = distinct()
    return False if agreeing is not None and _FAR * agreeing[1] < rows - nulls else None


def _ends_of_ndv(row: Row, by_sketch: tuple[float, float] | None) -> tuple[Fraction, Fraction | None]:
    """The least and the greatest number of distinct values: by the sketch, else by the limits of the record, else by
    the rows."""
    rows, nulls = row["row_count"], row["null_count"]
    values = None if rows is None or nulls is None else Fraction(rows - nulls)
    given = by_sketch or (row["ndv_lower"], row["ndv_upper"])
    low, high = (None if end is None else Fraction(end) for end in given)
    most = min((end for end in (high, values) if end is not None), default=None)
    least = low or Fraction(0)
    return (least if most is None else min(least, most)), most


def uncertain(measure: str, at: str = "") -> UnknownValue:
    """The error of a measure that `is_uncertain`; `at` says where, if not here and now."""
    why = "inexact; reading the column tells" if measure in ("min", "max") else "of a sample; capture without sampling"
    return UnknownValue(f"the {measure}{at} is {why}")


def value_of(text: str, row: Row) -> Any:
    """A canonical text of a column as `bound` returns it.

    Raises:
        UnknownValue: It is no number, and the column is of numbers.
    """
    kind = kind_of(row)
    if kind not in MEASURED:
        return ordered(text, type_of(row))
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise UnknownValue(f"{text!r} is not a number") from None
    return Fraction(number) if number.is_finite() and kind in ("INT", "DECIMAL") else float(number)


def kind_of(row: Row) -> str:
    """The kind of a record's logical type, without its parameters; empty if unknown."""
    return (row["logical_type"] or "").partition("(")[0]


def type_of(row: Row) -> LogicalType:
    """The logical type of a record.

    Raises:
        UnknownValue: The record has none.
    """
    if row.get("logical_type") is None:
        raise UnknownValue("the type is unknown")
    return parse(row["logical_type"])


@dataclass(frozen=True, order=True)
class Ordered:
    """A value that compares by its sort key; `text` is its canonical text."""

    key: Any
    text: str = field(compare=False)


def text_of(value: Any) -> str:
    """A value of a measure as text."""
    return value.text if isinstance(value, Ordered) else value if isinstance(value, str) else number(value, exact=True)


def text_between(low: Any, high: Any) -> str:
    """Two ends as text, None for no end."""
    return "between {} and {}".format(*("?" if end is None else text_of(end) for end in (low, high)))


def require_comparable(row: Row | None, value: Any, limits: Sequence[Any]) -> None:
    """Raises an error if a value and its limits are not all numbers, all texts, or all values of one type."""

    def kind(one: Any) -> type:
        return Fraction if isinstance(one, float | Fraction) else type(one)

    if any(kind(limit) is not kind(value) for limit in limits):
        why = f"{text_of(value)} does not compare with {', '.join(map(text_of, limits))}"
        raise NeverKnown(why) if row is None else DoesNotApply(why)


def ordered(text: str, lt: LogicalType) -> Ordered:
    """A text as a value that compares in the order of a logical type; a date is its midnight where there are times."""
    whole = text
    if lt.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        whole = (f"{text}T00:00:00" if len(text) == 10 else text.replace(" ", "T")).removesuffix("Z")
        whole += "Z" if lt.kind is Kind.TIMESTAMPTZ else ""
    try:
        value = bounds.canonical(whole, lt)
        return Ordered(bounds.sort_keys(pa.array([value]), lt)[0].as_py(), value)
    except ValueError as wrong:
        raise DoesNotApply(f"{text!r} is not a {lt.kind}: {wrong}") from None


def _known(row: Row, name: str) -> Any:
    value = row.get(name)
    if value is not None:
        return value
    kind = kind_of(row)
    if kind and kind not in _CAPTURED_OF.get(name, (kind,)):
        raise DoesNotApply(f"the {name} of type {kind} is not captured")
    if name == "avg_width_bytes" and _is_all_null(row):
        raise DoesNotApply("all values are null")
    if kind in NESTED:
        raise LeftOut(f"{name} is unknown; capture the column by its name")
    raise UnknownValue(f"{name} is unknown")


def _is_all_null(row: Row) -> bool:
    return row["null_count"] is not None and row["null_count"] == row["row_count"]

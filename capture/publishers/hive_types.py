"""Column statistics in the shape that Hive's metastore and AWS Glue share: one of seven kinds, by the Hive type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

from capture.publishers.spi import ColumnStatistics
from store.logical_types import Kind, parse

LONG, DOUBLE, DECIMAL, DATE, STRING, BINARY = "LONG", "DOUBLE", "DECIMAL", "DATE", "STRING", "BINARY"
_KINDS: Final = {
    "tinyint": LONG, "smallint": LONG, "int": LONG, "integer": LONG, "bigint": LONG, "timestamp": LONG,
    "float": DOUBLE, "double": DOUBLE, "decimal": DECIMAL, "date": DATE, "string": STRING, "varchar": STRING,
    "char": STRING, "binary": BINARY,
}  # fmt: skip
_FITTING: Final = {
    LONG: (Kind.INT, Kind.TIMESTAMP, Kind.TIMESTAMPTZ), DOUBLE: (Kind.FLOAT, Kind.DOUBLE), DECIMAL: (Kind.DECIMAL,),
    DATE: (Kind.DATE,), STRING: (Kind.STRING,), BINARY: (Kind.BINARY,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HiveColumn:
    """Statistics of one column as both catalogs keep them.

    Attributes:
        low, high: int of a LONG, float of a DOUBLE, Decimal of a DECIMAL, days since the epoch of a DATE; None where
            unknown. Of timestamps there are none: engines do not agree on their unit.
    """

    name: str
    hive_type: str
    kind: str
    nulls: int
    distinct: int
    low: Any = None
    high: Any = None
    average_bytes: float = 0.0
    greatest_bytes: int = 0


def hive_columns(
    columns: Iterable[ColumnStatistics], types: Mapping[str, str], left_out: dict[str, str]
) -> list[HiveColumn]:
    """The columns that a catalog can hold; the others go to `left_out` with a reason.

    Args:
        columns: Ours.
        types: Column name, lower case → Hive type, of the catalog's table.
    """
    found = []
    for column in columns:
        hive_type = types.get(column.name.lower())
        kind = None if hive_type is None else _KINDS.get(hive_type.partition("(")[0].strip().lower())
        if hive_type is None:
            left_out[column.name] = "is not a column of the catalog's table"
        elif kind is None or parse(column.logical_type).kind not in _FITTING[kind]:
            left_out[column.name] = f"{hive_type} takes no statistics of {column.logical_type}"
        elif column.null_count is None or column.distinct is None:
            missing = "nulls" if column.null_count is None else "distinct values"
            left_out[column.name] = f"the number of {missing} is not known, and the catalog has no word for that"
        elif kind in (STRING, BINARY) and (column.avg_width_bytes is None or column.max_width_bytes is None):
            left_out[column.name] = "the width is not known, and the catalog has no word for that"
        else:
            low, high = _bound(column.min, column), _bound(column.max, column)
            found.append(HiveColumn(
                column.name, hive_type, kind, column.null_count, column.distinct, low, high,
                column.avg_width_bytes or 0.0, column.max_width_bytes or 0,
            ))  # fmt: skip
    return found


def unscaled(value: Decimal) -> tuple[bytes, int]:
    """A decimal as big-endian two's complement of the fewest bytes, and its scale."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True), max(-exponent, 0)


def _bound(text: str | None, column: ColumnStatistics) -> Any:
    if text is None:
        return None
    match parse(column.logical_type).kind:
        case Kind.INT:
            return int(text)
        case Kind.FLOAT | Kind.DOUBLE:
            number = float(text.replace("Infinity", "inf"))
            return number if number == number else None
        case Kind.DECIMAL:
            return Decimal(text)
        case Kind.DATE:
            try:
                return date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()
            except ValueError:  # a year that Python does not know
                return None
    return None

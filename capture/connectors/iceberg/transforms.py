"""Ranges of values that partition transforms which keep the order leave: a day, a month, the same first characters."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import numpy as np
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)

from store.model.logical_types import Kind, LogicalType

_UNITS: Final[dict[type, Any]] = {YearTransform: "Y", MonthTransform: "M", DayTransform: "D", HourTransform: "h"}
_INSTANTS: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
_FAR: Final = 2_920_000  # days from 1970 to which ranges are derived, in either direction; some 8,000 years


def span(transform: Transform[Any, Any], value: Any, type: LogicalType) -> tuple[Any, Any] | None:
    """The least and the greatest value that a transform maps to a partition value.

    Args:
        value: The partition value, not null.

    Returns:
        Values of the column, days or microseconds since 1970 for dates and times; the greatest is None where the type
        has none. None if the transform does not keep the order of the column.
    """
    if isinstance(transform, TruncateTransform):
        return _truncated(transform.width, value, type)
    unit: Any = next((unit for kind, unit in _UNITS.items() if isinstance(transform, kind)), None)
    if unit is None or not isinstance(value, int) or type.kind not in {*_INSTANTS, Kind.DATE}:
        return None
    # Writers used to round times before 1970 up, so that zero and negative values may be of the unit before too.
    first = np.datetime64(value - 1 if value <= 0 else value, unit)
    after = np.datetime64(value + 1, unit)
    if not all(abs(int(side.astype("datetime64[D]").astype(np.int64))) < _FAR for side in (first, after)):
        return None
    precision = "D" if type.kind is Kind.DATE else "us"
    low, high = (int(side.astype(f"datetime64[{precision}]").astype(np.int64)) for side in (first, after))
    return low, high - 1


def _truncated(width: int, value: Any, type: LogicalType) -> tuple[Any, Any] | None:
    match type.kind:
        case Kind.INT if isinstance(value, int):
            return value, min(value + width - 1, (1 << 63) - 1)
        case Kind.DECIMAL if isinstance(value, Decimal):
            return value, value + (width - 1) * Decimal(1).scaleb(-(type.scale or 0))
        case Kind.STRING if isinstance(value, str):
            return value, None if len(value) >= width else value
        case Kind.BINARY if isinstance(value, bytes):
            return value, None if len(value) >= width else value
    return None

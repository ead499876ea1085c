"""Bounds of columns in a file as Iceberg's manifests have them, never narrower than those that are stored.

Readers skip a file by its bounds, and some answer MIN and MAX from them, which made-up metadata tells them not to do.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Any, Final

import numpy as np
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.utils.truncate import truncate_upper_bound_text_string

from store.model.errors import InvalidField
from store.model.logical_types import Kind, parse

MOST_LETTERS: Final = 32
"""Letters of a text's bound."""

_KINDS: Final[Mapping[type[types.IcebergType], Kind]] = {
    types.BooleanType: Kind.BOOLEAN,
    types.IntegerType: Kind.INT,
    types.LongType: Kind.INT,
    types.FloatType: Kind.FLOAT,
    types.DoubleType: Kind.DOUBLE,
    types.DecimalType: Kind.DECIMAL,
    types.StringType: Kind.STRING,
    types.DateType: Kind.DATE,
    types.TimeType: Kind.TIME,
    types.TimestampType: Kind.TIMESTAMP,
    types.TimestamptzType: Kind.TIMESTAMPTZ,
}
"""Iceberg's types with bounds, and the kind that the stored texts must have."""

_WIDE_DIGITS: Final = 100


def bounds_of(type: types.IcebergType, logical_type: str | None, low: str, high: str) -> tuple[bytes, bytes] | None:
    """The lower and the upper bound of a column; None if its type has none, or one of them cannot be told.

    Args:
        logical_type: The type of which the stored bounds are.
        low, high: Canonical texts of a range that has all values of the column which are not null.
    """
    kind = _KINDS.get(type.__class__)
    if kind is None or logical_type is None:
        return None
    try:
        if parse(logical_type).kind is not kind:
            return None
        lower, upper = (
            _of_kind(kind, type, text, is_upper=is_upper) for text, is_upper in ((low, False), (high, True))
        )
        if lower is None or upper is None:
            return None
        return to_bytes(type, lower), to_bytes(type, upper)
    except (ValueError, ArithmeticError, InvalidField, struct.error):
        return None


def _of_kind(kind: Kind, type: types.IcebergType, text: str, *, is_upper: bool) -> Any:
    """A bound as the value that is written; None if there is none."""
    match kind:
        case Kind.BOOLEAN:
            return text == "true"
        case Kind.INT:
            return int(text)
        case Kind.FLOAT | Kind.DOUBLE:
            return _float(text, is_single=kind is Kind.FLOAT, is_upper=is_upper)
        case Kind.DECIMAL:
            assert isinstance(type, types.DecimalType)
            return _decimal(text, type, is_upper=is_upper)
        case Kind.STRING:
            return truncate_upper_bound_text_string(text, MOST_LETTERS) if is_upper else text[:MOST_LETTERS]
        case Kind.DATE:
            return int(np.datetime64(text, "D").astype(int))
    clock = f"1970-01-01T{text}" if kind is Kind.TIME else text.removesuffix("Z")
    # stored times are cut to microseconds, and readers may round those of files up
    return int(np.datetime64(clock, "us").astype(int)) + is_upper


def _float(text: str, *, is_single: bool, is_upper: bool) -> float | None:
    """A number outside of all that it bounds; zero with the sign by which both zeros lie inside."""
    value = float(text)
    if math.isnan(value):
        return None
    if is_single:
        with np.errstate(over="ignore"):
            single = np.float32(value)
        beyond = np.float32(math.inf if is_upper else -math.inf)
        if (float(single) < value) if is_upper else (float(single) > value):
            single = np.nextafter(single, beyond)
        value = float(single)
    if value == 0.0:
        return 0.0 if is_upper else -0.0
    return value


def _decimal(text: str, type: types.DecimalType, *, is_upper: bool) -> Decimal | None:
    with localcontext() as context:
        context.prec = _WIDE_DIGITS
        unit = Decimal(1).scaleb(-type.scale)
        value = Decimal(text).quantize(unit, ROUND_CEILING if is_upper else ROUND_FLOOR)
        return value if abs(value) < Decimal(1).scaleb(type.precision - type.scale) else None

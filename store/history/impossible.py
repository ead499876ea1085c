"""Checks of counts and moments against the type and the bounds of their record (`store/SEMANTICS.md` §2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from store.model.logical_types import FLOATING, MEASURED, Kind, parse
from store.model.statistics import MOMENTS

# A value of a nested type, such as a tuple of a column group, may hold a NaN.
_MAY_HOLD_NAN: Final = FLOATING | {Kind.ARRAY, Kind.MAP, Kind.STRUCT, Kind.VARIANT}
_TOLERANCE: Final = 1e-9  # relative to a bound: the rounding error of a mean


class Impossible(NamedTuple):
    """A value that its record rules out: row number in the batch, field, reason, and what is expected."""

    row: int
    field: str
    reason: str
    expected: str


def first_impossible(columns: Mapping[str, pa.Array], *, within_bounds: bool) -> Impossible | None:
    """Looks for a nan_count, mean or stddev that its record's type does not have, or that its bounds rule out.

    Args:
        columns: Columns of a batch of scalar records, by name; types and bounds in canonical form.
        within_bounds: Check mean and stddev against the bounds too.

    Returns:
        The first row of the first field with such a value, None if there is none. Records without a type always pass.
    """
    given = [name for name in MOMENTS if name in columns and columns[name].null_count < len(columns[name])]
    nans = columns.get("nan_count")
    has_nans = nans is not None and (pc.max(nans).as_py() or 0) > 0
    types = columns.get("logical_type")
    if types is None or not (given or has_nans):
        return None
    coded = types.dictionary_encode()
    kinds = [parse(name).kind for name in coded.dictionary.to_pylist()]

    def are(among: frozenset[Kind]) -> pa.Array:
        return pa.array([kind in among for kind in kinds], pa.bool_()).take(coded.indices)

    def checks() -> Iterator[tuple[pa.Array, str, str, str]]:
        if has_nans:
            wrong = pc.and_(pc.greater(nans, 0), pc.invert(are(_MAY_HOLD_NAN)))
            yield wrong, "nan_count", "is above 0, and {type} has no NaN", "0 or null"
        if not given:
            return
        measured = are(MEASURED)
        for name in given:
            wrong = pc.and_(columns[name].is_valid(), pc.invert(measured))
            yield wrong, name, "is of numbers alone, not of {type}", "null, or an INT, FLOAT, DOUBLE or DECIMAL column"
            wrong = pc.and_(pc.is_inf(columns[name]), pc.invert(are(FLOATING)))
            yield wrong, name, "is infinite, which values of {type} are not", "a finite number"
        if not within_bounds:
            return
        singles = are(frozenset({Kind.FLOAT}))
        sides = {
            side: _widened(columns[side], measured, singles, up)
            for side, up in (("min", False), ("max", True))
            if side in columns
        }
        if "mean" in given:
            for side, beyond in (("min", pc.less), ("max", pc.greater)):
                if side in sides:
                    wrong = beyond(columns["mean"], sides[side])
                    yield wrong, "mean", f"is beyond {side}", "a number from min to max"
        if "stddev" in given and len(sides) == 2:
            most = pc.multiply(pc.subtract(sides["max"], sides["min"]), math.sqrt(0.5))  # two values, one at each end
            wrong = pc.greater(columns["stddev"], most)
            yield wrong, "stddev", "is larger than min and max allow", "at most (max - min) / √2"

    for wrong, field, reason, expected in checks():
        if pc.any(wrong, min_count=0).as_py():
            index = pc.index(wrong, True).as_py()
            return Impossible(index, field, reason.format(type=types[index]), expected)
    return None


def _widened(texts: pa.Array, measured: pa.Array, singles: pa.Array, upper: bool) -> pa.Array:
    """Bounds as doubles, widened by `_TOLERANCE`; null for types that are not numbers. NaN rules nothing out."""
    texts = pc.if_else(measured, texts, pa.scalar(None, pa.string()))
    numbers = texts.cast(pa.float64())
    if pc.any(singles, min_count=0).as_py():  # the float's value is not that of its text as a double
        numbers = pc.if_else(singles, texts.cast(pa.float32()).cast(pa.float64()), numbers)
    margin = pc.multiply(pc.if_else(pc.is_finite(numbers), pc.abs(numbers), 0.0), _TOLERANCE)
    return pc.add(numbers, margin) if upper else pc.subtract(numbers, margin)

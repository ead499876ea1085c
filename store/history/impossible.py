"""Checks of counts and moments against the type and the bounds of their record (`store/SEMANTICS.md` §2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from store.model.logical_types import FLOATING, MEASURED, Kind, parse
from store.model.statistics import MOMENTS, SCALARS, SIDES, Limit

# A value of a nested type, such as a tuple of a column group, may hold a NaN.
_MAY_HOLD_NAN: Final = FLOATING | {Kind.ARRAY, Kind.MAP, Kind.STRUCT, Kind.VARIANT}
_TYPED_COUNTS: Final = tuple(each.name for each in SCALARS if each.types == FLOATING and each.limit is Limit.COUNT)
_MEAN, _DEVIATION = MOMENTS
_TOLERANCE: Final = 1e-9  # relative to a bound: the rounding error of a mean


_Finding: TypeAlias = tuple[pa.Array, str, str, str]
"""A mask of the rows that are wrong, the field, the reason and what is expected."""


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
    counted = [name for name in _TYPED_COUNTS if name in columns and (pc.max(columns[name]).as_py() or 0) > 0]
    types = columns.get("logical_type")
    if types is None or not (given or counted):
        return None
    kinds = _Kinds(types)
    checks: list[Iterator[_Finding]] = []
    checks += [_nans_of_others(name, columns[name], kinds) for name in counted]
    if given:
        checks.append(_moments_of_others(given, columns, kinds))
        if within_bounds:
            checks.append(_beyond_bounds(given, columns, kinds))
    for wrong, field, reason, expected in chain.from_iterable(checks):
        if pc.any(wrong, min_count=0).as_py():
            index = pc.index(wrong, True).as_py()
            return Impossible(index, field, reason.format(type=types[index]), expected)
    return None


class _Kinds:
    """The kinds of a column of logical types."""

    def __init__(self, types: pa.Array):
        coded = types.dictionary_encode()
        self._indices = coded.indices
        self._kinds = [parse(name).kind for name in coded.dictionary.to_pylist()]

    def are(self, among: Set[Kind]) -> pa.Array:
        """A mask of the rows whose type is of one of these kinds; null where the type is."""
        return pa.array([kind in among for kind in self._kinds], pa.bool_()).take(self._indices)


def _nans_of_others(name: str, nans: pa.Array, kinds: _Kinds) -> Iterator[_Finding]:
    """Counts of NaNs of types that have none."""
    wrong = pc.and_(pc.greater(nans, 0), pc.invert(kinds.are(_MAY_HOLD_NAN)))
    yield wrong, name, "is above 0, and {type} has no NaN", "0 or null"


def _moments_of_others(given: Sequence[str], columns: Mapping[str, pa.Array], kinds: _Kinds) -> Iterator[_Finding]:
    """Moments of types that are no numbers, and infinite ones of types without infinities."""
    measured, floating = kinds.are(MEASURED), kinds.are(FLOATING)
    for name in given:
        wrong = pc.and_(columns[name].is_valid(), pc.invert(measured))
        yield wrong, name, "is of numbers alone, not of {type}", "null, or an INT, FLOAT, DOUBLE or DECIMAL column"
        wrong = pc.and_(pc.is_inf(columns[name]), pc.invert(floating))
        yield wrong, name, "is infinite, which values of {type} are not", "a finite number"


def _beyond_bounds(given: Sequence[str], columns: Mapping[str, pa.Array], kinds: _Kinds) -> Iterator[_Finding]:
    """Moments that no values within the bounds have."""
    measured, singles = kinds.are(MEASURED), kinds.are({Kind.FLOAT})
    sides = {
        side: _widened(columns[side], measured, singles, upper)
        for side, upper in zip(SIDES, (False, True), strict=True)
        if side in columns
    }
    if _MEAN in given:
        for side, beyond in zip(SIDES, (pc.less, pc.greater), strict=True):
            if side in sides:
                yield beyond(columns[_MEAN], sides[side]), _MEAN, f"is beyond {side}", "a number from min to max"
    if _DEVIATION in given and len(sides) == 2:
        low, high = (sides[side] for side in SIDES)
        most = pc.multiply(pc.subtract(high, low), math.sqrt(0.5))  # two values, one at each end
        wrong = pc.greater(columns[_DEVIATION], most)
        yield wrong, _DEVIATION, "is larger than min and max allow", "at most (max - min) / √2"


def _widened(texts: pa.Array, measured: pa.Array, singles: pa.Array, upper: bool) -> pa.Array:
    """Bounds as doubles, widened by `_TOLERANCE`; null for types that are not numbers. NaN rules nothing out."""
    texts = pc.if_else(measured, texts, pa.scalar(None, pa.string()))
    numbers = texts.cast(pa.float64())
    if pc.any(singles, min_count=0).as_py():  # the float's value is not that of its text as a double
        numbers = pc.if_else(singles, texts.cast(pa.float32()).cast(pa.float64()), numbers)
    margin = pc.multiply(pc.if_else(pc.is_finite(numbers), pc.abs(numbers), 0.0), _TOLERANCE)
    return pc.add(numbers, margin) if upper else pc.subtract(numbers, margin)

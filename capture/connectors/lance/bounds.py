"""Bounds from Lance zone maps: outermost bounds of groups of zones, converted to logical types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.model.logical_types import Kind, LogicalType, to_arrow

# Kinds whose values are never truncated in a zone map.
_WHOLE = frozenset({Kind.BOOLEAN, Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.DATE, Kind.TIME,
                    Kind.TIMESTAMP, Kind.TIMESTAMPTZ})  # fmt: skip


def outermost(values: pa.Array, groups: Sequence[tuple[int, int]], filled: pa.Array, *, upper: bool) -> pa.Array:
    """The least or greatest bound of each group of zones.

    Args:
        values: One bound per zone, from the index.
        groups: Start and end index of each group's zones.
        filled: True for zones with a value that is neither null nor NaN; other zones have no bound.

    Returns:
        One value per group; null if the bound of a zone is unknown, for example a maximum that is NaN, since the zone
        map does not have the greatest number.
    """
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    bounds = []
    for start, end in groups:
        group = values.slice(start, end - start).filter(filled.slice(start, end - start))
        unsure = (
            not len(group)
            or group.null_count
            or (pa.types.is_floating(group.type) and pc.any(pc.is_nan(group)).as_py())
        )
        bounds.append(pa.scalar(None, values.type) if unsure else pc.min_max(group)["max" if upper else "min"])
    return pa.array(bounds, values.type) if bounds else values.slice(0, 0)


def enclosing(values: pa.Array, kind: LogicalType, *, upper: bool) -> tuple[pa.Array, pa.Array]:
    """Converts bounds to the Arrow type of a logical type, with a mask of exact ones.

    Nanoseconds are rounded outwards to microseconds. Values that do not fit the type become null, which means unknown.
    """
    type = to_arrow(kind)
    exact = pa.repeat(kind.kind in _WHOLE, len(values))
    if pa.types.is_uint64(values.type):
        values = pc.if_else(
            pc.less_equal(values, pa.scalar(2**63 - 1, pa.uint64())), values, pa.scalar(None, pa.uint64())
        )
    if getattr(values.type, "unit", "") == "ns":
        ticks = values.cast(pa.int64())
        is_known = ticks.is_valid().to_numpy(zero_copy_only=False)
        whole, rest = np.divmod(ticks.fill_null(0).to_numpy(), 1000)
        values = pa.array(whole + (rest > 0) if upper else whole, mask=~is_known)
        exact = pc.and_(exact, pa.array(rest == 0))
    try:
        return values.cast(type), exact
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), type), exact

"""Converts bounds from Paimon manifests to typed arrays, with their exactness."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from store.model.logical_types import FLOATING, Kind, parse, to_arrow

TRUNCATED_AT: Final = 16  # default length of truncated bounds, in characters

_TEXTS: Final = frozenset({Kind.STRING, Kind.BINARY})


def kept_characters(options: Mapping[str, str], name: str) -> int | None:
    """Length in characters at which the writer truncates bounds of a column; None if it does not."""
    mode = str(options.get(f"fields.{name}.stats-mode", options.get("metadata.stats-mode", ""))).strip().lower()
    if mode == "full":
        return None
    cut = re.fullmatch(r"truncate\((\d+)\)", mode)
    return int(cut[1]) if cut else TRUNCATED_AT


def bound_array(values: Sequence[Any], logical_type: str, *, upper: bool, cut: bool) -> pa.Array | None:
    """Converts bounds decoded by the library to a typed array; NaN becomes null. None if the type has no order.

    Args:
        values: One bound per file.
        cut: Whether values were truncated to microseconds, so that upper bounds have to be moved up.
    """
    kind = parse(logical_type)
    if not kind.orderable or kind.kind is Kind.UUID:
        return None
    if kind.kind in FLOATING:
        values = [None if v is None or math.isnan(v) else v for v in values]
    try:
        array = pa.array(values, to_arrow(kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return pc.add(array.cast(pa.int64()), 1).cast(array.type) if cut and upper else array


def exactness(values: Sequence[Any], logical_type: str, kept: Sequence[int | None], *, cut: bool) -> pa.Array:
    """Mask of exact bounds; a string as long as the truncation limit may have been truncated."""
    if cut:
        return pa.array([False] * len(values), pa.bool_())
    if parse(logical_type).kind not in _TEXTS:
        return pa.array([True] * len(values), pa.bool_())
    return pa.array(
        [limit is None or v is None or len(v) < limit for v, limit in zip(values, kept, strict=True)], pa.bool_()
    )

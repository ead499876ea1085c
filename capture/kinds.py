"""Kinds of statistics that a record holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from store.model import logical_types
from store.model.logical_types import FLOATING, MEASURED, NUMERIC

_FIELDS_OF: Final = {
    "ROW_COUNT": ("row_count",), "FILE_COUNT": ("data_file_count",), "TOTAL_BYTES": ("total_size_bytes",),
    "NULL_COUNT": ("null_count",), "NAN_COUNT": ("nan_count",), "NDV": ("ndv",), "WIDTH": ("avg_width_bytes",),
    "MIN_MAX": ("min", "max"), "MOMENTS": ("mean",),
}  # fmt: skip
_OF_VALUES: Final = frozenset({"MIN_MAX", "WIDTH", "MOMENTS"})  # kinds that a column without values has none of
_OF_TYPES: Final = {"HISTOGRAM": NUMERIC, "MOMENTS": MEASURED}  # kinds that only some types have


def lacking(record: Mapping[str, Any], kinds: Collection[str]) -> list[str]:
    """The requested kinds that a record does not answer.

    Args:
        kinds: Kinds of statistics. HISTOGRAM and MCV are in sketches, so no record lacks them.

    Returns:
        The kinds, sorted. One of two bounds is enough; a type without NaN lacks no NAN_COUNT, a column without values
        no bounds, widths and moments.
    """
    known = set(kinds) - _FIELDS_OF.keys()
    known |= {kind for kind in kinds if any(record.get(name) is not None for name in _FIELDS_OF.get(kind, ()))}
    if record.get("logical_type") not in FLOATING:
        known.add("NAN_COUNT")
    if has_no_values(record):
        known |= _OF_VALUES
    return sorted(set(kinds) - known)


def has_no_values(record: Mapping[str, Any]) -> bool:
    """True if all rows of a column are known to be null or NaN, so that it has no bounds."""
    rows, nulls = record.get("row_count"), record.get("null_count")
    return rows is not None and nulls is not None and rows == nulls + (record.get("nan_count") or 0)


def impossible(logical_type: str | None, kinds: Collection[str]) -> str:
    """The reason why no record of a type (None: unknown) can hold the requested kinds; empty if one can."""
    if logical_type is None:
        return ""
    kind = logical_types.parse(logical_type).kind
    names = " and no ".join(name for name, having in _OF_TYPES.items() if name in kinds and kind not in having)
    return f"a value of type {logical_type} has no {names}; ask without it" if names else ""

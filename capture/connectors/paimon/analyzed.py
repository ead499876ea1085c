"""Statistics files that ANALYZE writes to a Paimon table.

They are JSON in two forms: that of PIP-12 (`stats-…`, snapshotId as text) and that of current Java (`stat-…`, with
schemaId and colId). Later snapshots with the same schema inherit the file, so `snapshotId` in the file determines which
snapshot it describes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from capture.connectors.spi import COLUMN_SCHEMA, Column, ColumnIds
from store.model import bounds
from store.model.logical_types import Kind, parse

_DISTRIBUTION: Final = ("distinctCount", "avgLen", "maxLen")


@dataclass(frozen=True, slots=True)
class Analyzed:
    """A statistics file; `snapshot_id` is the analyzed snapshot. Missing values are None."""

    snapshot_id: int | None
    schema_id: int | None
    rows: int | None
    size: int | None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def parse_analyzed(text: str) -> Analyzed:
    """Parses a statistics file of either form; ignores unknown keys.

    Raises:
        ValueError: The text is not a statistics file.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("a statistics file must be a JSON object")
    columns, snapshot_id = document.get("colStats"), _whole(document.get("snapshotId"))
    return Analyzed(
        snapshot_id,
        _whole(document.get("schemaId")),
        _count(document.get("mergedRecordCount")),
        _count(document.get("mergedRecordSize")),
        _without_inherited(columns, document.get("blobMetadata"), snapshot_id) if isinstance(columns, dict) else {},
    )


def _without_inherited(columns: Mapping[str, Any], blobs: Any, snapshot_id: int | None) -> dict[str, Any]:
    """The columns' entries, without distinct values and widths where the column's sketch is of another snapshot."""
    old = {
        field_id
        for blob in (blobs if isinstance(blobs, list) else ())
        if isinstance(blob, dict) and _whole(blob.get("snapshotId")) != snapshot_id
        for field_id in blob.get("fieldIds") or ()
    }
    entries = {str(name): entry for name, entry in columns.items() if isinstance(entry, dict)}
    return {
        name: {key: value for key, value in entry.items() if key not in _DISTRIBUTION or entry.get("colId") not in old}
        for name, entry in entries.items()
    }


def analyzed_rows(analyzed: Analyzed, columns: Sequence[Column], ids: ColumnIds, rows: int | None) -> pa.Table | None:
    """Rows of COLUMN_SCHEMA about the analyzed snapshot, from a statistics file; None if it has none of the columns."""
    analyzed_columns = [row for c in columns if (row := _row(analyzed, c, ids, rows)) is not None]
    return pa.Table.from_pylist(analyzed_columns, COLUMN_SCHEMA) if analyzed_columns else None


def _row(analyzed: Analyzed, column: Column, ids: ColumnIds, rows: int | None) -> dict[str, Any] | None:
    entry, column_id = _of_column(analyzed, column), column.id_in(ids)
    if entry is None or column_id is None:
        return None
    distinct, nulls, width, widest = (
        _count(entry.get(name)) for name in ("distinctCount", "nullCount", "avgLen", "maxLen")
    )
    return {
        "column_id": column_id,
        "column_name": column.name,
        "logical_type": column.logical_type,
        "row_count": rows,
        "null_count": nulls if nulls is not None and (rows is None or nulls <= rows) else None,
        "ndv": None if distinct is None else float(distinct),
        "ndv_exact": None if distinct is None else False,  # engines estimate with a sketch
        "avg_width_bytes": None if width is None else float(width),
        "max_width_bytes": widest,
    } | _bounds(entry, column.logical_type)


def _of_column(analyzed: Analyzed, column: Column) -> Mapping[str, Any] | None:
    """The entry of a top-level column by name, checked by field id in Java's form; None if missing."""
    if len(column.path) > 1:
        return None
    entry = analyzed.columns.get(column.name)
    if entry is None:
        return None
    field_id = _count(entry.get("colId"))
    return entry if field_id is None or column.field_id in (None, field_id + 1) else None


def _bounds(entry: Mapping[str, Any], logical_type: str) -> dict[str, Any]:
    low, high = (canonical(entry.get(side), logical_type) for side in ("min", "max"))
    if not bounds.is_range(low, high, parse(logical_type)):
        return {}
    return {
        "min": low,
        "max": high,
        "min_is_exact": None if low is None else True,
        "max_is_exact": None if high is None else True,
    }


def canonical(text: Any, logical_type: str) -> str | None:
    """Converts a bound in the form of Paimon's casts (dates as epoch days, timestamps with a space) to canonical text.

    Timestamps with local time zone are written in an unrecorded zone, so their bounds are unknown (None).
    """
    kind = parse(logical_type)
    if text is None or not kind.orderable or kind.kind is Kind.TIMESTAMPTZ:
        return None
    entry = str(text).lower() if isinstance(text, bool) else str(text)
    if kind.kind is Kind.BINARY or entry == "NaN":
        return None  # binary has no common text form; if the bound is NaN, the greatest number is unknown
    if kind.kind is Kind.TIMESTAMP:
        entry = entry.strip().replace(" ", "T")
    try:
        return bounds.canonical(entry, kind)
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    """An integer, possibly given as text; None if it is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else None


def _count(value: Any) -> int | None:
    count = _whole(value)
    return count if count is not None and 0 <= count < 2**63 else None

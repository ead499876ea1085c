"""The statistics file that ANALYZE leaves in a Paimon table.

It is JSON in two forms: of PIP-12 (`stats-…`, snapshotId as text) and of today's Java (`stat-…`, with
schemaId and colId). Commits inherit the file of the snapshot before them while the schema stays, so the file alone says
which snapshot it describes (`snapshotId`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from capture.connectors.spi import COLUMN_SCHEMA, Column, ColumnIds
from store import bounds
from store.logical_types import Kind, parse


@dataclass(frozen=True, slots=True)
class Analyzed:
    """A statistics file; `snapshot_id` is the snapshot it counted, and every number may be missing."""

    snapshot_id: int | None
    schema_id: int | None
    rows: int | None
    size: int | None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def parse_analyzed(text: str) -> Analyzed:
    """Reads a statistics file of either form; keys it does not know are passed over.

    Raises:
        ValueError: It is not a statistics file.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("a statistics file holds a JSON object")
    columns = document.get("colStats")
    return Analyzed(
        _whole(document.get("snapshotId")),
        _whole(document.get("schemaId")),
        _count(document.get("mergedRecordCount")),
        _count(document.get("mergedRecordSize")),
        {str(n): c for n, c in columns.items() if isinstance(c, dict)} if isinstance(columns, dict) else {},
    )


def analyzed_rows(analyzed: Analyzed, columns: Sequence[Column], ids: ColumnIds, rows: int | None) -> pa.Table | None:
    """Table-level records of the columns that ANALYZE counted, of the snapshot that it was run on.

    Args:
        analyzed: What it left.
        columns: The columns asked for.
        ids: Column ids.
        rows: Live rows of the snapshot it was run on.

    Returns:
        Rows of COLUMN_SCHEMA; None where it says nothing.
    """
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
        "ndv_exact": None if distinct is None else False,  # engines count with a sketch
        "avg_width_bytes": None if width is None else float(width),
        "max_width_bytes": widest,
    } | _bounds(entry, column.logical_type)


def _of_column(analyzed: Analyzed, column: Column) -> Mapping[str, Any] | None:
    """By name, which must not be another column's: Java's form has the field id too. Leaves of structs have none."""
    if len(column.path) > 1:
        return None
    entry = analyzed.columns.get(column.name)
    if entry is None:
        return None
    field_id = _count(entry.get("colId"))
    return entry if field_id is None or column.field_id in (None, field_id + 1) else None


def _bounds(entry: Mapping[str, Any], logical_type: str) -> dict[str, Any]:
    low, high = (canonical(entry.get(side), logical_type) for side in ("min", "max"))
    if low is not None and high is not None and bounds.compare(low, high, parse(logical_type)) > 0:
        return {}
    return {
        "min": low,
        "max": high,
        "min_is_exact": None if low is None else True,
        "max_is_exact": None if high is None else True,
    }


def canonical(text: Any, logical_type: str) -> str | None:
    """A bound as Paimon's casts write it: a date by its epoch day, a timestamp with a blank.

    A timestamp with local time zone is written in a zone nobody tells, so it is unknown.
    """
    kind = parse(logical_type)
    if text is None or not kind.orderable or kind.kind is Kind.TIMESTAMPTZ:
        return None
    entry = str(text).lower() if isinstance(text, bool) else str(text)
    if kind.kind is Kind.BINARY or entry == "NaN":
        return None  # of a binary no text form is agreed on, and beside NaN the greatest number is unknown
    if kind.kind is Kind.TIMESTAMP:
        entry = entry.strip().replace(" ", "T")
    try:
        return bounds.canonical(entry, kind)
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    """A number that may be written as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else None


def _count(value: Any) -> int | None:
    count = _whole(value)
    return count if count is not None and 0 <= count < 2**63 else None

"""Statistics files that ANALYZE writes to a Paimon table.

They are JSON in two forms: that of PIP-12 (`stats-…`, snapshotId as text) and that of current Java (`stat-…`, with
schemaId and colId). Later snapshots with the same schema inherit the file, so `snapshotId` in the file determines which
snapshot it describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from capture.connectors.metadata.analyzed import analyzed_row, count, whole
from capture.connectors.spi import COLUMN_SCHEMA, Column, ColumnIds

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
    columns, snapshot_id = document.get("colStats"), whole(document.get("snapshotId"))
    return Analyzed(
        snapshot_id,
        whole(document.get("schemaId")),
        count(document.get("mergedRecordCount")),
        count(document.get("mergedRecordSize")),
        _without_inherited(columns, document.get("blobMetadata"), snapshot_id) if isinstance(columns, dict) else {},
    )


def _without_inherited(columns: Mapping[str, Any], blobs: Any, snapshot_id: int | None) -> dict[str, Any]:
    """The columns' entries, without distinct values and widths where the column's sketch is of another snapshot."""
    old = {
        field_id
        for blob in (blobs if isinstance(blobs, list) else ())
        if isinstance(blob, dict) and whole(blob.get("snapshotId")) != snapshot_id
        for field_id in blob.get("fieldIds") or ()
    }
    entries = {str(name): entry for name, entry in columns.items() if isinstance(entry, dict)}
    return {
        name: {key: value for key, value in entry.items() if key not in _DISTRIBUTION or entry.get("colId") not in old}
        for name, entry in entries.items()
    }


def analyzed_rows(analyzed: Analyzed, columns: Sequence[Column], ids: ColumnIds, rows: int | None) -> pa.Table | None:
    """Rows of COLUMN_SCHEMA about the analyzed snapshot, from a statistics file; None if it has none of the columns."""
    entries = ((column, column.id_in(ids), _of_column(analyzed, column)) for column in columns)
    found = [analyzed_row(e, c, i, rows, in_utc=False) for c, i, e in entries if i is not None and e is not None]
    return pa.Table.from_pylist(found, COLUMN_SCHEMA) if found else None


def _of_column(analyzed: Analyzed, column: Column) -> Mapping[str, Any] | None:
    """The entry of a top-level column by name, checked by field id in Java's form; None if missing."""
    if len(column.path) > 1:
        return None
    entry = analyzed.columns.get(column.name)
    if entry is None:
        return None
    field_id = count(entry.get("colId"))
    return entry if field_id is None or column.field_id in (None, field_id + 1) else None

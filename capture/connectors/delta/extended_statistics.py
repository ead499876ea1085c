"""ndv from the statistics file of Trino's ANALYZE, which is stored next to a Delta log.

`_delta_log/_trino_meta/extended_stats.json` has a HyperLogLog per physical column, but no version. It is attributed to
the version that was the newest when the file was written, if it covers that version's newest data file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from capture.connectors.delta.log import DeltaSchema, list_log
from capture.connectors.spi import COLUMN_SCHEMA, ColumnIds
from capture.connectors.storage.places import Place
from store.model.errors import first_line
from store.model.sketches.airlift_hll import estimate

FILE: Final = "_delta_log/_trino_meta/extended_stats.json"
NAME: Final = FILE.rpartition("/")[2]
NEWEST_MODEL: Final = 4


def extended_columns(
    table: Place,
    version: int,
    newest_file_ms: int | None,
    schema: DeltaSchema,
    ids: ColumnIds,
    column_names: frozenset[str] | None,
    row_count: int | None,
) -> tuple[pa.Table | None, list[str]]:
    """ndv of top-level columns at a version, as rows of COLUMN_SCHEMA, None if there are none or they cannot be read,
    since they are optional; and what of the statistics file is refused, and why.

    Args:
        newest_file_ms: Newest modification time of the version's live files, in milliseconds since 1970.
        row_count: Live rows.
    """
    document = None
    try:
        with suppress(OSError, pa.ArrowException):
            document = _document(table, version, newest_file_ms)
    except ValueError as error:
        return None, [f"Trino's statistics are refused: {error}"]
    if document is None:
        return None, []
    rows, refused = [], []
    for of_schema in schema.columns:
        column = of_schema.column
        column_id = column.id_in(ids)
        if (
            len(of_schema.physical) != 1
            or column_id is None
            or (column_names is not None and not column.is_among(column_names))
        ):
            continue
        try:
            entry = document.get(of_schema.physical[0])
            sketch = None if entry is None else entry.get("ndvSummary")
            distinct = None if sketch is None else estimate(base64.b64decode(sketch, validate=True))
        except (ValueError, TypeError, AttributeError) as error:
            refused.append(f'the sketch of "{column.name}" in {NAME} is refused: {first_line(error)}')
            continue
        if distinct is not None:
            rows.append(
                {
                    "column_id": column_id,
                    "column_name": column.name,
                    "logical_type": column.logical_type,
                    "row_count": row_count,
                    "ndv": float(round(distinct)),
                    "ndv_exact": False,
                }
            )
    return pa.Table.from_pylist(rows, COLUMN_SCHEMA) if rows else None, refused


def _version_at(table: Place, moment: datetime) -> int | None:
    """The newest version that was committed at a moment; None if there was none."""
    log = list_log(table)
    return max((number for number in log.commits if (at := log.written_at(number)) and at <= moment), default=None)


def _document(table: Place, version: int, newest_file_ms: int | None) -> Mapping[str, Any] | None:
    """Physical column → entry; None if the file does not belong to this version."""
    place = table.below(FILE)
    info = place.file_system.get_file_info(place.path)
    if info.type != pafs.FileType.File or info.mtime is None or newest_file_ms is None:
        return None
    if _version_at(table, info.mtime.astimezone(UTC)) != version:
        return None
    content = place.read()
    try:
        document = json.loads(content)
        covered = datetime.fromisoformat(document["alreadyAnalyzedModifiedTimeMax"]).timestamp() * 1000
        entries, model = dict(document["columnStatistics"]), document["modelVersion"]
        is_known = model <= NEWEST_MODEL
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{NAME} is malformed: {type(error).__name__}") from None
    if not is_known:
        raise ValueError(f"{NAME} is of model version {model}, and only those up to {NEWEST_MODEL} are known")
    return entries if round(covered) >= newest_file_ms else None

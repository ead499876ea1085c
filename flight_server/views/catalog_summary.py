"""The tables of a server with their rows, sizes, age and errors, for lists."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from flight_server.views.reader import Reader
from store.model.schemas import FLIGHTS

KEY: Final = ("table_catalog", "table_schema", "table_name")
STATS: Final = (
    "row_count", "data_file_count", "total_size_bytes", "snapshot_id", "captured_at", "refreshed_at", "freshness",
    "completeness",
)  # fmt: skip
ABOUT: Final = ("format", "state", "last_error", "checked_at", "owner")


SCHEMA: Final = pa.schema([
    *map(FLIGHTS["stats.tables"].schema.field, (*KEY, *STATS)), *map(FLIGHTS["sys.tables"].schema.field, ABOUT),
])  # fmt: skip


def tables(reader: Reader) -> pa.Table:
    """Lists the visible tables by name: statistics, format, and the reason if unreadable.

    Args:
        reader: Reads the server's flights.

    Returns:
        Columns of `SCHEMA`, null if unknown.
    """
    listed, stats, about = _parts(reader)
    joined = _outer(_outer(listed, stats, "left outer"), about, "full outer")
    return joined.sort_by([(name, "ascending") for name in KEY])


def rows(reader: Reader) -> list[dict[str, Any]]:
    """The rows of `tables`, joined without Acero, whose import takes longer than the join of a few tables."""
    unknown = dict.fromkeys(SCHEMA.names)
    listed, stats, about = ({tuple(map(row.get, KEY)): row for row in part.to_pylist()} for part in _parts(reader))
    return [
        unknown | listed.get(key, {}) | (stats.get(key, {}) if key in listed else {}) | about.get(key, {})
        for key in sorted(listed.keys() | about.keys())
    ]


def _parts(reader: Reader) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Tables that are listed, their statistics, and `sys.tables`, which may know more; a server may lack the last."""
    listed = reader.read("information_schema.tables", list(KEY))
    stats = reader.read("stats.tables", [*KEY, *STATS], None, "current", True)
    try:
        return listed, stats, reader.read("sys.tables", [*KEY, *ABOUT])
    except pa.ArrowKeyError:
        return listed, stats, pa.schema([SCHEMA.field(name) for name in (*KEY, *ABOUT)]).empty_table()


def _outer(left: pa.Table, right: pa.Table, kind: str) -> pa.Table:
    if not right.num_rows:
        missing = [field for field in right.schema if field.name not in left.schema.names]
        for field in missing:
            left = left.append_column(field, pa.nulls(left.num_rows, field.type))
        return left
    return left.join(right, list(KEY), join_type=kind)

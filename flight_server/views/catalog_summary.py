"""The tables of a server with their rows, sizes, age and errors, for lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from flight_server.views.reader import Reader

KEY: Final = ("table_catalog", "table_schema", "table_name")
STATS: Final = (
    "row_count", "data_file_count", "total_size_bytes", "snapshot_id", "captured_at", "refreshed_at", "freshness",
    "completeness",
)  # fmt: skip
ABOUT: Final = ("format", "state", "last_error", "checked_at", "owner")


def tables(reader: Reader, where: Sequence[Any] = ()) -> pa.Table:
    """Lists the visible tables by name: statistics, format, and the reason if unreadable.

    Args:
        reader: Reads the server's flights.
        where: Conditions on table_catalog, table_schema and table_name.

    Returns:
        Columns of `KEY`, `STATS` and `ABOUT`, null if unknown.
    """
    conditions = list(where) or None
    listed = reader.read("information_schema.tables", list(KEY), conditions)
    stats = reader.read("stats.tables", [*KEY, *STATS], conditions, "current", True)
    about = _about(reader, conditions)
    joined = _outer(_outer(listed, stats, "left outer"), about, "full outer")
    return joined.sort_by([(name, "ascending") for name in KEY])


def _outer(left: pa.Table, right: pa.Table, kind: str) -> pa.Table:
    if not right.num_rows:
        missing = [field for field in right.schema if field.name not in left.schema.names]
        for field in missing:
            left = left.append_column(field, pa.nulls(left.num_rows, field.type))
        return left
    return left.join(right, list(KEY), join_type=kind)


def _about(reader: Reader, conditions: Sequence[Any] | None) -> pa.Table:
    """`sys.tables`; no rows if the server does not have it."""
    from store.model.schemas import FLIGHTS, INSTANT, TEXT

    types = {"checked_at": INSTANT}
    empty = pa.schema([(name, types.get(name, TEXT)) for name in (*KEY, *ABOUT)]).empty_table()
    if "sys.tables" not in FLIGHTS:
        return empty
    try:
        return reader.read("sys.tables", [*KEY, *ABOUT], conditions)
    except pa.ArrowKeyError:
        return empty

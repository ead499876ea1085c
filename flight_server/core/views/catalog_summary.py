"""The tables of a server with their rows, sizes, age and errors, for lists."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from flight_server.client.table_names import COLUMNS
from flight_server.core.views.reader import Reader
from store.model.schemas import FLIGHTS

STATS: Final = (
    "row_count",
    "data_file_count",
    "total_size_bytes",
    "snapshot_id",
    "captured_at",
    "refreshed_at",
    "freshness",
    "completeness",
)
ABOUT: Final = ("format", "state", "last_error", "checked_at", "owner")


SCHEMA: Final = pa.schema(
    [
        *map(FLIGHTS["stats.tables"].schema.field, (*COLUMNS, *STATS)),
        *map(FLIGHTS["sys.tables"].schema.field, ABOUT),
    ]
)


def rows(reader: Reader) -> list[dict[str, Any]]:
    """The visible tables by name, with statistics, format, and the reason if unreadable: columns of `SCHEMA`.

    They are joined without Acero, whose import takes longer than the join of a few tables.
    """
    unknown = dict.fromkeys(SCHEMA.names)
    found, stats = ({tuple(map(row.get, COLUMNS)): row for row in part.to_pylist()} for part in _parts(reader))
    return [unknown | found[key] | stats.get(key, {}) for key in sorted(found)]


def _parts(reader: Reader) -> tuple[pa.Table, pa.Table]:
    """The tables, and the statistics of those that have some."""
    found = reader.read("sys.tables", [*COLUMNS, *ABOUT])
    return found, reader.read("stats.tables", [*COLUMNS, *STATS], None, "current", True)

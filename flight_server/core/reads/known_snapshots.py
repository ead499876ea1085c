"""The snapshots of tables: a read at one that no table has is refused, rather than answered with no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from flight_server.core.reads.generations import SOURCES
from store.catalog.expiry import HAS_RECORDS
from store.duckdb.arrow_sql import execute
from store.duckdb.database import Database
from store.duckdb.layout import BY_SNAPSHOT, STORED, parts
from store.history.presence import Presence
from store.history.spans import holds_sql
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound
from store.model.flight import Flight

# A snapshot that was put is never out of its lake. That is asked first: to look for records takes ten times as long.
_IN_LAKE: Final = "SELECT table_key FROM snapshots WHERE snapshot_id = ? AND is_live IS DISTINCT FROM false"
_WITH_RECORDS: Final = f"SELECT table_key FROM snapshots n WHERE snapshot_id = ? AND ({HAS_RECORDS})"


def check(database: Database, tables: Sequence[TableEntry], snapshot_id: int) -> None:
    """Checks that a table has a snapshot that is in its lake or has records.

    Args:
        tables: The tables that are read; none pass.

    Raises:
        NotFound: None of the tables has it (UNKNOWN_SNAPSHOT).
    """
    if not tables or any(table.current_snapshot_id == snapshot_id for table in tables):
        return
    keys = {table.table_key for table in tables}
    if not any(key in keys for sql in (_IN_LAKE, _WITH_RECORDS) for (key,) in database.rows(sql, snapshot_id)):
        who = f'table "{tables[0].full_name}" has no' if len(tables) == 1 else f"none of {len(tables)} tables has"
        raise NotFound(
            f"{who} snapshot {snapshot_id}",
            code="UNKNOWN_SNAPSHOT",
            hint="see the flight sys.snapshots",
            params={"snapshot": snapshot_id},
        )


def check_pins(
    database: Database, presence: Presence, flight: Flight, pins: Mapping[int, int], tables: Mapping[int, TableEntry]
) -> None:
    """Checks that no table has lost all of its rows at a snapshot because they expired; called once these are read.

    Args:
        presence: The tables that may have rows.
        pins: Table key → snapshot id.
        tables: Table key → table, of those that the caller sees.

    Raises:
        NotFound: One has (GONE).
    """
    for family in SOURCES.get(flight.name, (flight.name,)):
        if family not in STORED or not (keys := sorted(presence.of(family, pins.keys() & tables.keys()))):
            continue
        stored = parts(family) if family in BY_SNAPSHOT else (f"(FROM file_snapshots WHERE family = '{family}')",)
        held = (
            f"NOT EXISTS (FROM {rows} r WHERE r.table_key = n.table_key AND {holds_sql('r', 'n')})" for rows in stored
        )
        pinned = pa.table(
            {"table_key": pa.array(keys, pa.int64()), "id": pa.array([pins[k] for k in keys], pa.int64())}
        )
        with database.reading() as cursor:
            gone = execute(
                cursor,
                "SELECT n.table_key, n.snapshot_id FROM snapshots n JOIN {pins} p ON p.table_key = n.table_key"
                f" AND p.id = n.snapshot_id WHERE n.is_live = false AND {' AND '.join(held)} LIMIT 1",
                pins=pinned,
            )
        for key, snapshot_id in gone:
            raise NotFound(
                f'{flight.name} of "{tables[key].full_name}" at snapshot {snapshot_id} expired since the ticket was'
                " made",
                code="GONE",
                hint="ask GetFlightInfo for a new ticket",
            )

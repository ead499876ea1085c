"""The snapshots of tables: a read at one that no table has is refused, rather than answered with no rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.catalog.expiry import HAS_RECORDS
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound

# A snapshot that was put is never out of its lake.
_KNOWN: Final = (
    f"SELECT table_key FROM snapshots n WHERE snapshot_id = ? AND (is_live IS DISTINCT FROM false OR {HAS_RECORDS})"
)


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
    if not any(key in keys for (key,) in database.rows(_KNOWN, snapshot_id)):
        who = f'table "{tables[0].full_name}" has no' if len(tables) == 1 else f"none of {len(tables)} tables has"
        raise NotFound(
            f"{who} snapshot {snapshot_id}", code="UNKNOWN_SNAPSHOT", hint="see the flight sys.snapshots",
            params={"snapshot": snapshot_id},
        )  # fmt: skip

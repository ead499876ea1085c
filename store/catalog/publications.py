"""Publications: the newest publication of a table's statistics in each home."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database

if TYPE_CHECKING:
    from store.model.catalog_entries import TableEntry


class Publications:
    """Records publications."""

    def __init__(self, database: Database):
        self._database = database

    def put(
        self,
        connection: Connection,
        table: TableEntry,
        home: str,
        *,
        snapshot_id: int,
        state: str,
        location: str | None = None,
        columns: Sequence[str] = (),
        detail: str | None = None,
        made_snapshot_id: int | None = None,
    ) -> None:
        """Records a table's publication in a home (`sys.publications`), replacing the previous one.

        Args:
            home: The `to` of the publication, such as `iceberg`.
            state: CURRENT, STALE or FAILED; CURRENT reads as STALE once the table has another current snapshot.
            location: Path or name of the published file or object.
            detail: Note for people, such as the reason of a failure.
            made_snapshot_id: Snapshot that the publication itself created; the statistics are valid for it too.
        """
        key = [table.table_key, home]
        self.drop(connection, table, home)
        connection.execute(
            "INSERT INTO publications VALUES (?, ?, ?, ?, ?, ?::VARCHAR[], ?, ?, ?)",
            [*key, snapshot_id, state, location, list(columns), datetime.now(UTC), detail, made_snapshot_id],
        )

    def drop(self, connection: Connection, table: TableEntry, home: str) -> None:
        """Deletes a table's publication in a home, if there is one."""
        connection.execute("DELETE FROM publications WHERE table_key = ? AND home = ?", [table.table_key, home])

    def of(self, table: TableEntry) -> list[dict[str, Any]]:
        """The newest publication of a table in each home: home, snapshot_id, state, location, columns, published_at,
        detail and made_snapshot_id."""
        with self._database.reading() as cursor:
            return query(
                cursor,
                "SELECT home, snapshot_id, state, location, columns, published_at, detail, made_snapshot_id"
                " FROM publications WHERE table_key = ? ORDER BY home",
                [table.table_key],
            ).to_pylist()

"""Footers of data files, kept in the database, so that a later call opens only files that are new."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from capture.connectors.footers.kept import FooterKey
from store.duckdb.database import Connection, Database, insert_rows

KEPT_FOR: Final = timedelta(days=90)
"""How long a footer is kept. That of a file that is still there is read again then."""


class StoredFooters:
    """The table `footers` of a database; the bytes are compressed."""

    def __init__(self, database: Database):
        self._database = database

    def get(self, keys: Collection[FooterKey]) -> Mapping[FooterKey, bytes]:
        """The kept footers of some files; a file whose footer is not kept is left out."""
        wanted, paths = set(keys), [path for path, _, _ in keys]
        rows = self._database.rows(
            "SELECT path, size_bytes, modified, footer FROM footers WHERE path IN (SELECT unnest($1::VARCHAR[]))", paths
        )
        return {key: zlib.decompress(footer) for *of, footer in rows if (key := tuple(of)) in wanted}

    def put(self, footers: Mapping[FooterKey, bytes]) -> None:
        """Keeps footers; those of former files of the same paths go, and those that are old."""
        now = datetime.now(UTC)
        rows = [(*key, zlib.compress(footer, 1), now) for key, footer in footers.items()]

        def keep(connection: Connection) -> None:
            connection.execute(
                "DELETE FROM footers WHERE kept_at < $1 OR path IN (SELECT unnest($2::VARCHAR[]))",
                [now - KEPT_FOR, [path for path, _, _ in footers]],
            )
            insert_rows(connection, "footers", rows)

        self._database.write(keep)

"""Connectors: the lakes that are connected, in the database; read from memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from store.duckdb.database import Connection, Database, insert_rows
from store.model.catalog_entries import EXTERNAL
from store.model.errors import NotFound, nearest


class Connectors:
    """The connectors of a database. Reading is thread-safe; writing takes the writer's connection."""

    def __init__(self, database: Database):
        self._database = database
        self._cached: dict[str, dict[str, Any]] = {}  # by catalog
        self._is_outdated = False
        self._noted: set[str] = set()  # catalogs whose state is another one than the cached one

    def outdate(self) -> None:
        """Has connectors read again once the transaction is committed."""
        self._is_outdated = True

    def publish(self) -> None:
        """Makes changes visible to readers."""
        if self._is_outdated or self._noted:  # a new dict, because a reader may be filling the old one
            kept = {} if self._is_outdated else dict(self._cached)
            for catalog in self._noted:
                kept.pop(catalog, None)
            self._cached, self._is_outdated, self._noted = kept, False, set()

    def get(self, catalog: str) -> dict[str, Any]:
        """A connector: `catalog`, `format`, `uri`, `options` with secrets masked, `state`.

        Raises:
            NotFound: The connector does not exist (UNKNOWN_CONNECTOR).
        """
        connectors = self._cached
        if (connector := connectors.get(catalog)) is not None:
            return connector
        rows = self._database.rows(
            "SELECT catalog, format, uri, options, state FROM connectors WHERE catalog = ?", catalog
        )
        if not rows or rows[0][1] == EXTERNAL:
            catalogs = [row[0] for row in self._database.rows("SELECT catalog FROM connectors")]
            hint = nearest(catalog, catalogs) or "register it first"
            raise NotFound(f'no connector "{catalog}"', code="UNKNOWN_CONNECTOR", hint=hint)
        catalog, format, uri, options, state = rows[0]
        connector = {"catalog": catalog, "format": format, "uri": uri, "options": json.loads(options), "state": state}
        connectors[catalog] = connector
        return connector

    def put(
        self, connection: Connection, catalog: str, format: str, uri: str, masked_options: Mapping[str, str]
    ) -> None:
        """Stores a connector, with its options without secrets, as ACTIVE; replaces one of the same name."""
        self._is_outdated = True
        connection.execute("DELETE FROM connectors WHERE catalog = ?", [catalog])
        connection.execute(
            "INSERT INTO connectors VALUES (?, ?, ?, ?, 'ACTIVE', ?, NULL)",
            [catalog, format, uri, json.dumps(dict(masked_options), ensure_ascii=False), datetime.now(UTC)],
        )

    def note(self, connection: Connection, catalog: str, error: str | None) -> None:
        """Records the result of the last inspection of a connector: its error, None if it succeeded."""
        state = "FAILING" if error else "ACTIVE"
        if self._cached.get(catalog, {}).get("state") != state:
            self._noted.add(catalog)
        connection.execute(
            "UPDATE connectors SET state = ?, last_error = ?, last_seen_at = CASE WHEN ? THEN ? ELSE last_seen_at END"
            " WHERE catalog = ?",
            [state, error, error is None, datetime.now(UTC), catalog],
        )

    def drop(self, connection: Connection, catalog: str) -> None:
        """Deletes a connector and the namespaces that it has found."""
        self._is_outdated = True
        connection.execute("DELETE FROM connectors WHERE catalog = ?", [catalog])
        connection.execute("DELETE FROM namespaces WHERE table_catalog = ?", [catalog])


def insert_catalogs(connection: Connection, catalogs: Iterable[str]) -> None:
    """Stores catalogs of tables that no connector has found, without those that are stored."""
    connected = {name for (name,) in connection.execute("SELECT catalog FROM connectors").fetchall()}
    new = [[catalog, EXTERNAL, "{}", "ACTIVE"] for catalog in catalogs if catalog not in connected]
    insert_rows(connection, "connectors (catalog, format, options, state)", new)

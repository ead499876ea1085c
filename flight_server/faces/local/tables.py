"""Tables by their paths: found, discovered and captured into a database of this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from capture.compute.uniqueness import is_unique
from capture.connectors import open_connector
from capture.connectors.directories.found import Found, only_table, table_at
from capture.connectors.footers.kept import keeping
from capture.connectors.spi import CONTAINERS, Connector, ConnectorConfig
from capture.engines import default_engines
from capture.spec import Engine
from capture.spi import Outcome
from capture.store_sink import LocalStore
from flight_server.core.views import snapshot_words
from flight_server.faces.local.app import local_app
from flight_server.faces.local.client import LocalClient
from flight_server.faces.local.footers import StoredFooters
from store.model.catalog_entries import TableEntry
from store.model.errors import StatflightError

HISTORY: Final = 20  # newest snapshots that a history captures
NEWEST: Final = "newest"
_READ: Final = ("ENGINE_COMPUTED", "COMPLETE")  # producer and completeness of a column that was read as a whole

Wanted = str | int
"""A snapshot to capture: a word, an id, or `newest` for the last HISTORY ones."""


@dataclass
class _Table:
    """A table by its path.

    Attributes:
        path: As it was given.
        failed: Messages of targets that could not be captured.
    """

    path: str
    entry: TableEntry
    connector: Connector
    failed: list[str] = field(default_factory=list)


class LocalTables:
    """The tables of some paths, in a database of this process.

    Args:
        db: Database file in which what is captured stays, with the footers of the files that were read; None for one
            in memory.
        progress: Called with a line about what is captured.
        needs: Names of the parts of a server that what is asked needs; None for all.
    """

    def __init__(self, db: Path | None, progress: Callable[[str], None], needs: frozenset[str] | None = None):
        self.app = local_app(db, needs)
        engines = default_engines(engine=Engine.LOCAL)
        self._local = LocalStore(self.app.store, engines)
        self._kept = ExitStack()
        if db is not None:
            self._kept.enter_context(keeping(StoredFooters(self.app.database)))
        self._progress = progress
        self._tables: dict[str, _Table] = {}
        self.client = LocalClient(self.app, self._unique)

    def close(self) -> None:
        """Closes the connectors and the database."""
        self._kept.close()
        for table in self._tables.values():
            table.connector.close()
        self.client.close()
        self.app.close()

    def add(self, path: str, wanted: Sequence[Wanted] = ("current",)) -> str:
        """Finds the table at a path, and captures the snapshots that are wanted; returns its full name.

        Raises:
            StatflightError: There is none, or it cannot be read; the message begins with the path.
        """
        found = table_at(path)
        with _about(path):
            catalog = self._catalog_of(found)
            connector = open_connector(ConnectorConfig(catalog, found.format, found.uri))
            entry = self._local.discover(connector, catalog, *only_table(connector))
            self.app.database.write(
                lambda connection: self.app.catalog.connectors.put(connection, catalog, found.format, found.uri, {})
            )
            table = self._tables[entry.full_name] = _Table(path, self.app.catalog.get(entry.full_name), connector)
            for snapshot_id in self._snapshots(table, wanted):
                self._capture(table, snapshot_id)
        return entry.full_name

    def failed(self) -> list[str]:
        """Targets that could not be captured: a line each."""
        return [f"{table.path}: {line}" for table in self._tables.values() for line in table.failed]

    def _catalog_of(self, found: Found) -> str:
        """The catalog of a table: the one that it has in the database, else the name of the directory around it."""
        rows = self.app.database.rows("SELECT catalog, format, uri FROM connectors")
        known = {uri: catalog for catalog, format, uri in rows if format == found.format}
        if found.uri in known:
            return str(known[found.uri])
        taken = {catalog for catalog, _, _ in rows} | {entry.table_catalog for entry in self.app.catalog.tables()}
        parts = [part for part in found.uri.split("/") if part]
        first = parts[-2] if len(parts) > 1 and not parts[-2].endswith(":") else "local"
        names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in taken)

    def _snapshots(self, table: _Table, wanted: Sequence[Wanted]) -> list[int]:
        """Ids of the snapshots to capture, the oldest first."""
        rows = snapshot_words.rows_of(self.client, table.entry.full_name)
        order = [row["snapshot_id"] for row in rows]
        chosen: set[int] = set()
        for each in wanted:
            if each == NEWEST:
                chosen |= set(order[-HISTORY:])
            elif isinstance(each, int):
                chosen.add(each)
            elif (found := snapshot_words.find(rows, each, captured=False)) is not None:
                chosen.add(found)
        return sorted(chosen, key=lambda id: order.index(id) if id in order else -1)

    def _capture(self, table: _Table, snapshot_id: int) -> None:
        """Captures a snapshot as a whole, unless it is."""
        if self._is_whole(table.entry, snapshot_id):
            return
        try:
            results = self._local.capture_known(
                table.connector, table.entry, snapshot_id, progress=lambda share, words: self._tell(table, share, words)
            )
        finally:
            self._progress("")
        failed = (result for result in results if result.outcome is Outcome.DEGRADED)
        table.failed = list(dict.fromkeys([*table.failed, *(result.detail or "not captured" for result in failed)]))

    def _tell(self, table: _Table, share: float, words: str) -> None:
        self._progress(f"{table.path}: {share:.0%} {words}".rstrip())

    def _is_whole(self, entry: TableEntry, snapshot_id: int) -> bool:
        """True if all columns of a snapshot were read at it."""
        if not self._local.read("stats.tables", entry.full_name, snapshot_id).num_rows:
            return False
        rows = self._local.read("stats.columns", entry.full_name, snapshot_id)
        facts = rows.select(["logical_type", "producer", "completeness"]).to_pylist()
        read = [row for row in facts if row["logical_type"] not in CONTAINERS]
        return bool(read) and all((row["producer"], row["completeness"]) == _READ for row in read)

    def _unique(self, name: str, column_id: int, snapshot: str | int) -> bool:
        """Reads a column of a table; see `Connection.unique`."""
        table = self._tables[name]
        snapshot_id = self.app.catalog.snapshot_id(table.entry, snapshot)
        ids = self.app.catalog.column_ids(table.entry)
        names = frozenset(column for column, id in ids.items() if id == column_id)
        with _about(table.path):
            tasks = table.connector.plan_files(*table.entry.name[1:], snapshot_id, ids, names)
            return is_unique(tasks, column_id, lambda words: self._progress(f"{table.path}: {words}"))


@contextmanager
def _about(path: str) -> Iterator[None]:
    """Errors of the block begin with the path."""
    try:
        yield
    except StatflightError as error:
        if not error.message.startswith(path):
            error.message = f"{path}: {error.message}"
        raise

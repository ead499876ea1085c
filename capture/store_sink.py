"""Captures without a server: a statistics store in this process, and the sink that publishes into it.

    with LocalStore("stats.duckdb") as store:
        lake = open_connector(ConnectorConfig("lake", "parquet", "/data/lake"))
        store.capture(lake, "lake", "default", "events")
        store.read("stats.columns", "lake.default.events").select(["column_name", "ndv", "min", "max"])

A `statflight serve` of the same database serves these statistics later; only one process can open it at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import Connector
from capture.engines import default_engines
from capture.inspection import look_at_table
from capture.registry import Registry
from capture.spi import CaptureEngine, CaptureRequest, CaptureResult, Sink, TableHandle
from store.catalog.capture_facts import contradicted
from store.catalog.catalog import Catalog
from store.catalog.discovery import Discovery
from store.duckdb.database import Database
from store.duckdb.layout import Connection
from store.history import validation
from store.model.catalog_entries import TableEntry
from store.model.errors import Cancelled, NotFound
from store.model.puts import Counts, Listing, Put, PutMode
from store.model.schemas import FLIGHTS
from store.model.targets import Target
from store.stats_store import DuckDBStatsStore

LISTED: Final = 5  # most snapshots that a message names


class StoreSink(Sink):
    """Collects the rows of a capture; `publish` stores all of them or none.

    Args:
        store: Destination of the rows, and source of earlier ones.
        progress: Called with the completed share, 0 to 1, and a message; returns False to cancel the capture.
    """

    def __init__(self, store: DuckDBStatsStore, progress: Callable[[float, str], bool | None] | None = None):
        self._store, self._progress = store, progress
        self._rows: dict[tuple[str, PutMode], list[pa.Table]] = {}

    def put(
        self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False, checked: bool = False
    ) -> None:
        mode = PutMode.FILL if extra else PutMode.REPLACE_SNAPSHOT if whole else PutMode.CAPTURE
        prepared = validation.prepare(FLIGHTS[flight], rows, clamp=True, checked=checked)
        self._rows.setdefault((flight, mode), []).append(prepared)

    def list_files(self, table: TableHandle, listing: Listing) -> bool:  # noqa: ARG002  of the protocol
        return False  # always put all rows

    def requested(self, flight: str, table: TableHandle, columns: Sequence[str]) -> pa.Table:
        names = ["table_catalog", "table_schema", "table_name", "snapshot_id"]
        put = [
            part
            for (of, mode), parts in self._rows.items()
            if of == flight and mode is not PutMode.FILL
            for part in parts
        ]
        wanted = dict.fromkeys([*names, *columns])
        empty = FLIGHTS[flight].schema.empty_table().select(list(wanted))
        rows = pa.concat_tables([empty, *(part.select(list(wanted)) for part in put)], promote_options="default")
        for name in names:
            rows = rows.filter(pc.equal(rows[name], table.key[name]))
        return rows.select(list(columns))

    def stored(
        self,
        flight: str,
        table: TableHandle,
        columns: Sequence[str] | None = None,
        column_ids: Sequence[int] | None = None,
    ) -> pa.Table:
        entry = self._store.catalog.find((table.catalog, table.schema, table.name))
        captured = set() if entry is None else self._store.captured_snapshots(entry)
        if entry is None or not captured:
            rows = FLIGHTS[flight].schema.empty_table()
        else:
            order = {s.snapshot_id: s.ordinal for s in self._store.catalog.snapshots(entry)}
            rows = self._store.of_flight(flight, entry, max(captured, key=lambda i: order.get(i, -1)))
        if column_ids is not None:
            rows = rows.filter(pc.is_in(rows["column_id"], pa.array(column_ids, pa.int64())))
        return rows if columns is None else rows.select(list(columns))

    def progress(self, share: float, message: str = "") -> None:
        if self._progress is not None and self._progress(share, message) is False:
            raise Cancelled("the capture was stopped")

    def publish(self) -> Counts:
        """Stores all rows in one transaction, `extra` rows last, and empties the sink; returns counts over all flights.

        Raises:
            StatflightError: The store rejects the rows; nothing is stored.
        """
        last = sorted(self._rows.items(), key=lambda item: item[0][1] is PutMode.FILL)
        puts = [Put(flight, pa.concat_tables(rows, promote_options="default"), mode) for (flight, mode), rows in last]
        self._rows = {}
        return self._store.put(puts)


class LocalStore:
    """A statistics store in this process, with captures into it.

    Args:
        path: Database file, created if missing; `:memory:` for a temporary database. Or a store that is open.
        engines: Capture engines; by default the built-in and the installed ones.
    """

    def __init__(self, path: str | Path | DuckDBStatsStore, engines: Sequence[CaptureEngine] | None = None):
        if isinstance(path, DuckDBStatsStore):
            self.store = path
        else:
            database = Database(path)
            self.store = DuckDBStatsStore(database, Catalog(database))
        self.database, self.catalog = self.store.database, self.store.catalog
        self.registry = Registry(default_engines() if engines is None else engines)

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database and the engines."""
        for engine in self.registry.engines:
            if callable(close := getattr(engine, "close", None)):
                close()
        self.database.close()

    def capture(
        self,
        connector: Connector,
        catalog: str,
        schema: str,
        name: str,
        *,
        snapshot_id: int | None = None,
        targets: Iterable[Target] | None = None,
        progress: Callable[[float, str], bool | None] | None = None,
        **spec: Any,
    ) -> list[CaptureResult]:
        """Captures a table and publishes its statistics in one transaction; one result per target, in their order.

        Args:
            catalog: Name of the lake in the store.
            schema: Namespace of the table, dotted when nested.
            snapshot_id: Id of the snapshot; the current one by default.
            targets: Targets to capture; by default the table and all its columns.
            spec: Other fields of `CaptureSpec`, such as `kinds`, `sampling` or `budget`.

        Raises:
            NotFound: The table or the snapshot does not exist.
            StatflightError: The lake cannot be read, or the store rejects the rows.
        """
        entry = self.discover(connector, catalog, schema, name)
        return self.capture_known(connector, entry, snapshot_id, targets, progress, **spec)

    def capture_known(
        self,
        connector: Connector,
        entry: TableEntry,
        snapshot_id: int | None = None,
        targets: Iterable[Target] | None = None,
        progress: Callable[[float, str], bool | None] | None = None,
        **spec: Any,
    ) -> list[CaptureResult]:
        """Captures a table that is discovered; arguments and result are those of `capture`."""
        table = self._handle(connector, entry, snapshot_id)
        if targets is None:
            leaves = [column_id for column_id, column in table.by_id.items() if column.is_leaf]
            targets = [Target.table(), *map(Target.column, leaves)]
        sink = StoreSink(self.store, progress)
        results, _ = self.registry.capture_batch([CaptureRequest.of(table, t, **spec) for t in targets], sink)
        sink.publish()
        return results

    def read(self, flight: str, table: str, snapshot_id: int | None = None) -> pa.Table:
        """Stored rows of a flight for a table at a snapshot, without derived columns; none if nothing was captured.

        Args:
            flight: Name of a stored `stats.*` flight.
            table: Full name, `catalog.schema.table`.
            snapshot_id: Id of the snapshot; the current one by default.

        Raises:
            NotFound: The table is not in the store.
        """
        entry = self.catalog.get(table)
        at = entry.current_snapshot_id if snapshot_id is None else snapshot_id
        return FLIGHTS[flight].schema.empty_table() if at is None else self.store.of_flight(flight, entry, at)

    def discover(self, connector: Connector, catalog: str, schema: str, name: str) -> TableEntry:
        """Stores a table's description and snapshots as the lake has them now; the arguments are those of `capture`."""
        table = look_at_table(connector, schema, name)

        def store(connection: Connection) -> list[TableEntry]:
            return Discovery(self.catalog).store(connection, catalog, connector.format, [table])

        (entry,) = self.database.write(store)
        return entry

    def _handle(self, connector: Connector, entry: TableEntry, snapshot_id: int | None) -> TableHandle:
        catalog, schema, name = entry.name
        target_id = entry.current_snapshot_id if snapshot_id is None else snapshot_id
        targets = None if target_id is None else frozenset({target_id})
        listing = connector.enumerate_snapshots(schema, name, target_snapshot_ids=targets)
        snapshot = next((s for s in listing.snapshots if s.snapshot_id == target_id), None)
        if snapshot is None:
            latest = ", ".join(str(known.snapshot_id) for known in self.catalog.snapshots(entry)[-LISTED:])
            raise NotFound(
                f'"{entry.full_name}" has no snapshot {target_id}',
                code="UNKNOWN_SNAPSHOT",
                hint=f"the latest are: {latest}" if latest else "",
            )
        ids = self.catalog.column_ids(entry)
        doubts = frozenset(contradicted(self.database, [entry.table_key]).get(entry.table_key, ()))
        return TableHandle(
            catalog, schema, name, entry.table_id, snapshot.snapshot_id, snapshot.schema, ids, connector, doubts
        )

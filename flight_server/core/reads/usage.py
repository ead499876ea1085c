"""Usage counters of tables and columns: counted in memory, stored every few seconds (`sys.column_usage`)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from flight_server.core.auth.principal import Principal
from flight_server.core.wire.scan_request import ScanRequest
from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.database import Connection, Database, insert_rows

FLUSH_SECONDS: Final = 5.0
MAX_COUNTED: Final = 100_000  # most columns counted between two flushes; reads of others are dropped
COUNTED_TOGETHER: Final = 256  # reads queued before they are counted, so that a read costs its caller almost nothing
WHOLE: Final = ""  # the column of reads that name none

Key = tuple[int, str | int]
"""Table key, column name or id."""


class Usage:
    """Counts reads. A crash loses the counts of the last seconds, which is acceptable."""

    def __init__(self, database: Database, catalog: Catalog):
        self._database, self._catalog = database, catalog
        self._reads: deque[tuple[ScanRequest, Principal]] = deque()  # queued reads
        self._counts: dict[Key, list[float]] = {}  # number of reads, time of the last one
        self._lock = threading.Lock()
        self._flushed = time.monotonic()

    def read(self, request: ScanRequest, caller: Principal) -> None:
        """Queues a read for counting, if it is of one table; it counts if the caller sees that."""
        if request.plan.name is None:
            return
        self._reads.append((request, caller))
        if len(self._reads) >= COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        with suppress(IndexError):  # other threads may count at the same time
            while True:
                request, caller = self._reads.popleft()
                plan, is_of_statistics = request.plan, request.flight.name.startswith("stats.")
                table = self._catalog.find(plan.name) if is_of_statistics and plan.name else None
                if table is not None and caller.sees(*table.name):
                    self.note(table.table_key, plan.values if plan.column in ("column_id", "column_name") else ())

    def note(self, table_key: int, columns: tuple[Any, ...] = ()) -> None:
        """Counts a read of a table, or of the columns of some names or ids; without any, of the whole table."""
        now = time.time()
        with self._lock:
            for column in columns or (WHOLE,):
                counted = self._counts.get((table_key, column))
                if counted is not None:
                    counted[0] += 1
                    counted[1] = now
                elif len(self._counts) < MAX_COUNTED:
                    self._counts[table_key, column] = [1, now]

    def flush(self, every: float = FLUSH_SECONDS) -> None:
        """Stores the counts, unless that was done less than `every` seconds ago."""
        if time.monotonic() - self._flushed < every:
            return
        self._count()
        if not self._counts:
            return
        with self._lock:
            unstored, self._counts = self._counts, {}
        self._flushed = time.monotonic()
        counted = self._named(unstored)

        def run(connection: Connection) -> None:
            keys = sorted({key for key, _ in counted})
            known = connection.execute(
                "SELECT table_key, column_name, reads FROM column_usage"
                " WHERE table_key IN (SELECT unnest(?::BIGINT[]))",
                [keys],
            ).fetchall()
            before = {(key, column or WHOLE): reads for key, column, reads in known}
            old = [key for key in counted if key in before]
            if old:
                connection.execute(
                    "DELETE FROM column_usage u WHERE EXISTS (SELECT 1 FROM (SELECT unnest(?::BIGINT[]) AS k,"
                    " unnest(?::VARCHAR[]) AS c) o WHERE o.k = u.table_key AND o.c = coalesce(u.column_name, ''))",
                    [[k for k, _ in old], [c for _, c in old]],
                )
            insert_rows(
                connection,
                "column_usage",
                [
                    [
                        key,
                        *self._catalog.by_key(key).name,
                        column or None,
                        before.get((key, column), 0) + int(reads),
                        datetime.fromtimestamp(last, UTC),
                    ]
                    for (key, column), (reads, last) in counted.items()
                ],
            )

        self._database.write(run)

    def _named(self, counted: dict[Key, list[float]]) -> dict[tuple[int, str], list[float]]:
        """Counts by column name, without columns that the table does not have."""
        names: dict[Key, list[str]] = {}
        for key, name, number in self._database.rows(
            "SELECT table_key, column_name, column_id FROM column_ids WHERE table_key IN (SELECT unnest(?::BIGINT[]))",
            sorted({key for key, _ in counted}),
        ):
            names[key, name] = [name]
            names.setdefault((key, number), []).append(name)
        named: dict[tuple[int, str], list[float]] = {}
        for (key, column), (reads, last) in counted.items():
            for name in [WHOLE] if column == WHOLE else names.get((key, column), ()):
                before = named.get((key, name), [0, 0.0])
                named[key, name] = [before[0] + reads, max(before[1], last)]
        return named

    def of(self, table_keys: Collection[int]) -> dict[int, dict[str, int]]:
        """Table key → column name → number of stored reads."""
        found: dict[int, dict[str, int]] = {key: {} for key in table_keys}
        if not found:
            return found
        sql = f"SELECT table_key, column_name, reads FROM column_usage WHERE {among('table_key', table_keys)}"
        with self._database.reading() as cursor:
            rows = execute(cursor, f"{sql} AND column_name IS NOT NULL", moved=keys_table(table_keys))
        for key, name, reads in rows:
            found[key][name] = reads
        return found

    def latest(self) -> list[int]:
        """Keys of the tables with stored reads, most recently read first."""
        return [
            key
            for (key,) in self._database.rows(
                "SELECT u.table_key FROM column_usage u JOIN tables t ON t.table_key = u.table_key AND NOT t.dropped"
                " GROUP BY 1 ORDER BY max(u.last_read_at) DESC, 1"
            )
        ]

"""Publications: has workers write statistics to their homes, records the outcomes, and keeps homes up to date.

A connector with the option `publish=HOME,…` has its tables published after each capture: a thread collects what was
captured, waits until the table's captures have ended, and publishes; INTERVAL_SECONDS limits how often.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from capture.homes import homes_of, options_of
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes
from store.catalog import capture_facts
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import InvalidArgument, NotFound, StatflightError, UpstreamError
from store.queue.job_store import ACTIVE
from store.queue.jobs import Job

log = logging.getLogger("statflight.server")

PUBLISH_SECONDS: Final = 3600.0  # limit of one publication, which may scan a table
SETTLE_SECONDS: Final = 1.0  # after the last capture of a table
STEP_SECONDS: Final = 0.5  # between two looks for them
INTERVAL_SECONDS: Final = 10.0  # between two publications of a table in a home
LONGEST_PAUSE_SECONDS: Final = 600.0  # until a home that failed is retried
CURRENT, FAILED, DRY_RUN = "CURRENT", "FAILED", "DRY_RUN"


class Publishing:
    """Publishes for callers, and in the background.

    Attributes:
        outcomes: Publications by home and state, since the server started; for metrics.
        seconds: By home, publications that ended and how long they took together.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        lakes: Lakes,
        queue: JobQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._catalog, self._lakes, self._queue = database, catalog, lakes, queue
        self._clock = clock
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, tuple[int, float]] = {}
        self._captured: dict[int, float] = {}  # table key → time of its last capture
        self._published: dict[tuple[int, str], float] = {}
        self._failures: dict[tuple[int, str], int] = {}  # consecutive failures of a table in a home
        self._lock = threading.Lock()

    def publish(
        self,
        table: TableEntry,
        home: str,
        snapshot_id: int,
        *,
        dry_run: bool = False,
        allow_inherited: bool = False,
        options: Mapping[str, str] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any]:
        """Has a worker publish a table's statistics, and records it.

        Args:
            dry_run: Reports what would be written; writes and records nothing.
            allow_inherited: Also publishes records inherited from an earlier snapshot with the same schema.
            options: Options of the home; they override the connector's `publish.HOME.OPTION`.

        Returns:
            table, snapshot_id, to, state, location, columns (names), detail, removed_orphans (names of files that
            killed writers had left).

        Raises:
            StatflightError: The worker's, when nothing was published.
        """
        payload = self._payload("publish", table, home, snapshot_id, options)
        identity = capture_facts.identities(self._database, [table.table_key]).get(table.table_key)
        payload |= {"dry_run": dry_run, "allow_inherited": allow_inherited, "identity": identity}
        begun = self._clock()
        try:
            result = self._run(payload, is_cancelled)
        except UpstreamError as error:
            self._ended(home, FAILED, begun)
            if not dry_run:
                self._record(table, home, {"snapshot_id": snapshot_id, "state": FAILED, "detail": str(error)})
            raise
        self._ended(home, result["state"], begun)
        if not dry_run:
            self._record(table, home, result)
        names = ("snapshot_id", "to", "state", "location", "columns", "detail")
        orphans = list(result.get("removed_orphans", ()))  # a worker of an earlier version tells none
        return {"table": table.full_name} | {name: result[name] for name in names} | {"removed_orphans": orphans}

    def withdraw(
        self,
        table: TableEntry,
        home: str,
        *,
        options: Mapping[str, str] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Has a worker remove a table's statistics from a home, and forgets their publication; False if it had none.

        Args:
            options: Options of the home; they override the connector's `publish.HOME.OPTION`.

        Raises:
            NotFound: Nothing was published of the table, and it has no snapshot.
            StatflightError: The worker's; the statistics may still be there.
        """
        recorded = (row["snapshot_id"] for row in self._catalog.publications.of(table) if row["home"] == home)
        snapshot_id = next(recorded, None)
        if snapshot_id is None:
            snapshot_id = self._catalog.snapshot_id(table, None)
        payload = self._payload("withdraw", table, home, snapshot_id, options)
        withdrawn = bool(self._run(payload, is_cancelled)["withdrawn"])
        self._database.write(lambda connection: self._catalog.publications.drop(connection, table, home))
        return withdrawn

    def snapshot_of(self, table: TableEntry, snapshot_id: int) -> int:
        """The snapshot whose statistics hold for this one: an earlier one when a publication made this snapshot."""
        for row in self._catalog.publications.of(table):
            if row["made_snapshot_id"] == snapshot_id:
                return int(row["snapshot_id"])
        return snapshot_id

    # In the background.

    def captured(self, table: TableEntry) -> None:
        """Notes that a table was captured."""
        with self._lock:
            self._captured[table.table_key] = self._clock()

    def republish(self) -> int:
        """Publishes the tables whose captures have ended; returns the number of attempts. Called periodically."""
        now = self._clock()
        with self._lock:
            ready = [key for key, since in self._captured.items() if now - since >= SETTLE_SECONDS]
        tried = 0
        homes: dict[str, tuple[str, ...]] = {}  # by catalog
        for key in ready:
            table = self._with_homes(key, homes)
            if table is not None and (self._queue.closing or self._busy(key)):
                continue
            with self._lock:
                since = self._captured.pop(key, None)
            if table is None:
                continue
            try:
                tried += self._republish(table, homes[table.table_catalog])
            except NotFound:  # its connector was dropped since
                continue
            except _TooSoon:
                with self._lock:
                    self._captured.setdefault(key, now if since is None else since)
        return tried

    def _with_homes(self, table_key: int, homes: dict[str, tuple[str, ...]]) -> TableEntry | None:
        """The table if its connector has homes, else None. Fills `homes`, so that options are read once a catalog."""
        table = self._catalog.by_key(table_key)
        if table.format == EXTERNAL or table.dropped or table.current_snapshot_id is None:
            return None
        try:
            if table.table_catalog not in homes:
                homes[table.table_catalog] = ()
                homes[table.table_catalog] = homes_of(self._lakes.config(table.table_catalog)["options"])
        except StatflightError as error:  # its connector was dropped since, or no home has such a name
            log.info("republish: %s", error)
            return None
        return table if homes[table.table_catalog] else None

    def _republish(self, table: TableEntry, homes: Sequence[str]) -> int:
        if table.current_snapshot_id is None:
            return 0
        now, tried = self._clock(), 0
        last = [self._published[key] for home in homes if (key := (table.table_key, home)) in self._published]
        if last and now - max(last) < INTERVAL_SECONDS:
            raise _TooSoon
        for home in homes:
            self._published[table.table_key, home] = now
            snapshot_id = self.snapshot_of(table, table.current_snapshot_id)
            if snapshot_id != table.current_snapshot_id or self._is_fresh(table, home, snapshot_id):
                continue  # the publication itself made this snapshot, or there is nothing new
            tried += 1
            try:
                self.publish(table, home, snapshot_id)
                self._failures.pop((table.table_key, home), None)
            except (UpstreamError, NotFound) as error:
                log.info("publish %s to %s: %s", table.full_name, home, error)
                if error.retryable:
                    self._try_later(table, home)
            except StatflightError as refusal:
                log.info("publish %s to %s: %s", table.full_name, home, refusal)
                if isinstance(refusal, InvalidArgument) and refusal.code not in ("NOT_PUBLISHABLE", "STALE"):
                    failed = {"snapshot_id": snapshot_id, "state": FAILED, "detail": str(refusal)}
                    self._record(table, home, failed)
        return tried

    def _try_later(self, table: TableEntry, home: str) -> None:
        """Queues a table again whose home failed, after a pause that doubles with each failure."""
        failures = self._failures[table.table_key, home] = self._failures.get((table.table_key, home), 0) + 1
        pause = min(INTERVAL_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
        with self._lock:
            self._captured.setdefault(table.table_key, self._clock() + pause)

    def _is_fresh(self, table: TableEntry, home: str, snapshot_id: int) -> bool:
        """True if a home holds everything stored for a snapshot: nothing was put since it was published."""
        rows = self._catalog.publications.of(table)
        publication = next((row for row in rows if (row["home"], row["state"]) == (home, CURRENT)), None)
        if publication is None or publication["snapshot_id"] != snapshot_id:
            return False
        sql = "SELECT max(created_at) FROM stats_columns WHERE table_key = ? AND snapshot_id = ?"
        ((newest,),) = self._database.rows(sql, table.table_key, snapshot_id)
        return newest is not None and newest <= publication["published_at"]

    def _busy(self, table_key: int) -> bool:
        """True if captures of a table are queued or running."""
        sql = f"SELECT 1 FROM jobs WHERE table_key = ? AND state IN {ACTIVE} LIMIT 1"
        return bool(self._database.rows(sql, table_key))

    # Both.

    def _payload(
        self, operation: str, table: TableEntry, home: str, snapshot_id: int, options: Mapping[str, str] | None
    ) -> dict[str, Any]:
        lake = self._lakes.config(table.table_catalog)
        return {
            "operation": operation,
            "connector": lake,
            "to": home,
            "snapshot_id": snapshot_id,
            "table": {
                "catalog": table.table_catalog,
                "schema": table.table_schema,
                "name": table.table_name,
                "full_name": table.full_name,
            },
            "options": options_of(lake["options"], home) | dict(options or {}),
        }

    def _run(self, payload: Mapping[str, Any], is_cancelled: Callable[[], bool]) -> Mapping[str, Any]:
        job = Job("publish", payload, catalog=payload["connector"]["catalog"], targets=[payload["operation"]])
        self._queue.submit([job])
        result = self._queue.wait(job, PUBLISH_SECONDS, is_cancelled)
        if result is None:
            self._queue.abandon([job])
            raise UpstreamError(f"publishing took more than {PUBLISH_SECONDS:.0f} s", code="TIMED_OUT")
        report: Mapping[str, Any] = result["result"]
        return report

    def _record(self, table: TableEntry, home: str, ended: Mapping[str, Any]) -> None:
        catalog = self._catalog
        self._database.write(
            lambda connection: catalog.publications.put(
                connection,
                table,
                home,
                snapshot_id=ended["snapshot_id"],
                state=ended["state"],
                location=ended.get("location"),
                columns=ended.get("columns") or (),
                detail=ended.get("detail") or None,
                made_snapshot_id=ended.get("made_snapshot_id"),
            )
        )

    def _ended(self, home: str, state: str, begun: float) -> None:
        with self._lock:
            self.outcomes[home, state] += 1
            count, total = self.seconds.get(home, (0, 0.0))
            self.seconds[home] = (count + 1, total + self._clock() - begun)


class _TooSoon(Exception):
    """Raised when a table's last publication is less than INTERVAL_SECONDS ago."""

"""The server's parts, put together: the one file that knows all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flight_server.core.config import Settings
from flight_server.core.control.access import Access
from flight_server.core.control.capturing import Around, Capturing
from flight_server.core.control.housekeeping import Background
from flight_server.core.control.watch import Pace, Watch
from flight_server.core.part import Part, Parts
from flight_server.core.reads.computed import MaySee
from flight_server.core.reads.computed import register as register_computed
from flight_server.core.reads.reading import Reading
from flight_server.core.transfer.exporting import Exports
from flight_server.core.transfer.importing import Imports
from store.catalog.catalog import Catalog
from store.catalog.sketch_retention import SketchRetention, superseded, thin
from store.duckdb.database import Database
from store.model.catalog_entries import EXTERNAL
from store.queue.job_store import JobStore
from store.role import Role
from store.stats_store import DuckDBStatsStore

log = logging.getLogger("statflight.server")

_SEGMENTS_SECONDS = 120.0  # between two looks for small segments, and for files of none
_THINNED_SECONDS = 3600.0  # between two looks for sketches of older snapshots


def alone(path: Path) -> tuple[Database, Role]:
    """Opens a database without replicas."""
    return Database(path), Role()


class App:
    """All parts of the server except Flight itself.

    Args:
        functions: Rows of `sys.functions`; `actions/`, which has them, may import this file but not the reverse.
        join: Opens the database file, and gives the server its role among the database's replicas.
        parts: Makes the parts of the server, by name (`process/parts.py`).
        has_own: True while a worker lives that the server has started for a lane.
    """

    def __init__(
        self,
        settings: Settings,
        functions: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
        join: Callable[[Path], tuple[Database, Role]] = alone,
        parts: Callable[[Settings], Mapping[str, Part]] = lambda _: {},
        has_own: Callable[[str], bool] = lambda _lane: False,
    ):
        self.settings = settings
        self.started = time.time()
        self.parts = Parts(parts(settings))  # what their settings name is read before a database is made
        self.database, self.role = join(settings.db)
        self.versions = self.database.versions
        self.catalog = Catalog(self.database)
        self.jobs = JobStore(self.database, self.catalog.by_key, holder=self.role.holder)
        self.store = DuckDBStatsStore(
            self.database,
            self.catalog,
            role=self.role,
            behind=self.parts.behind(),
            queue=self.jobs,
            require_registered_tables=settings.require_registered_tables,
        )
        self._use_segments()
        self.policy = settings.zone_policy
        self.access = Access(self.catalog)
        reading = Reading(settings, self.store, self.catalog)
        self.streams, self.slices, self.scanner = reading.streams, reading.slices, reading.scanner
        self.records, self.usage, self.prewarmer = reading.records, reading.usage, reading.prewarmer

        around = Around(lambda: self.role, has_own, self.parts.captured, self.parts.judges)
        capturing = Capturing(settings, self.store, self.jobs, reading, around)
        self.commit, self.queue = capturing.commit, capturing.queue
        self.lakes, self.captures = capturing.lakes, capturing.captures
        self.orchestrator, self.auto = capturing.orchestrator, capturing.auto
        if self.role.takes_writes:
            self.jobs.give_back(lost=True)
        self.watch = Watch(self.lakes, self.lakes.findings, self.queue, self._connected, self._pace)
        self.sketch_retention = SketchRetention(settings.keep_sketches, settings.keep_sketch_days)
        may_see: MaySee = lambda *rule: any(part.may_see(*rule) for part in self.parts.values())  # noqa: E731
        self.exports = Exports(self.database, self.catalog, self.access, settings.stream_stall_seconds, may_see=may_see)
        self.imports = Imports(self.database, self.catalog, self.access)
        register_computed(
            self.scanner.queries,
            engines=capturing.engines,
            functions=lambda: [*functions(), *(action.row for action in self.parts.actions.values())],
            live_jobs=self.queue.rows,
            replication=lambda: self.role.row(),
            may_see=may_see,
        )
        self.parts.attach(self.offered())
        for part in self.parts.values():
            self.scanner.queries.arrow_sources |= part.flights()
        self._background = [
            Background("thinning sketches", self._if_keeping(self._thin_sketches), lambda: _THINNED_SECONDS),
            Background("segments", self._if_keeping(self._keep_segments), lambda: _SEGMENTS_SECONDS),
            Background("watch", self._if_keeping(self.watch.step), self.watch.seconds_left),
        ]
        self._background += [each for part in self.parts.values() for each in part.background()]

    def offered(self) -> dict[str, Any]:
        """The objects that a part may name as parameters of its `attach`."""
        return {
            "app": self,
            "access": self.access,
            "catalog": self.catalog,
            "database": self.database,
            "lakes": self.lakes,
            "queue": self.queue,
            "role": self.role,
            "scanner": self.scanner,
            "select": self.parts.select,
            "store": self.store,
            "streams": self.streams,
            "usage": self.usage,
        }

    def start(self) -> None:
        """Starts the background threads."""
        self.store.recover(takes_writes=self.role.takes_writes)
        for background in self._background:
            background.start()
        self.prewarmer.start()

    def take_over(self, address: str) -> None:
        """Begins to write, if the database was promoted.

        Args:
            address: Address of the server, for others to name.

        Raises:
            UpstreamError: The lease has ended meanwhile; it may be renewed.
        """
        if self.role.successor is not None:
            self.jobs.give_back(lost=True)
            self.role = self.role.successor
            self.database.name_segments(self.settings.segments)
            self.start()
            self.role.listening(address)

    def health(self) -> dict[str, str]:
        """`status`: ok, draining, or read-only while writes are refused, then with the reason as `detail`; reads are
        answered meanwhile."""
        if self.queue.closing:
            return {"status": "draining"}
        trouble = self.database.trouble()
        if trouble or not self.role.may_write:
            return {"status": "read-only", "detail": trouble or self.role.trouble()}
        behind = self.role.trouble()
        return {"status": "ok"} | ({"replication": behind} if behind else {})

    def _if_keeping(self, step: Callable[[], object]) -> Callable[[], object]:
        """A step of the periodic work that one server does for all that share its store."""
        return lambda: step() if self.role.keeps_house else None

    def take_over_jobs(self) -> None:
        """Queues the jobs of servers again that are gone; called periodically."""
        if self.role.keeps_house and (held := self.jobs.other_holders()) and (gone := self.role.gone(held)):
            self.jobs.take_over(gone)
            self.queue.notify()

    def _thin_sketches(self) -> None:
        tables, keep = self.catalog.tables(), self.sketch_retention
        if superseded(self.database, tables, keep):
            self.database.write(lambda connection: thin(connection, self.catalog, tables, keep))

    def _use_segments(self) -> None:
        """Sets which listings are stored as segments, and where; a store behind the database has all in itself."""
        segments, settings = self.database.segments, self.settings
        if settings.store != "duckdb":
            segments.cells = None
            return
        if segments.cells is not None:
            segments.cells = settings.segment_cells
        if self.role.takes_writes and settings.segments is not None:
            self.database.name_segments(settings.segments)

    def _keep_segments(self) -> None:
        if self.role.takes_writes and self.database.segments.may_have():
            self.store.merge_segments()

    def close(self) -> None:
        """Stops the background threads and closes the database."""
        for background in self._background:
            background.stop()
        self.prewarmer.stop()
        self.queue.close()
        try:
            if self.role.takes_writes:
                self.usage.flush(0)
        except Exception:  # a failed count of reads must not keep the server from closing
            log.exception("the last reads were not counted")
        self.scanner.rows.prepared.close()
        self.role.close()
        self.database.close()
        for part in self.parts.values():
            part.close()

    def _connected(self) -> list[str]:
        rows = self.database.rows("SELECT catalog FROM connectors WHERE format <> ?", EXTERNAL)
        return [catalog for (catalog,) in rows]

    def _pace(self, catalog: str) -> Pace | None:
        """How often a lake is looked at: as the watch is set, or more often if its policy says so, within its budget;
        None for never."""
        bound = self.settings.watch_seconds or None
        budget = self.lakes.budget(catalog)
        intervals = [bound, self.auto.interval(catalog)]
        seconds = min((seconds for seconds in intervals if seconds is not None), default=None)
        return None if seconds is None or budget == 0 else Pace(seconds, bound, budget)

"""The part of the server that judges statistics: rules, alarms, relationships."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.config import Settings
from flight_server.core.control.housekeeping import Background
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes
from flight_server.core.part import Action, Judges, Part
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.reads.query import ArrowSource
from flight_server.core.reads.scanner import Scanner
from flight_server.core.reloading import Reloaded
from flight_server.insight import actions, checking, references
from flight_server.insight.alarms import Alarms
from flight_server.insight.relationships import Relationships
from flight_server.insight.rules import File, load
from flight_server.insight.uniqueness import Uniqueness
from flight_server.insight.webhook import Webhook
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry


class Insight(Part):
    """Rules that are checked after captures, and the flight `sys.relationships`."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        path = settings.checks
        self._rules = Reloaded("rules", [path], lambda: File() if path is None else load(path))

    def attach(
        self,
        *,
        database: Database,
        catalog: Catalog,
        scanner: Scanner,
        lakes: Lakes,
        queue: JobQueue,
        select: Callable[[str, Principal], pa.Table],
    ) -> None:
        """Takes what is judged.

        Args:
            select: Runs a SELECT for a caller.
        """
        settings = self.settings
        self._database, self._catalog, self._queue = database, catalog, queue
        receivers = [Webhook(url, settings.webhook_secret) for url in (settings.webhook or "").split()]
        self.alarms = Alarms(receivers, settings.webhook_digest_seconds)
        self.uniqueness = Uniqueness(catalog, lakes)
        reader = LocalReader(scanner, ANONYMOUS, lambda statement: select(statement, ANONYMOUS), self._is_unique)
        self.checking = checking.Checking(
            database, catalog, reader, self._rules, self.alarms, settings.check_late_seconds
        )

    def judges(self) -> Judges:
        return self.checking.judges

    def flights(self) -> Mapping[str, ArrowSource]:
        return {"sys.relationships": Relationships(self._database)}

    @staticmethod
    def actions() -> Sequence[Action]:
        return actions.unique, actions.expect

    def on_captured(self, table: TableEntry) -> None:
        self.checking.captured(table)

    def background(self) -> Iterable[Background]:
        if self.settings.checks is None:
            return ()
        return (Background("checks", self.checking.run, lambda: checking.STEP_SECONDS),)

    def close(self) -> None:
        self.alarms.stop()

    def _is_unique(self, name: str, column_id: int, snapshot: str | int) -> bool:
        table = self._catalog.get(name)
        snapshot_id = self._catalog.snapshot_id(table, snapshot)
        return self.uniqueness.of(table, snapshot_id, column_id, lambda: self._queue.closing)

    def may_see(self, rule: str, table: str, sees: Callable[[str, str, str], bool]) -> bool:
        return references.may_see(rule, table, lambda name: self._catalog.find(name) is not None, sees)

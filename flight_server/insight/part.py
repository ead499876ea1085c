"""The part of the server that judges statistics: rules, alarms, relationships."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from flight_server.core.config import Settings
from flight_server.core.control.housekeeping import Background
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes
from flight_server.core.part import Action, Judges, Part, Select
from flight_server.core.reads.query import ArrowSource
from flight_server.core.reads.scanner import Scanner
from flight_server.insight import actions, checking, references, rules
from flight_server.insight.relationships import Relationships
from flight_server.insight.uniqueness import Uniqueness
from flight_server.insight.webhook import alarms_to
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry


class Insight(Part):
    """Rules that are checked after captures, and the flight `sys.relationships`."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._rules = rules.watched(settings.checks)

    def attach(
        self,
        *,
        database: Database,
        catalog: Catalog,
        scanner: Scanner,
        lakes: Lakes,
        queue: JobQueue,
        select: Select,
    ) -> None:
        """Takes what is judged."""
        settings = self.settings
        self._database, self._catalog = database, catalog
        self.alarms = alarms_to(settings.webhook, settings.webhook_secret, settings.webhook_digest_seconds)
        self.uniqueness = Uniqueness(catalog, lakes)

        def is_unique(name: str, column_id: int, snapshot: str | int) -> bool:
            return self.uniqueness.of_name(name, column_id, snapshot, lambda: queue.closing)

        reader = checking.unrestricted(scanner, select, is_unique)
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

    def may_see(self, rule: str, table: str, sees: Callable[[str, str, str], bool]) -> bool:
        return references.may_see(rule, table, lambda name: self._catalog.find(name) is not None, sees)

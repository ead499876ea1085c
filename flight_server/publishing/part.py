"""The part of the server that publishes statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flight_server.core.control.housekeeping import Background
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes
from flight_server.core.part import Action, Part
from flight_server.publishing import actions, publications
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry


class Publishing(Part):
    """Publications, by the actions `publish` and `withdraw`, and after captures."""

    def attach(self, *, database: Database, catalog: Catalog, lakes: Lakes, queue: JobQueue) -> None:
        """Takes what is published, and who works on it."""
        self.publications = publications.Publishing(database, catalog, lakes, queue)

    @staticmethod
    def actions() -> Sequence[Action]:
        return actions.publish, actions.withdraw

    def on_captured(self, table: TableEntry) -> None:
        self.publications.captured(table)

    def background(self) -> Iterable[Background]:
        return (Background("republish", self.publications.republish, lambda: publications.STEP_SECONDS),)

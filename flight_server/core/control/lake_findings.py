"""The findings of inspections of lakes, stored in the catalog, those of each inspection in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from capture.connectors.options import requests_per_day
from capture.connectors.storage.secrets import mask_uri
from flight_server.core.control.marks import Marks, found_marks
from store.catalog.catalog import Catalog
from store.catalog.discovery import Discovery
from store.catalog.entries import update_tables
from store.duckdb.database import Connection, Database
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.columns import REMARK
from store.model.errors import Conflict, StatflightError

log = logging.getLogger("statflight.server")


class LakeFindings:
    """Stores the findings of inspections.

    Args:
        on_discovered: Called after each discovery with the catalog and the tables found.
        interval: Seconds after which a new table is not current any more without a look; None for never.

    Attributes:
        marks: What the last look at each table and lake has found, by which the next one skips what is the same.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        on_discovered: Callable[[str, Sequence[TableEntry]], object],
        interval: float | None,
    ):
        self._database, self._catalog = database, catalog
        self._on_discovered, self._interval = on_discovered, interval
        self.marks = Marks()

    def store(
        self,
        catalog: str,
        config: Mapping[str, Any],
        found: Mapping[str, Any],
        *,
        whole: bool,
        full: bool = False,
        present: Collection[tuple[str, str]] = (),
    ) -> list[dict[str, Any]]:
        """Stores the findings of an inspection, unless the catalog was connected to another lake meanwhile; of a table
        only if those of no inspection that began later are stored.

        Args:
            config: The configuration of the inspection, as `Lakes.begin` returns it.
            found: The worker's findings: `tables`, `errors`.
            whole: True if all tables were inspected; tables not found are dropped then.
            full: True if stored snapshots were inspected again; False leaves those that were stored meanwhile.
            present: (schema, name) of all tables of the lake, if they are known.

        Returns:
            One result per table, as `Lakes.discover` returns them.
        """

        def run(connection: Connection) -> list[dict[str, Any]]:
            self._check_same(catalog, config)
            return self.store_in(connection, config, found, whole=whole, full=full, listed=present)

        results = self._database.write(run)
        self.remember(catalog, found, whole=whole)
        self.discovered(catalog, found)
        return results

    def remember(self, catalog: str, found: Mapping[str, Any], *, whole: bool) -> None:
        """Keeps the marks of findings, which are stored, for the next look."""

        def keys(of: Mapping[tuple[str, str], Any]) -> dict[int, Any]:
            entries = {name: self._catalog.find((catalog, *name)) for name in of}
            return {entry.table_key: of[name] for name, entry in entries.items() if entry is not None}

        errors = {(error["schema"], error["name"]): None for error in found["errors"] if error["name"] is not None}
        self.marks.put(keys(found_marks(found)), keys(errors))
        if whole:
            self.marks.put_lake(catalog, found.get("lake_mark"))

    def note(self, catalog: str, only: Sequence[Sequence[str]] | None, reason: str) -> None:
        """Records that a lake with all of its tables, or some tables of it (schema, name), cannot be read."""

        def run(connection: Connection) -> None:
            if only is None:
                self._catalog.connectors.note(connection, catalog, reason)
                self._note_failing(connection, catalog, reason)
                return
            entries = (self._catalog.find((catalog, schema, name)) for schema, name in only)
            keys = [entry.table_key for entry in entries if entry is not None]
            Discovery(self._catalog).note_tables(connection, keys, dict.fromkeys(keys, reason))

        self._database.write(run)

    def _note_failing(self, connection: Connection, catalog: str, reason: str, schema: str | None = None) -> None:
        """Records that all tables of a lake, or of a schema in it, cannot be read."""
        keys = [
            table.table_key
            for table in self._catalog.tables()
            if table.table_catalog == catalog and table.format != EXTERNAL and schema in (None, table.table_schema)
        ]
        Discovery(self._catalog).note_tables(connection, keys, dict.fromkeys(keys, reason))

    def store_names(self, catalog: str, config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Stores the findings of `Lakes.names_job`: drops the tables that are gone."""
        present = {(schema, name) for schema, name in found["names"]}
        unlisted = {error["schema"] for error in found["errors"]}

        def run(connection: Connection) -> None:
            self._check_same(catalog, config)
            if not self._catalog.findings.are_newest(catalog, None, config["begun"]):
                return
            discovery = Discovery(self._catalog)
            discovery.store_namespaces(connection, catalog, found["namespaces"])
            for error in found["errors"]:
                self._note_failing(connection, catalog, error["reason"], error["schema"])
            discovery.forget_missing(connection, catalog, partial(self._is_there, present, unlisted, config["begun"]))

        self._database.write(run)
        self.marks.put_lake(catalog, found["lake_mark"])

    def _is_there(
        self, present: Collection[tuple[str, str]], unlisted: Collection[str], begun: int, entry: TableEntry
    ) -> bool:
        """True if a table is in a lake, or may be, by an inspection with a number."""
        name = entry.table_schema, entry.table_name
        return (
            name in present
            or entry.table_schema in unlisted
            or not self._catalog.findings.are_newest(entry.table_catalog, name, begun)
        )

    def store_in(
        self,
        connection: Connection,
        config: Mapping[str, Any],
        found: Mapping[str, Any],
        *,
        whole: bool,
        full: bool,
        listed: Collection[tuple[str, str]] = (),
    ) -> list[dict[str, Any]]:
        """Stores findings inside of the writer's transaction; of tables that an inspection begun later has found
        meanwhile, only tells what is stored."""
        catalog, format, begun, at = config["catalog"], config["format"], config["begun"], looked_at(found)
        discovery = Discovery(self._catalog)

        def is_newest(schema: str, name: str) -> bool:
            return self._catalog.findings.are_newest(catalog, (schema, name), begun)

        whole = whole and self._catalog.findings.are_newest(catalog, None, begun)
        errors = [error for error in found["errors"] if error["name"] is not None]
        of_schemas = [error for error in found["errors"] if error["name"] is None]
        unlisted = {error["schema"] for error in of_schemas}
        unchanged = [(schema, name) for schema, name in found.get("unchanged", ())]
        present = {(item["schema"], item["name"]) for item in (*found["tables"], *errors)} | set(unchanged)
        if whole:
            discovery.store_namespaces(connection, catalog, found.get("namespaces", []))
        tables = [table for table in found["tables"] if is_newest(table["schema"], table["name"])]
        seen = discovery.store(connection, catalog, format, tables, present if whole else listed, full=full)
        same = (
            self._catalog.entries.uncommitted.by_name.get((catalog, *name)) for name in unchanged if is_newest(*name)
        )
        keys = [entry.table_key for entry in (*seen, *filter(None, same))]
        discovery.note_tables(connection, keys, at=at)
        if requests_per_day(config["options"]) != 0:
            self._limit(connection, keys)
        results = self._reports(catalog, found["tables"])
        for error in errors:
            schema, name, reason = error["schema"], error["name"], error["reason"]
            if is_newest(schema, name):
                entry = discovery.note_unreadable(connection, catalog, format, schema, name, reason)
                results.append({"table": entry.full_name, "error": reason})
        for error in of_schemas:
            self._note_failing(connection, catalog, error["reason"], error["schema"])
            results.append({"table": f"{catalog}.{error['schema']}", "error": error["reason"]})
        if whole:
            discovery.forget_missing(connection, catalog, partial(self._is_there, present, unlisted, begun))
        self._catalog.connectors.note(connection, catalog, None)
        self._catalog.findings.note(catalog, None if whole else present, begun)
        return results

    def _limit(self, connection: Connection, keys: Sequence[int]) -> None:
        """Gives tables that have no interval yet that of the watch."""
        if self._interval is not None and (new := self._catalog.deadlines.unlimited(keys)):
            update_tables(connection, {key: {"watch_seconds": self._interval} for key in new})
            self._catalog.deadlines.set_intervals(dict.fromkeys(new, self._interval))

    def _reports(self, catalog: str, tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The findings about tables as a discovery reports them, without tables that are not stored."""
        reports = []
        for table in tables:
            entry = self._catalog.entries.uncommitted.by_name.get((catalog, table["schema"], table["name"]))
            if entry is None:
                continue
            report = {
                "table": entry.full_name,
                "table_id": entry.table_id,
                "snapshots": len(table["snapshots"]),
                "current_snapshot_id": entry.current_snapshot_id,
            }
            if remark := table.get("properties", {}).get(REMARK):
                report["remark"] = remark
            reports.append(report)
        return reports

    def discovered(self, catalog: str, found: Mapping[str, Any]) -> None:
        """Tells of the tables that a discovery has found, once they are stored."""
        tables = (self._catalog.find((catalog, table["schema"], table["name"])) for table in found["tables"])
        try:
            self._on_discovered(catalog, [table for table in tables if table is not None])
        except StatflightError as error:  # an error of a policy does not fail the discovery
            log.warning("auto-analyze of %s: %s", catalog, error)

    def note_looked(
        self, connection: Connection, config: Mapping[str, Any], only: Collection[tuple[str, str]], at: datetime
    ) -> None:
        """Records that tables (schema, name) were inspected, and found as they are stored."""
        catalog = config["catalog"]
        self._check_same(catalog, config)
        entries = (self._catalog.find((catalog, schema, name)) for schema, name in only)
        keys = [entry.table_key for entry in entries if entry is not None]
        Discovery(self._catalog).note_tables(connection, keys, at=at)
        self._catalog.connectors.note(connection, catalog, None)
        self._catalog.findings.note(catalog, only, config["begun"])

    def _check_same(self, catalog: str, config: Mapping[str, Any]) -> None:
        """Raises Conflict if the catalog is no longer connected to the lake of a configuration."""
        connector = self._catalog.connectors.get(catalog)
        if (connector["format"], connector["uri"]) != (config["format"], mask_uri(config["uri"])):
            raise Conflict(f'the catalog "{catalog}" was connected to another lake meanwhile')

    def are_as_known(self, catalog: str, format: str, found: Mapping[str, Any]) -> bool:
        """True if an inspection has found all tables as they are stored."""
        known = Discovery(self._catalog)
        return not found["errors"] and all(known.is_as_known(catalog, format, table) for table in found["tables"])


def looked_at(found: Mapping[str, Any]) -> datetime:
    """When the worker began to look, by this server's clock, if its findings have just come."""
    return datetime.now(UTC) - timedelta(seconds=float(found.get("seconds", 0.0)))

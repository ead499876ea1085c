"""Connected lakes: registration, discovery, looks at tables.

The server runs no connector code. A worker inspects the lake and returns its findings as JSON; this file makes the
worker's job, `lake_findings.py` stores what it has found.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from capture.connectors.options import requests_per_day
from capture.connectors.storage.secrets import mask, mask_uri
from flight_server.core.auth.vault import Vault
from flight_server.core.control.job_queue import NO_WORKER, JobQueue
from flight_server.core.control.lake_findings import LakeFindings, looked_at
from flight_server.core.control.watched import Watched
from store.catalog import capture_facts
from store.catalog.catalog import Catalog
from store.catalog.entries import update_tables
from store.duckdb.database import Connection, Database
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import (
    Cancelled,
    Conflict,
    InvalidArgument,
    NotFound,
    ShuttingDown,
    StatflightError,
    UpstreamError,
)
from store.model.names import split_name
from store.queue.jobs import Job

log = logging.getLogger("statflight.server")

IDLE_SECONDS: Final = 600.0  # without progress, until an inspection is abandoned


class Lakes:
    """The lakes of a server.

    Args:
        on_discovered: Called after each discovery with the catalog and the tables found.
        interval: Seconds after which a new table is not current any more without a look; None for never.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        vault: Vault,
        queue: JobQueue,
        *,
        on_discovered: Callable[[str, Sequence[TableEntry]], object] = lambda *_: None,
        interval: float | None = None,
    ):
        self._database, self._catalog, self._vault, self._queue = database, catalog, vault, queue
        self.findings = LakeFindings(database, catalog, on_discovered, interval)

    # Connectors.

    def config(self, catalog: str) -> dict[str, Any]:
        """A connector's configuration with its secrets, for workers only.

        Raises:
            NotFound: The connector does not exist.
        """
        connector = self._catalog.connectors.get(catalog)
        return {
            "catalog": catalog,
            "format": connector["format"],
            "uri": self._vault.uri(catalog, connector["uri"]),
            "options": self._vault.get(catalog, connector["options"]),
        }

    def register(
        self,
        config: Mapping[str, Any],
        is_cancelled: Callable[[], bool],
        *,
        replace: bool = False,
        discover: bool = False,
    ) -> dict[str, Any]:
        """Registers a connector once a worker has reached the lake; until then the catalog stays as it was.

        Args:
            config: `catalog`, `format`, `uri`, `options`.
            replace: Allows another format or address for an existing catalog.
            discover: Also discovers the tables, in the same inspection.

        Returns:
            The connector, secrets masked; with `discover` its tables, as `discover` returns them, and `unmatched`, the
            patterns of its options that match none, if there are any.

        Raises:
            Conflict: The catalog is connected to another lake and `replace` is false.
            UpstreamError: The lake cannot be reached.
        """
        catalog, options = config["catalog"], config["options"]
        with self._database.reading() as cursor:
            same = _check_taken(cursor, config, replace)
        begun = self._catalog.findings.begin()
        if discover:
            found = self.inspect("discover", config, is_cancelled, **self._scope(catalog if same else None))
        else:
            found = self.inspect("validate", config, is_cancelled)
        masked, uri = mask(options), mask_uri(config["uri"])
        tables: list[dict[str, Any]] = []

        def run(connection: Connection) -> None:
            if not _check_taken(connection, config, replace):  # another caller may have registered it meanwhile
                self._catalog.drop_connector(connection, catalog)  # the tables of another lake are none of this one
            self._vault.set(catalog, options, masked, config["uri"], uri)
            self._catalog.connectors.put(connection, catalog, config["format"], uri, masked)
            if discover:
                lake = {**config, "begun": begun}
                tables[:] = self.findings.store_in(connection, lake, found, whole=True, full=True)

        self._database.write(run)
        self.findings.marks.put_lake(catalog, None)
        if discover:
            self.findings.remember(catalog, found, whole=True)
            self.findings.discovered(catalog, found)
        shown = {
            "catalog": catalog,
            "format": config["format"],
            "uri": uri,
            "options": masked,
            "state": "ACTIVE",
            "namespaces": found.get("namespaces", []),
        }
        if unmatched := found.get("unmatched"):
            log.warning("%s: no table matches %s of its options include and exclude", catalog, ", ".join(unmatched))
            shown["unmatched"] = unmatched
        return shown | ({"tables": tables} if discover else {})

    def drop(self, catalog: str) -> None:
        """Forgets a connector, its secrets and its tables."""

        def forget_secrets(connection: Connection) -> None:
            if _lake(connection, catalog) is None:  # another caller may have registered it again
                self._vault.drop(catalog)

        self._database.write(lambda connection: self._catalog.drop_connector(connection, catalog))
        self._database.write(forget_secrets)

    # Inspections.

    def inspect(
        self, operation: str, config: Mapping[str, Any], is_cancelled: Callable[[], bool], **arguments: Any
    ) -> Mapping[str, Any]:
        """Has a worker inspect a lake while the caller waits.

        Args:
            operation: `validate`, `discover` or `publish`.
            config: As `config` returns it.
            is_cancelled: True once the caller has left; the worker stops then.
            arguments: Further entries of the job's payload.

        Returns:
            The worker's findings.

        Raises:
            UpstreamError: The lake cannot be reached, no worker is connected, or no progress for IDLE_SECONDS.
        """
        job = self._submit("control", operation, config, **arguments)
        while (result := self._queue.wait(job, IDLE_SECONDS, is_cancelled)) is None:
            if time.monotonic() - job.touched_at > IDLE_SECONDS:
                self._queue.abandon([job])
                raise UpstreamError(f"{operation} made no progress for {IDLE_SECONDS:.0f} s", code="TIMED_OUT")
        return result.get("result") or {}

    def discover(
        self,
        catalog: str,
        table: str | None,
        full_rescan: bool,
        is_cancelled: Callable[[], bool],
        snapshots: Sequence[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Inspects a lake and stores the findings.

        Args:
            table: The only table to inspect, with or without the catalog's name; None means all.
            full_rescan: Reads snapshots again that are already stored.
            snapshots: Ids of the snapshots to read, besides the current one; None for those that are not stored yet.

        Returns:
            One result per table: `table`, `table_id`, `snapshots`, `current_snapshot_id`; `table` and `error` for one
            that cannot be read.

        Raises:
            NotFound: The connector or the table does not exist.
            UpstreamError: The lake cannot be reached.
        """
        config, only = self._begin(catalog), [_within(catalog, table)] if table else None
        found = self._look(catalog, config, only, full_rescan, is_cancelled, snapshots)
        return self.findings.store(catalog, config, found, whole=only is None, full=full_rescan)

    def _begin(self, catalog: str) -> dict[str, Any]:
        """The configuration for an inspection that begins now, with its number, `begun`."""
        return self.config(catalog) | {"begun": self._catalog.findings.begin()}

    def _cheaply(self, catalog: str, only: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Entries of the payload of a look that describes only tables that differ from their marks; of several tables
        in a batch, one that cannot be read fails no other."""
        entries = filter(None, (self._catalog.find((catalog, schema, name)) for schema, name in only))
        tables = {entry.table_key: entry for entry in entries}
        marks = self.findings.marks.of(tables.values())
        return {
            "marks": {f"{tables[key].table_schema}\0{tables[key].table_name}": mark for key, mark in marks.items()},
            "batch": True,
        }

    def _look(
        self,
        catalog: str,
        config: Mapping[str, Any],
        only: Sequence[Sequence[str]] | None,
        full_rescan: bool,
        is_cancelled: Callable[[], bool],
        snapshots: Sequence[int] | None = None,
        **how: Any,
    ) -> Mapping[str, Any]:
        """Inspects the tables of `only` (schema, name), or all; an error of the lake is recorded and raised.

        Args:
            how: Further entries of the job's payload, as `_cheaply` returns them.
        """
        try:
            scope = self._scope(catalog, only, full_rescan)
            return self.inspect("discover", config, is_cancelled, **scope, **how, snapshots=snapshots)
        except StatflightError as error:
            if is_of_lake(error):
                self.findings.note(catalog, only, str(error))
            raise

    def names_job(self, catalog: str) -> tuple[dict[str, Any], Job]:
        """Starts a look for new tables of a lake, and for those that are gone, which no caller waits for.

        Returns:
            The configuration for the findings, and the job.
        """
        config = self._begin(catalog)
        return config, self._submit("watch", "names", config, lake_mark=self.findings.marks.lake(catalog))

    def look_job(self, catalog: str, only: Sequence[Sequence[str]]) -> tuple[dict[str, Any], Job]:
        """Starts a look at tables (schema, name), which no caller waits for; returns as `names_job`."""
        config = self._begin(catalog)
        scope = self._scope(catalog, only) | self._cheaply(catalog, only)
        return config, self._submit("watch", "discover", config, **scope)

    def changed(self, tables: Sequence[TableEntry], is_cancelled: Callable[[], bool]) -> list[dict[str, Any]]:
        """Looks at tables at once, with one inspection of each lake, and stores the findings.

        Returns:
            For each table `table`, `current_snapshot_id` and `changed`, true if its current snapshot is another one;
            and `error` if it cannot be read.

        Raises:
            ShuttingDown, Cancelled: The server shuts down, or the caller has left.
        """
        errors: dict[str, str] = {}
        for catalog, names in _by_lake(tables).items():
            only = list(map(list, names))
            try:
                config = self._begin(catalog)
                found = self._look(catalog, config, only, False, is_cancelled, **self._cheaply(catalog, only))
                results = self.findings.store(catalog, config, found, whole=False)
                errors |= {result["table"]: result["error"] for result in results if "error" in result}
            except StatflightError as error:
                if isinstance(error, Cancelled | ShuttingDown):
                    raise
                errors |= {t.full_name: str(error) for t in tables if t.table_catalog == catalog}
        return [self._change(table, errors.get(table.full_name)) for table in tables]

    def budget(self, catalog: str) -> int | None:
        """Requests a day that the watch may make of a lake; None for any number."""
        return requests_per_day(self._catalog.connectors.get(catalog)["options"])

    def watched(self, catalog: str) -> list[Watched]:
        """The tables of a lake that the watch looks at."""
        rows = self._database.rows(
            "SELECT t.table_key, t.table_schema, t.table_name, epoch(t.checked_at),"
            " epoch(greatest(u.last_read_at, s.committed_at)) FROM tables t"
            " LEFT JOIN (SELECT table_key, max(last_read_at) AS last_read_at FROM column_usage GROUP BY 1) u"
            " ON u.table_key = t.table_key"
            " LEFT JOIN snapshots s ON s.table_key = t.table_key AND s.snapshot_id = t.current_snapshot_id"
            " WHERE t.table_catalog = ? AND NOT t.dropped AND t.format <> ?",
            catalog,
            EXTERNAL,
        )
        return [Watched(key, (schema, name), checked_at, used_at) for key, schema, name, checked_at, used_at in rows]

    def set_intervals(self, seconds: Mapping[int, float | None]) -> None:
        """Stores the interval after which each table, by key, is not current any more without a look; None for
        never."""
        changed = self._catalog.deadlines.differing(seconds)
        if not changed:
            return

        def run(connection: Connection) -> None:
            update_tables(connection, {key: {"watch_seconds": each} for key, each in changed.items()})

        self._database.write(run)
        self._catalog.deadlines.set_intervals(changed)

    def _change(self, before: TableEntry, error: str | None) -> dict[str, Any]:
        """What a look has found of a table, whose entry was another one before."""
        now = self._catalog.by_key(before.table_key)
        result = {
            "table": before.full_name,
            "current_snapshot_id": now.current_snapshot_id,
            "changed": now.current_snapshot_id != before.current_snapshot_id,
        }
        return result if error is None else result | {"error": error}

    def _submit(self, kind: str, operation: str, config: Mapping[str, Any], **arguments: Any) -> Job:
        """Queues the inspection of a lake."""
        connector = {name: value for name, value in config.items() if name != "begun"}
        payload = {"operation": operation, "connector": connector, **arguments}
        job = Job(kind, payload, catalog=config["catalog"], targets=[operation])
        self._queue.submit([job])
        return job

    def _scope(
        self, catalog: str | None, only: Sequence[Sequence[str]] | None = None, full: bool = False
    ) -> dict[str, Any]:
        """Arguments of a `discover` job, with the stored snapshots, which need not be listed again if not `full`."""
        known: dict[str, list[int]] = {}
        identities: dict[str, tuple[int, str]] = {}
        current: dict[str, tuple[int, str | None]] = {}
        if catalog is not None:
            entries = self._catalog.tables() if only is None else (self._catalog.find((catalog, s, n)) for s, n in only)
            keys = {
                t.table_key: f"{t.table_schema}\0{t.table_name}"
                for t in entries
                if t is not None and t.table_catalog == catalog
            }
            known = {keys[key]: ids for key, ids in capture_facts.snapshot_ids(self._database, keys).items()}
            current = {keys[key]: of for key, of in capture_facts.current_schemas(self._database, keys).items()}
            identities = {keys[key]: of for key, of in capture_facts.identities(self._database, keys).items()}
        return {"only": only, "full_rescan": full, "known": known, "current": current, "identities": identities}

    # Captures.

    @contextlib.contextmanager
    def refreshed(self, tables: Sequence[TableEntry], is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Discovers the current snapshots of tables before their captures start in the block, with one inspection of
        each lake.

        When a lake cannot be inspected, the stored snapshots stay, and the capture itself reports the error. When
        nothing is new, the time of the inspection is stored after the block, while the captures run.
        """
        with contextlib.ExitStack() as after:
            for catalog, only in _by_lake(tables).items():
                with contextlib.suppress(UpstreamError, NotFound, InvalidArgument, Conflict):
                    config = self._begin(catalog)
                    listed = list(map(list, only))
                    found = self._look(catalog, config, listed, False, is_cancelled, **self._cheaply(catalog, listed))
                    if self.findings.are_as_known(catalog, config["format"], found):
                        at = looked_at(found)
                        looked = partial(self.findings.note_looked, config=config, only=only, at=at)
                        after.callback(self._database.submit, looked, may_wait=True)  # with what is captured
                    else:
                        self.findings.store(catalog, config, found, whole=False)
            yield


def _lake(connection: Connection, catalog: str) -> tuple[str, str] | None:
    """Format and masked address of a catalog's lake; None if it is not connected."""
    sql = "SELECT format, uri FROM connectors WHERE catalog = ? AND format <> ?"
    found: list[tuple[str, str]] = connection.execute(sql, [catalog, EXTERNAL]).fetchall()
    return found[0] if found else None


def _by_lake(tables: Iterable[TableEntry]) -> dict[str, dict[tuple[str, str], None]]:
    """Catalog → (schema, name) of its tables, each once, in order; without those of no lake."""
    names: dict[str, dict[tuple[str, str], None]] = {}
    for table in tables:
        if table.format != EXTERNAL:
            names.setdefault(table.table_catalog, {})[table.table_schema, table.table_name] = None
    return names


def _check_taken(connection: Connection, config: Mapping[str, Any], replace: bool) -> bool:
    """True if the catalog is connected to this lake; raises Conflict if to another, unless `replace`."""
    lake = _lake(connection, config["catalog"])
    if lake is None:
        return False
    same = lake == (config["format"], mask_uri(config["uri"]))
    if not same and not replace:
        raise Conflict(
            f'the catalog "{config["catalog"]}" is connected to the {lake[0]} lake {lake[1]}',
            hint='choose another name, or replace the lake with "replace": true (connect --replace)',
        )
    return same


def is_of_lake(error: StatflightError) -> bool:
    """True if a failed inspection says something about the lake, rather than about its caller or its worker."""
    return not isinstance(error, Cancelled | ShuttingDown) and error.code not in (NO_WORKER, "WORKER_LOST")


def _within(catalog: str, table: str) -> list[str]:
    """Schema and name of a table, given with or without its catalog."""
    try:
        first, schema, name = split_name(table if table.startswith(f"{catalog}.") else f"{catalog}.{table}")
    except ValueError as wrong:
        raise InvalidArgument(str(wrong)) from None
    return [schema, name] if first == catalog else [first, name]

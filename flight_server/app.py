"""The server's parts, put together: store, queue, scans, and what the actions need of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capture.compute.partial import NUMERIC
from capture.connectors.secrets import mask, mask_uri
from capture.engines import takers
from capture.orchestrator import Orchestrator, Question
from capture.spi import Mode
from flight_server.auth.tokens import Principal
from flight_server.auth.vault import Vault
from flight_server.config import Settings
from flight_server.control.auto_analyze import AutoAnalyze
from flight_server.control.publishing import Publishing
from flight_server.control.task_queue import Dispatcher, Task
from flight_server.reads import computed
from flight_server.reads.flight_files import HotFlights
from flight_server.reads.prewarm import Ready
from flight_server.reads.record_cache import Records
from flight_server.reads.scanner import Scanner
from flight_server.reads.slice_cache import SliceCache
from flight_server.reads.streams import MAX_QUERIES, Streams
from flight_server.reads.usage import Usage
from flight_server.wire.action_bodies import ALL, Ask
from flight_server.wire.scan_request import CURRENT, ScanRequest
from store.catalog_store import EXTERNAL, Catalog, TableEntry
from store.database import Database
from store.errors import InvalidArgument, NotFound, PermissionDenied, StatflightError, UpstreamError
from store.job_store import LIGHT, SCAN, JobStore, Lease
from store.logical_types import parse as parse_type
from store.names import split_name
from store.stats_store import DuckDBStatsStore
from store.targets import Target

log = logging.getLogger("statflight.server")

CONTROL_SECONDS = 600.0
NATIVE_PRIORITY = 1000  # engines from here on read metadata only


class Service:
    """Everything behind the Flight methods but Flight itself."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.started = time.time()
        self.database = Database(settings.db)
        self.changes = self.database.changes
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(
            self.database, self.catalog, require_registered_tables=settings.require_registered_tables
        )
        self.jobs = JobStore(self.database, settings.lease_seconds)
        self.jobs.reclaim(everything=True)
        self.dispatcher = Dispatcher(self.jobs, self.store, self.catalog)
        self.dispatcher.payload_of_job = self._payload_of_job
        self.streams = Streams(
            settings.max_streams,
            settings.stream_seconds,
            settings.max_stream_bytes,
            settings.max_queries or MAX_QUERIES,
        )
        self.slices = SliceCache(settings.cache_bytes)
        self.scanner = Scanner(self.database, self.catalog, self.changes, self.slices, self.streams)
        self.hot = self.scanner.hot = HotFlights(settings.db, settings.hot_bytes, self.changes, self.scanner.batches)
        self.vault = Vault(settings.db.with_name(settings.db.name + ".secrets"))
        self.records = Records(self.store, self.catalog, self.changes, self.scanner.slice)
        self.orchestrator = Orchestrator(_Plane(self), settings.sync_enabled)
        self.usage = Usage(self.database, self.catalog)
        self.ready = Ready(self.scanner, self.usage)
        self.auto = AutoAnalyze(self, settings.auto_analyze, settings.auto_analyze_seconds)
        self.publishing = Publishing(self)
        self.dispatcher.on_published = self._captured
        self.policy = settings.zone_policy
        computed.register(self)

    def _captured(self, table: TableEntry) -> None:
        self.auto.published(table)
        self.publishing.captured(table)

    def close(self) -> None:
        self.auto.stop()
        self.publishing.stop()
        self.ready.stop()
        self.dispatcher.close()
        self.hot.close()
        try:
            self.usage.flush(0)
        except Exception:  # reads that are not counted keep no server from ending
            log.exception("the last reads were not counted")
        self.scanner.packed.close()
        self.database.close()

    def note_read(self, request: ScanRequest) -> None:
        """Counts a read of one table's statistics."""
        if request.plan.name is not None and request.flight.name.startswith("stats."):
            self.usage.read(request.plan)

    # Tables and connectors.

    def table(self, name: str, principal: Principal, scope: str) -> TableEntry:
        """The table of a full name, if this caller may do with it what the scope says."""
        try:
            entry = self.catalog.get(name)
        except NotFound as missing:
            if not principal.sees_all:  # it may name a table that this caller does not see
                missing.hint = ""
            raise
        self.require(principal, scope)
        if not principal.sees(*entry.name):
            raise PermissionDenied(f'"{name}" is not among the tables you may use')
        return entry

    def require(self, principal: Principal, scope: str) -> None:
        if not principal.may(scope):
            yours = ", ".join(sorted(principal.scopes)) or "none"
            raise PermissionDenied(f"this needs the scope {scope}", hint=f"yours: {yours}")

    def connector(self, catalog: str, principal: Principal) -> dict[str, Any]:
        """A connector as it is shown, for a caller who may do anything with all of its tables."""
        try:
            known = self.catalog.connector(catalog)
        except NotFound as missing:
            if not principal.sees_all:
                missing.hint = ""
            raise
        self.require_catalog(principal, catalog)
        return known

    def require_catalog(self, principal: Principal, catalog: str) -> None:
        self.require(principal, "admin")
        if not principal.sees_catalog(catalog):
            raise PermissionDenied(f'this needs all tables of "{catalog}"', hint="yours are limited")

    def require_worker(self, principal: Principal) -> None:
        """A worker is told how every lake is reached and puts statistics of any table: a token for some will not do."""
        self.require(principal, "capture.run")
        if not principal.sees_all:
            raise PermissionDenied("capture workers need a token for all tables", hint="its tables are limited")

    def config(self, catalog: str) -> dict[str, Any]:
        """A connector's configuration in full, for a worker's eyes only."""
        known = self.catalog.connector(catalog)
        options = self.vault.get(catalog, known["options"])
        return {"catalog": catalog, "format": known["format"], "uri": known["uri"], "options": options}

    def control(
        self, operation: str, config: Mapping[str, Any], is_cancelled: Callable[[], bool], **arguments: Any
    ) -> Mapping[str, Any]:
        """Has a worker look at a lake; its findings."""
        task = self.dispatcher.submit(Task("control", {"operation": operation, "connector": config, **arguments}))
        result = self.dispatcher.wait(task, CONTROL_SECONDS, is_cancelled)
        if result is None:
            self.dispatcher.abandon(task)
            raise UpstreamError(f"{operation} took more than {CONTROL_SECONDS:.0f} s", code="TIMED_OUT")
        return result.get("result") or {}

    def register_connector(self, config: Mapping[str, Any], is_cancelled: Callable[[], bool]) -> dict[str, Any]:
        found = self.control("validate", config, is_cancelled)
        catalog, options = config["catalog"], config["options"]
        masked = mask(options)
        self.vault.set(catalog, options, masked)
        self.database.write(
            lambda connection: self.catalog.put_connector(
                connection, catalog, config["format"], mask_uri(config["uri"]), masked
            )
        )
        return {"catalog": catalog, "format": config["format"], "uri": mask_uri(config["uri"]), "options": masked,
                "state": "ACTIVE", "namespaces": found.get("namespaces", [])}  # fmt: skip

    def discover(
        self, catalog: str, table: str | None, full_rescan: bool, is_cancelled: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        """Looks at a lake and stores what it finds; one result per table, errors included."""
        config = self.config(catalog)
        only = self._within(catalog, table) if table else None
        known = {}
        if not full_rescan:
            known = {
                f"{e.table_schema}\0{e.table_name}": [s.snapshot_id for s in self.catalog.snapshots(e)]
                for e in self.catalog.tables()
                if e.table_catalog == catalog and only in (None, [e.table_schema, e.table_name])
            }
        try:
            found = self.control("discover", config, is_cancelled, only=only, known=known, full_rescan=full_rescan)
        except StatflightError as trouble:
            reason = str(trouble)
            self.database.write(lambda connection: self.catalog.note_connector(connection, catalog, reason))
            raise
        stored = self._store_discovered(catalog, config["format"], found, only is None)
        names = {(catalog, t["schema"], t["name"]) for t in found["tables"]}
        try:
            self.auto.look(catalog, [t for t in self.catalog.tables() if t.name in names])
        except StatflightError as trouble:  # a policy's trouble is not the discovery's
            log.warning("auto-analyze of %s: %s", catalog, trouble)
        return stored

    def _within(self, catalog: str, table: str) -> list[str]:
        try:
            first, schema, name = split_name(table if table.startswith(f"{catalog}.") else f"{catalog}.{table}")
        except ValueError as wrong:
            raise InvalidArgument(str(wrong)) from None
        return [schema, name] if first == catalog else [first, name]

    def _store_discovered(
        self, catalog: str, format: str, found: Mapping[str, Any], whole: bool
    ) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        present = {(t["schema"], t["name"]) for t in found["tables"]}
        present |= {(e["schema"], e["name"]) for e in found["errors"]}

        def run(connection: Any) -> None:
            results.clear()
            for table in found["tables"]:
                entry = self.catalog.discovered(connection, catalog, format, table, present if whole else ())
                results.append({
                    "table": entry.full_name, "table_id": entry.table_id, "snapshots": len(table["snapshots"]),
                    "current_snapshot_id": entry.current_snapshot_id,
                })  # fmt: skip
            results.extend(
                {"table": f"{catalog}.{error['schema']}.{error['name']}", "error": error["reason"]}
                for error in found["errors"]
            )
            if whole:
                self.catalog.forget_missing(
                    connection, catalog, lambda entry: (entry.table_schema, entry.table_name) in present
                )
            self.catalog.note_connector(connection, catalog, None)

        self.database.write(run)
        return results

    # Captures.

    def refresh(self, asks: Sequence[Ask], tables: Sequence[TableEntry], is_cancelled: Callable[[], bool]) -> None:
        """Looks what is current now in the lake, for captures of the current snapshot; a lake in trouble keeps what is
        known, the capture itself will tell."""
        wanted = {t.table_key: t for a, t in zip(asks, tables, strict=True) if a.snapshot == CURRENT}
        for table in wanted.values():
            if table.format != EXTERNAL:
                try:
                    self.discover(table.table_catalog, table.full_name, False, is_cancelled)
                except (UpstreamError, NotFound, InvalidArgument):
                    continue

    def snapshots_of(
        self, snapshot: str | int, table: TableEntry, known: dict[tuple[int, str | int], list[int]]
    ) -> list[int]:
        """The snapshot ids that a request is about; `known` keeps the answers of one call."""
        key = (table.table_key, snapshot)
        if key not in known:
            if snapshot == ALL:
                known[key] = [s.snapshot_id for s in self.catalog.snapshots(table) if s.is_live]
            elif snapshot == CURRENT:
                current = self.catalog.by_key(table.table_key).current_snapshot_id
                known[key] = [] if current is None else [current]
            else:
                known[key] = [int(snapshot)]  # looked up already
        return known[key]

    def capture_payload(
        self, table: TableEntry, requests: Sequence[Mapping[str, Any]], mode: str, correlation_id: str
    ) -> dict[str, Any]:
        """What a worker needs to capture: connector, table, schemas and column ids, and requests with `snapshot_id`."""
        by_id = {s.snapshot_id: s.schema_hash for s in self.catalog.snapshots(table)}
        snapshots = {}
        for snapshot_id in dict.fromkeys(r["snapshot_id"] for r in requests):
            snapshots[str(snapshot_id)] = self.catalog.schema_columns(table, by_id.get(snapshot_id))
        return {
            "connector": self.config(table.table_catalog),
            "table": {"catalog": table.table_catalog, "schema": table.table_schema, "name": table.table_name,
                      "table_id": table.table_id},
            "column_ids": self.catalog.column_ids(table), "snapshots": snapshots, "requests": list(requests),
            "mode": mode, "correlation_id": correlation_id,
        }  # fmt: skip

    def start_capture(self, table: TableEntry, requests: Sequence[Mapping[str, Any]], correlation_id: str) -> Task:
        payload = self.capture_payload(table, requests, "SYNC", correlation_id)
        light = self.is_light(table, requests)
        return self.dispatcher.submit(Task("sync", payload, table.table_key, correlation_id, light))

    def is_light(self, table: TableEntry, bodies: Sequence[Mapping[str, Any]]) -> bool:
        """Whether engines that read metadata only are the first to take each of these requests."""
        engines = computed.engine_rows(self)
        able = (takers(engines, body["target"], table.format, body["kinds"], body["sampling"]) for body in bodies)
        return all(not rows or rows[0]["priority"] >= NATIVE_PRIORITY for rows in able)

    def _payload_of_job(self, lease: Lease) -> Mapping[str, Any]:
        table = self.catalog.by_key(lease.table_key)
        requests = [
            {**body, "snapshot_id": snapshot_id}
            for body in lease.request["requests"] for snapshot_id in self._ids_of(lease.snapshot, body, table)
        ]  # fmt: skip
        if not requests:
            raise NotFound(f'"{table.full_name}" has no snapshot', code="UNKNOWN_SNAPSHOT")
        if lease.request.get("missing_only"):
            wanted = [(table.table_key, r["snapshot_id"], Target.parse(r["target"])) for r in requests]
            found = zip(requests, self.records.find(wanted), strict=True)
            missing = [r for r, record in found if record is None or not answers(record, r["kinds"])]
            if not missing:
                return {"requests": [], "held": sorted({r["snapshot_id"] for r in requests})}
            requests = missing
        return self.capture_payload(table, requests, "ASYNC", str(lease.request.get("correlation_id", "")))

    def _ids_of(self, snapshot: str, body: Mapping[str, Any], table: TableEntry) -> list[int]:
        if "snapshot_id" in body:
            return [body["snapshot_id"]]
        if snapshot == ALL:
            return [s.snapshot_id for s in self.catalog.snapshots(table) if s.is_live]
        if snapshot == CURRENT:
            return [table.current_snapshot_id] if table.current_snapshot_id is not None else []
        return [int(snapshot)]

    def enqueue(
        self, table: TableEntry, snapshot: str | int, bodies: Sequence[Mapping[str, Any]], correlation_id: str,
        *, missing_only: bool = False,
    ) -> str:  # fmt: skip
        """Queues a capture; with `missing_only`, of what is not stored yet when its turn comes."""
        request: dict[str, Any] = {"requests": list(bodies), "correlation_id": correlation_id}
        if missing_only:
            request["missing_only"] = True
        targets = [Target.parse(body["target"]).storage_id for body in bodies]
        priority = LIGHT if self.is_light(table, bodies) else SCAN
        job_id = self.jobs.enqueue(table, str(snapshot), "ASYNC", request, targets, priority)
        self.dispatcher.notify()
        return job_id


_FIELDS_OF = {
    "ROW_COUNT": ("row_count",), "FILE_COUNT": ("data_file_count",), "TOTAL_BYTES": ("total_size_bytes",),
    "NULL_COUNT": ("null_count",), "NDV": ("ndv",), "WIDTH": ("avg_width_bytes",), "MIN_MAX": ("min", "max"),
}  # fmt: skip


def answers(record: Mapping[str, Any], kinds: Sequence[str]) -> bool:
    """Whether a record holds the kinds asked for. An engine computes all there is, of texts no histogram."""
    if "HISTOGRAM" in kinds and parse_type(record.get("logical_type") or "STRING").kind not in NUMERIC:
        return False
    if record.get("producer") == "ENGINE_COMPUTED":
        return True
    return all(any(record.get(name) is not None for name in _FIELDS_OF[kind]) for kind in kinds if kind in _FIELDS_OF)


@dataclass
class _RunningTask:
    """A task as the orchestrator sees it."""

    dispatcher: Dispatcher
    task: Task

    def wait(self, seconds: float) -> bool:
        if seconds <= 0:
            return self.task.done.is_set()
        return self.task.done.wait(seconds)

    def outcome(self, question: Question) -> tuple[str, str]:
        if self.task.error is not None:
            raise self.task.error
        result = self.task.result or {}
        for outcome in result.get("outcomes", []):
            if outcome["storage_id"] == question.target.storage_id and outcome["snapshot_id"] == question.snapshot_id:
                return outcome["outcome"], outcome["detail"]
        return "DEGRADED", "no capture result"


@dataclass
class _Plane:
    """The orchestrator's hands."""

    service: Service

    def lookup(self, questions: Sequence[Question]) -> list[Mapping[str, Any] | None]:
        found = self.service.records.find([(q.table_key, q.snapshot_id, q.target) for q in questions])
        return [r if r is not None and answers(r, q.kinds) else None for q, r in zip(questions, found, strict=True)]

    def is_light(self, question: Question) -> bool:
        return self.service.is_light(self.service.catalog.by_key(question.table_key), [question.body])

    def start(self, questions: Sequence[Question]) -> _RunningTask:
        table = self.service.catalog.by_key(questions[0].table_key)
        requests = [{**q.body, "snapshot_id": q.snapshot_id} for q in questions]
        task = self.service.start_capture(table, requests, str(questions[0].body.get("correlation_id", "")))
        return _RunningTask(self.service.dispatcher, task)

    def follow_up(self, questions: Sequence[Question]) -> None:
        table = self.service.catalog.by_key(questions[0].table_key)
        engines = computed.engine_rows(self.service)
        bodies = [
            {**q.body, "snapshot_id": q.snapshot_id} for q in questions
            if takers(engines, q.body["target"], table.format, q.kinds, q.body["sampling"])
        ]  # fmt: skip
        if bodies:
            snapshots = {body["snapshot_id"] for body in bodies}
            snapshot = str(next(iter(snapshots))) if len(snapshots) == 1 else ALL
            self.service.enqueue(table, snapshot, bodies, "", missing_only=True)


def question(ask: Ask, table: TableEntry, snapshot_id: int) -> Question:
    return Question(
        table.table_key, snapshot_id, ask.target, ask.kinds, Mode(ask.mode), ask.latency_budget_ms,
        ask.told, table.format != EXTERNAL,
    )  # fmt: skip

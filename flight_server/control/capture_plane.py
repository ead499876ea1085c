"""Captures as the server runs them: what a worker is told, which lane takes it, and how `resolve` waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from capture.compute.partial import NUMERIC
from capture.engines import takers
from capture.orchestrator import Question
from capture.spi import Mode
from flight_server.control.lakes import Lakes
from flight_server.control.task_queue import Dispatcher, Task
from flight_server.reads.record_cache import Records
from flight_server.wire.action_bodies import ALL, Ask
from flight_server.wire.scan_request import CURRENT
from store.catalog_store import EXTERNAL, Catalog, TableEntry
from store.errors import NotFound
from store.job_store import LIGHT, SCAN, JobStore, Lease
from store.logical_types import parse as parse_type
from store.targets import Target

NATIVE_PRIORITY: Final = 1000  # engines from here on read metadata only


class Captures:
    """Builds, starts and queues captures.

    Args:
        catalog: The tables.
        jobs: The durable queue.
        records: What is stored already.
        lakes: How each lake is reached.
        dispatcher: The tasks of workers.
        engines: Rows of `sys.engines`, best first.
    """

    def __init__(
        self, catalog: Catalog, jobs: JobStore, records: Records, lakes: Lakes, dispatcher: Dispatcher,
        engines: Callable[[], Sequence[Mapping[str, Any]]],
    ):  # fmt: skip
        self.catalog, self.jobs, self.records = catalog, jobs, records
        self.lakes, self.dispatcher, self.engines = lakes, dispatcher, engines

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

    def payload(
        self, table: TableEntry, requests: Sequence[Mapping[str, Any]], mode: str, correlation_id: str
    ) -> dict[str, Any]:
        """What a worker needs to capture: connector, table, schemas and column ids, and requests with `snapshot_id`."""
        by_id = {s.snapshot_id: s.schema_hash for s in self.catalog.snapshots(table)}
        snapshots = {}
        for snapshot_id in dict.fromkeys(r["snapshot_id"] for r in requests):
            snapshots[str(snapshot_id)] = self.catalog.schema_columns(table, by_id.get(snapshot_id))
        return {
            "connector": self.lakes.config(table.table_catalog),
            "table": {"catalog": table.table_catalog, "schema": table.table_schema, "name": table.table_name,
                      "table_id": table.table_id},
            "column_ids": self.catalog.column_ids(table), "snapshots": snapshots, "requests": list(requests),
            "mode": mode, "correlation_id": correlation_id,
        }  # fmt: skip

    def start(
        self, table: TableEntry, requests: Sequence[Mapping[str, Any]], correlation_id: str, *, listed: bool = True
    ) -> Task:  # fmt: skip
        """Begins a capture that somebody waits for; `listed` while it runs among the jobs."""
        payload = self.payload(table, requests, "SYNC", correlation_id)
        light = self.is_light(table, requests)
        return self.dispatcher.submit(Task("sync", payload, table.table_key, correlation_id, light, listed))

    def is_light(self, table: TableEntry, bodies: Sequence[Mapping[str, Any]]) -> bool:
        """Whether engines that read metadata only are the first to take each of these requests."""
        engines = self.engines()
        able = (takers(engines, body["target"], table.format, body["kinds"], body["sampling"]) for body in bodies)
        return all(not rows or rows[0]["priority"] >= NATIVE_PRIORITY for rows in able)

    def payload_of_job(self, lease: Lease) -> Mapping[str, Any]:
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
        return self.payload(table, requests, "ASYNC", str(lease.request.get("correlation_id", "")))

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
class ResolvePlane:
    """`capture.orchestrator.ControlPlane` of this server."""

    captures: Captures

    def lookup(self, questions: Sequence[Question]) -> list[Mapping[str, Any] | None]:
        found = self.captures.records.find([(q.table_key, q.snapshot_id, q.target) for q in questions])
        return [r if r is not None and answers(r, q.kinds) else None for q, r in zip(questions, found, strict=True)]

    def is_light(self, question: Question) -> bool:
        return self.captures.is_light(self.captures.catalog.by_key(question.table_key), [question.body])

    def start(self, questions: Sequence[Question]) -> _RunningTask:
        table = self.captures.catalog.by_key(questions[0].table_key)
        requests = [{**q.body, "snapshot_id": q.snapshot_id} for q in questions]
        task = self.captures.start(table, requests, str(questions[0].body.get("correlation_id", "")), listed=False)
        return _RunningTask(self.captures.dispatcher, task)

    def follow_up(self, questions: Sequence[Question]) -> None:
        table = self.captures.catalog.by_key(questions[0].table_key)
        engines = self.captures.engines()
        bodies = [
            {**q.body, "snapshot_id": q.snapshot_id} for q in questions
            if takers(engines, q.body["target"], table.format, q.kinds, q.body["sampling"])
        ]  # fmt: skip
        if bodies:
            snapshots = {body["snapshot_id"] for body in bodies}
            snapshot = str(next(iter(snapshots))) if len(snapshots) == 1 else ALL
            self.captures.enqueue(table, snapshot, bodies, "", missing_only=True)


def question(ask: Ask, table: TableEntry, snapshot_id: int) -> Question:
    return Question(
        table.table_key, snapshot_id, ask.target, ask.kinds, Mode(ask.mode), ask.latency_budget_ms,
        ask.told, table.format != EXTERNAL,
    )  # fmt: skip

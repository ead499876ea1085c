"""Captures in the server: the payload for a worker, the lane it goes to, and how `resolve` waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from capture.engines import refused, supporting
from capture.orchestrator import Answer, ControlPlane, Question
from capture.spec import CaptureSpec, impossible, lacking
from capture.spec_body import parse_spec
from capture.spi import METADATA_PRIORITY, Mode
from flight_server.core.control.job_queue import NO_WORKER, JobQueue, no_worker
from flight_server.core.control.lakes import Lakes
from flight_server.core.reads.records import RecordFinder
from flight_server.core.wire.scan_request import ALL, CURRENT
from store.catalog import capture_facts
from store.catalog.catalog import Catalog
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound, StatflightError, UpstreamError
from store.model.logical_types import HASHED, NUMERIC
from store.model.logical_types import parse as parse_type
from store.queue.job_store import JobStore
from store.queue.jobs import LIGHT, SCAN, Job, sync_job

Pinned: TypeAlias = tuple[int, CaptureSpec]
"""A spec and the id of the snapshot it is for."""


class Captures:
    """Builds, starts and queues captures.

    Args:
        engines: Rows of `sys.engines`, best first.
    """

    def __init__(
        self,
        catalog: Catalog,
        jobs: JobStore,
        records: RecordFinder,
        lakes: Lakes,
        queue: JobQueue,
        engines: Callable[[], Sequence[Mapping[str, Any]]],
    ):
        self.catalog, self.jobs, self.records = catalog, jobs, records
        self.lakes, self.queue, self.engines = lakes, queue, engines
        self._calls: dict[threading.Event, tuple[str, str]] = {}  # set once cancelled → caller and correlation id

    @contextlib.contextmanager
    def cancellable(self, caller: str, correlation_id: str) -> Iterator[Callable[[], bool]]:
        """Lets `cancel` end a call that captures; yields a function that is true once it has."""
        cancelled = threading.Event()
        self._calls[cancelled] = caller, correlation_id
        try:
            yield cancelled.is_set
        finally:
            del self._calls[cancelled]

    def cancel(self, caller: str, correlation_id: str) -> int:
        """Cancels what the calls of a caller with this correlation id capture; returns the number of calls."""
        named = [event for event, call in self._calls.copy().items() if call == (caller, correlation_id)]
        for event in named:
            event.set()
        return len(named)

    def snapshots_of(self, snapshot: str | int, table: TableEntry) -> list[int]:
        """Snapshot ids of a request's `current`, `all` or id; an id is not looked up."""
        if snapshot == ALL:
            return [s.snapshot_id for s in self.catalog.snapshots(table) if s.is_live]
        if snapshot == CURRENT:
            current = self.catalog.by_key(table.table_key).current_snapshot_id
            return [] if current is None else [current]
        return [int(snapshot)]

    def payloads(
        self, wanted: Sequence[tuple[TableEntry, Sequence[Pinned]]], mode: Mode, correlation_id: str
    ) -> list[dict[str, Any]]:
        """Payloads of captures for a worker: connector, table, schemas, column ids, and the requests as JSON."""
        pinned = dict.fromkeys((t.table_key, snapshot_id) for t, pins in wanted for snapshot_id, _ in pins)
        columns = capture_facts.snapshot_columns(self.catalog.database, list(pinned))
        ids = capture_facts.column_ids(self.catalog.database, {table.table_key for table, _ in wanted})
        with_statistics = capture_facts.with_statistics(self.catalog.presence, ids)
        contradicted = capture_facts.contradicted(self.catalog.database, with_statistics)
        configs = {catalog: self.lakes.config(catalog) for catalog in {table.table_catalog for table, _ in wanted}}
        return [
            {
                "connector": configs[table.table_catalog],
                "table": {
                    "catalog": table.table_catalog,
                    "schema": table.table_schema,
                    "name": table.table_name,
                    "table_id": table.table_id,
                },
                "column_ids": ids[table.table_key],
                "has_statistics": table.table_key in with_statistics,
                "contradicted": contradicted.get(table.table_key, []),
                "segment_cells": self.catalog.database.segments.cells,
                "mode": str(mode),
                "correlation_id": correlation_id,
                "snapshots": {str(i): columns.get((table.table_key, i), []) for i, _ in pins},
                "requests": [{**spec.json, "snapshot_id": snapshot_id} for snapshot_id, spec in pins],
            }
            for table, pins in wanted
        ]

    def start(
        self, wanted: Sequence[tuple[TableEntry, Sequence[Pinned]]], correlation_id: str, *, listed: bool = True
    ) -> list[Job]:
        """Hands captures that a caller waits for to the workers; a worker may lease several of them at once.

        Args:
            listed: The captures are in the list of jobs meanwhile.

        Returns:
            The job of each.
        """
        payloads = self.payloads(wanted, Mode.SYNC, correlation_id)
        jobs = [
            sync_job(
                table,
                payload,
                correlation_id,
                [spec.target.storage_id for _, spec in pins],
                priority=self._priority(table, [spec for _, spec in pins]),
                listed=listed,
                bundled=len(wanted) > 1,
            )
            for payload, (table, pins) in zip(payloads, wanted, strict=True)
        ]
        self.queue.submit(jobs)
        return jobs

    def _priority(self, table: TableEntry, specs: Sequence[CaptureSpec]) -> int:
        return LIGHT if self.is_light(table, specs) else SCAN

    def is_light(self, table: TableEntry, specs: Sequence[CaptureSpec]) -> bool:
        """True when an engine that reads metadata only is the first choice for each of these. It seldom knows widths,
        and then the data is read."""
        engines = self.engines()
        alike = {(s.target.kind, s.target.engine_kind, s.kinds, s.sampling, s.budget, s.partitions): s for s in specs}
        able = (supporting(engines, table.format, spec) for spec in alike.values())
        light = all(not rows or rows[0]["priority"] >= METADATA_PRIORITY for rows in able)
        return light and not any("WIDTH" in spec.kinds for spec in specs)

    def enqueue(
        self,
        captures: Sequence[tuple[TableEntry, str | int, Sequence[tuple[int | None, CaptureSpec]]]],
        correlation_id: str,
        *,
        missing_only: bool = False,
    ) -> list[str]:
        """Queues durable captures in one transaction.

        Args:
            captures: Of each the table; its snapshot, an id, or `current` or `all`, both as of when the job starts; and
                specs, each with the id of its snapshot, None for that one.
            missing_only: Captures only what is not stored yet when the job starts.

        Returns:
            The ids of the jobs, in order: of a new one, or of the active one that captures the same.
        """
        priorities: dict[tuple[str, tuple[CaptureSpec, ...]], int] = {}
        jobs = []
        for table, snapshot, wanted in captures:
            requests = [
                {**spec.json} if snapshot_id is None else {**spec.json, "snapshot_id": snapshot_id}
                for snapshot_id, spec in wanted
            ]
            request: dict[str, Any] = {"requests": requests, "correlation_id": correlation_id}
            if missing_only:
                request["missing_only"] = True
            specs = tuple(spec for _, spec in wanted)
            kind = table.format, specs
            if kind not in priorities:  # tables of one format with equal specs go to the same engines
                priorities[kind] = self._priority(table, specs)
            targets = [spec.target.storage_id for spec in specs]
            jobs.append(
                Job(
                    "job",
                    table=table,
                    snapshot=str(snapshot),
                    targets=targets,
                    request=request,
                    priority=priorities[kind],
                )
            )
        ids = self.jobs.enqueue(jobs)
        self.queue.notify()
        return ids

    def payloads_of(self, jobs: Sequence[Job]) -> list[Mapping[str, Any] | StatflightError]:
        """Makes the payloads of durable jobs that are about to start, with one set of queries; what a job for missing
        statistics still lacks is looked up for each.

        Returns:
            For each job its payload, which has no requests when nothing is missing; or the reason why it has none: its
            table has no snapshot, or its connector is gone.
        """
        payloads: list[Mapping[str, Any] | StatflightError] = []
        captures: dict[int, tuple[TableEntry, list[Pinned]]] = {}
        for at, job in enumerate(jobs):
            try:
                table, wanted = self._wanted_of(job)
                self.lakes.config(table.table_catalog)
            except StatflightError as error:
                payloads.append(error)
                continue
            missing = self._missing(table, wanted) if (job.request or {}).get("missing_only") else wanted
            payloads.append({"requests": [], "held": sorted({snapshot_id for snapshot_id, _ in wanted})})
            if missing:
                captures[at] = table, missing
        made = self.payloads(list(captures.values()), Mode.ASYNC, "")
        for at, payload in zip(captures, made, strict=True):
            payloads[at] = payload | {"correlation_id": jobs[at].correlation_id}
        return payloads

    def _wanted_of(self, job: Job) -> tuple[TableEntry, list[Pinned]]:
        """Table and specs of a durable job.

        Raises:
            NotFound: The table has no snapshot.
        """
        assert job.table is not None
        table = self.catalog.by_key(job.table.table_key)
        wanted = [
            (snapshot_id, parse_spec(body))
            for body in (job.request or {})["requests"]
            for snapshot_id in self._ids_of(job.snapshot, body, table)
        ]
        if not wanted:
            raise NotFound(f'"{table.full_name}" has no snapshot', code="UNKNOWN_SNAPSHOT")
        return table, wanted

    def _missing(self, table: TableEntry, wanted: Sequence[Pinned]) -> list[Pinned]:
        known = self.known([(table.table_key, snapshot_id, spec) for snapshot_id, spec in wanted])
        return [pinned for pinned, held in zip(wanted, known, strict=True) if held is None]

    def known(self, wanted: Sequence[tuple[int, int, CaptureSpec]]) -> list[Mapping[str, Any] | Answer | None]:
        """Answers questions from the store: a record that holds all requested kinds, a refusal, or None.

        Args:
            wanted: Table key, snapshot id and spec of each question.
        """
        keys = [(table_key, snapshot_id, spec.target) for table_key, snapshot_id, spec in wanted]
        records = self.records.find(keys)
        held = zip(keys, wanted, records, strict=True)
        roles = self.records.whole_sketches(
            [key for key, (*_, spec), record in held if record is not None and _sketches_of(record, spec.kinds)]
        )
        return [
            None if record is None else _answer(record, spec.kinds, roles.get(key, ()) if roles else ())
            for key, (*_, spec), record in zip(keys, wanted, records, strict=True)
        ]

    def _ids_of(self, snapshot: str | None, body: Mapping[str, Any], table: TableEntry) -> list[int]:
        """The snapshot ids of a stored request."""
        if "snapshot_id" in body:
            return [body["snapshot_id"]]
        return self.snapshots_of(snapshot if snapshot in (ALL, CURRENT) else int(snapshot or 0), table)


_SKETCHED: Final = {
    "HISTOGRAM": ("QUANTILES", NUMERIC),
    "MCV": ("MCV", HASHED),
}  # sketch role, and the types that have it
_SKETCHED_KINDS: Final = frozenset(_SKETCHED)


def _sketches_of(record: Mapping[str, Any], kinds: Collection[str]) -> frozenset[str]:
    """The roles of the sketches that a column or expression of this type has for some kinds."""
    if _SKETCHED_KINDS.isdisjoint(kinds):  # nearly always
        return frozenset()
    if (logical_type := record.get("logical_type")) is None or "column_ids" in record:
        return frozenset()
    kind = parse_type(logical_type).kind
    return frozenset(role for name, (role, having) in _SKETCHED.items() if name in kinds and kind in having)


def _answer(
    record: Mapping[str, Any], kinds: Collection[str], roles: Collection[str]
) -> Mapping[str, Any] | Answer | None:
    """A record that holds the requested kinds, a refusal, or None. Engines compute every kind, but sketches only on
    request.

    Args:
        kinds: The requested kinds; empty means any.
        roles: Roles of the target's stored sketches, samples excluded.
    """
    if reason := impossible(record.get("logical_type"), kinds):
        return Answer("FAILED", reason, can_change=False)
    holds = record.get("producer") == "ENGINE_COMPUTED" or not lacking(record, kinds)
    return record if holds and _sketches_of(record, kinds).issubset(roles) else None


@dataclass
class _Running:
    """A job as the orchestrator sees it."""

    queue: JobQueue
    job: Job

    def wait(self, seconds: float) -> bool:
        if seconds <= 0 or self.job.done.is_set():
            return self.job.done.is_set()
        try:
            self.queue.wait(self.job, seconds, lambda: False)
        except StatflightError as error:  # of the job, or no worker is connected: for everyone who waits for it
            self.job.error = UpstreamError(_with_code(error)) if error.code == NO_WORKER else error
            self.job.done.set()
        return self.job.done.is_set()

    def unserved(self) -> str:
        is_idle = not self.job.token and not self.queue.workers.are_connected(self.job.lane)
        return _with_code(no_worker(self.job)) if is_idle else ""

    def outcome(self, question: Question) -> tuple[str, str]:
        if self.job.error is not None:
            raise self.job.error
        wanted = question.spec.target.storage_id, question.snapshot_id
        for outcome in (self.job.result or {}).get("outcomes", []):
            if (outcome["storage_id"], outcome["snapshot_id"]) == wanted:
                return outcome["outcome"], outcome["detail"]
        return "DEGRADED", "no capture result"


def _with_code(error: StatflightError) -> str:
    """An error as text of an outcome, which has no place for its code."""
    return f"[{error.code}] {error}"


@dataclass
class ResolvePlane(ControlPlane):
    """`capture.orchestrator.ControlPlane` of this server."""

    captures: Captures

    def lookup(self, questions: Sequence[Question]) -> list[Mapping[str, Any] | Answer | None]:
        known = self.captures.known([(q.table_key, q.snapshot_id, q.spec) for q in questions])
        for at, (question, record) in enumerate(zip(questions, known, strict=True)):
            if record is None and (refusal := refused(question.spec.target)) is not None:
                known[at] = Answer("FAILED", refusal[1], can_change=False)
        return known

    def is_light(self, question: Question) -> bool:
        return self.captures.is_light(self.captures.catalog.by_key(question.table_key), [question.spec])

    def start(self, questions: Sequence[Question]) -> _Running:
        table = self.captures.catalog.by_key(questions[0].table_key)
        wanted = [(question.snapshot_id, question.spec) for question in questions]
        (job,) = self.captures.start([(table, wanted)], "", listed=False)
        return _Running(self.captures.queue, job)

    def follow_up(self, questions: Sequence[Question]) -> None:
        table = self.captures.catalog.by_key(questions[0].table_key)
        engines = self.captures.engines()
        wanted = [(q.snapshot_id, q.spec) for q in questions if supporting(engines, table.format, q.spec)]
        if wanted:
            snapshots = {snapshot_id for snapshot_id, _ in wanted}
            snapshot = str(next(iter(snapshots))) if len(snapshots) == 1 else ALL
            self.captures.enqueue([(table, snapshot, wanted)], "", missing_only=True)

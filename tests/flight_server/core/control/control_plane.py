"""An in-memory control plane with a clock set by hand, and bodies of requests and outcomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from flight_server.core.control.capture_commit import CaptureCommit
from flight_server.core.control.job_queue import JobQueue
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.history import validation
from store.model.catalog_entries import TableEntry
from store.model.errors import StatflightError
from store.model.schemas import FLIGHTS
from store.model.targets import Target
from store.queue.job_store import JobStore
from store.queue.jobs import Job, sync_job
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.store.empty_store import empty_database

LEASE = 60.0  # seconds
START = datetime(2024, 1, 1, tzinfo=UTC)


class ControlPlane:
    def __init__(self) -> None:
        self.database = empty_database(_with_table)
        self.catalog = Catalog(self.database)
        self.seconds = 0.0  # the time of the clock
        self.jobs = JobStore(self.database, self.catalog.by_key, now=lambda: START + timedelta(seconds=self.seconds))
        self.store = DuckDBStatsStore(self.database, self.catalog, queue=self.jobs)
        self.commit = CaptureCommit(self.jobs, self.store, self.catalog)
        self.queue = JobQueue(self.jobs, self.commit, LEASE, clock=lambda: self.seconds)
        self.table: TableEntry = self.catalog.get("c.s.t")

    def put(self, mode: PutMode = PutMode.UPSERT, rows: int = 5) -> Put:
        """Stores a row of stats.tables."""
        put = self.rows(rows, mode)
        self.store.put([put])
        return put

    def rows(self, rows: int, mode: PutMode = PutMode.UPSERT, flight: str = "stats.tables", **more: Any) -> Put:
        return _rows(rows, mode, flight, **more)

    def durable(self, *ids: int) -> str:
        """Id of a new durable job."""
        bodies = [
            {"target": Target.column(i).to_json() if i else {"kind": "TABLE"}, "snapshot_id": 1} for i in ids or (0,)
        ]
        targets = [Target.parse(body["target"]).storage_id for body in bodies]
        return self.jobs.enqueue([durable_job(self.table, {"requests": bodies}, targets=targets)])[0]

    def enqueue(self, kind: str) -> str:
        """Id of a new durable job or of a new synchronous capture."""
        return self.durable() if kind == "job" else self.submit(sync_job(self.table, requests())).id

    def submit(self, job: Job) -> Job:
        self.queue.submit([job])
        return job

    def lease(self, *kinds: str, timeout: float = 0.0) -> dict[str, Any] | None:
        return next(iter(self.queue.lease("w", kinds or ("job",), timeout, [], lambda: False)), None)

    def finish(self, lease: dict[str, Any], *outcomes: dict[str, Any], **body: Any) -> str:
        ids = {name: lease[name] for name in ("job_id", "lease_token")}
        (answer,) = self.queue.finish([ids | {"outcomes": list(outcomes)} | body])
        if isinstance(answer, StatflightError):
            raise answer
        return answer

    def row_count(self) -> int | None:
        record = self.store.get(self.table, 1, Target.table())
        return record and record["row_count"]


def _rows(rows: int, mode: PutMode, flight: str = "stats.tables", **more: Any) -> Put:
    row = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "row_count": rows} | more
    return Put(flight, validation.prepare(FLIGHTS[flight], pa.Table.from_pylist([row])), mode)


def _with_table(database: Database) -> None:
    """Registers the table, and stores its row."""
    catalog = Catalog(database)
    database.write(lambda connection: catalog.register(connection, ("c", "s", "t"), "id", "delta"))
    DuckDBStatsStore(database, catalog).put([_rows(1, PutMode.UPSERT)])


def durable_job(table: TableEntry, request: dict[str, Any], snapshot: str = "1", **more: Any) -> Job:
    return Job("job", table=table, snapshot=snapshot, request=request, **({"targets": ["table"]} | more))


def requests(*ids: int) -> dict[str, Any]:
    """Payload of a task: requests for these columns, or for the table."""
    targets = [Target.column(i) for i in ids] or [Target.table()]
    return {"requests": [{"target": target.to_json(), "snapshot_id": 1} for target in targets]}


def outcome(word: str = "CAPTURED", detail: str = "", **attributes: Any) -> dict[str, Any]:
    return {
        "outcome": word,
        "engine_id": "e",
        "detail": detail,
        "attributes": attributes,
        "snapshot_id": 1,
        "storage_id": "table",
    }

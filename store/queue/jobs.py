"""A job of the queue: work for a worker, which is stored or kept in memory, and waits, or is leased to one worker."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from store.model.catalog_entries import TableEntry
from store.model.errors import StatflightError
from store.model.targets import Target

MAX_ATTEMPTS: Final = 8
BACKOFF_MS, MAX_BACKOFF_MS = 500, 30_000
LIGHT, SCAN = 0, 30  # priorities: jobs that read metadata only, jobs that read data


@dataclass(eq=False, slots=True)
class Job:
    """Work for a worker.

    A capture that nobody waits for is durable: it has a `request` and a row in the store, and a payload once it is
    leased. Other jobs live in memory: after a restart of the server, callers ask again.

    Attributes:
        kind: Kind of its lease: `control`, `watch`, `sync`, `publish`, or `job` for a durable capture.
        catalog: The lake, for jobs without a table.
        snapshot: An id, `current` or `all`; None for jobs without a table.
        targets: Storage ids, or the operation; shown in the list of jobs.
        request: What a durable job captures; equal requests for one table are one job.
        priority: LIGHT or SCAN: delay in seconds in the order of the durable queue.
        listed: It is in the list of jobs until it ends.
        bundled: One call queued it along with others: a worker may lease several of them at once.
        attempts: Number of leases, those given back before their work began excluded.
        worker_id: The worker that has its lease.
        lost: Number of workers that were lost while they worked on it.
        reading: The file that its worker opened last, which is told after a worker was lost.
        leased_at: Time of its lease, by the queue's clock; so `lease_until` and `touched_at`, of the last progress.
        life: Life of its table (`Catalog.lives`) at its lease.
        is_ending: Its end is being stored; the lease takes no more rows.
        done: Set once it has ended, with `result` or `error`.
    """

    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    table: TableEntry | None = None
    correlation_id: str = ""
    catalog: str | None = None
    snapshot: str | None = None
    targets: Sequence[str] = ()
    request: Mapping[str, Any] | None = None
    priority: int = SCAN
    listed: bool = True
    bundled: bool = False
    id: str = ""
    attempts: int = 0
    worker_id: str = ""
    lost: int = 0
    reading: str = ""
    queued_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started_at: datetime | None = None
    token: str = ""
    life: int = 0
    leased_at: float = 0.0
    lease_until: float = 0.0
    touched_at: float = 0.0
    progress: float | None = None
    message: str = ""
    cancelled: bool = False
    is_ending: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    result: Mapping[str, Any] | None = None
    error: StatflightError | None = None

    def __post_init__(self) -> None:
        if not self.id:
            prefix = "" if self.is_durable else "look-" if self.table is None else "task-"
            self.id = f"{prefix}{uuid.uuid4()}"

    @property
    def is_durable(self) -> bool:
        """True if it is stored, and survives a restart of the server."""
        return self.request is not None

    def fate(self, how: str) -> str:
        """Says why it has failed after workers were lost over it; `how` says how the last one was."""
        workers = "a worker was" if self.lost == 1 else f"{self.lost} workers were"
        file = f', the last one while it read "{self.reading}"' if self.reading else ""
        return f"{workers} lost over it ({how}){file}"

    @property
    def is_discarded(self) -> bool:
        """True for a cancelled capture that somebody waited for: nothing is stored, whatever its worker still does."""
        return self.cancelled and self.kind == "sync"

    @property
    def lane(self) -> str:
        """The lane it waits in."""
        return "light" if self.kind == "sync" and self.priority == LIGHT else self.kind

    def row(self) -> dict[str, Any]:
        """The row of `sys.capture_jobs`, and its `table_key`."""
        names = (self.catalog, None, None) if self.table is None else self.table.name
        return {
            "job_id": self.id,
            "table_key": self.table and self.table.table_key,
            "table_catalog": names[0],
            "table_schema": names[1],
            "table_name": names[2],
            "snapshot": self.snapshot,
            "mode": "ASYNC" if self.is_durable else "LOOK" if self.table is None else "SYNC",
            "state": "CANCELLED"
            if self.is_discarded
            else "CANCELLING"
            if self.cancelled
            else "RUNNING"
            if self.token
            else "QUEUED",
            "targets": json.dumps(list(self.targets)),
            "attempts": self.attempts,
            "queued_at": self.queued_at,
            "started_at": self.started_at,
            "finished_at": None,
            "progress": self.progress or 0.0,
            "degraded": False,
            "stats_processed": 0,
            "message": self.message or None,
        }


def sync_job(
    table: TableEntry,
    payload: Mapping[str, Any],
    correlation_id: str = "",
    targets: Sequence[str] | None = None,
    **more: Any,
) -> Job:
    """Makes the job of a capture that somebody waits for, from its payload.

    Args:
        targets: Storage ids of the targets of its requests; None reads them from the payload.
        more: Further fields of the job.
    """
    snapshots = {str(request["snapshot_id"]) for request in payload["requests"]}
    snapshot = snapshots.pop() if len(snapshots) == 1 else "all"
    if targets is None:
        targets = [Target.parse(request["target"]).storage_id for request in payload["requests"]]
    return Job("sync", payload, table, correlation_id, snapshot=snapshot, targets=targets, **more)


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `sys.capture_jobs` for JSON: targets as a list, times in ISO 8601."""
    job = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
    return job | {"targets": json.loads(job["targets"])}


def digest_of(job: Job) -> str:
    """Digest of what a durable job captures, by which jobs are deduplicated.

    It ignores `latency_budget_ms` and the order of targets and kinds, and resolves `current` to the snapshot id.
    """
    assert job.table is not None
    assert job.request is not None
    current = str(job.table.current_snapshot_id)

    def captured(item: Mapping[str, Any]) -> str:
        at = str(item.get("snapshot_id", job.snapshot))
        rest = {name: value for name, value in item.items() if name not in ("snapshot_id", "latency_budget_ms")}
        at = current if at == "current" else at
        return json.dumps([at, rest | {"kinds": sorted(rest.get("kinds", ()))}], sort_keys=True)

    text = json.dumps([job.table.table_key, sorted(map(captured, job.request["requests"]))])
    return hashlib.sha256(text.encode()).hexdigest()


def backoff(attempts: int) -> timedelta:
    """The delay after so many attempts."""
    return timedelta(milliseconds=min(BACKOFF_MS * 2 ** (attempts - 1), MAX_BACKOFF_MS))

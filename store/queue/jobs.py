"""A job of the capture queue: its content, digest and row, and the lease of the worker that runs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from store.model.catalog_entries import TableEntry

MAX_ATTEMPTS: Final = 8
BACKOFF_MS, MAX_BACKOFF_MS = 500, 30_000
LIGHT, SCAN = 0, 30  # priorities: jobs that read metadata only, jobs that read data


@dataclass(frozen=True, slots=True)
class Lease:
    """A job leased to a worker; the token is required to renew or finish it."""

    job_id: str
    token: str
    table_key: int
    snapshot: str
    mode: str
    request: Mapping[str, Any]
    attempts: int


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be queued.

    Attributes:
        table: The table to capture.
        snapshot: An id, `current` or `all`.
        mode: SYNC or ASYNC.
        request: The request sent to the worker; equal requests for one table are one job.
        targets: Storage ids, shown in the list of jobs.
        priority: LIGHT or SCAN: delay in seconds in the order of the queue.
        attempts: Attempts counted already; if any, the job starts WAITING.
    """

    table: TableEntry
    snapshot: str
    mode: str
    request: Mapping[str, Any]
    targets: Sequence[str]
    priority: int = 0
    attempts: int = 0


def digest_of(table: TableEntry, snapshot: str, request: Mapping[str, Any]) -> str:
    """Digest of what a job captures, by which jobs are deduplicated.

    It ignores `latency_budget_ms` and the order of targets and kinds, and resolves `current` to the snapshot id.
    """

    def captured(item: Mapping[str, Any]) -> str:
        at = str(item.get("snapshot_id", snapshot))
        at = str(table.current_snapshot_id) if at == "current" else at
        rest = {name: value for name, value in item.items() if name not in ("snapshot_id", "latency_budget_ms")}
        return json.dumps([at, rest | {"kinds": sorted(rest.get("kinds", ()))}], sort_keys=True)

    text = json.dumps([table.table_key, sorted(map(captured, request["requests"]))])
    return hashlib.sha256(text.encode()).hexdigest()


def row_of(job_id: str, job: NewJob, digest: str, now: datetime) -> tuple[Any, ...]:
    """The row of `jobs` for a new job."""
    state, not_before = ("WAITING", now + backoff(job.attempts)) if job.attempts else ("QUEUED", None)
    ended = started = lease_until = lease_token = message = None
    return (
        job_id, state, job.table.table_key, *job.table.name, job.snapshot, job.mode, json.dumps(list(job.targets)),
        json.dumps(job.request), digest, job.attempts, job.priority, now, started, ended, not_before, lease_until,
        lease_token, 0.0, False, 0, message,
    )  # fmt: skip


def backoff(attempts: int) -> timedelta:
    """The delay after so many attempts."""
    return timedelta(milliseconds=min(BACKOFF_MS * 2 ** (attempts - 1), MAX_BACKOFF_MS))

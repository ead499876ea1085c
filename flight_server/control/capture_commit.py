"""Commit of a capture: ends it in one transaction that stores its rows, decisions and state, and queues retries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flight_server.control.capture_counters import CaptureCounters
from flight_server.control.task_queue import Task
from flight_server.writes.drafts import Draft, DraftGroup, together
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection
from store.model.catalog_entries import TableEntry
from store.model.errors import Cancelled, Conflict, StatflightError, UpstreamError
from store.model.targets import Target
from store.queue.job_store import JobStore
from store.queue.jobs import MAX_ATTEMPTS, Lease
from store.stats_store import DuckDBStatsStore

log = logging.getLogger("statflight.server")


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A leased durable job, and the requests sent to its worker."""

    lease: Lease
    requests: Sequence[Mapping[str, Any]] = ()
    since: float = 0.0  # by the queue's clock


class CaptureCommit:
    """Commits drafts.

    Attributes:
        on_committed: Called with each table whose statistics have changed.
        counters: Counts for metrics.
    """

    def __init__(self, jobs: JobStore, store: DuckDBStatsStore, catalog: Catalog):
        self._jobs, self._store, self._catalog = jobs, store, catalog
        self.on_committed: Callable[[TableEntry], None] = lambda _: None
        self.counters = CaptureCounters()
        self._drafts = DraftGroup(store)
        self._committing: dict[str, bool] = {}  # durable job → whether it was cancelled meanwhile

    def end_tasks(self, ended: Sequence[tuple[Task, Draft, Mapping[str, Any]]]) -> list[StatflightError | None]:
        """Commits the rows and decisions of captures in one transaction; when it is refused, each in its own.

        Args:
            ended: Task, draft and outcome of each.

        Returns:
            The error of each task that is not stored; None for the others.
        """
        if not ended:
            return []

        def run(connection: Connection) -> list[TableEntry]:
            tables = [self._catalog.by_key(task.table_key or 0) for task, _, _ in ended]
            for table, (_, draft, body) in zip(tables, ended, strict=True):
                self._drafts.commit(connection, draft, table)
                self._note_files(connection, table, body.get("outcomes", []))
            self._jobs.record_decisions([
                (table, task.correlation_id, body.get("decisions", []))
                for table, (task, _, body) in zip(tables, ended, strict=True)
            ])  # fmt: skip
            return tables

        try:
            tables = self._store.database.write(run, lambda: any(task.cancelled for task, _, _ in ended))
        except Exception as error:
            if len(ended) > 1:  # the one at fault gets the error
                return [self.end_tasks([end])[0] for end in ended]
            if isinstance(error, StatflightError):
                return [error]
            log.exception("what task %s captured cannot be stored", ended[0][0].id)
            return [UpstreamError("what was captured could not be stored", code="INTERNAL")]
        self.counters.committed(together(put for _, draft, _ in ended for put in draft.merged()))
        for table in tables:
            self.on_committed(table)
        return [None] * len(ended)

    def end_job(
        self, job: HeldJob, outcomes: Sequence[Mapping[str, Any]], message: str, *, retry: bool,
        draft: Draft | None = None, decisions: Sequence[Mapping[str, Any]] = (),
    ) -> str:  # fmt: skip
        """Ends an attempt. After a partial success, targets that failed or lack files are queued as a new job; its
        engine takes the files captured already from the store, and reads the others."""
        lease = job.lease
        table = self._catalog.by_key(lease.table_key)
        captured = [o for o in outcomes if o["outcome"] == "CAPTURED"]
        if lease.request.get("retry_of"):  # a retry that could read none of the files has failed
            captured = [o for o in captured if not _lacks(o) or o["attributes"].get("files_read")]
        failed = [o for o in outcomes if o["outcome"] != "CAPTURED" or _lacks(o)]
        reason = message or "; ".join(dict.fromkeys(o["detail"] for o in failed if o["detail"]))[:2000]
        correlation_id = str(lease.request.get("correlation_id", ""))
        again = retry and (not outcomes or any(map(_retryable, failed)))

        def run(connection: Connection) -> str:
            rest = self._retry_rest(connection, job, table, outcomes) if captured and again else ""
            state = self._jobs.finish_in(
                connection, lease.job_id, lease.token, captured=len(captured), failed=len(failed), retry=again,
                message="; ".join(filter(None, (reason, rest))),
                stats_processed=len({o["snapshot_id"] for o in captured}),
            )  # fmt: skip
            if state == "SUCCEEDED" and draft is not None:
                self._drafts.commit(connection, draft, table)
            self._note_files(connection, table, outcomes)
            self._jobs.record_decisions([(table, correlation_id, decisions)])
            return state

        self._committing[lease.job_id] = False
        try:
            state = self._commit_job(lease, run)
        finally:
            del self._committing[lease.job_id]
        if state == "SUCCEEDED":
            self.counters.committed(draft.merged() if draft is not None else ())
            self.on_committed(table)
        return state

    def cancel(self, job_id: str) -> None:
        """Ends the commit of a durable job, if it goes on: the writer could not store the cancellation before."""
        if job_id in self._committing:
            self._committing[job_id] = True

    def _commit_job(self, lease: Lease, run: Callable[[Connection], str]) -> str:
        """Runs the commit; when the store refuses the rows, the job ends rather than being retried for ever."""
        try:
            return self._store.database.write(run, lambda: self._committing[lease.job_id])
        except Conflict:  # the lease is lost
            raise
        except Exception as error:
            reason, again = "what was captured could not be stored", False
            cancelled = isinstance(error, Cancelled)
            if isinstance(error, StatflightError):
                reason, again = str(error), error.retryable
                log.warning("what job %s captured is not stored: %s", lease.job_id, reason)
            else:
                log.exception("what job %s captured cannot be stored", lease.job_id)

            def give_up(connection: Connection) -> str:
                if cancelled:
                    self._jobs.cancel_in(connection, lease.job_id)
                return self._jobs.finish_in(
                    connection, lease.job_id, lease.token, captured=0, failed=1, retry=again, message=reason,
                    stats_processed=0,
                )  # fmt: skip

            return self._store.database.write(give_up)

    def _note_files(self, connection: Connection, table: TableEntry, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Records that a data file of the current snapshot is gone, or that a capture could read all files again."""
        table = self._catalog.by_key(table.table_key)
        of_current = [o for o in outcomes if o.get("snapshot_id") == table.current_snapshot_id]
        gone = [o["detail"] for o in of_current if o.get("attributes", {}).get("files_gone")]
        if gone:
            if table.capture_error is None:
                self._catalog.change(connection, table, capture_error=f"capture: {gone[0]}")
        elif table.capture_error is not None and any(map(_read_all, of_current)):
            self._catalog.change(connection, table, capture_error=None)

    def _retry_rest(
        self, connection: Connection, job: HeldJob, table: TableEntry, outcomes: Sequence[Mapping[str, Any]]
    ) -> str:
        """Queues the targets of a job that may be retried; returns a note about it, or an empty text."""
        lease = job.lease
        if lease.attempts >= MAX_ATTEMPTS or len(job.requests) != len(outcomes):
            return ""
        if self._jobs.check(connection, lease.job_id, lease.token) != "RUNNING":
            return ""
        rest = [r for r, o in zip(job.requests, outcomes, strict=True) if _retryable(o)]
        if not rest:
            return ""
        request = {"requests": rest, "correlation_id": lease.request.get("correlation_id", ""),
                   "retry_of": lease.job_id}  # fmt: skip
        targets = [Target.parse(body["target"]).storage_id for body in rest]
        job_id = self._jobs.enqueue_in(
            connection, table, lease.snapshot, lease.mode, request, targets, attempts=lease.attempts
        )
        return f"{len(rest)} of {len(outcomes)} go on as job {job_id}"


def _lacks(outcome: Mapping[str, Any]) -> bool:
    """True when a target was captured without some of its files."""
    return outcome["outcome"] == "CAPTURED" and bool(outcome.get("attributes", {}).get("files_failed"))


def _read_all(outcome: Mapping[str, Any]) -> bool:
    """True if a capture read data files, and could read each that it lacked."""
    attributes = outcome.get("attributes", {})
    return (
        outcome["outcome"] == "CAPTURED" and bool(attributes.get("files_read")) and not attributes.get("files_failed")
    )


def _retryable(outcome: Mapping[str, Any]) -> bool:
    may = outcome["outcome"] == "DEGRADED" or _lacks(outcome)
    return may and outcome.get("attributes", {}).get("retryable") is not False

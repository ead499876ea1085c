"""Commit of captures: ends them in one transaction that stores their rows, decisions and states, and queues retries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flight_server.core.control.capture_counters import CaptureCounters
from flight_server.core.writes.drafts import Draft, store_drafts
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection
from store.history.file_listings import ListingChanged
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound, StatflightError, UpstreamError
from store.model.targets import Target
from store.queue.job_store import JobStore, Tried
from store.queue.jobs import MAX_ATTEMPTS, Job
from store.stats_store import DuckDBStatsStore

log = logging.getLogger("statflight.server")


class End(NamedTuple):
    """The end of a lease.

    Attributes:
        body: `outcomes`, `decisions`, `result`, `error`, `message` and `final`, as its worker reports them.
    """

    job: Job
    draft: Draft
    body: Mapping[str, Any]

    @property
    def outcomes(self) -> Sequence[Mapping[str, Any]]:
        """The outcomes of its requests, in order; none if the work failed as a whole."""
        return self.body.get("outcomes", ())

    @property
    def table(self) -> TableEntry:
        """The table of the job."""
        assert self.job.table is not None
        return self.job.table


class CaptureCommit:
    """Commits drafts.

    Args:
        on_committed: Called with each table whose statistics have changed.

    Attributes:
        counters: Counts for metrics.
    """

    def __init__(
        self,
        jobs: JobStore,
        store: DuckDBStatsStore,
        catalog: Catalog,
        *,
        on_committed: Callable[[TableEntry], None] = lambda _: None,
    ):
        self._jobs, self._store, self._catalog, self.on_committed = jobs, store, catalog, on_committed
        self.counters = CaptureCounters()

    def begin(self, jobs: Sequence[Job]) -> None:
        """Notes which tables the jobs read from their lease on: what is read of others is not stored."""
        for job in jobs:
            if job.table is not None:
                job.life = self._catalog.lives[job.table.table_key]

    def draft(self, job: Job) -> Draft:
        """A new draft for a leased job."""
        return Draft(self._store, lambda: job.cancelled)

    def end(self, ends: Sequence[End]) -> list[str | StatflightError]:
        """Commits captures in one transaction; when it is refused or one of them is cancelled, each in its own.

        Returns:
            The state of each job after it, or the error of one that is not stored.
        """
        if not ends:
            return []
        wanted = [end.job for end in ends if not (end.job.is_durable and end.job.cancelled)]

        try:
            for end in ends:
                if not end.job.cancelled:
                    end.draft.settle()
            states = self._store.database.write(
                lambda connection: self._stored(connection, ends), lambda: any(job.cancelled for job in wanted)
            )
        except Exception as error:
            if len(ends) > 1:  # the one at fault gets the error
                return [state for end in ends for state in self.end([end])]
            return [self._refused(ends[0].job, error)]
        self._report_committed([end for end, state in zip(ends, states, strict=True) if state == "SUCCEEDED"])
        return [*states]

    def _report_committed(self, committed: Sequence[End]) -> None:
        """Counts captures that are stored, and reports the tables whose statistics have changed."""
        self.counters.committed([size for end in committed for size in end.draft.sizes])
        for end in committed:
            self.on_committed(self._catalog.by_key(end.table.table_key))

    def _stored(self, connection: Connection, ends: Sequence[End]) -> list[str]:
        """Stores captures in a transaction; returns the state of each job after it."""
        durable = [end for end in ends if end.job.is_durable]
        job_ids = [end.job.id for end in durable]
        self._jobs.check_held(job_ids, connection)
        cancelling = self._jobs.cancelling(job_ids, connection)
        for end in durable:
            end.job.cancelled |= end.job.id in cancelling
        tried = [self._tried(connection, end) for end in durable]
        states = {each.job.id: each.state() for each in tried}
        after = [states.get(end.job.id, "SUCCEEDED") for end in ends]
        captured = [end for end, state in zip(ends, after, strict=True) if state == "SUCCEEDED"]
        for end in captured:
            self._check_same(end)
        store_drafts(connection, self._store, [(end.draft, end.table) for end in captured])
        for end in ends:
            self._note_files(connection, end)
        decisions = [(end.table, end.job.correlation_id, end.body.get("decisions", ())) for end in ends]
        self._jobs.record_decisions(decisions, connection)
        self._jobs.finish(tried, connection)  # after its decisions, so that they lie within its time
        return after

    def _check_same(self, end: End) -> None:
        """Refuses what was captured of a table that is not the one of its name any more: rows name it, so that they
        would become another's, or those of a new external table.

        Raises:
            NotFound: It was dropped, renamed or replaced.
            ListingChanged: It was created again under the same id.
        """
        key = end.table.table_key
        now = self._catalog.find(end.table.name)
        if now is None or now.table_key != key:
            raise NotFound(
                f'"{end.table.full_name}" was dropped or replaced while it was captured', code="UNKNOWN_TABLE"
            )
        if self._catalog.lives[key] != end.job.life:
            raise ListingChanged

    def _tried(self, connection: Connection, end: End) -> Tried:
        """The try of a durable job. After a partial success, targets that failed or lack files are queued as a new
        job; its engine takes the files captured already from the store, and reads the others."""
        job, outcomes = end.job, end.outcomes
        captured = _captured(job, outcomes)
        failed = [outcome for outcome in outcomes if outcome["outcome"] != "CAPTURED" or _lacks(outcome)]
        details = dict.fromkeys(outcome["detail"] for outcome in failed if outcome["detail"])
        reason = end.body.get("message") or "; ".join(details)[:2000]
        retry = _may_retry(end, failed)
        rest = self._retry_rest(connection, job, outcomes) if captured and retry and not job.cancelled else ""
        message = "; ".join(filter(None, (reason, rest)))
        snapshots = {outcome["snapshot_id"] for outcome in captured}
        return Tried(job, len(captured), len(failed), retry, message, len(snapshots))

    def _refused(self, job: Job, error: Exception) -> str | StatflightError:
        """Ends a capture that the store refuses: a durable job is not retried for ever."""
        if not isinstance(error, StatflightError):
            log.exception("what job %s captured cannot be stored", job.id, exc_info=error)
            error = UpstreamError("what was captured could not be stored", code="INTERNAL")
            error.retryable = False
        if not job.is_durable:
            return error
        log.warning("what job %s captured is not stored: %s", job.id, error)
        tried = Tried(job, captured=0, failed=1, retry=error.retryable, message=str(error), stats_processed=0)
        try:
            self._store.database.write(lambda connection: self._jobs.finish([tried], connection))
        except StatflightError as refusal:
            return refusal
        return tried.state()

    def _note_files(self, connection: Connection, end: End) -> None:
        """Records that a data file of the current snapshot is gone, or that a capture could read all files again."""
        table = self._catalog.by_key(end.table.table_key)
        of_current = [o for o in end.outcomes if o.get("snapshot_id") == table.current_snapshot_id]
        gone = [o["detail"] for o in of_current if o.get("attributes", {}).get("files_gone")]
        if gone:
            if table.capture_error is None:
                self._catalog.change(connection, {table.table_key: {"capture_error": f"capture: {gone[0]}"}})
        elif table.capture_error is not None and any(map(_read_all, of_current)):
            self._catalog.change(connection, {table.table_key: {"capture_error": None}})

    def _retry_rest(self, connection: Connection, job: Job, outcomes: Sequence[Mapping[str, Any]]) -> str:
        """Queues the targets of a job that may be retried; returns a note about it, or an empty text."""
        requests = job.payload.get("requests", ())
        if job.attempts >= MAX_ATTEMPTS or len(requests) != len(outcomes):
            return ""
        rest = [request for request, outcome in zip(requests, outcomes, strict=True) if _retryable(outcome)]
        if not rest:
            return ""
        request = {"requests": rest, "correlation_id": job.correlation_id, "retry_of": job.id}
        targets = [Target.parse(body["target"]).storage_id for body in rest]
        new = Job(
            "job", table=job.table, snapshot=job.snapshot, targets=targets, request=request, attempts=job.attempts
        )
        (job_id,) = self._jobs.enqueue([new], connection)
        return f"{len(rest)} of {len(outcomes)} go on as job {job_id}"


def _captured(job: Job, outcomes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The outcomes that count as captured; a retry that could read none of the files it is about has failed."""
    captured = [outcome for outcome in outcomes if outcome["outcome"] == "CAPTURED"]
    if not (job.request or {}).get("retry_of"):
        return captured
    return [outcome for outcome in captured if not _lacks(outcome) or outcome["attributes"].get("files_read")]


def _may_retry(end: End, failed: Sequence[Mapping[str, Any]]) -> bool:
    """True if a try again may succeed: of the work that failed as a whole, or of one of the failed outcomes."""
    error = end.body.get("error") or {}
    if end.body.get("final") or not error.get("retryable", True):
        return False
    return not end.outcomes or any(map(_retryable, failed))


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

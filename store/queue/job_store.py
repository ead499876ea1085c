"""The durable jobs: states, deduplication, order, retries with backoff. `core/control/job_queue.py` leases them.

A job is QUEUED, then RUNNING under a lease, then SUCCEEDED, FAILED or CANCELLED; between two tries it is WAITING, and
CANCELLING until its worker has noticed a cancellation. One job per table runs at a time. Leases are in the memory of
the server that holds the job: its start gives back those that it held before, and what a server held that is gone is
given back by another.

Jobs are leased in the order of queueing time plus priority in seconds: a light job (priority 0) overtakes scans queued
up to half a minute before it, and no job waits for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from store.duckdb.commit import Queue
from store.duckdb.commit_log import Applied
from store.duckdb.database import Connection, Database, insert_rows
from store.model.catalog_entries import TableEntry
from store.model.errors import Conflict, NotFound
from store.queue.jobs import MAX_ATTEMPTS, Job, as_json, backoff, digest_of

ACTIVE: Final = ("QUEUED", "RUNNING", "WAITING", "CANCELLING")
ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
KEPT_DAYS: Final = 30  # retention of ended jobs and of decisions

_COLUMNS: Final = (
    "job_id",
    "state",
    "table_catalog",
    "table_schema",
    "table_name",
    "snapshot",
    "mode",
    "targets",
    "attempts",
    "queued_at",
    "started_at",
    "finished_at",
    "progress",
    "degraded",
    "stats_processed",
    "message",
)
_CHOSEN: Final = "job_id IN (SELECT unnest(?::VARCHAR[]))"
_HELD: Final = "state IN ('RUNNING', 'CANCELLING')"


class Tried(NamedTuple):
    """The end of a try of a durable job.

    Attributes:
        captured, failed: Numbers of targets.
        retry: True if the failures may be transient: a job that captured nothing is then tried again.
        stats_processed: Number of snapshots whose statistics are stored.
    """

    job: Job
    captured: int
    failed: int
    retry: bool
    message: str
    stats_processed: int

    def state(self) -> str:
        """The job's state after it: SUCCEEDED also if only some targets were captured."""
        if self.job.cancelled:
            return "CANCELLED"
        if self.captured:
            return "SUCCEEDED"
        return "WAITING" if self.retry and self.job.attempts < MAX_ATTEMPTS else "FAILED"


def unknown_job(job_id: str) -> NotFound:
    """The error for an id that no job has."""
    hint = "the flight sys.capture_jobs lists them"
    return NotFound(f'no job "{job_id[:100]}"', code="UNKNOWN_JOB", hint=hint)


class JobStore(Queue):
    """The rows of durable jobs and of decisions. Each method takes a list; those that write take the connection of a
    running transaction, or use one of their own.

    Args:
        now: Clock, in UTC; None for the system's.
        holder: Name of this server among those of one store; None for one alone.
    """

    def __init__(
        self,
        database: Database,
        table_of: Callable[[int], TableEntry],
        now: Callable[[], datetime] | None = None,
        holder: str | None = None,
    ):
        self.now = now or (lambda: datetime.now(UTC))
        self.database, self._table_of, self._holder = database, table_of, holder
        self._has_queued = False  # True if the running transaction has queued a job
        self._commits = 0  # number of commits that queued a job
        self._idle: dict[int, tuple[int, datetime]] = {}  # greatest priority → commit at which no job was ready, until

    def applied(self, _: Connection, applied: Applied) -> None:
        """Registers that others may have queued jobs."""
        self._has_queued |= applied.is_whole or "jobs" in applied.keys

    def committed(self) -> None:
        if self._has_queued:
            self._has_queued = False
            self._commits += 1

    def enqueue(self, jobs: Sequence[Job], connection: Connection | None = None) -> list[str]:
        """Queues jobs, except those equal to an active one. A job with attempts starts WAITING, as after that many.

        Returns:
            The id of each, in order: of the new job, or of the equal active one.
        """
        if connection is None:
            return self.database.write(lambda connection: self.enqueue(jobs, connection))
        digests = [digest_of(job) for job in jobs]
        requests: list[Mapping[str, Any]] = [job.request or {} for job in jobs]
        ending = [str(request["retry_of"]) for request in requests if "retry_of" in request]  # active, but about to end
        rows = connection.execute(
            f"SELECT dedupe, job_id, state, request FROM jobs WHERE state IN {ACTIVE}"
            f" AND dedupe IN (SELECT unnest(?::VARCHAR[])) AND NOT {_CHOSEN}",
            [digests, ending],
        ).fetchall()
        active = {digest: (str(job_id), state, json.loads(request)) for digest, job_id, state, request in rows}
        new: dict[str, tuple[str, Job]] = {}
        ids = []
        for job, request, digest in zip(jobs, requests, digests, strict=True):
            if digest in active:
                job_id, state, known = active[digest]
                if known.get("missing_only") and not request.get("missing_only") and state != "RUNNING":
                    connection.execute("UPDATE jobs SET request = ? WHERE job_id = ?", [json.dumps(request), job_id])
            else:
                job_id, other = new.get(digest, (job.id, job))
                widens = (other.request or {}).get("missing_only") and "missing_only" not in request
                new[digest] = job_id, job if widens else other
            ids.append(job_id)
        self._has_queued = True
        rows = [self._row_of(job_id, job, digest) for digest, (job_id, job) in new.items()]
        insert_rows(connection, "jobs", rows)
        return ids

    def _row_of(self, job_id: str, job: Job, digest: str) -> tuple[Any, ...]:
        assert job.table is not None
        now = self.now()
        state, not_before = ("WAITING", now + backoff(job.attempts)) if job.attempts else ("QUEUED", None)
        started_at = finished_at = message = None
        return (
            job_id,
            state,
            job.table.table_key,
            *job.table.name,
            job.snapshot,
            "ASYNC",
            json.dumps(list(job.targets)),
            json.dumps(job.request),
            digest,
            job.attempts,
            job.priority,
            now,
            started_at,
            finished_at,
            not_before,
            0.0,
            False,
            0,
            message,
            None,
        )

    def take(self, most: int = 1, busy_tables: Iterable[int] = (), up_to: int | None = None) -> list[Job]:
        """Takes the next jobs that may run, one per table: RUNNING, in the order of the queue; none if none may run.

        Takes at most 1 + a quarter of the waiting jobs, to leave some for other workers; a job that was tried before
        is taken alone.

        Args:
            most: Greatest number of jobs, at least 1.
            busy_tables: Keys of tables to skip.
            up_to: Greatest priority to take; None for any.
        """
        now = self.now()
        busy = list(busy_tables)
        limit = 2**31 if up_to is None else up_to
        commits, until = self._idle.get(limit, (-1, now))
        if commits == self._commits and now < until:
            return []
        waiting = "state IN ('QUEUED', 'WAITING') AND priority <= ?"
        commits = self._commits  # read before the query, so that a commit during it invalidates the result
        ((first, count),) = self.database.rows(
            f"SELECT min(coalesce(not_before, 'epoch'::TIMESTAMPTZ)), count(*) FROM jobs WHERE {waiting}", limit
        )
        if first is None or first > now:
            self._idle[limit] = commits, first or datetime.max.replace(tzinfo=UTC)
            return []
        ready = f"{waiting} AND coalesce(not_before <= ?, true)"
        order = "queued_at + to_seconds(priority), job_id"
        count = min(most, 1 + count // 4)

        def run(connection: Connection) -> list[Job]:
            rows = connection.execute(
                "SELECT attempts, job_id, table_key, snapshot, request, targets, priority, queued_at, progress,"
                " coalesce(started_at, ?)"
                f" FROM jobs j WHERE {ready} AND NOT EXISTS (SELECT 1 FROM jobs r WHERE r.table_key = j.table_key"
                " AND r.state IN ('RUNNING', 'CANCELLING')) AND table_key NOT IN (SELECT unnest(?::BIGINT[]))"
                f" QUALIFY row_number() OVER (PARTITION BY table_key ORDER BY {order}) = 1 ORDER BY {order} LIMIT ?",
                [now, limit, now, busy, count],
            ).fetchall()
            jobs = [self._job_of(*row) for at, row in enumerate(rows) if not at or not (row[0] or rows[0][0])]
            connection.execute(
                "UPDATE jobs SET state = 'RUNNING', attempts = attempts + 1, message = NULL,"
                f" started_at = coalesce(started_at, ?), holder = ? WHERE {_CHOSEN}",
                [now, self._holder, [job.id for job in jobs]],
            )
            return jobs

        return self.database.write(run)

    def _job_of(
        self,
        attempts: int,
        job_id: str,
        table_key: int,
        snapshot: str,
        request: str,
        targets: str,
        priority: int,
        queued_at: datetime,
        progress: float,
        started_at: datetime,
    ) -> Job:
        loaded: Mapping[str, Any] = json.loads(request)
        return Job(
            "job",
            table=self._table_of(table_key),
            correlation_id=str(loaded.get("correlation_id", "")),
            snapshot=snapshot,
            targets=json.loads(targets),
            request=loaded,
            priority=priority,
            id=job_id,
            attempts=attempts + 1,
            queued_at=queued_at,
            started_at=started_at,
            progress=progress,
        )

    def fail(self, failures: Mapping[str, str]) -> None:
        """Ends running jobs as FAILED, or as CANCELLED if they were being cancelled.

        Args:
            failures: Job id → message.
        """

        def run(connection: Connection) -> None:
            now = self.now()
            for job_id, message in failures.items():
                connection.execute(
                    "UPDATE jobs SET state = CASE WHEN state = 'CANCELLING' THEN 'CANCELLED' ELSE 'FAILED' END,"
                    " message = ?, finished_at = ? WHERE job_id = ? AND state IN ('RUNNING', 'CANCELLING')",
                    [message, now, job_id],
                )

        self.database.write(run)

    def other_holders(self) -> set[str | None]:
        """The servers besides this one that hold jobs."""
        sql = f"SELECT DISTINCT holder FROM jobs WHERE {_HELD} AND holder IS DISTINCT FROM ?"
        return {holder for (holder,) in self.database.rows(sql, self._holder)}

    def take_over(self, holders: Collection[str | None]) -> int:
        """Queues the jobs of servers again that are gone, or ends them, as `give_back` does with those of a lost
        worker; returns the number of jobs that were queued or FAILED."""
        rows = self.database.rows(f"SELECT job_id, holder FROM jobs WHERE {_HELD}")
        ids = [job_id for job_id, holder in rows if holder in holders]
        return self.give_back(ids, lost=True) if ids else 0

    def give_back(self, job_ids: Sequence[str] | None = None, *, lost: bool) -> int:
        """Queues jobs again whose leases have ended, or ends them as CANCELLED if they were being cancelled.

        Args:
            job_ids: Their ids; None for all that this server holds, as at its start.
            lost: True if their worker was lost: they are FAILED after MAX_ATTEMPTS tries. False if their work has not
                begun: no attempt is counted.

        Returns:
            The number of jobs that were queued or FAILED.
        """
        chosen, ids = ("holder IS NOT DISTINCT FROM ?", [self._holder]) if job_ids is None else (_CHOSEN, [job_ids])

        def run(connection: Connection) -> int:
            now, self._has_queued = self.now(), True
            connection.execute(
                f"UPDATE jobs SET state = 'CANCELLED', finished_at = ? WHERE state = 'CANCELLING' AND {chosen}",
                [now, *ids],
            )
            if lost:
                ended, values = f"attempts >= {MAX_ATTEMPTS}", [now]
                change = (
                    f"state = CASE WHEN {ended} THEN 'FAILED' ELSE 'QUEUED' END, message = 'the worker was lost',"
                    f" finished_at = CASE WHEN {ended} THEN ?::TIMESTAMPTZ END"
                )
            else:
                values = []
                change = (
                    "state = 'QUEUED', attempts = attempts - 1, started_at = CASE WHEN attempts > 1 THEN started_at END"
                )
            sql = f"UPDATE jobs SET {change} WHERE state = 'RUNNING' AND {chosen}"
            return connection.execute(sql, [*values, *ids]).fetchall()[0][0]

        return self.database.write(run)

    def cancelling(self, job_ids: Sequence[str], connection: Connection) -> set[str]:
        """Those of these jobs that are being cancelled."""
        sql = f"SELECT job_id FROM jobs WHERE state = 'CANCELLING' AND {_CHOSEN}"
        return {job_id for (job_id,) in connection.execute(sql, [job_ids]).fetchall()} if job_ids else set()

    def check_held(self, job_ids: Sequence[str], connection: Connection) -> None:
        """Refuses the end of jobs that another server has taken over meanwhile.

        Raises:
            Conflict: One of them is not this server's any more (LEASE_LOST).
        """
        sql = f"SELECT count(*) FROM jobs WHERE {_CHOSEN} AND holder IS DISTINCT FROM ?"
        if job_ids and connection.execute(sql, [job_ids, self._holder]).fetchall()[0][0]:
            raise Conflict("another server has taken over the job", code="LEASE_LOST", hint="discard what was captured")

    def finish(self, tried: Sequence[Tried], connection: Connection) -> None:
        """Stores the states of jobs after a try, inside the writer's transaction that stores their rows."""
        now = self.now()
        for end in tried:
            state = end.state()
            not_before = now + backoff(end.job.attempts) if state == "WAITING" else None
            self._has_queued |= state == "WAITING"
            progress = 1.0 if state == "SUCCEEDED" else end.job.progress or 0.0
            connection.execute(
                "UPDATE jobs SET state = ?, finished_at = ?, not_before = ?, progress = ?, degraded = ?,"
                " stats_processed = ?, message = ? WHERE job_id = ? AND holder IS NOT DISTINCT FROM ?",
                [
                    state,
                    None if not_before else now,
                    not_before,
                    progress,
                    bool(end.captured and end.failed),
                    end.stats_processed,
                    end.message or None,
                    end.job.id,
                    self._holder,
                ],
            )

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancels a job: a waiting one at once, a running one through its worker; an ended one stays as it is.

        Returns:
            The job afterwards, as `get` returns it.

        Raises:
            NotFound: The job does not exist.
        """
        self.get(job_id)
        self.database.write(
            lambda connection: connection.execute(
                "UPDATE jobs SET"
                " state = CASE WHEN state IN ('QUEUED', 'WAITING') THEN 'CANCELLED' ELSE 'CANCELLING' END,"
                " finished_at = CASE WHEN state IN ('QUEUED', 'WAITING') THEN ? ELSE NULL END"
                " WHERE job_id = ? AND state IN ('QUEUED', 'WAITING', 'RUNNING')",
                [self.now(), job_id],
            )
        )
        return self.get(job_id)

    def get(self, job_id: str) -> dict[str, Any]:
        """A job as a row of `sys.capture_jobs`, as JSON; NotFound (UNKNOWN_JOB) if it does not exist."""
        rows = self.database.rows(f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE job_id = ?", job_id)
        if not rows:
            raise unknown_job(job_id)
        return as_json(dict(zip(_COLUMNS, rows[0], strict=True)))

    def counts(self) -> dict[str, int]:
        """State → number of jobs."""
        return dict(self.database.rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    def record_decisions(
        self, decided: Sequence[tuple[TableEntry, str, Sequence[Mapping[str, Any]]]], connection: Connection
    ) -> None:
        """Stores decisions of the registry, inside the writer's transaction.

        Args:
            decided: Table, correlation id of the call that caused them, and decisions.
        """
        now = self.now()
        rows = [
            [
                now,
                correlation_id,
                table.table_key,
                *table.name,
                d["snapshot_id"],
                d["target_kind"],
                d["storage_id"],
                d["outcome"],
                d["engine_id"] or None,
                d["detail"] or None,
                d["elapsed_ms"],
            ]
            for table, correlation_id, decisions in decided
            for d in decisions
        ]
        insert_rows(connection, "capture_decisions", rows)

    def prune(self, days: int = KEPT_DAYS) -> None:
        """Deletes jobs that ended, and decisions made, more than so many days ago."""
        before = self.now() - timedelta(days=days)

        def run(connection: Connection) -> None:
            connection.execute(f"DELETE FROM jobs WHERE state IN {ENDED} AND finished_at < ?", [before])
            connection.execute("DELETE FROM capture_decisions WHERE decided_at < ?", [before])

        self.database.write(run)

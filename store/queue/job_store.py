"""The durable queue of captures: states, deduplication, leases with a fencing token, retries with backoff.

A job is QUEUED, then RUNNING under a lease, then SUCCEEDED, FAILED or CANCELLED; between two tries it is WAITING, and
CANCELLING until its worker has noticed a cancellation. One job per table runs at a time.

Jobs are leased in the order of queueing time plus priority in seconds: a light job (priority 0) overtakes scans queued
up to half a minute before it, and no job waits for ever.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from store.duckdb.database import Connection, Database, insert_rows
from store.model.catalog_entries import TableEntry
from store.model.errors import Conflict, NotFound, StatflightError
from store.queue.jobs import MAX_ATTEMPTS, SCAN, Lease, NewJob, backoff, digest_of, row_of

ACTIVE: Final = ("QUEUED", "RUNNING", "WAITING", "CANCELLING")
ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
KEPT_DAYS: Final = 30  # retention of ended jobs and of decisions

_COLUMNS: Final = (
    "job_id", "state", "table_catalog", "table_schema", "table_name", "snapshot", "mode", "targets", "attempts",
    "queued_at", "started_at", "finished_at", "progress", "degraded", "stats_processed", "message",
)  # fmt: skip


class JobStore:
    """The queue.

    Args:
        database: Database of the queue.
        lease_seconds: Duration of a lease that is not renewed.
        now: Clock, in UTC; None for the system's.
    """

    def __init__(self, database: Database, lease_seconds: float = 120.0, now: Callable[[], datetime] | None = None):
        self.now = now or (lambda: datetime.now(UTC))
        self.database = database
        self.lease_seconds = lease_seconds
        self._has_queued = False  # True if the running transaction has queued a job
        self._commits = 0  # number of commits that queued a job
        self._idle: dict[int, tuple[int, datetime]] = {}  # greatest priority → commit at which no job was ready, until
        self._decisions: list[Sequence[Any]] = []  # rows of the running transaction
        database.before_commit.append(self._store_decisions)
        database.on_rollback.append(lambda _: self._decisions.clear())
        database.on_commit.append(self._committed)

    def _committed(self) -> None:
        if self._has_queued:
            self._has_queued = False
            self._commits += 1

    def enqueue(
        self, table: TableEntry, snapshot: str, mode: str, request: Mapping[str, Any], targets: Sequence[str],
        priority: int = SCAN,
    ) -> str:  # fmt: skip
        """Queues a job, unless an equal one is active.

        Args:
            table: The table to capture.
            snapshot: Snapshot id as text, `current` or `all`.
            mode: SYNC or ASYNC.
            request: The request as JSON.
            targets: Storage ids, shown in the list of jobs.
            priority: Delay in seconds relative to jobs of priority 0.

        Returns:
            The id of the new job, or of the equal active one.
        """
        return self.database.write(
            lambda connection: self.enqueue_in(connection, table, snapshot, mode, request, targets, priority)
        )

    def enqueue_in(
        self, connection: Connection, table: TableEntry, snapshot: str, mode: str, request: Mapping[str, Any],
        targets: Sequence[str], priority: int = SCAN, *, attempts: int = 0,
    ) -> str:  # fmt: skip
        """`enqueue` inside the writer's transaction. With `attempts` > 0 the job starts WAITING, as after that many."""
        job = NewJob(table, snapshot, mode, request, targets, priority, attempts)
        return self.enqueue_all_in(connection, [job])[0]

    def enqueue_all(self, jobs: Sequence[NewJob]) -> list[str]:
        """Queues jobs in one transaction.

        Args:
            jobs: Any number of them, of any tables.

        Returns:
            The id of each, in order: of the new job, or of the equal active one.
        """
        return self.database.write(lambda connection: self.enqueue_all_in(connection, jobs))

    def enqueue_all_in(self, connection: Connection, jobs: Sequence[NewJob]) -> list[str]:
        """`enqueue_all` inside the writer's transaction."""
        digests = [digest_of(job.table, job.snapshot, job.request) for job in jobs]
        ending = [str(job.request["retry_of"]) for job in jobs if "retry_of" in job.request]  # active, but about to end
        rows = connection.execute(
            f"SELECT dedupe, job_id, state, request FROM jobs WHERE state IN {ACTIVE}"
            " AND dedupe IN (SELECT unnest(?::VARCHAR[])) AND job_id NOT IN (SELECT unnest(?::VARCHAR[]))",
            [digests, ending],
        ).fetchall()
        active = {digest: (str(job_id), state, json.loads(request)) for digest, job_id, state, request in rows}
        new: dict[str, tuple[str, NewJob]] = {}
        ids = []
        for job, digest in zip(jobs, digests, strict=True):
            if digest in active:
                job_id, state, known = active[digest]
                if known.get("missing_only") and not job.request.get("missing_only") and state != "RUNNING":
                    request = json.dumps(job.request)
                    connection.execute("UPDATE jobs SET request = ? WHERE job_id = ?", [request, job_id])
                ids.append(job_id)
                continue
            if digest not in new or (new[digest][1].request.get("missing_only") and "missing_only" not in job.request):
                new[digest] = (new[digest][0] if digest in new else str(uuid.uuid4()), job)
            ids.append(new[digest][0])
        now, self._has_queued = self.now(), True
        insert_rows(connection, "jobs", [row_of(job_id, job, digest, now) for digest, (job_id, job) in new.items()])
        return ids

    def lease(self, busy_tables: Iterable[int] = (), *, up_to: int | None = None) -> Lease | None:
        """Leases the next job that may run.

        Args:
            busy_tables: Keys of tables to skip.
            up_to: Greatest priority to lease; None for any.

        Returns:
            The lease; None if no job may run now.
        """
        return next(iter(self.lease_some(1, busy_tables, up_to=up_to)), None)

    def lease_some(self, most: int, busy_tables: Iterable[int] = (), *, up_to: int | None = None) -> list[Lease]:
        """Leases the next jobs that may run, one per table.

        Leases at most 1 + a quarter of the waiting jobs, to leave some for other workers; a job that was tried before
        is leased alone.

        Args:
            most: Greatest number of jobs, at least 1.
            busy_tables: Keys of tables to skip.
            up_to: Greatest priority to lease; None for any.

        Returns:
            The leases in the order of the queue; empty if no job may run now.
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

        def run(connection: Connection) -> list[Lease]:
            rows = connection.execute(
                "SELECT job_id, table_key, snapshot, mode, request, attempts FROM jobs j"
                f" WHERE {ready} AND NOT EXISTS (SELECT 1 FROM jobs r WHERE r.table_key = j.table_key"
                " AND r.state IN ('RUNNING', 'CANCELLING')) AND table_key NOT IN (SELECT unnest(?::BIGINT[]))"
                f" QUALIFY row_number() OVER (PARTITION BY table_key ORDER BY {order}) = 1 ORDER BY {order} LIMIT ?",
                [limit, now, busy, count],
            ).fetchall()
            rows = [row for at, row in enumerate(rows) if not at or not (row[5] or rows[0][5])]
            leases = [
                Lease(job_id, uuid.uuid4().hex, table_key, snapshot, mode, json.loads(request), attempts + 1)
                for job_id, table_key, snapshot, mode, request, attempts in rows
            ]
            if leases:
                connection.execute(
                    "UPDATE jobs SET state = 'RUNNING', attempts = attempts + 1, lease_token = l.token,"
                    " lease_until = ?, message = NULL, started_at = coalesce(started_at, ?)"
                    " FROM (SELECT unnest(?::VARCHAR[]) AS id, unnest(?::VARCHAR[]) AS token) l"
                    " WHERE job_id = l.id",
                    [now + timedelta(seconds=self.lease_seconds), now,
                     [lease.job_id for lease in leases], [lease.token for lease in leases]],
                )  # fmt: skip
            return leases

        return self.database.write(run)

    def give_back(self, tokens: Sequence[str]) -> int:
        """Requeues leased jobs that their worker has not begun, without counting an attempt.

        Args:
            tokens: Tokens of their leases.

        Returns:
            The number of requeued jobs.
        """

        def run(connection: Connection) -> int:
            self._has_queued = True
            leased = "lease_token IN (SELECT unnest(?::VARCHAR[]))"
            connection.execute(
                f"UPDATE jobs SET state = 'CANCELLED', finished_at = ? WHERE state = 'CANCELLING' AND {leased}",
                [self.now(), tokens],
            )
            return connection.execute(
                "UPDATE jobs SET state = 'QUEUED', attempts = attempts - 1, lease_token = NULL, lease_until = NULL,"
                " started_at = CASE WHEN attempts > 1 THEN started_at END"
                f" WHERE state = 'RUNNING' AND {leased}", [tokens],
            ).fetchall()[0][0]  # fmt: skip

        return self.database.write(run)

    def renew(self, job_id: str, token: str, progress: float | None = None, message: str | None = None) -> bool:
        """Renews a lease.

        Args:
            job_id: Id of the job.
            token: The lease's token.
            progress: Fraction done, 0 to 1; None keeps the last one.
            message: The worker's current activity; None keeps the last one.

        Returns:
            True to continue, False if the job is being cancelled.

        Raises:
            Conflict: The lease is lost.
            NotFound: The job does not exist.
        """

        def run(connection: Connection) -> bool | StatflightError:
            try:
                state = self.check(connection, job_id, token)
            except StatflightError as error:  # raised below: raising here would roll back the whole group of writes
                return error
            connection.execute(
                "UPDATE jobs SET lease_until = ?, progress = coalesce(?, progress), message = coalesce(?, message)"
                " WHERE job_id = ?",
                [self.now() + timedelta(seconds=self.lease_seconds), progress, message, job_id],
            )
            return state == "RUNNING"

        renewed = self.database.write(run)
        if isinstance(renewed, StatflightError):
            raise renewed
        return renewed

    def check(self, connection: Connection, job_id: str, token: str) -> str:
        """The state of a job whose lease has this token: RUNNING or CANCELLING.

        Raises:
            Conflict: The lease is lost (LEASE_LOST).
            NotFound: The job does not exist.
        """
        rows = connection.execute("SELECT state, lease_token FROM jobs WHERE job_id = ?", [job_id]).fetchall()
        if not rows:
            raise _unknown(job_id)
        state, lease_token = rows[0]
        if state not in ("RUNNING", "CANCELLING") or lease_token != token:
            raise Conflict(f'the lease on job "{job_id}" is lost', code="LEASE_LOST", hint="discard the captured rows")
        return str(state)

    def finish_in(
        self, connection: Connection, job_id: str, token: str, *, captured: int, failed: int, retry: bool, message: str,
        stats_processed: int,
    ) -> str:  # fmt: skip
        """Ends a try, inside the writer's transaction that publishes its rows.

        Args:
            connection: The writer's.
            job_id: Id of the job.
            token: The lease's token.
            captured: Number of targets captured.
            failed: Number of targets that failed.
            retry: True if the failures may be transient: a job that captured nothing is then tried again.
            message: Shown with the state.
            stats_processed: Number of rows published.

        Returns:
            The job's new state: CANCELLED, SUCCEEDED (also if only some targets were captured), WAITING or FAILED.

        Raises:
            Conflict: The lease is lost.
            NotFound: The job does not exist.
        """
        state = self.check(connection, job_id, token)
        now, attempts = self.now(), 0
        if not captured:
            ((attempts,),) = connection.execute("SELECT attempts FROM jobs WHERE job_id = ?", [job_id]).fetchall()
        not_before: datetime | None = None
        finished: datetime | None = now
        if state == "CANCELLING":
            after = "CANCELLED"
        elif captured:
            after = "SUCCEEDED"
        elif retry and attempts < MAX_ATTEMPTS:
            after, finished, self._has_queued = "WAITING", None, True
            not_before = now + backoff(attempts)
        else:
            after = "FAILED"
        connection.execute(
            "UPDATE jobs SET state = ?, finished_at = ?, not_before = ?, lease_token = NULL, lease_until = NULL,"
            " progress = CASE WHEN ? = 'SUCCEEDED' THEN 1.0 ELSE progress END, degraded = ?, stats_processed = ?,"
            " message = ? WHERE job_id = ?",
            [after, finished, not_before, after, bool(captured and failed), stats_processed, message or None, job_id],
        )
        return after

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancels a job: a waiting one at once, a running one through its worker; an ended one stays as it is.

        Returns:
            The job afterwards, as `get` returns it.

        Raises:
            NotFound: The job does not exist.
        """
        self.get(job_id)
        self.database.write(lambda connection: self.cancel_in(connection, job_id))
        return self.get(job_id)

    def cancel_in(self, connection: Connection, job_id: str) -> None:
        """Cancels a job, inside of a writer's transaction."""
        connection.execute(
            "UPDATE jobs SET"
            " state = CASE WHEN state IN ('QUEUED', 'WAITING') THEN 'CANCELLED' ELSE 'CANCELLING' END,"
            " finished_at = CASE WHEN state IN ('QUEUED', 'WAITING') THEN ? ELSE NULL END"
            " WHERE job_id = ? AND state IN ('QUEUED', 'WAITING', 'RUNNING')",
            [self.now(), job_id],
        )

    def reclaim(self, everything: bool = False) -> int:
        """Ends expired leases: their jobs are requeued, or FAILED after `MAX_ATTEMPTS` tries, or CANCELLED if they
        were being cancelled.

        Args:
            everything: End all leases, as at a start of the server.

        Returns:
            The number of jobs that were requeued or FAILED.
        """

        def run(connection: Connection) -> int:
            now, self._has_queued = self.now(), True
            expired = "state IN ('RUNNING', 'CANCELLING')" + ("" if everything else " AND lease_until < ?")
            values = [] if everything else [now]
            connection.execute(
                f"UPDATE jobs SET state = 'CANCELLED', finished_at = ? WHERE state = 'CANCELLING' AND {expired}",
                [now, *values],
            )
            return connection.execute(
                "UPDATE jobs SET state = CASE WHEN attempts >= ? THEN 'FAILED' ELSE 'QUEUED' END,"
                " finished_at = CASE WHEN attempts >= ? THEN ?::TIMESTAMPTZ ELSE NULL END, lease_token = NULL,"
                f" message = 'the worker was lost' WHERE {expired}",
                [MAX_ATTEMPTS, MAX_ATTEMPTS, now, *values],
            ).fetchall()[0][0]

        return self.database.write(run)

    def holder(self, job_id: str) -> str | None:
        """The token of a job's lease; None if it is not leased."""
        rows = self.database.rows(
            "SELECT lease_token FROM jobs WHERE job_id = ? AND state IN ('RUNNING', 'CANCELLING')", job_id
        )
        return rows[0][0] if rows else None

    def expired(self) -> bool:
        """True if any lease expired; read-only."""
        return bool(
            self.database.rows(
                "SELECT 1 FROM jobs WHERE state IN ('RUNNING', 'CANCELLING') AND lease_until < ? LIMIT 1",
                self.now(),
            )
        )

    def get(self, job_id: str) -> dict[str, Any]:
        """A job as a row of `sys.capture_jobs`, times in ISO 8601; NotFound (UNKNOWN_JOB) if it does not exist."""
        rows = self.database.rows(f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE job_id = ?", job_id)
        if not rows:
            raise _unknown(job_id)
        job = dict(zip(_COLUMNS, rows[0], strict=True))
        job["targets"] = json.loads(job["targets"])
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in job.items()}

    def counts(self) -> dict[str, int]:
        """State → number of jobs."""
        return dict(self.database.rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    def record_decisions(self, decided: Sequence[tuple[TableEntry, str, Sequence[Mapping[str, Any]]]]) -> None:
        """Stores decisions of the registry by the end of the writer's transaction; called inside of it.

        Args:
            decided: Table, correlation id of the call that caused them, and decisions.
        """
        now = self.now()
        self._decisions += [
            [now, correlation_id, table.table_key, *table.name, d["snapshot_id"], d["target_kind"], d["storage_id"],
             d["outcome"], d["engine_id"] or None, d["detail"] or None, d["elapsed_ms"]]
            for table, correlation_id, decisions in decided for d in decisions
        ]  # fmt: skip

    def _store_decisions(self, connection: Connection, _: AbstractSet[int]) -> None:
        rows, self._decisions = self._decisions, []
        insert_rows(connection, "capture_decisions", rows)

    def prune(self, days: int = KEPT_DAYS) -> None:
        """Deletes jobs that ended, and decisions made, more than so many days ago."""
        before = self.now() - timedelta(days=days)

        def run(connection: Connection) -> None:
            connection.execute(f"DELETE FROM jobs WHERE state IN {ENDED} AND finished_at < ?", [before])
            connection.execute("DELETE FROM capture_decisions WHERE decided_at < ?", [before])

        self.database.write(run)


def _unknown(job_id: str) -> NotFound:
    return NotFound(f'no job "{job_id[:100]}"', code="UNKNOWN_JOB", hint="the flight sys.capture_jobs lists them")

"""The drafts of leases: what workers put under a token, until the lease ends."""

from __future__ import annotations

from collections.abc import Collection
from threading import RLock

import pyarrow as pa

from flight_server.core.control.capture_commit import CaptureCommit
from flight_server.core.control.leases import Leases
from flight_server.core.writes.drafts import Draft
from store.duckdb.database import Database
from store.duckdb.segment_files import Written
from store.history.file_listings import ListingChanged, can_continue
from store.model.errors import Conflict, InvalidArgument, InvalidField
from store.model.puts import Listing, Put, PutMode
from store.model.schemas import FLIGHTS
from store.queue.jobs import Job
from store.segment_making import taken_over


class LeaseDrafts:
    """The drafts by the tokens of their leases.

    Args:
        lock: Guards the leases and the drafts.
    """

    def __init__(self, lock: RLock, leases: Leases, commit: CaptureCommit, database: Database):
        self._lock, self._leases, self._commit, self._database = lock, leases, commit, database
        self._drafts: dict[str, Draft] = {}

    def has(self, token: str) -> bool:
        """True if something was put under a token."""
        return bool(self._drafts.get(token))

    def take(self, token: str) -> Draft:
        """The draft of a lease that ends, which takes no more rows; an empty one if nothing was put."""
        return self._drafts.pop(token, Draft())

    def take_lost(self) -> Collection[Draft]:
        """The drafts whose leases have ended without them; they are to be closed."""
        return [self._drafts.pop(token) for token in list(self._drafts) if token not in self._leases]

    def _draft(self, token: str) -> tuple[Job, Draft]:
        """The job and the draft of a lease that takes rows."""
        with self._lock:
            job = self._leases.get(token)
            if job is not None and not (job.is_ending or job.is_discarded):
                if job.table is None:
                    raise InvalidArgument("this lease is for a look at a lake: no rows are put under it")
                return job, self._drafts.setdefault(token, self._commit.draft(job))
            dropped = self._drafts.pop(token, None)
        if dropped is not None:
            dropped.close()
        raise lease_lost()

    def add(self, token: str, put: Put, whole: bool, *, few: bool = False) -> None:
        """Adds rows to the draft of a lease.

        Args:
            whole: The rows are complete for their snapshot.
            few: Keeps the rows in memory.

        Raises:
            Conflict: The lease is lost.
            InvalidArgument: A lease of this kind takes no rows.
            ListingChanged: Another write removed rows of the draft, which was stored in pieces.
        """
        try:
            self._draft(token)[1].add(put, whole, few=few)
        except ListingChanged:
            self._draft(token)  # says so if the lease is lost, and its draft closed
            raise

    def segment_place(self, token: str) -> tuple[str, str]:
        """The directory or bucket into which the worker of a lease may write segments, and the name by which it is the
        database's.

        Raises:
            Conflict: The lease is lost.
            InvalidArgument: A lease of this kind takes no rows; or there are no segments.
        """
        _, draft = self._draft(token)
        self._check_segments()
        draft.expect_files()
        return self._database.shared_segments()

    def _check_segments(self) -> None:
        if self._database.segments.cells is None:
            raise InvalidArgument("this server has no segments", hint="put the rows")

    def add_file(self, token: str, flight: str, mode: PutMode, snapshot_id: int, written: Written) -> None:
        """Adds a file that its worker has written into the directory of segments to the draft of a lease.

        Args:
            flight: A flight with rows of files.
            snapshot_id: One of those that the lease is about.

        Raises:
            Conflict: The lease is lost.
            InvalidArgument: A lease of this kind takes no rows, or none at this snapshot; or there are no segments.
            SegmentError: The file is missing, damaged, or not one of the flight's rows.
            ListingChanged: Another write removed rows of the draft.
        """
        job, draft = self._draft(token)
        segments, about = self._database.segments, job.payload["table"]
        self._check_segments()
        if str(snapshot_id) not in job.payload["snapshots"]:
            raise InvalidField(
                "snapshot_id",
                "is not of this lease",
                expected=", ".join(job.payload["snapshots"]),
                actual=snapshot_id,
            )
        if self._database.rows("SELECT 1 FROM segments WHERE name = ?", written.name):
            raise InvalidField("file", "is a segment already", expected="a new file", actual=written.name)
        place = {f"table_{name}": about[name] for name in ("catalog", "schema", "name")}
        place |= {"table_id": about["table_id"], "snapshot_id": snapshot_id}
        schema = pa.schema([FLIGHTS[flight].schema.field(name) for name in place])
        empty = Put(flight, pa.Table.from_pylist([place], schema), mode)
        try:
            draft.add_file(taken_over(segments.files, empty, written))
        except ListingChanged:
            self._draft(token)  # says so if the lease is lost, and its draft closed
            raise

    def declare(self, token: str, listing: Listing) -> bool:
        """Announces the listing of a snapshot's files; False when the store does not have the base it continues."""
        job, _ = self._draft(token)
        if listing.base_snapshot_id is not None:
            assert job.table is not None
            with self._database.reading() as cursor:
                if not can_continue(cursor, job.table.table_key, listing):
                    return False
        self._draft(token)[1].declare(listing)
        return True


def lease_lost() -> Conflict:
    """The error of a token whose lease has run out, or was given to another worker."""
    return Conflict("the lease is lost", code="LEASE_LOST", hint="discard the captured rows and lease again")

"""The phases of a commit, in their order: objects that act before, with and after the writes of a transaction.

`Database` runs the writes. All phases are fields of one `Commit`, made in one place, where a store is put together
(`store.stats_store`). All methods are called in the writer's thread, unless they say otherwise; those after the commit
must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from store.duckdb.commit_log import Applied, CommitLog
from store.duckdb.layout import Connection
from store.model.catalog_entries import TableEntry
from store.model.targets import Target

Acknowledgement: TypeAlias = Callable[[BaseException | None], None]
"""Tells the callers of a commit that it is done, or why that cannot be promised."""


class Guard:
    """Lets every write begin."""

    def check_writes(self) -> None:
        """Refuses work that ends in a write, where no writes are taken; called in any thread.

        Raises:
            StatflightError: No writes are taken here.
        """

    def check_begin(self) -> None:
        """Refuses a transaction before it begins.

        Raises:
            StatflightError: It must not begin now.
        """


class Rows:
    """Keeps nothing about the rows of statistics in memory."""

    def applied(self, connection: Connection, applied: Applied) -> None:
        """Takes what others have stored; called inside of the transaction that stores it."""


class Derived:
    """What follows from rows that were written, in the database and in memory: nothing."""

    def derive(self, connection: Connection) -> None:
        """Stores what follows from the writes of the transaction; called after them, inside of it."""

    def publish(self) -> None:
        """Shows readers what is in memory; called after the commit."""

    def reload(self, connection: Connection) -> None:
        """Reads again what is in memory; called after a rollback."""

    def renew(self, connection: Connection) -> None:
        """Reads everything again; called after all content was replaced, in any thread."""
        self.reload(connection)

    def applied(self, connection: Connection, applied: Applied) -> None:
        """Takes what others have stored; called inside of the transaction that stores it."""


class Behind:
    """A store behind the database, which gets the records of a transaction before its commit: there is none."""

    def registered(self, table: TableEntry) -> None:
        """A table got its entry; it has no records."""

    def stored(self, flight: str, places: pa.Table) -> None:
        """Records of a flight, or `file_sketches`, may differ at some places: `table_key` and `snapshot_id`."""

    def deleted(self, table: TableEntry, snapshot_id: int | None, target: Target | None) -> None:
        """Records were deleted: those of a snapshot, or of all; about a target, or about all."""

    def write(self, connection: Connection) -> None:
        """Writes what the transaction has changed; the last step before its commit is recorded.

        Raises:
            StatflightError: The store refuses it; the transaction is rolled back.
        """

    def clear(self) -> None:
        """Forgets what the transaction has changed; called after a rollback."""


class Queue:
    """No jobs."""

    def committed(self) -> None:
        """Wakes whoever waits for jobs that the transaction has queued; called after the commit."""

    def applied(self, connection: Connection, applied: Applied) -> None:
        """Takes what others have stored; called inside of the transaction that stores it."""


class Ship:
    """Ships no commits to replicas."""

    def committed(self) -> None:
        """Notes the bytes of a commit; the first step after it."""

    def acknowledge(self, done: Acknowledgement) -> None:
        """Has the callers of a commit told of its end, now or once it is safe; the last step."""
        done(None)


class Commit(NamedTuple):
    """The phases of a commit, in their order; the writes themselves come between `log` and `derived`.

    Attributes:
        guard: May the transaction begin?
        log: A log that others write too, which takes the commit before the database file does.
        rows: What is kept in memory about rows.
        derived: What follows from them: the catalog's entries, spans.
        behind: A store that gets the records first.
        queue: The jobs.
        ship: The replicas.
    """

    guard: Guard = Guard()
    log: CommitLog = CommitLog()
    rows: Rows = Rows()
    derived: Derived = Derived()
    behind: Behind = Behind()
    queue: Queue = Queue()
    ship: Ship = Ship()

    def roll_back(self, connection: Connection) -> None:
        """Brings what is in memory back to what the database has."""
        self.derived.reload(connection)
        self.behind.clear()

    def renew(self, connection: Connection) -> None:
        """Reads everything again, since all content was replaced."""
        self.derived.renew(connection)
        self.behind.clear()

    def apply(self, connection: Connection, applied: Applied) -> None:
        """Takes what others have stored, inside of the transaction that stores it."""
        self.derived.applied(connection, applied)
        self.rows.applied(connection, applied)
        self.queue.applied(connection, applied)

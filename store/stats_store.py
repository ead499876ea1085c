"""The DuckDB store of statistics.

Rows are Arrow tables in a flight's schema, already cast and validated (`store.history.validation`). A put compares them
with the stored rows and writes only differences: identical content leaves the first record as it is. Records of tables,
columns, expressions, groups and their sketches are stored once per snapshot; those of files once per file content, with
the span of file listings they belong to, so that a snapshot takes space only for its changes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow.compute as pc

from store import segment_merging
from store.catalog import expiry
from store.catalog.catalog import Catalog
from store.catalog.deletion import delete_records
from store.catalog.registration import Registration
from store.duckdb import idempotency
from store.duckdb.commit import Behind, Commit, Queue, Rows
from store.duckdb.commit_log import Applied
from store.duckdb.database import Connection, Database
from store.history.file_listings import ListingChanged, Marks
from store.merging import Merging
from store.model.catalog_entries import TableEntry
from store.model.puts import MANY_ROWS, Counts, Listing, Put, PutMode, digest
from store.model.targets import Target
from store.records import Records
from store.role import Role
from store.staged_listings import StagedListing, family_of, place_of, unstage_all
from store.stores import Meta, StatsStore

__all__ = ["Counts", "DuckDBStatsStore", "Meta", "Put", "PutMode"]

_NONE = Counts()


class Generations(Rows):
    """The generations of puts: numbers that increase with every put, also across restarts, by the wall clock in
    microseconds, kept unique."""

    def __init__(self) -> None:
        self._newest, self._lock = 0, threading.Lock()

    def next(self, count: int = 1) -> int:
        """The first of `count` new ones."""
        with self._lock:
            first = max(self._newest + 1, time.time_ns() // 1000)
            self._newest = first + count - 1
            return first

    def applied(self, connection: Connection, applied: Applied) -> None:  # noqa: ARG002
        """Numbers the puts to come after those of others, whose clock may be ahead."""
        for rows in applied.rows.values():
            if "generation" in rows.column_names and (newest := pc.max(rows["generation"]).as_py()) is not None:
                with self._lock:
                    self._newest = max(self._newest, abs(newest))


class DuckDBStatsStore(Records, StatsStore):
    """`StatsStore` on a `Database`, whose `Records` it writes: the one place where the phases of its commits are put
    together.

    Args:
        database: The open database.
        catalog: Its catalog.
        role: The server's role among those that have the database or its replicas.
        behind: The store behind the database, if there is one.
        queue: The jobs in the database, if there is a server.
        require_registered_tables: Refuse puts of tables that no connector has registered.
    """

    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        *,
        role: Role | None = None,
        behind: Behind | None = None,
        queue: Queue | None = None,
        require_registered_tables: bool = False,
    ):
        super().__init__(database, catalog)
        self._only_known = require_registered_tables
        self._registration = Registration(catalog, only_known=require_registered_tables)
        self._merging = Merging(catalog)
        self._generations = Generations()
        role = role or Role()
        database.phases = Commit(
            guard=role,
            log=role.log,
            rows=self._generations,
            derived=catalog,
            behind=behind or Behind(),
            queue=queue or Queue(),
            ship=role,
        )

    @classmethod
    def open(cls, path: str | Path, behind: Behind | None = None) -> DuckDBStatsStore:
        """Opens the database of a file, which is created if it is missing; `:memory:` for a temporary one."""
        database = Database(path)
        return cls(database, Catalog(database), behind=behind)

    def close(self) -> None:
        self.database.close()

    def recover(self, *, takes_writes: bool) -> None:
        """Removes what captures and puts have left that were killed with an earlier process.

        Args:
            takes_writes: False for a follower, which removes what it has fetched itself.
        """
        unstage_all(self.database)
        if takes_writes:
            segment_merging.collect(self.database, 0)

    def merge_segments(self) -> None:
        """Merges small segments, and deletes the files of those that no read needs any more."""
        segment_merging.merge(self.database)
        segment_merging.collect(self.database)

    def find(self, name: tuple[str, str, str]) -> TableEntry | None:
        return self.catalog.find(name)

    def tables(self) -> list[TableEntry]:
        return self.catalog.tables()

    # Writing.

    def put(self, puts: Sequence[Put], *, idempotency_key: str | None = None) -> Counts:
        content = digest(puts) if idempotency_key is not None else ""
        if any(put.rows.num_rows >= MANY_ROWS for put in puts) and not self._is_used(idempotency_key):
            with contextlib.suppress(ListingChanged):  # then one transaction stores all
                return self._put_in_pieces(puts, idempotency_key, content)
        return self.database.write(lambda connection: self.put_in(connection, puts, idempotency_key, content))

    def _put_in_pieces(self, puts: Sequence[Put], idempotency_key: str | None, content: str) -> Counts:
        """`put` whose rows of files are stored in pieces before its transaction, where that is possible."""
        staged: dict[str, StagedListing] = {}
        rest, counts = [], Counts()
        try:
            for put in puts:
                listing = None
                if put.rows.num_rows >= MANY_ROWS and family_of(put) not in staged:
                    listing = self.stage([put])
                if listing is None:
                    rest.append(put)
                    continue
                staged[listing.family] = listing
                listing.add(put.rows, put.mode)
                listing.settle()
                counts += listing.counts
            listings = list(staged.values())
            return self.database.write(lambda c: self.put_in(c, rest, idempotency_key, content, listings, counts))
        finally:
            for listing in staged.values():
                listing.close()

    def stage(
        self,
        puts: Sequence[Put],
        bases: Mapping[int, Listing] = MappingProxyType({}),
        is_cancelled: Callable[[], bool] | None = None,
        kind: type[StagedListing] = StagedListing,
    ) -> StagedListing | None:
        """Begins to store the rows of one family in pieces, without any of them.

        Args:
            bases: Snapshot id → the listing that its rows continue.
            kind: How they are stored: in pieces, or as segments.

        Returns:
            The listing; None if only one transaction can store the rows, such as rows of several tables.

        Raises:
            UpstreamError: The base is not the newest listing (LISTING_CHANGED).
        """
        families, places = {family_of(put) for put in puts}, {place_of(put.rows) for put in puts}
        wholes = {put.mode is PutMode.REPLACE_SNAPSHOT for put in puts}
        if None in families | places or len(families) + len(places) + len(wholes) > 3:
            return None
        ((family,), (place,), (whole,)) = families, places, wholes
        assert family is not None
        assert place is not None
        *names, snapshot_id = place
        entry = self.catalog.find((names[0], names[1], names[2]))
        if (whole and family == "file_sketches") or (entry is None and self._only_known):
            return None
        listing = kind(
            self.catalog,
            family,
            puts[0].rows.slice(0, 1),
            None if entry is None else entry.table_key,
            self._generations.next(2),
            whole=whole,
            base=bases.get(snapshot_id),
            is_cancelled=is_cancelled,
        )
        return listing if listing.begin() else None

    def put_in(
        self,
        connection: Connection,
        puts: Sequence[Put],
        idempotency_key: str | None = None,
        content: str = "",
        staged: Sequence[StagedListing] = (),
        counts: Counts = _NONE,
        marks: Marks = MappingProxyType({}),
    ) -> Counts:
        """`put` inside the writer's transaction.

        Args:
            content: `digest` of the puts; required with a key.
            staged: Listings whose rows are stored already, to be committed first.
            counts: Counts of these rows.
            marks: (table key, snapshot id) → mark of the listings of files (`store.history.file_listings`).
        """
        if idempotency_key is not None and (replay := idempotency.answer_of(connection, idempotency_key, content)):
            return replay
        generation = self._generations.next()
        new_tables = set[int]()
        puts, seen = self._registration.register(connection, puts, new_tables, staged)
        places = self.catalog.places.of(connection, seen) if puts else {}
        for listing in staged:
            listing.commit(connection, marks)
        counts += self._merging.store(connection, puts, generation, new_tables, places, marks)
        if idempotency_key is not None:
            idempotency.remember(connection, idempotency_key, content, counts)
        return counts

    def _is_used(self, idempotency_key: str | None) -> bool:
        if idempotency_key is None:
            return False
        with self.database.reading() as cursor:
            return idempotency.is_known(cursor, idempotency_key)

    # Deleting.

    def delete(self, table: TableEntry, snapshot_id: int | None = None, target: Target | None = None) -> int:
        return self.database.write(
            lambda connection: delete_records(connection, self.catalog, table, snapshot_id, target)
        )

    def captured_snapshots(self, table: TableEntry) -> set[int]:
        """Ids of the snapshots of a table that have records."""
        each = " UNION ".join(
            f"SELECT snapshot_id FROM {name} WHERE table_key = {table.table_key}" for name in expiry.WITH_SNAPSHOTS
        )
        return {snapshot_id for (snapshot_id,) in self.database.rows(each)}

    def expirable(self, tables: Sequence[TableEntry]) -> dict[int, list[int]]:
        """Table key → ids of the snapshots that `expire` would delete (`store.catalog.expiry`)."""
        return expiry.expirable(self.database, tables)

    def expire(self, tables: Sequence[TableEntry]) -> dict[int, list[int]]:
        """Deletes the records of the snapshots that `expirable` returns, in one transaction; returns these."""
        return self.database.write(lambda connection: expiry.expire(connection, self.catalog, tables))

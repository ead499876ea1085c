"""The DuckDB store of statistics.

Rows are Arrow tables in a flight's schema, already cast and validated (`store.history.validation`). A put compares them
with the stored rows and writes only differences: identical content leaves the first record as it is. Records of tables,
columns, expressions, groups and their sketches are stored once per snapshot; those of files once per file content, with
the span of file listings they belong to, so that a snapshot takes space only for its changes.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store import segment_merging
from store.catalog import expiry
from store.catalog.catalog import Catalog
from store.catalog.column_ids import ColumnNames
from store.catalog.deletion import delete_records
from store.duckdb.arrow_sql import query
from store.duckdb.commit import Behind, Commit, Queue, Rows
from store.duckdb.commit_log import Applied
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, OPEN_END, stored_columns
from store.history.content_hash import content_hash
from store.history.file_listings import ListingChanged, Marks
from store.history.file_spans import STORAGE_ID, end_staged, rows_of, where_target
from store.history.presence import STAGED
from store.history.snapshot_merge import SnapshotMerge
from store.history.span_merge import SpanMerge, drop_orphaned_sketches, waves
from store.model.catalog_entries import EXTERNAL, Place, TableEntry
from store.model.errors import Conflict, NotFound
from store.model.names import join_name
from store.model.puts import (
    FLIGHT_OF,
    MANY_ROWS,
    Codes,
    Counts,
    Listing,
    Put,
    PutMode,
    codes,
    digest,
    one_place,
    snapshots_of,
)
from store.model.targets import Target, TargetKind
from store.role import Role
from store.staged_listings import StagedListing, family_of, place_of, unstage_all
from store.stores import Meta, Page, Records, StatsStore

__all__ = ["Counts", "DuckDBStatsStore", "Meta", "Put", "PutMode"]

IDEMPOTENCY_SECONDS = 86_400
# Aliases, because `list` is a method in the classes below.
Entries = list[TableEntry]
Ids = list[int]
Texts = list[str]
_TABLE = ("table_catalog", "table_schema", "table_name")
_PLACED = (*_TABLE, "table_id", "snapshot_id", "schema_hash")  # what says where rows belong
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


class DuckDBStatsStore(StatsStore):
    """`StatsStore` on a `Database`: the one place where the phases of its commits are put together.

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
        self.database = database
        self.catalog = catalog
        self.require_registered_tables = require_registered_tables
        self.columns = ColumnNames(catalog)
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

    def tables(self) -> Entries:
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
        if (whole and family == "file_sketches") or (entry is None and self.require_registered_tables):
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

    def keys_of(self, rows: pa.Table) -> set[int]:
        """Keys of the known tables that rows are about, which have the names of their tables."""
        names = rows.select(_TABLE).group_by(_TABLE).aggregate([]).to_pylist()
        entries = (self.catalog.find(tuple(name.values())) for name in names)
        return {entry.table_key for entry in entries if entry is not None}

    def listed_rows(self, table_keys: Collection[int]) -> int:
        """Rows in the database file that belong to the newest file listings of tables."""
        if not any(self.catalog.presence.has_any(family, table_keys) for family in BY_SPAN):
            return 0
        where = f"WHERE table_key IN ({', '.join(map(str, table_keys))}) AND to_pos = {OPEN_END}"
        each = " UNION ALL ".join(f"SELECT count(*) AS n FROM {table} {where}" for table in BY_SPAN.values())
        ((rows,),) = self.database.rows(f"SELECT sum(n)::BIGINT FROM ({each})")
        return int(rows)

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
        if idempotency_key is not None and (replay := self._replay(connection, idempotency_key, content)):
            return replay
        generation = self._generations.next()
        new_tables = set[int]()
        puts, seen = self._registered(connection, puts, new_tables, staged)
        places = self.catalog.places(connection, seen) if puts else {}
        for listing in staged:
            listing.commit(connection, marks)
        keys = {key for put in puts if _lists_files(put) for key in put.rows["table_key"].unique().to_pylist()}
        had_sketches = self.catalog.presence.of("file_sketches", keys)
        for put in puts:
            counts += self._store(connection, put, generation, new_tables, places, marks)
        self._drop_orphans(connection, puts, had_sketches)
        if idempotency_key is not None:
            now = datetime.now(UTC)
            connection.execute(
                "DELETE FROM idempotency WHERE epoch(?::TIMESTAMPTZ) - epoch(stored_at) > ?", [now, IDEMPOTENCY_SECONDS]
            )
            answer = json.dumps(counts._asdict())
            connection.execute("INSERT INTO idempotency VALUES (?, ?, ?, ?)", [idempotency_key, content, answer, now])
        return counts

    def _is_used(self, idempotency_key: str | None) -> bool:
        sql = "SELECT 1 FROM idempotency WHERE key = ?"
        return idempotency_key is not None and bool(self.database.rows(sql, idempotency_key))

    def _replay(self, connection: Connection, key: str, content: str) -> Counts | None:
        replies = connection.execute("SELECT content_hash, answer FROM idempotency WHERE key = ?", [key]).fetchall()
        if not replies:
            return None
        if replies[0][0] != content:
            raise Conflict(
                "this idempotency_key was used before with other content",
                hint="send the same rows and mode again, or use a new key",
            )
        return Counts(**json.loads(replies[0][1]))

    def _registered(
        self, connection: Connection, puts: Sequence[Put], new_tables: set[int], staged: Sequence[StagedListing]
    ) -> tuple[list[Put], pa.Table]:
        """The puts that have rows, with `table_key` added, and all snapshots (`snapshots_of`); registers new tables,
        which it adds to the set, and snapshots."""
        puts = [put for put in puts if put.rows.num_rows]
        if not (staged or puts):
            return [], pa.table({})
        # together: a schema hash that comes only with a later put would change spans
        parts = [*(each.first for each in staged), *(put.rows for put in puts)]
        rows = pa.concat_tables(
            [part.select([name for name in _PLACED if name in part.column_names]) for part in parts],
            promote_options="default",
        )
        reserved = {each.name: each.table_key for each in staged if each.is_new}
        rows = self._with_table_keys(connection, rows, new_tables, reserved)
        keys = rows["table_key"]
        if keys.slice(0, len(staged)).to_pylist() != [each.table_key for each in staged]:
            raise ListingChanged  # another put has registered the table, or it was dropped
        seen = snapshots_of(rows)
        self.catalog.register_snapshots(connection, seen, new_tables)
        keyed, start = [], len(staged)
        for put in puts:
            column = keys.slice(start, put.rows.num_rows)
            keyed.append(replace(put, rows=put.rows.append_column("table_key", column)))
            start += put.rows.num_rows
        return keyed, seen

    def _store(
        self,
        connection: Connection,
        put: Put,
        generation: int,
        new_tables: set[int],
        places: Mapping[tuple[int, int], Place],
        marks: Marks,
    ) -> Counts:
        """Stores one put whose rows have `table_key`, for any number of tables."""
        rows, presence = put.rows, self.catalog.presence
        keys = rows["table_key"].unique().to_pylist()
        if put.flight in ("stats.columns", "stats.file_columns"):
            rows = self.columns.with_ids(connection, rows)
            if put.flight == "stats.columns":
                is_novel = new_tables.issuperset(keys) and not presence.has_any(put.flight, keys)
                self.columns.note(connection, rows, is_novel=is_novel)
        families = {put.flight: rows}
        if put.flight == "stats.sketches":
            of_file = pc.fill_null(pc.equal(rows["target_kind"], "FILE"), False)
            families = {"file_sketches": rows.filter(of_file), put.flight: rows.filter(pc.invert(of_file))}
        counts = Counts()
        for family, part in families.items():
            if not part.num_rows:
                continue
            self.catalog.behind.stored(family, part)
            if family in BY_SPAN and presence.has_any(STAGED, keys):
                end_staged(connection, self.database.segments, family, keys)
            for wave in waves(part) if family in BY_SPAN else [part]:
                given = put.mode, family, wave, self._name_of, places, self.catalog.spans, presence
                is_span = family in BY_SPAN
                merge = SpanMerge(*given, self.database.segments, marks) if is_span else SnapshotMerge(*given)
                counts += merge.apply(connection, generation)
        return counts

    def _drop_orphans(self, connection: Connection, puts: Sequence[Put], had_sketches: Set[int]) -> None:
        """Removes sketches of files that the puts' whole listings of files lack. Where all sketches of a table have
        come with the puts, which seldom have some of other files, the puts tell.

        Args:
            had_sketches: Keys of the tables that had sketches of files before.
        """
        of_files = [put.rows for put in puts if put.flight == "stats.sketches"]
        for put in filter(_lists_files, puts):
            keys = put.rows["table_key"].unique().to_pylist()
            if not self.catalog.presence.has_any("file_sketches", keys):
                continue
            listed = _files(put.rows)
            if had_sketches.isdisjoint(keys) and all(_are_listed(rows, keys, listed) for rows in of_files):
                continue
            for wave in waves(put.rows):
                drop_orphaned_sketches(connection, self.database.segments, wave)

    def _name_of(self, table_key: int) -> str:
        return self.catalog.by_key(table_key).full_name

    def _with_table_keys(
        self, connection: Connection, rows: pa.Table, new_tables: set[int], reserved: Mapping[tuple[Any, ...], int]
    ) -> pa.Table:
        """The rows with a column `table_key` (int64); registers new tables, by their reserved keys if they have one,
        and adds them to the set."""
        numbers = codes(rows, _TABLE)
        distinct, first, places = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.argsort(first)
        names = [tuple(row.values()) for row in rows.select(_TABLE).take(pa.array(first[order])).to_pylist()]
        unknown = {name: None for name in names if self.catalog.find(name) is None}
        if unknown:
            self._check_may_register(next(iter(unknown)))
            ids = _first_of_each(rows, "table_id", numbers)
            given = {name: ids.get(int(distinct[at])) for name, at in zip(names, order, strict=True)}
            latest = _greatest_snapshots(rows, places, len(distinct))
            current = {name: latest[at] for name, at in zip(names, order, strict=True)}
            new = {name: given[name] for name in unknown}
            entries = self.catalog.register_all(connection, new, current=current, keys=reserved)
            new_tables.update(entry.table_key for entry in entries.values())
        keys: Codes = np.empty(len(distinct), np.int64)
        for name, at in zip(names, order, strict=True):
            entry = self.catalog.find(name)
            assert entry is not None
            keys[at] = entry.table_key
        keyed = rows.append_column("table_key", pa.array(keys[places]))
        self._check_ids(keyed)
        return keyed

    def _check_may_register(self, name: tuple[Any, ...]) -> None:
        """Refuses a new table, where only those of connectors may be put."""
        if self.require_registered_tables:
            raise NotFound(
                f'no table "{join_name(*name)}"',
                code="UNKNOWN_TABLE",
                hint="only registered tables may be put: connect its catalog first",
            )

    def _check_ids(self, rows: pa.Table) -> None:
        """Refuses rows about another table than the one that a lake has under the name now, by its id."""
        if "table_id" not in rows.column_names or rows["table_id"].null_count == rows.num_rows:
            return
        columns = ["table_key", "table_id"]
        for given in rows.select(columns).group_by(columns, use_threads=False).aggregate([]).to_pylist():
            entry = self.catalog.by_key(given["table_key"])
            if entry.format != EXTERNAL and given["table_id"] and given["table_id"] != entry.table_id:
                raise Conflict(
                    f'table_id: "{entry.full_name}" is another table; expected {entry.table_id}, '
                    f"got {given['table_id'][:100]}",
                    hint="it was created again: what was known of the former does not hold for it",
                    params={"field": "table_id"},
                )

    # Reading single records.

    def get(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        record = self._find(table, snapshot_id, target)
        return record and {name: record[name] for name in record if name not in ("generation", "created_at")}

    def _find(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        flight = FLIGHT_OF[target.kind]
        condition, parameters = where_target(flight, target)
        source, leading = rows_of(flight, table, snapshot_id)
        with self._reading(table, flight) as cursor:
            rows = query(cursor, f"SELECT t.* FROM {source}{condition}", [*leading, *parameters])
        return rows.to_pylist()[0] if rows.num_rows else None

    def meta(self, table: TableEntry, snapshot_id: int, target: Target) -> Meta:
        self.catalog.snapshot(table, snapshot_id)
        row = self._find(table, snapshot_id, target)
        if row is None:
            raise NotFound(
                f'nothing is stored for {target.storage_id} of "{table.full_name}" at snapshot {snapshot_id}',
                code="UNKNOWN_TARGET",
                hint="capture it first",
            )
        digest = content_hash(FLIGHT_OF[target.kind], row, self._sketch_digests(table, snapshot_id, target))
        return Meta(digest, row["generation"], row["created_at"], row["refreshed_at"] or row["created_at"])

    def _sketch_digests(self, table: TableEntry, snapshot_id: int, target: Target) -> Texts:
        family = "file_sketches" if target.kind is TargetKind.FILE else "stats.sketches"
        source, leading = rows_of(family, table, snapshot_id)
        with self._reading(table, family) as cursor:
            digests = cursor.execute(
                f"SELECT role || ' ' || sketch_type || ' ' || sha256(data) FROM {source} AND t.storage_id = ?"
                " ORDER BY 1",
                [*leading, target.storage_id],
            ).fetchall()
        return [row[0] for row in digests]

    def rows(self, table: TableEntry, snapshot_id: int, flight: str) -> pa.Table:
        places = one_place(table.table_key, snapshot_id)
        with self._reading(table, flight) as cursor:
            return query(cursor, select_rows(flight), places=places)

    @contextlib.contextmanager
    def _reading(self, table: TableEntry, *flights: str) -> Iterator[Connection]:
        """A cursor for the block, which sees the rows in segments, too."""
        families = [flight for flight in flights if flight in BY_SPAN]
        with self.database.reading() as cursor:
            if families:
                self.database.segments.attach(cursor, [table.table_key], families)
            yield cursor

    def count(self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None) -> int:
        self.catalog.snapshot(table, snapshot_id)
        total = 0
        with self._reading(table, "stats.files") as cursor:
            for each in [kind] if kind else list(FLIGHT_OF):
                source, leading = rows_of(FLIGHT_OF[each], table, snapshot_id)
                total += cursor.execute(f"SELECT count(*) FROM {source}", leading).fetchall()[0][0]
        return total

    def list(
        self,
        table: TableEntry,
        snapshot_id: int,
        kind: TargetKind | None = None,
        *,
        page_token: str = "",
        page_size: int = 1000,
    ) -> Page:
        total = self.count(table, snapshot_id, kind)
        records: Records = []
        with self._reading(table, "stats.files") as cursor:
            for each in [kind] if kind else list(FLIGHT_OF):
                wanted = page_size + 1 - len(records)
                if wanted <= 0:
                    break
                flight = FLIGHT_OF[each]
                source, leading = rows_of(flight, table, snapshot_id)
                named = f"{STORAGE_ID[flight].format('t')} AS storage_id, '{each}' AS target_kind"
                page = query(
                    cursor,
                    f"SELECT * FROM (SELECT {named}, t.* FROM {source}) WHERE storage_id > ?"
                    f" ORDER BY storage_id LIMIT {wanted}",
                    [*leading, page_token],
                )
                records += page.to_pylist()
        page = records[:page_size]
        return page, page[-1]["storage_id"] if len(records) > len(page) else "", total

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

    def expirable(self, tables: Sequence[TableEntry]) -> dict[int, Ids]:
        """Table key → ids of the snapshots that `expire` would delete (`store.catalog.expiry`)."""
        return expiry.expirable(self.database, tables)

    def expire(self, tables: Sequence[TableEntry]) -> dict[int, Ids]:
        """Deletes the records of the snapshots that `expirable` returns, in one transaction; returns these."""
        return self.database.write(lambda connection: expiry.expire(connection, self.catalog, tables))


def select_rows(flight: str) -> str:
    """SQL of the records of a flight, or `file_sketches`, at the places of an Arrow table `places` (`table_key`,
    `snapshot_id`), with the columns of a put."""
    names = ", ".join(f"c.{name}" for name in (*_TABLE, "table_id"))
    values = ", ".join(f't."{name}"' for name in stored_columns(flight))
    if flight in BY_SNAPSHOT:
        source, at = f"{BY_SNAPSHOT[flight]} t", "t"
    else:
        source, at = (
            f"{BY_SPAN[flight]} t JOIN file_snapshots f ON f.table_key = t.table_key AND f.family = '{flight}'"
            " AND f.pos >= t.from_pos AND f.pos < t.to_pos",
            "f",
        )
    return (
        f"SELECT {names}, {at}.snapshot_id, {values} FROM {source} JOIN {{places}} p ON p.table_key = {at}.table_key"
        f" AND p.snapshot_id = {at}.snapshot_id JOIN tables c ON c.table_key = t.table_key"
    )


def _greatest_snapshots(rows: pa.Table, places: Codes, count: int) -> list[int]:
    """The greatest snapshot id of each of `count` groups of rows; `places` has the group of each row."""
    greatest: Codes = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(greatest, places, rows["snapshot_id"].to_numpy())
    return greatest.tolist()


def _first_of_each(rows: pa.Table, name: str, numbers: Codes) -> dict[int, Any]:
    """Group number → the first value of a text column in that group that is neither null nor empty."""
    if name not in rows.column_names or rows[name].null_count == rows.num_rows:
        return {}
    given = pc.fill_null(pc.greater(pc.utf8_length(rows[name]), 0), False).to_numpy()
    distinct, first = np.unique(numbers[given], return_index=True)
    values = rows[name].filter(pa.array(given)).take(pa.array(first)).to_pylist()
    return dict(zip(distinct.tolist(), values, strict=True))


def _lists_files(put: Put) -> bool:
    """True if a put has all files of its snapshots."""
    return put.flight == "stats.files" and put.mode is PutMode.REPLACE_SNAPSHOT


def _files(rows: pa.Table) -> pa.ChunkedArray:
    """The files that rows are about, each a text with its table and snapshot."""
    places = [rows[name].cast(pa.string()) for name in ("table_key", "snapshot_id")]
    return pc.binary_join_element_wise(*places, rows["file_path"].cast(pa.string()), "\x1f")


def _are_listed(sketches: pa.Table, keys: Sequence[int], listed: pa.ChunkedArray) -> bool:
    """True if all sketches of files of some tables are of listed files; false if their files are not named."""
    of_file = pc.and_(pc.equal(sketches["target_kind"], "FILE"), pc.is_in(sketches["table_key"], pa.array(keys)))
    sketches = sketches.filter(of_file)
    if not sketches.num_rows or "file_path" not in sketches.column_names:
        return not sketches.num_rows
    return bool(pc.all(pc.is_in(_files(sketches), listed)).as_py())

"""Where statistics rest: the interface, and its DuckDB form.

Rows come as Arrow tables in a flight's schema, already cast and validated (`store.records`). A put compares them with
what is stored and writes only what is new: identical content leaves the first record as it is. Records of tables,
columns, expressions, groups and their sketches are kept once for each snapshot; those of files once for each file
content, with the span of file listings they hold for, so that a snapshot costs what it changes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.catalog_store import Catalog, TableEntry
from store.database import BY_SNAPSHOT, BY_SPAN, OPEN_END, Connection, Database, stored_columns
from store.errors import Conflict, InvalidArgument, NotFound
from store.schemas import COSMETIC
from store.targets import Target, TargetKind, storage_id

IDEMPOTENCY_SECONDS = 86_400
SKETCH_COSMETIC = frozenset({"captured_at"})

# Flight → the stored columns that, with table and snapshot, identify a record.
IDENTITY = {
    "stats.tables": (),
    "stats.columns": ("column_id",),
    "stats.files": ("file_path",),
    "stats.file_columns": ("file_path", "column_id"),
    "stats.expressions": ("engine_kind", "engine_expression_key"),
    "stats.column_groups": ("column_ids",),
    "stats.sketches": ("storage_id", "role"),
    "file_sketches": ("storage_id", "column_id", "role"),
}
FLIGHT_OF = {
    TargetKind.TABLE: "stats.tables",
    TargetKind.COLUMN: "stats.columns",
    TargetKind.FILE: "stats.files",
    TargetKind.EXPRESSION: "stats.expressions",
    TargetKind.COLUMN_GROUP: "stats.column_groups",
}


class PutMode(StrEnum):
    CREATE = "create"  # other content for a stored target is a conflict
    UPSERT = "upsert"
    REPLACE_SNAPSHOT = "replace_snapshot"
    FILL = "fill"  # only what is not there yet; for what a capture found without being asked


@dataclass(frozen=True, slots=True)
class Counts:
    """What a put did, in records."""

    received: int = 0
    created: int = 0
    unchanged: int = 0
    replaced: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self.astuple(), other.astuple(), strict=True)))

    def astuple(self) -> tuple[int, int, int, int]:
        return self.received, self.created, self.unchanged, self.replaced

    def to_json(self) -> dict[str, int]:
        return dict(zip(("received", "created", "unchanged", "replaced"), self.astuple(), strict=True))


@dataclass(frozen=True, slots=True)
class Put:
    """Rows of one flight for any number of tables and snapshots; `rows` carry the key columns of the flight."""

    flight: str
    rows: pa.Table
    mode: PutMode = PutMode.CREATE


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a record besides its content. Times are UTC."""

    content_hash: str
    generation: int
    created_at: datetime | None
    refreshed_at: datetime | None


class StatsStore(Protocol):
    """The authoritative home of statistics. All of a put is stored, or nothing of it."""

    def put(self, puts: Sequence[Put], *, idempotency_key: str | None = None) -> Counts:
        """Raises Conflict, InvalidArgument (two different rows for one target), NotFound (unregistered table)."""

    def get(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        """The stored record of one target at exactly that snapshot, by column name."""

    def list(
        self,
        table: TableEntry,
        snapshot_id: int,
        kind: TargetKind | None = None,
        *,
        page_token: str = "",
        page_size: int = 1000,
    ) -> tuple[list[dict[str, Any]], str, int]:
        """Records in storage-id order, the token of the next page (empty at the end), and the total count."""

    def count(self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None) -> int: ...

    def delete(self, table: TableEntry, snapshot_id: int | None = None, target: Target | None = None) -> int:
        """How many records went; sketches go with their record and are not counted."""

    def meta(self, table: TableEntry, snapshot_id: int, target: Target) -> Meta:
        """NotFound where nothing is stored for the target."""


class DuckDBStatsStore:
    """`StatsStore` on a `Database`."""

    def __init__(self, database: Database, catalog: Catalog, *, require_registered_tables: bool = False):
        self.database = database
        self.catalog = catalog
        self.require_registered_tables = require_registered_tables
        self._generation = 0

    # Writing.

    def put(self, puts: Sequence[Put], *, idempotency_key: str | None = None) -> Counts:
        digest = _digest(puts) if idempotency_key is not None else ""
        return self.database.write(lambda connection: self.put_in(connection, puts, idempotency_key, digest))

    def put_in(
        self, connection: Connection, puts: Sequence[Put], idempotency_key: str | None = None, digest: str = ""
    ) -> Counts:
        """The put itself, inside the writer's transaction."""
        if idempotency_key is not None and (replay := self._replay(connection, idempotency_key, digest)):
            return replay
        generation = self._next_generation()
        counts = Counts()
        for put in puts:
            for merge in self._merges(connection, put):  # each sees what the one before it wrote
                counts += merge.apply(connection, generation)
        if idempotency_key is not None:
            now = datetime.now(UTC)
            connection.execute("DELETE FROM idempotency WHERE epoch(?::TIMESTAMPTZ) - epoch(stored_at) > ?",
                               [now, IDEMPOTENCY_SECONDS])  # fmt: skip
            connection.execute(
                "INSERT INTO idempotency VALUES (?, ?, ?, ?)", [idempotency_key, digest, json.dumps(counts.to_json()), now]
            )  # fmt: skip
        return counts

    def _replay(self, connection: Connection, key: str, digest: str) -> Counts | None:
        found = connection.execute("SELECT content_hash, answer FROM idempotency WHERE key = ?", [key]).fetchall()
        if not found:
            return None
        if found[0][0] != digest:
            raise Conflict(
                f'idempotency_key "{key}" was used before with other content',
                hint="send the same rows and mode again, or use a new key",
            )
        return Counts(**json.loads(found[0][1]))

    def _merges(self, connection: Connection, put: Put) -> Iterator[_Merge]:
        """What a put comes down to, table by table; new tables are registered on the way."""
        names = put.rows.select(["table_catalog", "table_schema", "table_name"])
        distinct = names.group_by(names.column_names).aggregate([]).to_pylist()
        entries = []
        for row in distinct:
            name = (row["table_catalog"], row["table_schema"], row["table_name"])
            entry = self.catalog.find(name)
            if entry is None and self.require_registered_tables:
                raise NotFound(
                    f'no table "{".".join(name)}"',
                    code="UNKNOWN_TABLE",
                    hint="only registered tables may be put: connect its catalog first",
                )
            entries.append((name, entry))
        for name, entry in entries:
            rows = put.rows
            if len(distinct) > 1:
                keep = pc.and_(pc.equal(rows["table_catalog"], name[0]), pc.equal(rows["table_schema"], name[1]))
                rows = rows.filter(pc.and_(keep, pc.equal(rows["table_name"], name[2])))
            if entry is None:
                given = _first(rows, "table_id")
                entry = self.catalog.register(connection, name, given)
            yield from self._merges_of_table(connection, put, entry, rows)

    def _merges_of_table(
        self, connection: Connection, put: Put, entry: TableEntry, rows: pa.Table
    ) -> Iterator[_Merge]:
        flight = put.flight
        if flight in ("stats.columns", "stats.file_columns"):
            rows = self._with_column_ids(connection, entry, rows, flight)
        snapshots = _snapshots_of(rows)
        entry = self.catalog.sight_external_snapshots(connection, entry, snapshots)
        if flight != "stats.sketches":
            yield from self._merges_of_flight(connection, put.mode, flight, entry, rows, list(snapshots))
            return
        of_file = pc.fill_null(pc.equal(rows["target_kind"], "FILE"), False)
        parts = {"file_sketches": rows.filter(of_file), "stats.sketches": rows.filter(pc.invert(of_file))}
        for family, part in parts.items():
            if part.num_rows:
                yield from self._merges_of_flight(connection, put.mode, family, entry, part, list(_snapshots_of(part)))

    def _merges_of_flight(
        self,
        connection: Connection,
        mode: PutMode,
        flight: str,
        entry: TableEntry,
        rows: pa.Table,
        snapshots: list[int],
    ) -> Iterator[_Merge]:
        if flight in BY_SNAPSHOT:
            yield _SnapshotMerge(connection, mode, flight, entry, rows, snapshots)
            return
        for snapshot_id in snapshots:
            part = rows if len(snapshots) == 1 else rows.filter(pc.equal(rows["snapshot_id"], snapshot_id))
            yield _SpanMerge(connection, mode, flight, entry, part, snapshot_id)

    def _with_column_ids(self, connection: Connection, entry: TableEntry, rows: pa.Table, flight: str) -> pa.Table:
        """Fills column ids from names, giving new names their id; notes names of external tables."""
        if "column_name" not in rows.column_names:
            return rows
        if "column_id" not in rows.column_names:
            rows = rows.append_column("column_id", pa.nulls(rows.num_rows, pa.int64()))
        named = rows.filter(pc.and_(pc.is_null(rows["column_id"]), pc.is_valid(rows["column_name"])))
        ids: dict[str, int] = {}
        if named.num_rows:
            ids = self.catalog.assign_column_ids(connection, entry, named["column_name"].unique().to_pylist())
            names = pa.array(list(ids), pa.string())
            found = pa.array(list(ids.values()), pa.int64()).take(pc.index_in(rows["column_name"], names))
            at = rows.schema.get_field_index("column_id")
            rows = rows.set_column(at, "column_id", pc.coalesce(rows["column_id"], found))
        if entry.format == "external" and flight == "stats.columns":
            self._note_columns(connection, entry, rows)
        return rows

    def _note_columns(self, connection: Connection, entry: TableEntry, rows: pa.Table) -> None:
        """The columns of an external table are those that statistics speak of."""
        known = {i for (i,) in connection.execute(
            "SELECT column_id FROM table_columns WHERE table_key = ?", [entry.table_key]).fetchall()}  # fmt: skip
        types = rows["logical_type"] if "logical_type" in rows.column_names else pa.nulls(rows.num_rows, pa.string())
        names = pa.table({"id": rows["column_id"], "name": rows["column_name"], "type": types})
        if known:
            names = names.filter(pc.invert(pc.is_in(names["id"], pa.array(list(known), pa.int64()))))
        fresh: dict[int, tuple[str, str | None]] = {}
        for column_id, name, type in zip(*(names[c].to_pylist() for c in names.column_names), strict=True):
            if name is not None and column_id not in fresh:
                fresh[column_id] = (name, type)
        if not fresh:
            return
        self.catalog.assign_column_ids(
            connection, entry, [n for n, _ in fresh.values()], {n: i for i, (n, _) in fresh.items()}
        )
        start = len(known)
        connection.executemany(
            "INSERT INTO table_columns VALUES (?, ?, ?, ?, 'YES', ?)",
            [[entry.table_key, n, t, start + at, i] for at, (i, (n, t)) in enumerate(fresh.items(), 1)],
        )

    def _next_generation(self) -> int:
        """Grows with every put, across restarts too: the wall clock in microseconds, never twice the same."""
        self._generation = max(self._generation + 1, time.time_ns() // 1000)
        return self._generation

    # Reading single records.

    def get(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        found = self._find(table, snapshot_id, target)
        return found and {name: found[name] for name in found if name not in ("generation", "created_at")}

    def _find(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        flight = FLIGHT_OF[target.kind]
        condition, parameters = _where_target(target)
        source, leading = _rows_of(flight, table, snapshot_id)
        with self.database.reading() as cursor:
            rows = cursor.sql(f"SELECT t.* FROM {source}{condition}", params=[*leading, *parameters]).to_arrow_table()
        return rows.to_pylist()[0] if rows.num_rows else None

    def meta(self, table: TableEntry, snapshot_id: int, target: Target) -> Meta:
        self.catalog.snapshot(table, snapshot_id)
        row = self._find(table, snapshot_id, target)
        if row is None:
            raise NotFound(
                f'nothing is stored for {storage_id(target)} of "{table.full_name}" at snapshot {snapshot_id}',
                code="UNKNOWN_TARGET",
                hint="capture it first",
            )
        columns = stored_columns(FLIGHT_OF[target.kind])
        content = {name: _plain(row[name]) for name in columns if name not in COSMETIC and row[name] is not None}
        content["sketches"] = self._sketch_digests(table, snapshot_id, target)
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return Meta(digest, row["generation"], row["created_at"], row["refreshed_at"] or row["created_at"])

    def _sketch_digests(self, table: TableEntry, snapshot_id: int, target: Target) -> list[str]:
        family = "file_sketches" if target.kind is TargetKind.FILE else "stats.sketches"
        source, leading = _rows_of(family, table, snapshot_id)
        with self.database.reading() as cursor:
            found = cursor.execute(
                f"SELECT role || ' ' || sketch_type || ' ' || sha256(data) FROM {source} AND t.storage_id = ?"
                " ORDER BY 1", [*leading, storage_id(target)],
            ).fetchall()  # fmt: skip
        return [row[0] for row in found]

    def count(self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None) -> int:
        self.catalog.snapshot(table, snapshot_id)
        total = 0
        with self.database.reading() as cursor:
            for each in [kind] if kind else list(TargetKind):
                source, leading = _rows_of(FLIGHT_OF[each], table, snapshot_id)
                total += cursor.execute(f"SELECT count(*) FROM {source}", leading).fetchall()[0][0]
        return total

    def list(
        self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None, *,
        page_token: str = "", page_size: int = 1000,
    ) -> tuple[list[dict[str, Any]], str, int]:  # fmt: skip
        total = self.count(table, snapshot_id, kind)
        records: list[dict[str, Any]] = []
        with self.database.reading() as cursor:
            for each in [kind] if kind else list(TargetKind):
                source, leading = _rows_of(FLIGHT_OF[each], table, snapshot_id)
                for row in cursor.sql(f"SELECT t.* FROM {source}", params=leading).to_arrow_table().to_pylist():
                    target = _target_of(each, row)
                    records.append({"storage_id": storage_id(target), "target_kind": str(each)} | row)
        records.sort(key=lambda record: record["storage_id"])
        later = [record for record in records if record["storage_id"] > page_token]
        page = later[:page_size]
        return page, page[-1]["storage_id"] if len(later) > len(page) else "", total

    # Deleting.

    def delete(self, table: TableEntry, snapshot_id: int | None = None, target: Target | None = None) -> int:
        return self.database.write(lambda connection: self.delete_in(connection, table, snapshot_id, target))

    def delete_in(
        self, connection: Connection, table: TableEntry, snapshot_id: int | None, target: Target | None = None
    ) -> int:
        deleted = 0
        flights = list(FLIGHT_OF.values()) + ["stats.file_columns", "stats.sketches", "file_sketches"]
        if target is not None:
            family = "file_sketches" if target.kind is TargetKind.FILE else "stats.sketches"
            flights = [FLIGHT_OF[target.kind], family]
            if target.kind is TargetKind.FILE:
                flights.insert(1, "stats.file_columns")
        for flight in flights:
            condition, parameters = ("", [])
            if target is not None:
                condition, parameters = _where_target(target)
                if flight.endswith("sketches"):
                    condition, parameters = " AND t.storage_id = ?", [storage_id(target)]
            delete = _delete_by_snapshot if flight in BY_SNAPSHOT else _delete_by_span
            gone = delete(connection, flight, table, snapshot_id, condition, parameters)
            deleted += 0 if flight.endswith("sketches") else gone
        return deleted

    def captured_snapshots(self, table: TableEntry) -> set[int]:
        """Snapshots of a table for which any record is stored."""
        found: set[int] = set()
        with self.database.reading() as cursor:
            for physical in BY_SNAPSHOT.values():
                found |= {i for (i,) in cursor.execute(
                    f"SELECT DISTINCT snapshot_id FROM {physical} WHERE table_key = ?", [table.table_key]).fetchall()}  # fmt: skip
            found |= {i for (i,) in cursor.execute(
                "SELECT DISTINCT snapshot_id FROM file_snapshots WHERE table_key = ?", [table.table_key]).fetchall()}  # fmt: skip
        return found

    def expirable(self, table: TableEntry) -> list[int]:
        """Snapshots with records that the format itself no longer has; never of an external table."""
        if table.format == "external":
            return []
        live = {s.snapshot_id for s in self.catalog.snapshots(table) if s.is_live}
        return sorted(self.captured_snapshots(table) - live)

    def expire(self, table: TableEntry) -> dict[int, int]:
        """Deletes what `expirable` names: snapshot → records that went."""

        def run(connection: Connection) -> dict[int, int]:
            return {s: self.delete_in(connection, table, s) for s in self.expirable(table)}

        return self.database.write(run)


# Merging a put with what is stored.


class _Merge(Protocol):
    def apply(self, connection: Connection, generation: int) -> Counts: ...


class _Staged:
    """Rows of a put in the physical table's columns, numbered, each target once."""

    def __init__(self, connection: Connection, flight: str, entry: TableEntry, rows: pa.Table, leading: str):
        self.flight, self.entry = flight, entry
        self.received = rows.num_rows
        columns = stored_columns(flight)
        keys = IDENTITY[flight]
        data = {"row_no": pa.array(np.arange(rows.num_rows))}
        if leading:
            data[leading] = rows[leading]
        for name, type in columns.items():
            data[name] = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, type)
        self.given = [name for name in columns if name in rows.column_names]
        self.table = pa.table(data)
        self.keys = ((leading,) if leading else ()) + keys
        cosmetic = SKETCH_COSMETIC if flight.endswith("sketches") else COSMETIC
        self.content = [name for name in columns if name not in cosmetic and name not in keys]
        self._once(connection)

    def _once(self, connection: Connection) -> None:
        keys = ", ".join(f'"{k}"' for k in self.keys) or "1"
        with _view(connection, staged=self.table):
            distinct = connection.execute(
                f"SELECT count(*) FROM (SELECT DISTINCT {keys} FROM staged)").fetchall()[0][0]  # fmt: skip
            if distinct == self.table.num_rows:
                return
            content = ", ".join(f'"{name}"' for name in self.content)
            twice = connection.execute(
                f"SELECT any_value(row_no) FROM (SELECT min(row_no) AS row_no, {keys} AS k FROM staged"
                f" GROUP BY {keys}, {content}) GROUP BY k HAVING count(*) > 1 LIMIT 1"
                if len(self.keys) <= 1
                else f"SELECT any_value(row_no) FROM (SELECT min(row_no) AS row_no, {keys} FROM staged"
                f" GROUP BY {keys}, {content}) GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
            ).fetchall()
            if twice:
                where = {k: self.table[k][twice[0][0]].as_py() for k in self.keys}
                raise InvalidArgument(
                    f'{self.flight}: two different rows for one target of "{self.entry.full_name}": {_told(where)}',
                    hint="send each target once",
                )
            first = connection.sql(f"SELECT min(row_no) AS row_no FROM staged GROUP BY {keys}").to_arrow_table()
        self.table = self.table.take(first["row_no"].combine_chunks().sort())

    def same(self) -> str:
        """SQL: the stored row `t` has the content of the staged row `s`."""
        return " AND ".join(f's."{n}" IS NOT DISTINCT FROM t."{n}"' for n in self.content) or "true"

    def join(self) -> str:
        return " AND ".join(f's."{k}" IS NOT DISTINCT FROM t."{k}"' if k == "column_id" and self.flight == "file_sketches"
                            else f's."{k}" = t."{k}"' for k in self.keys) or "true"  # fmt: skip

    def refuse(self, connection: Connection, row_no: int, rowid: int, physical: str) -> None:
        """Raises the Conflict of one row, naming the first field that differs."""
        row = self.table.filter(pc.equal(self.table["row_no"], row_no)).to_pylist()[0]
        with _view(connection, s1=pa.table({"rid": [rowid]})):
            old = connection.sql(
                f"SELECT * FROM {physical} WHERE rowid = (SELECT rid FROM s1)").to_arrow_table().to_pylist()[0]  # fmt: skip
        field = next((n for n in self.content if row[n] != old[n]), "content")
        where = {k: row[k] for k in self.keys}
        raise Conflict(
            f'{self.flight}: "{self.entry.full_name}" already has another record for {_told(where)}: {field} is '
            f"{_told(old.get(field))}, the put says {_told(row.get(field))}",
            hint='put with mode "upsert" or "replace_snapshot" to replace it',
            params={"table": self.entry.full_name, "field": field},
        )


class _SnapshotMerge:
    """A put into a table whose rows are kept once for each snapshot."""

    def __init__(
        self,
        connection: Connection,
        mode: PutMode,
        flight: str,
        entry: TableEntry,
        rows: pa.Table,
        snapshots: list[int],
    ):
        self.physical, self.entry, self.mode, self.snapshots = BY_SNAPSHOT[flight], entry, mode, snapshots
        self.flight = flight
        self.staged = staged = _Staged(connection, flight, entry, rows, "snapshot_id")
        self.insert, self.doomed, self.unchanged, self.replaced = staged.table, pa.array([], pa.int64()), 0, 0
        scope = f"table_key = {entry.table_key} AND snapshot_id IN ({', '.join(map(str, snapshots))})"
        if not connection.execute(f"SELECT 1 FROM {self.physical} WHERE {scope} LIMIT 1").fetchall():
            return
        with _view(connection, staged=staged.table):
            found = connection.sql(
                f"SELECT s.row_no, t.rowid AS rid, ({staged.same()}) AS same FROM staged s"
                f" JOIN (SELECT rowid, * FROM {self.physical} WHERE {scope}) t ON {staged.join()}"
            ).to_arrow_table()
        other = found.filter(pc.invert(found["same"]))
        if mode is PutMode.CREATE and other.num_rows:
            staged.refuse(connection, other["row_no"][0].as_py(), other["rid"][0].as_py(), self.physical)
        settled = found if mode is PutMode.FILL else found.filter(found["same"])
        self.unchanged = settled.num_rows
        self.insert = _without(staged.table, settled["row_no"])
        if mode is not PutMode.FILL:
            self.replaced, self.doomed = other.num_rows, other["rid"]
        if mode is PutMode.REPLACE_SNAPSHOT:
            with _view(connection, kept=found.select(["rid"])):
                absent = connection.sql(
                    f"SELECT rowid AS rid FROM {self.physical} WHERE {scope} AND rowid NOT IN (SELECT rid FROM kept)"
                ).to_arrow_table()
            self.doomed = pa.chunked_array([*other["rid"].chunks, *absent["rid"].chunks], pa.int64())

    def apply(self, connection: Connection, generation: int) -> Counts:
        _delete_rows(connection, self.physical, self.doomed)
        _insert(connection, self.physical, self.staged, self.insert, f"{self.entry.table_key}, snapshot_id", generation)
        if self.mode is PutMode.REPLACE_SNAPSHOT and self.flight != "stats.sketches":
            self._drop_orphaned_sketches(connection)
        created = self.insert.num_rows - self.replaced
        return Counts(self.staged.received, created, self.unchanged, self.replaced)

    def _drop_orphaned_sketches(self, connection: Connection) -> None:
        """Sketches of targets that the new set lacks go; those of targets that stay are carried over."""
        kind = next(str(k) for k, flight in FLIGHT_OF.items() if flight == self.flight)
        ids = [storage_id(_target_of(TargetKind(kind), row)) for row in self.staged.table.select(
            [n for n in self.staged.keys if n != "snapshot_id"]).to_pylist()] or ["table"]  # fmt: skip
        with _view(connection, kept=pa.table({"storage_id": ids, "snapshot_id": self.staged.table["snapshot_id"]})):
            connection.execute(
                "DELETE FROM stats_sketches WHERE table_key = ? AND target_kind = ?"
                f" AND snapshot_id IN ({', '.join(map(str, self.snapshots))})"
                " AND NOT EXISTS (SELECT 1 FROM kept k WHERE k.storage_id = stats_sketches.storage_id"
                " AND k.snapshot_id = stats_sketches.snapshot_id)",
                [self.entry.table_key, kind],
            )


class _SpanMerge:
    """A put of one snapshot's rows into a table whose rows hold for a span of file listings."""

    def __init__(
        self, connection: Connection, mode: PutMode, flight: str, entry: TableEntry, rows: pa.Table, snapshot_id: int
    ):
        self.flight, self.physical, self.entry, self.snapshot_id = flight, BY_SPAN[flight], entry, snapshot_id
        self.staged = staged = _Staged(connection, flight, entry, rows, "")
        self.insert, self.unchanged, self.replaced = staged.table, 0, 0
        self.doomed: Any = pa.array([], pa.int64())
        positions = dict(
            connection.execute(
                "SELECT snapshot_id, pos FROM file_snapshots WHERE table_key = ? AND family = ?", [entry.table_key, flight]
            ).fetchall()
        )  # fmt: skip
        self.last = max(positions.values(), default=-1)
        self.is_new = snapshot_id not in positions
        self.pos = self.last + 1 if self.is_new else positions[snapshot_id]
        if self.is_new and self.pos == 0:
            return
        if self.is_new:  # what the newest listing holds stays open where the new one holds the same
            scope = f"table_key = {entry.table_key} AND to_pos = {OPEN_END}"
        else:
            scope = f"table_key = {entry.table_key} AND from_pos <= {self.pos} AND to_pos > {self.pos}"
        with _view(connection, staged=staged.table):
            found = connection.sql(
                f"SELECT s.row_no, t.rowid AS rid, ({staged.same()}) AS same FROM staged s"
                f" JOIN (SELECT rowid, * FROM {self.physical} WHERE {scope}) t ON {staged.join()}"
            ).to_arrow_table()
        same, other = found.filter(found["same"]), found.filter(pc.invert(found["same"]))
        if not self.is_new and mode is PutMode.CREATE and other.num_rows:
            staged.refuse(connection, other["row_no"][0].as_py(), other["rid"][0].as_py(), self.physical)
        settled = found if mode is PutMode.FILL and not self.is_new else same
        self.insert = _without(staged.table, settled["row_no"])
        if not self.is_new:
            self.unchanged = settled.num_rows
            if mode is not PutMode.FILL:
                self.replaced, self.doomed = other.num_rows, other["rid"]
        if self.is_new or mode is PutMode.REPLACE_SNAPSHOT:
            kept = same if self.is_new else found
            with _view(connection, kept=kept.select(["rid"])):
                absent = connection.sql(
                    f"SELECT rowid AS rid FROM {self.physical} WHERE {scope} AND rowid NOT IN (SELECT rid FROM kept)"
                ).to_arrow_table()
            self.doomed = pa.chunked_array(
                [absent["rid"].combine_chunks()] if self.is_new
                else [self.doomed.combine_chunks(), absent["rid"].combine_chunks()], pa.int64()
            )  # fmt: skip

    def apply(self, connection: Connection, generation: int) -> Counts:
        if self.is_new:
            with _view(connection, doomed=pa.table({"rid": self.doomed})):
                if len(self.doomed):
                    connection.execute(
                        f"UPDATE {self.physical} SET to_pos = {self.pos} WHERE rowid IN (SELECT rid FROM doomed)"
                    )
            connection.execute(
                "INSERT INTO file_snapshots VALUES (?, ?, ?, ?)",
                [self.entry.table_key, self.flight, self.snapshot_id, self.pos],
            )
        else:
            _remove_at(connection, self.physical, self.doomed, self.pos, self.last)
        end = OPEN_END if self.is_new or self.pos == self.last else self.pos + 1
        leading = f"{self.entry.table_key}, {self.pos}, {end}"
        _insert(connection, self.physical, self.staged, self.insert, leading, generation)
        total = self.staged.table.num_rows
        created = total if self.is_new else self.insert.num_rows - self.replaced
        return Counts(self.staged.received, created, self.unchanged, self.replaced)


def _remove_at(connection: Connection, physical: str, doomed: Any, pos: int, last: int) -> None:
    """Takes rows out of the listing at `pos` alone: their spans are cut, or split around it."""
    if not len(doomed):
        return
    names = [name for name in _columns_of(connection, physical) if name not in ("from_pos", "to_pos")]
    columns = ", ".join(f'"{n}"' for n in names)
    later = f"to_pos > {pos + 1} AND {pos} < {last}"
    with _view(connection, doomed=pa.table({"rid": doomed})):
        among = "rowid IN (SELECT rid FROM doomed)"
        connection.execute(
            f"INSERT INTO {physical} (from_pos, to_pos, {columns}) SELECT {pos + 1}, to_pos, {columns}"
            f" FROM {physical} WHERE {among} AND {later}"
        )
        connection.execute(f"DELETE FROM {physical} WHERE {among} AND from_pos = {pos}")
        connection.execute(f"UPDATE {physical} SET to_pos = {pos} WHERE {among} AND from_pos < {pos}")


def _columns_of(connection: Connection, physical: str) -> list[str]:
    return [row[0] for row in connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [physical]).fetchall()]  # fmt: skip


def _insert(
    connection: Connection, physical: str, staged: _Staged, rows: pa.Table, leading: str, generation: int
) -> None:
    if not rows.num_rows:
        return
    columns = ", ".join(f'"{name}"' for name in stored_columns(staged.flight))
    with _view(connection, staged=rows):
        connection.execute(f"INSERT INTO {physical} SELECT {leading}, {columns}, {generation}, now() FROM staged")


def _delete_rows(connection: Connection, physical: str, rowids: Any) -> None:
    if len(rowids):
        with _view(connection, doomed=pa.table({"rid": rowids})):
            connection.execute(f"DELETE FROM {physical} WHERE rowid IN (SELECT rid FROM doomed)")


def _delete_by_snapshot(
    connection: Connection,
    flight: str,
    table: TableEntry,
    snapshot_id: int | None,
    condition: str,
    parameters: list[Any],
) -> int:
    where, values = "t.table_key = ?", [table.table_key]
    if snapshot_id is not None:
        where, values = where + " AND t.snapshot_id = ?", [*values, snapshot_id]
    return connection.execute(
        f"DELETE FROM {BY_SNAPSHOT[flight]} t WHERE {where}{condition}", [*values, *parameters]
    ).fetchall()[0][0]


def _delete_by_span(
    connection: Connection,
    flight: str,
    table: TableEntry,
    snapshot_id: int | None,
    condition: str,
    parameters: list[Any],
) -> int:
    physical = BY_SPAN[flight]
    positions = connection.execute(
        "SELECT snapshot_id, pos FROM file_snapshots WHERE table_key = ? AND family = ? ORDER BY pos",
        [table.table_key, flight],
    ).fetchall()
    last = max((pos for _, pos in positions), default=-1)
    deleted = 0
    for snapshot, pos in positions:
        if snapshot_id not in (None, snapshot):
            continue
        doomed = connection.sql(
            f"SELECT rowid AS rid FROM {physical} t WHERE t.table_key = ? AND from_pos <= {pos} AND to_pos > {pos}"
            f"{condition}", params=[table.table_key, *parameters],
        ).to_arrow_table()["rid"]  # fmt: skip
        deleted += len(doomed)
        if condition:
            _remove_at(connection, physical, doomed, pos, last)
        else:
            connection.execute(
                "DELETE FROM file_snapshots WHERE table_key = ? AND family = ? AND pos = ?", [table.table_key, flight, pos]
            )  # fmt: skip
    if not condition:  # rows that no listing holds any more
        connection.execute(
            f"DELETE FROM {physical} WHERE table_key = ? AND NOT EXISTS (SELECT 1 FROM file_snapshots f WHERE"
            f" f.table_key = {physical}.table_key AND f.family = ? AND f.pos >= {physical}.from_pos"
            f" AND f.pos < {physical}.to_pos)",
            [table.table_key, flight],
        )
    return deleted


# Small pieces.


class _view:  # noqa: N801  a context manager that reads like a function
    """Arrow tables as views of the writer's connection, by name, while the block runs."""

    def __init__(self, connection: Connection, **tables: pa.Table):
        self.connection, self.tables = connection, tables

    def __enter__(self) -> None:
        for name, table in self.tables.items():
            self.connection.register(name, table)

    def __exit__(self, *_: object) -> None:
        for name in self.tables:
            self.connection.unregister(name)


def _rows_of(flight: str, table: TableEntry, snapshot_id: int) -> tuple[str, list[Any]]:
    """FROM and WHERE (open to `AND …`) of a table's stored rows `t` at one snapshot, and the parameters."""
    if flight in BY_SNAPSHOT:
        return f"{BY_SNAPSHOT[flight]} t WHERE t.table_key = ? AND t.snapshot_id = ?", [table.table_key, snapshot_id]
    return (
        f"{BY_SPAN[flight]} t JOIN file_snapshots f ON f.table_key = t.table_key AND f.pos >= t.from_pos"
        " AND f.pos < t.to_pos WHERE f.table_key = ? AND f.family = ? AND f.snapshot_id = ?",
        [table.table_key, flight, snapshot_id],
    )


def _where_target(target: Target) -> tuple[str, list[Any]]:
    match target.kind:
        case TargetKind.COLUMN:
            return " AND t.column_id = ?", [target.column_id]
        case TargetKind.FILE:
            return " AND t.file_path = ?", [target.file_path]
        case TargetKind.EXPRESSION:
            return " AND t.engine_kind = ? AND t.engine_expression_key = ?", [
                target.engine_kind, target.engine_expression_key]  # fmt: skip
        case TargetKind.COLUMN_GROUP:
            return " AND t.column_ids = ?::BIGINT[]", [list(target.column_ids)]
        case _:
            return "", []


def _target_of(kind: TargetKind, row: Mapping[str, Any]) -> Target:
    match kind:
        case TargetKind.COLUMN:
            return Target.column(row["column_id"])
        case TargetKind.FILE:
            return Target.file(row["file_path"])
        case TargetKind.EXPRESSION:
            return Target.expression(row["engine_kind"], row["engine_expression_key"])
        case TargetKind.COLUMN_GROUP:
            return Target.column_group(row["column_ids"])
        case _:
            return Target.table()


def _without(table: pa.Table, row_numbers: pa.ChunkedArray) -> pa.Table:
    if not len(row_numbers):
        return table
    keep = pc.invert(pc.is_in(table["row_no"], value_set=row_numbers.combine_chunks()))
    return table.filter(keep)


def _snapshots_of(rows: pa.Table) -> dict[int, str | None]:
    """Snapshot id → a schema hash that the rows give for it, in order of appearance."""
    if "schema_hash" not in rows.column_names:
        return dict.fromkeys(rows["snapshot_id"].unique().to_pylist())
    pairs = rows.select(["snapshot_id", "schema_hash"]).group_by(["snapshot_id", "schema_hash"]).aggregate([])
    found: dict[int, str | None] = {}
    for snapshot_id, schema_hash in zip(*(pairs[c].to_pylist() for c in ("snapshot_id", "schema_hash")), strict=True):
        found[snapshot_id] = found.get(snapshot_id) or schema_hash
    return found


def _first(rows: pa.Table, name: str) -> Any:
    if name not in rows.column_names or not rows.num_rows:
        return None
    return next((value for value in rows[name].unique().to_pylist() if value), None)


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={_told(v)}" for k, v in value.items())
    text = repr(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= 100 else text[:100] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _digest(puts: Sequence[Put]) -> str:
    """SHA-256 of a put's rows and modes, however the rows were cut into batches."""
    digest = hashlib.sha256()
    for put in puts:
        digest.update(f"{put.flight}\0{put.mode}\0{put.rows.schema.names}\0".encode())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, put.rows.schema) as writer:
            writer.write_table(pa.Table.from_batches(put.rows.combine_chunks().to_batches(), put.rows.schema))
        digest.update(sink.getvalue())
    return digest.hexdigest()

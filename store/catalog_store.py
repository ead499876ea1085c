"""The catalog: connectors, tables, columns and their ids, snapshots. Stored in DuckDB, read from memory.

`Catalog` holds every table's entry in memory, because each read resolves names and each put resolves keys. Entries
change only inside the writer's transaction; after a rollback they are read anew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from store.arrow_sql import execute, query, within
from store.catalog_entries import EXTERNAL, Entries, SnapshotEntry, TableEntry, new_column_ids
from store.current_rows import CurrentRows
from store.database import Connection, Database, insert_rows
from store.errors import InvalidArgument, NotFound, nearest
from store.lru import LruCache
from store.names import dotted_name, split_name, table_uuid
from store.publications import Publications

_PLACE = ("table_key", "snapshot_id", "hash")
__all__ = ["EXTERNAL", "Catalog", "SnapshotEntry", "TableEntry", "table_uuid"]

SIGHTED = 65_536  # snapshots that need not be looked up when they are put again


class Catalog(Publications):
    """The catalog of one database. Any thread may call reading methods; writing ones take the writer's connection.

    Args:
        database: The open database; its commits and rollbacks keep the entries in memory up to date.
    """

    def __init__(self, database: Database):
        self.database = database
        self.drafted = Entries()  # as the writer's transaction has it
        self._committed = Entries()  # as everybody else sees it
        self._changed = False
        self.seen_as: dict[int, str] = {}  # digest of what was found of a table the last time it was looked at
        self.sighted: LruCache[tuple[int, int], str] = LruCache(SIGHTED)  # table key, snapshot id → its schema hash
        self._next_key = 1
        self.settling = CurrentRows()
        with database.reading() as cursor:
            self.reload(cursor)
        database.on_rollback.append(self.reload)
        database.on_rollback.append(self.settling.forget)
        database.before_commit.insert(0, self.settling.settle)
        database.on_commit.append(self._publish)

    # Reading, from memory.

    def reload(self, connection: Connection) -> None:
        """Reads all entries from the database: at the start, and after a rollback."""
        rows = connection.execute(
            "SELECT table_key, table_catalog, table_schema, table_name, table_id, format, location,"
            " current_snapshot_id, dropped FROM tables"
        ).fetchall()
        entries = [TableEntry(*row) for row in rows]
        self.drafted = Entries(
            {entry.name: entry for entry in entries if not entry.dropped}, {entry.table_key: entry for entry in entries}
        )
        self._next_key = max(self.drafted.by_key, default=0) + 1
        self._changed = True
        self.seen_as.clear()
        self.sighted.clear()
        self._publish()

    def _publish(self) -> None:
        """Shows everybody what was committed: a reader is never told of a snapshot whose rows it cannot see yet."""
        if self._changed:
            self._committed = Entries(dict(self.drafted.by_name), dict(self.drafted.by_key))
            self._changed = False

    @property
    def _seen(self) -> Entries:
        return self.drafted if self.database.is_writing else self._committed

    def find(self, name: tuple[str, str, str]) -> TableEntry | None:
        """The table of (catalog, schema, name), None if it does not exist or is dropped."""
        return self._seen.by_name.get(name)

    def get(self, full_name: str) -> TableEntry:
        """The table of a full name; NotFound names the nearest one there is."""
        name = split_name(full_name)
        if entry := self._seen.by_name.get(name):
            return entry
        if '"' not in full_name:  # a table's own name may hold dots that nobody quoted
            first, *rest = full_name.split(".")
            for cut in range(1, len(rest)):
                if entry := self._seen.by_name.get((first, ".".join(rest[:cut]), ".".join(rest[cut:]))):
                    return entry
        known = [entry.full_name for entry in self.tables()]
        raise NotFound(
            f'no table "{full_name}"',
            code="UNKNOWN_TABLE",
            hint=nearest(full_name, known) or "discover its catalog first, or put statistics of it",
            params={"table": full_name},
        )

    def by_key(self, table_key: int) -> TableEntry:
        """The table of a key, dropped ones included; KeyError if it does not exist."""
        return self._seen.by_key[table_key]

    def tables(self) -> list[TableEntry]:
        """All tables that are not dropped."""
        return list(self._seen.by_name.values())

    def current_snapshots(self) -> Mapping[int, int]:
        """Table key → current snapshot id of every table that has one, as was committed."""
        return self._committed.current

    def any_dropped(self) -> bool:
        """True if a table that left its lake is kept."""
        return self._committed.any_dropped

    # Reading, from the file.

    def snapshot(self, table: TableEntry, snapshot_id: int) -> SnapshotEntry:
        """A stored snapshot of a table; NotFound (UNKNOWN_SNAPSHOT) if it does not exist."""
        rows = self.database.rows(
            "SELECT snapshot_id, ordinal, schema_hash, is_live FROM snapshots WHERE table_key = ? AND snapshot_id = ?",
            table.table_key, snapshot_id,
        )  # fmt: skip
        if not rows:
            raise NotFound(
                f'table "{table.full_name}" has no snapshot {snapshot_id}',
                code="UNKNOWN_SNAPSHOT",
                hint="see the flight sys.snapshots, or discover the table anew",
                params={"table": table.full_name, "snapshot": snapshot_id},
            )
        return SnapshotEntry(*rows[0])

    def snapshots(self, table: TableEntry) -> list[SnapshotEntry]:
        """The stored snapshots of a table, oldest first."""
        rows = self.database.rows(
            "SELECT snapshot_id, ordinal, schema_hash, is_live FROM snapshots WHERE table_key = ? ORDER BY ordinal",
            table.table_key,
        )
        return [SnapshotEntry(*row) for row in rows]

    def column_ids(self, table: TableEntry) -> dict[str, int]:
        """Column key (`store.names.column_key`) → id, for every column the table ever had; where no other column is
        written alike, the dotted name is a key too."""
        rows = self.database.rows("SELECT column_name, column_id FROM column_ids WHERE table_key = ?", table.table_key)
        ids: dict[str, int] = dict(rows)
        return {dotted_name(key): id for key, id in rows if '"' in key} | ids

    def ambiguous_names(self, connection: Connection, table: TableEntry, names: Collection[str]) -> list[str]:
        """The names that two columns of the table's current schema share."""
        found = connection.execute(
            "SELECT column_name FROM table_columns WHERE table_key = ? AND column_name IN (SELECT unnest(?::VARCHAR[]))"
            " GROUP BY column_name HAVING count(DISTINCT column_id) > 1 ORDER BY 1", [table.table_key, list(names)],
        )  # fmt: skip
        return [name for (name,) in found.fetchall()]

    def refuse_ambiguous(self, table: TableEntry, columns: Iterable[str]) -> None:
        """Refuses names of columns that two columns of a table's current schema are written as.

        Raises:
            InvalidArgument: One of them is; names the ids to ask for instead.
        """
        names = sorted({name for name in columns if not name.startswith("#")})
        if not names:
            return
        with self.database.reading() as cursor:
            if not (ambiguous := self.ambiguous_names(cursor, table, names)):
                return
            rows = cursor.execute(
                "SELECT DISTINCT column_id FROM table_columns WHERE table_key = ? AND column_name = ? ORDER BY 1",
                [table.table_key, ambiguous[0]],
            ).fetchall()
        ids = " or ".join(f"#{column_id}" for (column_id,) in rows)
        raise InvalidArgument(
            f'several columns of "{table.full_name}" are written "{ambiguous[0]}"',
            code="AMBIGUOUS_COLUMN", hint=f"name one by its id: {ids}", params={"column": ambiguous[0]},
        )  # fmt: skip

    def column_id(self, table: TableEntry, column: str) -> int:
        """The id of a column, given as `#<id>`, its name or its key (`store.names.column_key`).

        Raises:
            InvalidArgument: Two columns are written so.
            NotFound: The table has no such column.
        """
        self.refuse_ambiguous(table, [column])
        ids = self.column_ids(table)
        number = int(column[1:]) if column[:1] == "#" and column[1:].isdecimal() else None
        found = ids.get(column) if number is None or number not in ids.values() else number
        if found is None:
            hint = nearest(column, list(ids))
            raise NotFound(f'"{table.full_name}" has no column "{column}"', code="UNKNOWN_COLUMN", hint=hint)
        return found

    def schema_columns(self, table: TableEntry, schema_hash: str | None) -> list[list[Any]]:
        """[name, logical type, nullable, field id, path?] of each column of a schema seen before; empty when unknown.
        The path is a list of parts, and missing where a connector gave none."""
        rows = self.database.rows(
            "SELECT columns FROM schemas WHERE table_key = ? AND schema_hash = ?", table.table_key, schema_hash
        )
        return json.loads(rows[0][0]) if rows else []

    def connector(self, catalog: str) -> dict[str, Any]:
        """A connector: `catalog`, `format`, `uri`, `options` with secrets masked, `state`.

        Raises:
            NotFound: No lake is connected by this name (UNKNOWN_CONNECTOR).
        """
        rows = self.database.rows(
            "SELECT catalog, format, uri, options, state, last_error FROM connectors WHERE catalog = ?", catalog
        )
        if not rows or rows[0][1] == EXTERNAL:
            known = [row[0] for row in self.database.rows("SELECT catalog FROM connectors")]
            hint = nearest(catalog, known) or "register it first"
            raise NotFound(f'no connector "{catalog}"', code="UNKNOWN_CONNECTOR", hint=hint)
        row = rows[0]
        return {"catalog": row[0], "format": row[1], "uri": row[2], "options": json.loads(row[3]), "state": row[4]}

    # Writing: all of these run inside the writer's transaction.

    def register(
        self, connection: Connection, name: tuple[str, str, str], table_id: str | None = None, format: str = EXTERNAL
    ) -> TableEntry:
        """The entry of a table, made when it is new."""
        return self.register_all(connection, {name: table_id}, format)[name]

    def register_all(
        self, connection: Connection, names: Mapping[tuple[str, str, str], str | None], format: str = EXTERNAL,
        current: Mapping[tuple[str, str, str], int] | None = None,
    ) -> dict[tuple[str, str, str], TableEntry]:  # fmt: skip
        """The entries of tables; those that are new are stored.

        Args:
            connection: The writer's.
            names: Catalog, schema and name → the id of a new table, None to derive it from the name.
            format: Of new tables.
            current: Current snapshot ids of new tables by name.

        Returns:
            The entry of each table, by name.
        """
        entries: dict[tuple[str, str, str], TableEntry] = {}
        new = []
        for name, table_id in names.items():
            if (entry := self.drafted.by_name.get(name)) is None:
                current_id = (current or {}).get(name)
                entry = TableEntry(
                    self._next_key, *name, table_id or table_uuid(*name), format, current_snapshot_id=current_id
                )
                self._next_key += 1
                new.append(entry)
            entries[name] = entry
        if not new:
            return entries
        now = datetime.now(UTC)
        fields = ("table_key", "table_catalog", "table_schema", "table_name", "table_id", "format")
        columns = (*fields, "current_snapshot_id", "dropped", "state", "discovered_at")
        values = [[*(getattr(entry, field) for field in fields), entry.current_snapshot_id, False, "ACTIVE", now]
                  for entry in new]  # fmt: skip
        insert_rows(connection, f"tables ({', '.join(columns)})", values)
        if format == EXTERNAL:
            connected = {name for (name,) in connection.execute("SELECT catalog FROM connectors").fetchall()}
            catalogs = dict.fromkeys(entry.table_catalog for entry in new if entry.table_catalog not in connected)
            insert_rows(connection, "connectors (catalog, format, options, state)",
                        [[catalog, EXTERNAL, "{}", "ACTIVE"] for catalog in catalogs])  # fmt: skip
        for entry in new:
            self.keep(entry)
        return entries

    def change(self, connection: Connection, entry: TableEntry, **changes: Any) -> TableEntry:
        """The entry with some fields changed, on disk and in memory."""
        sets = ", ".join(f"{name} = ?" for name in changes)
        connection.execute(f"UPDATE tables SET {sets} WHERE table_key = ?", [*changes.values(), entry.table_key])
        entry = replace(self.drafted.by_key[entry.table_key], **changes)
        self.keep(entry)
        if "current_snapshot_id" in changes:
            self.settling.moved([entry.table_key])
        return entry

    def keep(self, entry: TableEntry) -> None:
        """Shows an entry to the writer, and to everybody once it is committed."""
        self.database.touch(entry.table_key)
        self.seen_as.pop(entry.table_key, None)
        draft, self._changed = self.drafted, True
        old = draft.by_key.get(entry.table_key)
        if old is not None and (old.name != entry.name or entry.dropped) and draft.by_name.get(old.name) == old:
            del draft.by_name[old.name]
        draft.by_key[entry.table_key] = entry
        if not entry.dropped:
            draft.by_name[entry.name] = entry

    def sight_snapshots(
        self, connection: Connection, seen: pa.Table, new_tables: Collection[int] = ()
    ) -> set[tuple[int, int]]:
        """Registers snapshots that a put has rows of; an external table's greatest id is its current snapshot.

        Args:
            connection: The writer's.
            seen: table_key, snapshot_id, schema_hash (null where the rows have none), each table and snapshot once.
            new_tables: Keys of tables that have no snapshots yet.

        Returns:
            The snapshots that were not registered before, each with its table key.
        """
        places = zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True)
        unsure = pa.array([self.sighted.get(place) is None for place in places], pa.bool_())
        new = seen.filter(unsure)
        registered = self._sight(connection, new, new_tables) if new.num_rows else set()
        greatest: dict[int, int] = {}
        for key, snapshot_id in zip(seen["table_key"].to_pylist(), seen["snapshot_id"].to_pylist(), strict=True):
            greatest[key] = max(greatest.get(key, snapshot_id), snapshot_id)
        self.database.touch_all(greatest)
        later = {}
        for key, snapshot_id in greatest.items():
            current = (entry := self.drafted.by_key[key]).current_snapshot_id
            if entry.format == EXTERNAL and (current is None or snapshot_id > current):
                later[key] = snapshot_id
        if later:
            self._advance(connection, later)
        return registered

    def _sight(self, connection: Connection, seen: pa.Table, new_tables: Collection[int]) -> set[tuple[int, int]]:
        places = list(zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True))
        hashes = dict(zip(places, seen["schema_hash"].to_pylist(), strict=True))
        older = seen.filter(pa.array([key not in new_tables for key, _ in places], pa.bool_()))
        stored = self._stored_hashes(connection, older) if older.num_rows else {}
        new = [place for place in places if place not in stored]
        # a connector's own snapshots come from the connector: whether it has this one it will tell
        external = {key for key, _ in new if self.drafted.by_key[key].format == EXTERNAL}
        insert_rows(connection, "snapshots (table_key, snapshot_id, ordinal, schema_hash, is_live)", [
            [key, id_, id_ if key in external else -1, hashes[key, id_], True if key in external else None]
            for key, id_ in new
        ])  # fmt: skip
        gained = [place for place, old in stored.items() if old is None and hashes[place] is not None]
        if gained:
            columns = {name: [place[at] for place in gained] for at, name in enumerate(("table_key", "snapshot_id"))}
            rows = pa.table(columns | {"schema_hash": [hashes[place] for place in gained]})
            execute(
                connection, "UPDATE snapshots SET schema_hash = k.schema_hash FROM {gained} k WHERE"
                f" snapshots.{within('table_key', rows['table_key'])} AND snapshots.table_key = k.table_key"
                " AND snapshots.snapshot_id = k.snapshot_id", gained=rows,
            )  # fmt: skip
            self.settling.moved(columns["table_key"])
        for place in places:
            if (hash_ := stored.get(place) or hashes[place]) is not None:
                self.sighted.put(place, hash_)
        for key, _ in new:
            self.seen_as.pop(key, None)  # whether the lake has it the next look tells
        return set(new)

    def _stored_hashes(self, connection: Connection, seen: pa.Table) -> dict[tuple[int, int], str | None]:
        """Table key and snapshot id → schema hash of the snapshots that are stored, among some."""
        scope = f"{within('n.table_key', seen['table_key'])} AND {within('n.snapshot_id', seen['snapshot_id'])}"
        join = "" if seen.num_rows == 1 else (
            " SEMI JOIN {seen} s ON s.table_key = n.table_key AND s.snapshot_id = n.snapshot_id")  # fmt: skip
        rows = execute(connection, "SELECT n.table_key, n.snapshot_id, n.schema_hash"
                       f" FROM snapshots n{join} WHERE {scope}", seen=seen)  # fmt: skip
        return {(key, snapshot_id): hash_ for key, snapshot_id, hash_ in rows}

    def _advance(self, connection: Connection, later: Mapping[int, int]) -> None:
        """Gives external tables a later current snapshot: table key → id, greater than any before."""
        pairs = pa.table({
            "table_key": pa.array(later.keys(), pa.int64()), "snapshot_id": pa.array(later.values(), pa.int64()),
        })  # fmt: skip
        changed = self._with_other_schema(connection, later, pairs)
        if len(later) == 1:
            ((key, snapshot_id),) = later.items()
            connection.execute(
                "UPDATE tables SET current_snapshot_id = ? WHERE table_key = ?", [snapshot_id, key]
            )  # fmt: skip
        else:
            execute(
                connection, "UPDATE tables SET current_snapshot_id = p.snapshot_id FROM {pairs} p"
                f" WHERE tables.table_key = p.table_key AND tables.{within('table_key', pairs['table_key'])}",
                pairs=pairs,
            )  # fmt: skip
        self.settling.moved(changed)
        earlier = {k: i for k, i in later.items() if self.drafted.by_key[k].current_snapshot_id is not None}
        self.settling.aged({key: snapshot_id for key, snapshot_id in earlier.items() if key not in changed})
        for key, snapshot_id in later.items():
            self.keep(replace(self.drafted.by_key[key], current_snapshot_id=snapshot_id))

    def _with_other_schema(self, connection: Connection, later: Mapping[int, int], pairs: pa.Table) -> set[int]:
        """The tables (key → new current snapshot, the same as `pairs`) whose schema is not that of the snapshot that
        is current until now. Where it stays, the same rows answer, and are only labelled anew."""
        hashes = []
        for key, snapshot_id in later.items():
            current = self.drafted.by_key[key].current_snapshot_id
            if current is not None:
                hashes.append((key, self.sighted.get((key, current)), self.sighted.get((key, snapshot_id))))
        if all(old and new for _, old, new in hashes):
            return {key for key, old, new in hashes if old != new}
        moved = query(
            connection, "SELECT p.table_key FROM {pairs} p JOIN tables t ON t.table_key = p.table_key"
            " LEFT JOIN snapshots o ON o.table_key = t.table_key AND o.snapshot_id = t.current_snapshot_id"
            " LEFT JOIN snapshots n ON n.table_key = p.table_key AND n.snapshot_id = p.snapshot_id"
            " WHERE t.current_snapshot_id IS NOT NULL AND n.schema_hash IS DISTINCT FROM o.schema_hash", pairs=pairs,
        )  # fmt: skip
        return set(moved["table_key"].to_pylist())

    def assign_column_ids(
        self, connection: Connection, entry: TableEntry, names: Iterable[str], given: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Name → id for every name a table ever had; a new name gets `given`'s id, else the next free position."""
        known: dict[str, int] = dict(
            connection.execute(
                "SELECT column_name, column_id FROM column_ids WHERE table_key = ?", [entry.table_key]
            ).fetchall()
        )
        new = new_column_ids(known, names, given)
        if new:
            replaced = [name for name in new if name in known]
            if replaced:
                connection.execute(
                    "DELETE FROM column_ids WHERE table_key = ? AND column_name IN (SELECT unnest(?))",
                    [entry.table_key, replaced],
                )
            insert_rows(connection, "column_ids", [[entry.table_key, n, i] for n, i in new.items()])
        return known | new

    def put_connector(
        self, connection: Connection, catalog: str, format: str, uri: str, masked_options: Mapping[str, str]
    ) -> None:
        """Stores a connector in the state ACTIVE, in place of one of the same name."""
        connection.execute("DELETE FROM connectors WHERE catalog = ?", [catalog])
        connection.execute(
            "INSERT INTO connectors VALUES (?, ?, ?, ?, 'ACTIVE', ?, NULL)",
            [catalog, format, uri, json.dumps(dict(masked_options), ensure_ascii=False), datetime.now(UTC)],
        )

    def note_connector(self, connection: Connection, catalog: str, error: str | None) -> None:
        """Records the result of the last inspection of a connector: its error, or None."""
        connection.execute(
            "UPDATE connectors SET state = ?, last_error = ?, last_seen_at = CASE WHEN ? THEN ? ELSE last_seen_at END"
            " WHERE catalog = ?",
            ["FAILING" if error else "ACTIVE", error, error is None, datetime.now(UTC), catalog],
        )

    def drop_connector(self, connection: Connection, catalog: str) -> None:
        """Forgets a connector; its tables leave the catalog, their statistics stay until deleted or expired."""
        connection.execute("DELETE FROM connectors WHERE catalog = ?", [catalog])
        for entry in self.tables():
            if entry.table_catalog == catalog and entry.format != EXTERNAL:
                self.change(connection, entry, dropped=True)

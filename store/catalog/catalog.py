"""The catalog: connectors, tables, columns and their ids, snapshots. Stored in DuckDB, read from memory.

`Catalog` keeps every table's entry in memory, because each read resolves names and each put resolves keys. Entries
change only inside the writer's transaction; after a rollback they are read from the database again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from store.catalog.deadlines import Deadlines
from store.catalog.findings import Findings
from store.catalog.publications import Publications
from store.catalog.snapshots import SnapshotRegistry
from store.duckdb.arrow_sql import LITERALS, among
from store.duckdb.commit import Behind, Derived
from store.duckdb.commit_log import Applied
from store.duckdb.database import Connection, Database, insert_rows
from store.history.presence import Presence
from store.history.spans import Spans
from store.model.catalog_entries import EXTERNAL, Entries, SnapshotEntry, TableEntry
from store.model.errors import InvalidArgument, NotFound, nearest
from store.model.names import dotted_name, readings, table_uuid

_INSPECTED: Final = ("tables", "snapshots", "schemas", "table_columns", "column_ids", "table_constraints", "identities")
"""Tables of the database that inspections store, and of which digests tell whether they have to."""
_UNKNOWN: Final = object()  # value of a column that entries do not have


def ids_by_name(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The ids of a table's columns from its rows of `column_ids`, as `Catalog.column_ids` returns them."""
    ids = dict(rows)
    return {dotted_name(key): id for key, id in ids.items() if '"' in key} | ids


def _entries(connection: Connection, where: str = "true") -> list[TableEntry]:
    """The stored entries of tables that meet a condition."""
    rows = connection.execute(
        "SELECT table_key, table_catalog, table_schema, table_name, table_id, format, location,"
        f" current_snapshot_id, dropped, last_error, capture_error, max_snapshots_behind FROM tables WHERE {where}"
    ).fetchall()
    return [TableEntry(*row) for row in rows]


def _insert_tables(connection: Connection, entries: Iterable[TableEntry]) -> None:
    """Stores the entries of new tables."""
    now = datetime.now(UTC)
    fields = ("table_key", "table_catalog", "table_schema", "table_name", "table_id", "format")
    columns = (*fields, "current_snapshot_id", "dropped", "discovered_at")
    values = [
        [*(getattr(entry, field) for field in fields), entry.current_snapshot_id, False, now] for entry in entries
    ]
    insert_rows(connection, f"tables ({', '.join(columns)})", values)


def _insert_catalogs(connection: Connection, catalogs: Iterable[str]) -> None:
    """Stores catalogs of tables that no connector has found, without those that are stored."""
    connected = {name for (name,) in connection.execute("SELECT catalog FROM connectors").fetchall()}
    new = [[catalog, EXTERNAL, "{}", "ACTIVE"] for catalog in catalogs if catalog not in connected]
    insert_rows(connection, "connectors (catalog, format, options, state)", new)


class Catalog(Publications, SnapshotRegistry, Derived):
    """The catalog of one database. Reading methods are thread-safe; writing methods take the writer's connection.

    Args:
        database: The open database. Its commits (`Database.phases`) keep the entries in memory up to date.
    """

    def __init__(self, database: Database):
        super().__init__()
        self.database = database
        self.uncommitted = Entries()  # the state inside the writer's transaction
        self.committed = Entries()  # the state that readers see
        self._changed = False
        # table key → digests of the table at its last inspection (`store.catalog.found_tables.Digests`)
        self.description_digests: dict[int, str] = {}
        self.state_digests: dict[int, str] = {}
        self.lives: Counter[int] = Counter()  # table key → how often it became another table since the start
        self._next_key = 1
        self._connectors: dict[str, dict[str, Any]] = {}  # by catalog; cache
        self._has_connector_changed = False
        self._noted: set[str] = set()  # connectors whose state is another one than the cached one
        self.deadlines = Deadlines()
        self.findings = Findings()
        self.presence = Presence(database)
        self.spans = Spans(self.presence, self.current_places)
        with database.reading() as cursor:
            self.reload(cursor)

    @property
    def behind(self) -> Behind:
        """The store behind the database, which is told of changes of records."""
        return self.database.phases.behind

    # The phase of a commit.

    def derive(self, connection: Connection) -> None:
        """Updates the spans of what the transaction has changed."""
        self.spans.update(connection)

    def reload(self, connection: Connection) -> None:
        """Reads all entries from the database, at start-up and after a rollback."""
        self.read_entries(connection)
        self.publish()
        self.spans.clear()

    def renew(self, connection: Connection) -> None:
        """Reads the entries and the tables that have rows."""
        self.reload(connection)
        self.presence.load(connection)

    def read_entries(self, connection: Connection) -> None:
        """Reads all entries from the database; readers see them with the next commit."""
        entries = _entries(connection)
        self.uncommitted = Entries(
            {entry.name: entry for entry in entries if not entry.dropped}, {entry.table_key: entry for entry in entries}
        )
        looks = connection.execute("SELECT table_key, epoch(checked_at), watch_seconds FROM tables WHERE NOT dropped")
        self.deadlines.load(looks.fetchall())
        staged = connection.execute("SELECT table_key FROM staged_listings").fetchall()  # maybe of tables to come
        self._next_key = max([*self.uncommitted.by_key, *(key for (key,) in staged)], default=0) + 1
        self._changed = True
        self.description_digests.clear()
        self.state_digests.clear()
        self.forget_places()
        self._has_connector_changed = True

    def applied(self, connection: Connection, applied: Applied) -> None:
        """Reads what others have changed."""
        self.presence.applied(connection, applied)
        for key in applied.outlived:
            self.lives[key] += 1
        self._read_applied(connection, applied)
        known = self.uncommitted.by_key
        looked_at = applied.keys.get("tables", set()) | applied.keys.get("snapshots", set())
        entries = [known[key] for key in looked_at if key in known]
        self.findings.outdate(entry.name for entry in entries if entry.format != EXTERNAL)

    def _read_applied(self, connection: Connection, applied: Applied) -> None:
        """Reads the entries that others have changed."""
        self._has_connector_changed |= "connectors" in applied.rows or "connectors" in applied.keys
        changed = set[int]().union(*(applied.keys.get(table, ()) for table in _INSPECTED))
        staged = applied.rows.get("staged_listings")
        if applied.is_whole or len(changed) > LITERALS or staged is not None:
            self.read_entries(connection)
            return
        for key in changed:
            self.description_digests.pop(key, None)
            self.state_digests.pop(key, None)
        if applied.keys.get("snapshots"):
            self.forget_places()
        if keys := applied.keys.get("tables"):
            found = {entry.table_key: entry for entry in _entries(connection, among("table_key", keys))}
            for key in keys:
                self._replace_entry(key, found.get(key))

    def _replace_entry(self, key: int, entry: TableEntry | None) -> None:
        """Makes an entry that is stored visible; None removes it."""
        draft, self._changed = self.uncommitted, True
        old = draft.by_key.pop(key, None)
        if old is not None and draft.by_name.get(old.name) == old:
            del draft.by_name[old.name]
        if entry is not None:
            draft.by_key[key] = entry
            self._next_key = max(self._next_key, key + 1)
            if not entry.dropped:
                draft.by_name[entry.name] = entry

    def publish(self) -> None:
        """Makes committed entries visible to readers, after the rows of their snapshots are visible."""
        if self._changed:
            self.committed = Entries(dict(self.uncommitted.by_name), dict(self.uncommitted.by_key))
            self._changed = False
        self.deadlines.publish()
        if self._has_connector_changed or self._noted:  # a new dict, because a reader may be filling the old one
            kept = {} if self._has_connector_changed else dict(self._connectors)
            for catalog in self._noted:
                kept.pop(catalog, None)
            self._connectors, self._has_connector_changed, self._noted = kept, False, set()

    # Reading, from memory.

    @property
    def _seen(self) -> Entries:
        return self.uncommitted if self.database.is_writing else self.committed

    def find(self, name: tuple[str, str, str]) -> TableEntry | None:
        """The table of (catalog, schema, name), None if it does not exist or is dropped."""
        return self._seen.by_name.get(name)

    def get(self, full_name: str, sees: Callable[[str, str, str], bool] | None = None) -> TableEntry:
        """The table of a full name.

        Args:
            sees: Says by its name whether a table may be found or suggested; None for all.

        Raises:
            NotFound: The table does not exist (UNKNOWN_TABLE); suggests the nearest name.
        """
        for name in readings(full_name):
            if (entry := self._seen.by_name.get(name)) and (sees is None or sees(*name)):
                return entry
        names = [entry.full_name for entry in self.tables() if sees is None or sees(*entry.name)]
        raise NotFound(
            f'no table "{full_name}"',
            code="UNKNOWN_TABLE",
            hint=nearest(full_name, names) or "discover its catalog first, or put statistics of it",
            params={"table": full_name},
        )

    def by_key(self, table_key: int) -> TableEntry:
        """The table of a key, dropped ones included; KeyError if it does not exist."""
        return self._seen.by_key[table_key]

    def tables(self) -> list[TableEntry]:
        """All tables that are not dropped."""
        return list(self._seen.by_name.values())

    def is_unsure(self, table: TableEntry) -> bool:
        """True if the table cannot be inspected or read, or the next look at it is overdue, so that no statistic is
        sure to be of what it has now."""
        return table.failing or self.deadlines.is_over(table.table_key)

    def unsure(self) -> frozenset[int]:
        """Keys of the tables that are `is_unsure`."""
        return self.committed.failing | self.deadlines.over()

    # Reading, from the file.

    def snapshot(self, table: TableEntry, snapshot_id: int) -> SnapshotEntry:
        """A stored snapshot of a table.

        Raises:
            NotFound: The table has no such snapshot (UNKNOWN_SNAPSHOT).
        """
        rows = self.database.rows(
            "SELECT snapshot_id, ordinal, schema_hash, is_live FROM snapshots WHERE table_key = ? AND snapshot_id = ?",
            table.table_key,
            snapshot_id,
        )
        if not rows:
            raise NotFound(
                f'table "{table.full_name}" has no snapshot {snapshot_id}',
                code="UNKNOWN_SNAPSHOT",
                hint="see the flight sys.snapshots, or discover the table again",
                params={"table": table.full_name, "snapshot": snapshot_id},
            )
        return SnapshotEntry(*rows[0])

    def snapshot_id(self, table: TableEntry, snapshot: str | int | None) -> int:
        """The id of a request's snapshot: that of the current one for "current" and None, else the id itself.

        Raises:
            NotFound: The table has no such snapshot, or none at all (UNKNOWN_SNAPSHOT).
        """
        if isinstance(snapshot, int):
            return self.snapshot(table, snapshot).snapshot_id
        if table.current_snapshot_id is None:
            raise NotFound(f'"{table.full_name}" has no snapshot', code="UNKNOWN_SNAPSHOT")
        return table.current_snapshot_id

    def snapshots(self, table: TableEntry) -> list[SnapshotEntry]:
        """The stored snapshots of a table, oldest first."""
        rows = self.database.rows(
            "SELECT snapshot_id, ordinal, schema_hash, is_live FROM snapshots WHERE table_key = ? ORDER BY ordinal",
            table.table_key,
        )
        return [SnapshotEntry(*row) for row in rows]

    def column_ids(self, table: TableEntry) -> dict[str, int]:
        """Column key (`store.model.names.column_key`) → id, for every column the table ever had; a dotted name that
        belongs to one column only is a key too."""
        return ids_by_name(
            self.database.rows("SELECT column_name, column_id FROM column_ids WHERE table_key = ?", table.table_key)
        )

    def ambiguous_names(self, connection: Connection, table: TableEntry, names: Collection[str]) -> list[str]:
        """Finds the ambiguous names: those that several columns of the table's current schema share."""
        shared = connection.execute(
            "SELECT column_name FROM table_columns WHERE table_key = ? AND column_name IN (SELECT unnest(?::VARCHAR[]))"
            " GROUP BY column_name HAVING count(DISTINCT column_id) > 1 ORDER BY 1",
            [table.table_key, list(names)],
        )
        return [name for (name,) in shared.fetchall()]

    def refuse_ambiguous(self, table: TableEntry, columns: Iterable[str]) -> None:
        """Refuses a name that several columns of a table's current schema share; `#<id>` is no name.

        Raises:
            InvalidArgument: A name is ambiguous; the hint has the ids to use instead.
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
            code="AMBIGUOUS_COLUMN",
            hint=f"name one by its id: {ids}",
            params={"column": ambiguous[0]},
        )

    def column_id(self, table: TableEntry, column: str) -> int:
        """The id of a column, given as `#<id>`, by name, or by key (`store.model.names.column_key`).

        Raises:
            InvalidArgument: Several columns have this name.
            NotFound: The table has no such column.
        """
        self.refuse_ambiguous(table, [column])
        ids = self.column_ids(table)
        number = int(column[1:]) if column[:1] == "#" and column[1:].isdecimal() else None
        column_id = ids.get(column) if number is None or number not in ids.values() else number
        if column_id is None:
            hint = nearest(column, list(ids))
            raise NotFound(f'"{table.full_name}" has no column "{column}"', code="UNKNOWN_COLUMN", hint=hint)
        return column_id

    def schema_columns(self, table: TableEntry, schema_hash: str | None) -> list[list[Any]]:
        """[name, logical type, nullable, field id, path?] of each column of a stored schema; empty if it is not stored.
        The path is a list of parts; some connectors give none."""
        rows = self.database.rows(
            "SELECT columns FROM schemas WHERE table_key = ? AND schema_hash = ?", table.table_key, schema_hash
        )
        return json.loads(rows[0][0]) if rows else []

    def constraints(self, table: TableEntry) -> list[dict[str, Any]]:
        """The declared constraints of a table: `kind` as in the information schema, `name`, `columns` in order, and the
        `clause` of a check or, as of `capture.connectors.spi.Constraint`, of a foreign key."""
        rows = self.database.rows(
            "SELECT kind, name, list(column_name ORDER BY ordinal_position) FILTER (column_name IS NOT NULL), clause"
            " FROM table_constraints WHERE table_key = ? GROUP BY kind, name, clause ORDER BY name",
            table.table_key,
        )
        names = ("kind", "name", "columns", "clause")
        return [
            dict(zip(names, (kind, name, columns or [], clause), strict=True)) for kind, name, columns, clause in rows
        ]

    def connector(self, catalog: str) -> dict[str, Any]:
        """A connector: `catalog`, `format`, `uri`, `options` with secrets masked, `state`.

        Raises:
            NotFound: The connector does not exist (UNKNOWN_CONNECTOR).
        """
        connectors = self._connectors
        if (connector := connectors.get(catalog)) is not None:
            return connector
        rows = self.database.rows(
            "SELECT catalog, format, uri, options, state FROM connectors WHERE catalog = ?", catalog
        )
        if not rows or rows[0][1] == EXTERNAL:
            catalogs = [row[0] for row in self.database.rows("SELECT catalog FROM connectors")]
            hint = nearest(catalog, catalogs) or "register it first"
            raise NotFound(f'no connector "{catalog}"', code="UNKNOWN_CONNECTOR", hint=hint)
        catalog, format, uri, options, state = rows[0]
        connector = {"catalog": catalog, "format": format, "uri": uri, "options": json.loads(options), "state": state}
        connectors[catalog] = connector
        return connector

    # Writing: all of these run inside the writer's transaction.

    def register(
        self, connection: Connection, name: tuple[str, str, str], table_id: str | None = None, format: str = EXTERNAL
    ) -> TableEntry:
        """The entry of a table, stored first if it is new.

        Args:
            table_id: Id of a new table; None to derive it from the name.
            format: Format of a new table.
        """
        return self.register_all(connection, {name: table_id}, format)[name]

    def register_all(
        self,
        connection: Connection,
        names: Mapping[tuple[str, str, str], str | None],
        format: str = EXTERNAL,
        current: Mapping[tuple[str, str, str], int] = MappingProxyType({}),
        keys: Mapping[tuple[Any, ...], int] = MappingProxyType({}),
    ) -> dict[tuple[str, str, str], TableEntry]:
        """The entry of each table, by name; new ones are stored first.

        Args:
            names: Catalog, schema and name → the id of a new table, None to derive it from the name.
            current: Current snapshot ids of new tables by name.
            keys: Reserved keys of new tables by name.
        """
        entries: dict[tuple[str, str, str], TableEntry] = {}
        new = []
        for name, table_id in names.items():
            if (entry := self.uncommitted.by_name.get(name)) is None:
                entry = TableEntry(
                    keys.get(name) or self.reserve_key(),
                    *name,
                    table_id or table_uuid(*name),
                    format,
                    current_snapshot_id=current.get(name),
                )
                new.append(entry)
            entries[name] = entry
        if not new:
            return entries
        _insert_tables(connection, new)
        if format == EXTERNAL:
            _insert_catalogs(connection, dict.fromkeys(entry.table_catalog for entry in new))
        for entry in new:
            self.set_entry(entry)
            self.behind.registered(entry)
        return entries

    def outlive(self, table_key: int) -> None:
        """Begins another life of a table: what is being captured of it is captured again."""
        self.lives[table_key] += 1
        self.database.outlive(table_key)

    def reserve_key(self) -> int:
        """The key of a table to come; called inside of a write."""
        self._next_key += 1
        return self._next_key - 1

    def change(self, connection: Connection, changes: Mapping[int, Mapping[str, Any]]) -> list[TableEntry]:
        """Changes tables, on disk and in memory; returns their new entries.

        Args:
            changes: Table key → new values of columns of `tables`, of the same ones for each.
        """
        if not changes:
            return []
        old = {key: self.uncommitted.by_key[key] for key in changes}
        wanted = {key: dict(values) for key, values in changes.items()}
        for key, values in wanted.items():
            if "current_snapshot_id" in values:
                is_same = values["current_snapshot_id"] == old[key].current_snapshot_id
                values["capture_error"] = old[key].capture_error if is_same else None  # of the files of its snapshot
                if not is_same:
                    self.spans.move([key])
        names = [
            name
            for name in next(iter(wanted.values()))
            if any(values[name] != getattr(old[key], name, _UNKNOWN) for key, values in wanted.items())
        ]
        if names:
            self.update_tables(
                connection, {key: {name: values[name] for name in names} for key, values in wanted.items()}
            )
        fields = [name for name in names if name in TableEntry.__dataclass_fields__]
        for key, values in wanted.items():
            self.set_entry(replace(old[key], **{name: values[name] for name in fields}))
        return [self.uncommitted.by_key[key] for key in wanted]

    def limit_inheritance(self, connection: Connection, limits: Mapping[int, int | None]) -> None:
        """Sets how many snapshots an inherited distribution may be behind: table key → number, None for any."""
        self.update_tables(connection, {key: {"max_snapshots_behind": most} for key, most in limits.items()})
        for key, most in limits.items():
            self.set_entry(replace(self.uncommitted.by_key[key], max_snapshots_behind=most))
        self.spans.change(limits)

    def annotate(self, connection: Connection, entry: TableEntry, said: Mapping[str, Any]) -> None:
        """Sets what people say of a table, which no inspection changes: `owner`, `tags`, `notes`; empty means none."""
        sets = ", ".join(f"{name} = ?" for name in said)
        values = [value or None for value in said.values()]
        connection.execute(f"UPDATE tables SET {sets} WHERE table_key = ?", [*values, entry.table_key])
        self.database.touch(entry.table_key)

    def set_entry(self, entry: TableEntry) -> None:
        """Makes an entry visible to the writer, and to readers once it is committed."""
        self.database.touch(entry.table_key)
        self.state_digests.pop(entry.table_key, None)
        draft, self._changed = self.uncommitted, True
        old = draft.by_key.get(entry.table_key)
        if old is not None and (old.name != entry.name or entry.dropped) and draft.by_name.get(old.name) == old:
            del draft.by_name[old.name]
        draft.by_key[entry.table_key] = entry
        if not entry.dropped:
            draft.by_name[entry.name] = entry

    def put_connector(
        self, connection: Connection, catalog: str, format: str, uri: str, masked_options: Mapping[str, str]
    ) -> None:
        """Stores a connector, with its options without secrets, as ACTIVE; replaces one of the same name."""
        self._has_connector_changed = True
        connection.execute("DELETE FROM connectors WHERE catalog = ?", [catalog])
        connection.execute(
            "INSERT INTO connectors VALUES (?, ?, ?, ?, 'ACTIVE', ?, NULL)",
            [catalog, format, uri, json.dumps(dict(masked_options), ensure_ascii=False), datetime.now(UTC)],
        )

    def note_connector(self, connection: Connection, catalog: str, error: str | None) -> None:
        """Records the result of the last inspection of a connector: its error, None if it succeeded."""
        state = "FAILING" if error else "ACTIVE"
        if self._connectors.get(catalog, {}).get("state") != state:
            self._noted.add(catalog)
        connection.execute(
            "UPDATE connectors SET state = ?, last_error = ?, last_seen_at = CASE WHEN ? THEN ? ELSE last_seen_at END"
            " WHERE catalog = ?",
            [state, error, error is None, datetime.now(UTC), catalog],
        )

    def drop_connector(self, connection: Connection, catalog: str) -> None:
        """Deletes a connector and drops its tables; their statistics stay until deleted or expired."""
        self._has_connector_changed = True
        connection.execute("DELETE FROM connectors WHERE catalog = ?", [catalog])
        connection.execute("DELETE FROM namespaces WHERE table_catalog = ?", [catalog])
        tables = [t for t in self.tables() if t.table_catalog == catalog and t.format != EXTERNAL]
        self.change(connection, {table.table_key: {"dropped": True} for table in tables})

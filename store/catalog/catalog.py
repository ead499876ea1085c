"""The catalog: connectors, tables, columns and their ids, snapshots. Stored in DuckDB, read from memory.

`Catalog` keeps every table's entry in memory, because each read resolves names and each put resolves keys. Entries
change only inside the writer's transaction; after a rollback they are read from the database again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from store.catalog.connectors import Connectors, insert_catalogs
from store.catalog.deadlines import Deadlines
from store.catalog.entries import TableEntries, insert_tables, update_tables
from store.catalog.findings import Findings
from store.catalog.places import Places
from store.catalog.publications import Publications
from store.catalog.snapshots import SnapshotRegistry
from store.duckdb.arrow_sql import LITERALS
from store.duckdb.commit import Behind, Derived
from store.duckdb.commit_log import Applied
from store.duckdb.database import Connection, Database
from store.history.presence import Presence
from store.history.spans import Spans
from store.model.catalog_entries import EXTERNAL, SnapshotEntry, TableEntry
from store.model.errors import InvalidArgument, NotFound, nearest
from store.model.names import dotted_name, readings, table_uuid

_INSPECTED: Final = ("tables", "snapshots", "schemas", "table_columns", "column_ids", "table_constraints", "identities")
"""Tables of the database that inspections store, and of which digests tell whether they have to."""
_UNKNOWN: Final = object()  # value of a column that entries do not have


def ids_by_name(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The ids of a table's columns from its rows of `column_ids`, as `Catalog.column_ids` returns them."""
    ids = dict(rows)
    return {dotted_name(key): id for key, id in ids.items() if '"' in key} | ids


class Catalog(Derived):
    """The catalog of one database. Reading methods are thread-safe; writing methods take the writer's connection.

    Args:
        database: The open database. Its commits (`Database.phases`) keep what is in memory up to date.

    Attributes:
        entries: The entries of tables.
        connectors: The connected lakes.
        places: The places of snapshots in their tables' histories.
        snapshots_of_puts: Registers the snapshots that come with puts.
        publications: The newest publication of each table in each home.
        lives: Table key → how often it became another table since the start.
    """

    def __init__(self, database: Database):
        self.database = database
        self.entries = TableEntries(database)
        self.connectors = Connectors(database)
        self.publications = Publications(database)
        self.lives: Counter[int] = Counter()
        self.deadlines = Deadlines()
        self.findings = Findings()
        self.presence = Presence(database)
        self.places = Places(self.entries)
        self.spans = Spans(self.presence, self.places.current)
        self.snapshots_of_puts = SnapshotRegistry(database, self.entries, self.places, self.spans, self.presence)
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
        self.entries.read(connection)
        looks = connection.execute("SELECT table_key, epoch(checked_at), watch_seconds FROM tables WHERE NOT dropped")
        self.deadlines.load(looks.fetchall())
        self.places.forget()
        self.connectors.outdate()

    def applied(self, connection: Connection, applied: Applied) -> None:
        """Reads what others have changed."""
        self.presence.applied(connection, applied)
        for key in applied.outlived:
            self.lives[key] += 1
        self._read_applied(connection, applied)
        known = self.entries.uncommitted.by_key
        looked_at = applied.keys.get("tables", set()) | applied.keys.get("snapshots", set())
        entries = [known[key] for key in looked_at if key in known]
        self.findings.outdate(entry.name for entry in entries if entry.format != EXTERNAL)

    def _read_applied(self, connection: Connection, applied: Applied) -> None:
        """Reads the entries that others have changed."""
        if "connectors" in applied.rows or "connectors" in applied.keys:
            self.connectors.outdate()
        changed = set[int]().union(*(applied.keys.get(table, ()) for table in _INSPECTED))
        staged = applied.rows.get("staged_listings")
        if applied.is_whole or len(changed) > LITERALS or staged is not None:
            self.read_entries(connection)
            return
        self.entries.forget_digests(changed)
        if applied.keys.get("snapshots"):
            self.places.forget()
        if keys := applied.keys.get("tables"):
            self.entries.read_again(connection, keys)

    def publish(self) -> None:
        """Makes committed entries visible to readers, after the rows of their snapshots are visible."""
        self.entries.publish()
        self.deadlines.publish()
        self.connectors.publish()

    # Reading, from memory.

    def find(self, name: tuple[str, str, str]) -> TableEntry | None:
        """The table of (catalog, schema, name), None if it does not exist or is dropped."""
        return self.entries.seen.by_name.get(name)

    def get(self, full_name: str, sees: Callable[[str, str, str], bool] | None = None) -> TableEntry:
        """The table of a full name.

        Args:
            sees: Says by its name whether a table may be found or suggested; None for all.

        Raises:
            NotFound: The table does not exist (UNKNOWN_TABLE); suggests the nearest name.
        """
        for name in readings(full_name):
            if (entry := self.entries.seen.by_name.get(name)) and (sees is None or sees(*name)):
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
        return self.entries.seen.by_key[table_key]

    def tables(self) -> list[TableEntry]:
        """All tables that are not dropped."""
        return list(self.entries.seen.by_name.values())

    def is_unsure(self, table: TableEntry) -> bool:
        """True if the table cannot be inspected or read, or the next look at it is overdue, so that no statistic is
        sure to be of what it has now."""
        return table.failing or self.deadlines.is_over(table.table_key)

    def unsure(self) -> frozenset[int]:
        """Keys of the tables that are `is_unsure`."""
        return self.entries.committed.failing | self.deadlines.over()

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
            if (entry := self.entries.uncommitted.by_name.get(name)) is None:
                entry = TableEntry(
                    keys.get(name) or self.entries.reserve_key(),
                    *name,
                    table_id or table_uuid(*name),
                    format,
                    current_snapshot_id=current.get(name),
                )
                new.append(entry)
            entries[name] = entry
        if not new:
            return entries
        insert_tables(connection, new)
        if format == EXTERNAL:
            insert_catalogs(connection, dict.fromkeys(entry.table_catalog for entry in new))
        for entry in new:
            self.entries.set(entry)
            self.behind.registered(entry)
        return entries

    def outlive(self, table_key: int) -> None:
        """Begins another life of a table: what is being captured of it is captured again."""
        self.lives[table_key] += 1
        self.database.outlive(table_key)

    def change(self, connection: Connection, changes: Mapping[int, Mapping[str, Any]]) -> list[TableEntry]:
        """Changes tables, on disk and in memory; returns their new entries.

        Args:
            changes: Table key → new values of columns of `tables`, of the same ones for each.
        """
        if not changes:
            return []
        old = {key: self.entries.uncommitted.by_key[key] for key in changes}
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
            update_tables(connection, {key: {name: values[name] for name in names} for key, values in wanted.items()})
        fields = [name for name in names if name in TableEntry.__dataclass_fields__]
        for key, values in wanted.items():
            self.entries.set(replace(old[key], **{name: values[name] for name in fields}))
        return [self.entries.uncommitted.by_key[key] for key in wanted]

    def limit_inheritance(self, connection: Connection, limits: Mapping[int, int | None]) -> None:
        """Sets how many snapshots an inherited distribution may be behind: table key → number, None for any."""
        update_tables(connection, {key: {"max_snapshots_behind": most} for key, most in limits.items()})
        for key, most in limits.items():
            self.entries.set(replace(self.entries.uncommitted.by_key[key], max_snapshots_behind=most))
        self.spans.change(limits)

    def annotate(self, connection: Connection, entry: TableEntry, said: Mapping[str, Any]) -> None:
        """Sets what people say of a table, which no inspection changes: `owner`, `tags`, `notes`; empty means none."""
        sets = ", ".join(f"{name} = ?" for name in said)
        values = [value or None for value in said.values()]
        connection.execute(f"UPDATE tables SET {sets} WHERE table_key = ?", [*values, entry.table_key])
        self.database.touch(entry.table_key)

    def drop_connector(self, connection: Connection, catalog: str) -> None:
        """Deletes a connector and drops its tables; their statistics stay until deleted or expired."""
        self.connectors.drop(connection, catalog)
        tables = [t for t in self.tables() if t.table_catalog == catalog and t.format != EXTERNAL]
        self.change(connection, {table.table_key: {"dropped": True} for table in tables})

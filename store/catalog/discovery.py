"""Discovery: tables of a lake as a worker describes them, stored in the catalog."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from store.catalog.catalog import Catalog
from store.catalog.deletion import delete_records
from store.duckdb.arrow_sql import among, execute
from store.duckdb.layout import Connection, insert_rows
from store.history.spans import schema_key_sql
from store.model.catalog_entries import EXTERNAL, Place, TableEntry, is_another_table, new_column_ids
from store.model.names import column_key

log = logging.getLogger("statflight.store")

Found = Mapping[str, Any]
"""A table as `flight_server.worker.lake_inspection` describes it."""


def _digest(found: Mapping[str, Any]) -> str:
    """Digest of a discovered table, without its entry and new snapshots."""
    values = [found.get(name) for name in (
        "schema_hash", "schemas", "constraints", "live_snapshot_ids", "partition_keys", "properties", "identities",
        "metadata_location", "format_schema", "description", "comments",
    )]  # fmt: skip
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _path(column: Sequence[Any]) -> list[str] | None:
    """The path of a column `[name, type, nullable, field id, path?]`; None if unknown."""
    if len(column) > 4 and column[4]:
        return list(column[4])
    return None if "." in column[0] else [column[0]]


def _column_key(column: Sequence[Any]) -> str:
    path = _path(column)
    return str(column[0]) if path is None else column_key(path)


def _schemas_in_order(found: Found) -> list[Sequence[Any]]:
    """The columns of each schema, the current one last, because a column keeps the id of its first appearance."""
    current = found["schemas"].get(found["schema_hash"], [])
    return [columns for hash_, columns in found["schemas"].items() if hash_ != found["schema_hash"]] + [current]


_DETAILS: Final = ("partition_keys", "properties", "metadata_location", "format_schema", "description")


def _details(found: Found) -> tuple[list[str], str, str | None, str | None, str | None]:
    """The values of `_DETAILS`; properties as JSON."""
    properties = json.dumps(dict(found.get("properties", {})), sort_keys=True)
    return (
        list(found.get("partition_keys", ())), properties, found.get("metadata_location"), found.get("format_schema"),
        found.get("description"),
    )  # fmt: skip


def _fields(format: str, found: Found) -> dict[str, Any]:
    """Fields of a table's entry."""
    return {
        "table_schema": found["schema"], "table_name": found["name"], "format": format,
        "location": found.get("location"), "current_snapshot_id": found["current_snapshot_id"], "dropped": False,
    }  # fmt: skip


def _column_rows(table_key: int, found: Found, ids: Mapping[str, int]) -> list[list[Any]]:
    comments = found.get("comments", {})
    return [
        [
            table_key,
            c[0],
            c[1],
            position,
            "YES" if c[2] else "NO",
            ids[_column_key(c)],
            _path(c),
            comments.get(_column_key(c)),
        ]
        for position, c in enumerate(found["schemas"].get(found["schema_hash"], []), 1)
    ]


def _constraint_rows(table_key: int, found: Found) -> list[list[Any]]:
    return [
        [table_key, kind, name, position, column, clause]
        for kind, name, columns, clause in found.get("constraints", [])
        for position, column in enumerate(columns or [None], 1)
    ]


def _snapshot_rows(table_key: int, found: Found) -> list[list[Any]]:
    return [
        [table_key, s["snapshot_id"], s["ordinal"], s["parent_snapshot_id"], s["sequence_number"],
         datetime.fromisoformat(s["committed_at"]) if s["committed_at"] else None, s["operation"],
         s["schema_hash"], True, s.get("manifest_list"), s.get("summary"),
         str(Place(s["ordinal"], s["schema_hash"]).schema_key(s["snapshot_id"]))]  # Arrow infers no UBIGINT
        for s in found["snapshots"]
    ]  # fmt: skip


def _named(columns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Name, type, nullability and field id of columns: what a schema's hash covers, and the id that it does not."""
    return [tuple(column[:4]) for column in columns]


def _identity_rows(table_key: int, found: Found) -> list[list[Any]]:
    """The identity of the current snapshot, by which the next inspection recognizes the table."""
    identities = dict(map(tuple, found.get("identities", ())))
    current = found["current_snapshot_id"]
    return [[table_key, current, identities[current]]] if current in identities else []


class Discovery:
    """Stores the results of discovery. All methods run inside the writer's transaction."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

    def store_all(
        self, connection: Connection, catalog: str, format: str, found: Sequence[Found], present: Collection[Any],
        *, full: bool = True,
    ) -> list[TableEntry]:  # fmt: skip
        """`store` for many tables, in order; new ones are stored together.

        Args:
            present: (schema, name) of all tables of the lake; empty if not all were listed.
            full: Store snapshots again that are stored already.
        """
        self._forget_replaced(connection, [
            (entry, item) for item in found
            if (entry := self._catalog.uncommitted.by_name.get((catalog, item["schema"], item["name"]))) is not None
        ])  # fmt: skip
        if not full:
            found = self._without_stored(connection, catalog, found)
        entries = self._catalog.uncommitted.by_key.values()
        ids = {entry.table_id for entry in entries if entry.table_catalog == catalog}
        names = {entry.name for entry in entries}
        new = [
            item for item in found
            if (catalog, item["schema"], item["name"]) not in names and item["table_id"] not in ids
        ]  # fmt: skip
        new_ids = [item["table_id"] for item in new if item["table_id"]]
        together = len(new) > 1 and len(set(new_ids)) == len(new_ids)  # copies of a table share its id
        stored = self._store_new(connection, catalog, format, new) if together else {}
        return [
            stored.get((catalog, item["schema"], item["name"])) or self.store(
                connection, catalog, format, item, present)
            for item in found
        ]  # fmt: skip

    def _without_stored(self, connection: Connection, catalog: str, found: Sequence[Found]) -> list[Found]:
        """The tables without the snapshots that another inspection has stored in the meantime."""
        known = self._catalog.uncommitted.by_name
        of_names = (known.get((catalog, item["schema"], item["name"])) for item in found)
        entries = [  # of these tables, not of others that had their names
            entry if entry is not None and item["table_id"] in (None, entry.table_id) else None
            for entry, item in zip(of_names, found, strict=True)
        ]
        places = [
            (entry.table_key, snapshot["snapshot_id"])
            for entry, item in zip(entries, found, strict=True) if entry is not None for snapshot in item["snapshots"]
        ]  # fmt: skip
        if not places:
            return list(found)
        keys, ids = (pa.array(values, pa.int64()) for values in zip(*places, strict=True))
        stored = set(execute(
            connection, "SELECT s.table_key, s.snapshot_id FROM snapshots s SEMI JOIN {places} p"
            " ON p.table_key = s.table_key AND p.snapshot_id = s.snapshot_id WHERE s.is_live",
            places=pa.table({"table_key": keys, "snapshot_id": ids}),
        ))  # fmt: skip
        left: list[Found] = []
        for entry, item in zip(entries, found, strict=True):
            key = None if entry is None else entry.table_key
            new = [snapshot for snapshot in item["snapshots"] if (key, snapshot["snapshot_id"]) not in stored]
            left.append({**item, "snapshots": new})
        return left

    def _store_new(
        self, connection: Connection, catalog: str, format: str, found: Sequence[Found]
    ) -> dict[tuple[str, str, str], TableEntry]:
        """Stores new tables, with one insert into each table of the catalog."""
        names = {(catalog, item["schema"], item["name"]): item["table_id"] for item in found}
        entries = self._catalog.register_all(connection, names, format)
        rows: dict[str, list[list[Any]]] = {
            "schemas": [], "column_ids": [], "table_columns": [], "table_constraints": [], "snapshots": [],
            "identities": []}  # fmt: skip
        updates = []
        for item in found:
            entry = entries[catalog, item["schema"], item["name"]]
            key, ids = entry.table_key, {}  # type: int, dict[str, int]
            for columns in _schemas_in_order(item):
                keyed = {_column_key(c): c for c in columns}
                ids |= new_column_ids(ids, keyed, {k: c[3] for k, c in keyed.items() if c[3] is not None})
            rows["schemas"] += ([key, hash_, json.dumps(columns)] for hash_, columns in item["schemas"].items())
            rows["column_ids"] += ([key, name, column_id] for name, column_id in ids.items())
            rows["table_columns"] += _column_rows(key, item, ids)
            rows["table_constraints"] += _constraint_rows(key, item)
            rows["snapshots"] += _snapshot_rows(key, item)
            rows["identities"] += _identity_rows(key, item)
            entry = replace(entry, location=item.get("location"), current_snapshot_id=item["current_snapshot_id"])
            updates.append([key, entry.location, entry.current_snapshot_id, *_details(item)])
            self._catalog.set_entry(entry)
            self._catalog.table_digests[key] = _digest(item)
            entries[entry.name] = entry
        for table, new_rows in rows.items():
            insert_rows(connection, table, new_rows)
        self._catalog.cache_places((row[0], row[1], Place(row[2], row[7])) for row in rows["snapshots"])
        columns = ("table_key", "location", "current_snapshot_id", *_DETAILS)
        text = pa.string()
        types = (pa.int64(), text, pa.int64(), pa.list_(text), text, text, text, text)
        values = {n: pa.array(v, t) for n, v, t in zip(columns, zip(*updates, strict=True), types, strict=True)}
        changes = ", ".join(f"{name} = v.{name}" for name in columns[1:])
        execute(connection, f"UPDATE tables SET {changes} FROM {{values}} v WHERE tables.table_key = v.table_key",
                values=pa.table(values))  # fmt: skip
        return entries

    def is_as_known(self, catalog: str, format: str, found: Found) -> bool:
        """True if a table is unchanged since its last inspection, so that only the time of the inspection is new."""
        entry = self._catalog.find((catalog, found["schema"], found["name"]))
        if entry is None or found["snapshots"] or found["table_id"] not in (entry.table_id, None):
            return False
        same = all(getattr(entry, field) == value for field, value in _fields(format, found).items())
        return same and self._catalog.table_digests.get(entry.table_key) == _digest(found)

    def store(
        self, connection: Connection, catalog: str, format: str, found: Mapping[str, Any], present: Collection[Any]
    ) -> TableEntry:
        """Stores one table, with its column ids, columns, snapshots and constraints.

        A table whose id is stored under another name was renamed if that name is no longer in `present`; else one of
        the two is a copy.

        Args:
            present: (schema, name) of all tables of the lake; empty if not all were listed.
        """
        name = (catalog, found["schema"], found["name"])
        entry = self._catalog.uncommitted.by_name.get(name)
        if entry is None and found["table_id"] and present:
            renamed = (
                e for e in self._catalog.uncommitted.by_key.values()
                if e.table_id == found["table_id"] and e.table_catalog == catalog
                and (e.table_schema, e.table_name) not in present
            )  # fmt: skip
            entry = next(renamed, None)
        if entry is not None and found["table_id"] and entry.table_id not in (found["table_id"], None):
            if entry.format != EXTERNAL:  # another table of the same name: the old one was dropped
                self._catalog.change(connection, entry, dropped=True)
                entry = None
            else:
                entry = self._catalog.change(connection, entry, table_id=found["table_id"])
        if entry is None:
            dropped = (e for e in self._catalog.uncommitted.by_key.values() if e.name == name and e.dropped)
            entry = next((e for e in dropped if found["table_id"] in (None, e.table_id)), None)
        entry = entry or self._catalog.register(connection, name, found["table_id"], format)
        changes, digest = _fields(format, found), _digest(found)
        is_same = all(getattr(entry, field) == value for field, value in changes.items())
        if is_same and not found["snapshots"] and self._catalog.table_digests.get(entry.table_key) == digest:
            return entry  # unchanged since the last inspection
        details = dict(zip(_DETAILS, _details(found), strict=True))
        entry = self._catalog.change(connection, entry, details, **changes)
        self._forget_replaced(connection, [(entry, found)])
        self._forget_other_schema(connection, entry, found)
        self._store_schemas(connection, entry, found)
        self._store_snapshots(connection, entry, found)
        self._renew(connection, "identities", entry, _identity_rows(entry.table_key, found))
        self._catalog.table_digests[entry.table_key] = digest
        return entry

    def _forget_replaced(self, connection: Connection, found: Sequence[tuple[TableEntry, Found]]) -> None:
        """Deletes the records and snapshots of tables that are others now (`is_another_table`), though some snapshots
        of both have the same id."""
        given = {entry.table_key: item for entry, item in found}
        # formats without identities have none of any snapshot
        keys = [key for key, item in given.items() if item.get("identities") or item["current_snapshot_id"] is None]
        if not keys:
            return
        rows = execute(
            connection, f"SELECT table_key, snapshot_id, identity FROM identities WHERE {among('table_key', keys)}",
            moved=pa.table({"key": pa.array(keys, pa.int64())}),
        )  # fmt: skip
        for key, snapshot_id, identity in rows:
            item = given[key]
            if not is_another_table(
                (snapshot_id, identity), dict(map(tuple, item.get("identities", ()))),
                item.get("live_snapshot_ids", ()), item["current_snapshot_id"],
            ):  # fmt: skip
                continue
            entry = self._catalog.uncommitted.by_key[key]
            log.warning("%s was dropped and created again: its statistics are deleted", entry.full_name)
            delete_records(connection, self._catalog, entry, None)
            self._catalog.lives[key] += 1
            for table in ("snapshots", "identities"):
                connection.execute(f"DELETE FROM {table} WHERE table_key = ?", [key])
            self._catalog.forget_places()
            self._catalog.table_digests.pop(key, None)

    def _forget_other_schema(self, connection: Connection, entry: TableEntry, found: Found) -> None:
        """Deletes the records of a current snapshot whose table got another schema since: names and ids of columns may
        mean others now."""
        place = [entry.table_key, found["current_snapshot_id"]]
        rows = connection.execute(
            "SELECT n.schema_hash, s.columns FROM snapshots n LEFT JOIN schemas s ON s.table_key = n.table_key"
            " AND s.schema_hash = n.schema_hash WHERE n.table_key = ? AND n.snapshot_id = ?", place,
        ).fetchall()  # fmt: skip
        columns = found["schemas"].get(found["schema_hash"])
        if not rows or rows[0][0] is None or columns is None:
            return
        if rows[0] == (found["schema_hash"], None) or (
            rows[0][0] == found["schema_hash"] and _named(json.loads(rows[0][1])) == _named(columns)
        ):
            return
        # stored again with the new ids
        connection.execute(
            "DELETE FROM schemas WHERE table_key = ? AND schema_hash = ?", [place[0], found["schema_hash"]]
        )
        delete_records(connection, self._catalog, entry, place[1])
        self._catalog.lives[entry.table_key] += 1
        connection.execute(
            f"UPDATE snapshots SET schema_hash = $1, schema_key = {schema_key_sql('snapshots', '$1')}"
            " WHERE table_key = $2 AND snapshot_id = $3",
            [found["schema_hash"], *place],
        )
        self._catalog.forget_places()

    def _store_schemas(self, connection: Connection, entry: TableEntry, found: Mapping[str, Any]) -> None:
        known = {h for (h,) in connection.execute(
            "SELECT schema_hash FROM schemas WHERE table_key = ?", [entry.table_key]).fetchall()}  # fmt: skip
        ids: dict[str, int] = {}
        for columns in _schemas_in_order(found):
            keyed = {_column_key(c): c for c in columns}
            given = {key: c[3] for key, c in keyed.items() if c[3] is not None}
            self._adopt_dotted_names(connection, entry, keyed)
            ids = self._catalog.assign_column_ids(connection, entry, list(keyed), given)
        for schema_hash, columns in found["schemas"].items():
            if schema_hash not in known:
                connection.execute(
                    "INSERT INTO schemas VALUES (?, ?, ?)", [entry.table_key, schema_hash, json.dumps(columns)]
                )
        self._renew(connection, "table_columns", entry, _column_rows(entry.table_key, found, ids))
        self._renew(connection, "table_constraints", entry, _constraint_rows(entry.table_key, found))

    def _adopt_dotted_names(
        self, connection: Connection, entry: TableEntry, keyed: Mapping[str, Sequence[Any]]
    ) -> None:
        """Moves ids that an earlier layout stored under an unquoted name with dots to the quoted column key."""
        for key, column in keyed.items():
            if key != column[0] and column[0] not in keyed:
                connection.execute(
                    "UPDATE column_ids SET column_name = ? WHERE table_key = ? AND column_name = ?",
                    [key, entry.table_key, column[0]],
                )

    def store_namespaces(self, connection: Connection, catalog: str, namespaces: Collection[str]) -> None:
        """Replaces the list of a catalog's namespaces, which may have no tables."""
        stored = connection.execute("SELECT table_schema FROM namespaces WHERE table_catalog = ?", [catalog]).fetchall()
        if {name for (name,) in stored} != set(namespaces):
            connection.execute("DELETE FROM namespaces WHERE table_catalog = ?", [catalog])
            insert_rows(connection, "namespaces", [[catalog, name] for name in sorted(set(namespaces))])

    def note_tables(
        self, connection: Connection, table_keys: Collection[int], errors: Mapping[int, str] | None = None
    ) -> None:
        """Records the result of an inspection of tables. The current statistics of those that failed are STALE from
        the commit on, and `checked_at` keeps the time of the last inspection that succeeded.

        Args:
            errors: Table key → why the table cannot be read; the others are ACTIVE.
        """
        inspected: dict[str | None, list[int]] = {}
        for key in table_keys:
            inspected.setdefault((errors or {}).get(key), []).append(key)
        for error, keys in inspected.items():
            execute(
                connection, "UPDATE tables SET last_error = $error,"
                " checked_at = CASE WHEN $error IS NULL THEN $now ELSE checked_at END"
                f" WHERE {among('table_key', keys)}",
                {"now": datetime.now(UTC), "error": error},
                moved=pa.table({"key": pa.array(keys, pa.int64())}),
            )  # fmt: skip
            for entry in map(self._catalog.uncommitted.by_key.__getitem__, keys):
                if entry.last_error != error:
                    self._catalog.set_entry(replace(entry, last_error=error))

    def note_unreadable(
        self, connection: Connection, catalog: str, format: str, schema: str, name: str, reason: str
    ) -> TableEntry:
        """Records a table that exists but cannot be read; a new one is registered without snapshots."""
        entry = self._catalog.uncommitted.by_name.get((catalog, schema, name))
        entry = entry or self._catalog.register(connection, (catalog, schema, name), None, format)
        self.note_tables(connection, [entry.table_key], {entry.table_key: reason})
        return entry

    def _renew(self, connection: Connection, table: str, entry: TableEntry, rows: Sequence[Sequence[Any]]) -> None:
        old = connection.execute(f"SELECT * FROM {table} WHERE table_key = ?", [entry.table_key]).fetchall()
        if sorted(map(str, (tuple(row) for row in rows))) == sorted(map(str, old)):
            return
        connection.execute(f"DELETE FROM {table} WHERE table_key = ?", [entry.table_key])
        insert_rows(connection, table, rows)

    def _store_snapshots(self, connection: Connection, entry: TableEntry, found: Mapping[str, Any]) -> None:
        new = _snapshot_rows(entry.table_key, found)
        if new:
            known = (
                "FROM snapshots WHERE table_key = ? AND snapshot_id IN (SELECT unnest(?::BIGINT[]))",
                [entry.table_key, [row[1] for row in new]],
            )
            old = connection.execute(f"SELECT snapshot_id, ordinal, schema_hash {known[0]}", known[1]).fetchall()
            if old:
                connection.execute(f"DELETE {known[0]}", known[1])
            insert_rows(connection, "snapshots", new)
            self._catalog.cache_places((row[0], row[1], Place(row[2], row[7])) for row in new)
            if entry.max_snapshots_behind is not None or not {*old} <= {(row[1], row[2], row[7]) for row in new}:
                self._catalog.spans.change([entry.table_key])
        if (live := found.get("live_snapshot_ids")) is not None:
            connection.execute(
                "UPDATE snapshots SET is_live = (snapshot_id IN (SELECT unnest(?::BIGINT[]))) WHERE table_key = ?"
                " AND is_live IS DISTINCT FROM (snapshot_id IN (SELECT unnest(?::BIGINT[])))",
                [list(live), entry.table_key, list(live)],
            )

    def forget_missing(
        self, connection: Connection, catalog: str, present: Callable[[TableEntry], bool]
    ) -> list[TableEntry]:
        """Marks the connector's tables that are not `present` in the lake any more as dropped."""
        gone = [
            e for e in self._catalog.tables() if e.table_catalog == catalog and e.format != EXTERNAL and not present(e)
        ]
        return [self._catalog.change(connection, entry, dropped=True) for entry in gone]

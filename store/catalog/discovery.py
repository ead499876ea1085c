"""Discovery: tables of a lake as a worker describes them, stored in the catalog."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from store.catalog import found_tables
from store.catalog.catalog import Catalog
from store.catalog.found_tables import Digests, Found, StoredSnapshot
from store.catalog.invalidation import Invalidation
from store.catalog.places import pairs_table
from store.catalog.recognition import Recognition
from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.layout import Connection, insert_rows
from store.model.catalog_entries import EXTERNAL, Place, TableEntry

log = logging.getLogger("statflight.store")


class Discovery:
    """Stores the results of discovery. All methods run inside the writer's transaction."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._recognition, self._invalidation = Recognition(catalog), Invalidation(catalog)

    def is_as_known(self, catalog: str, format: str, found: Found) -> bool:
        """True if a table is unchanged since its last inspection, so that only the time of the inspection is new."""
        entry = self._catalog.find((catalog, found["schema"], found["name"]))
        if entry is None or found["table_id"] not in (entry.table_id, None):
            return False
        return self._is_stored(entry, format, found, Digests.of(found))

    def _is_stored(self, entry: TableEntry, format: str, found: Found, digests: Digests) -> bool:
        same = all(getattr(entry, field) == value for field, value in found_tables.fields(format, found).items())
        key, known = entry.table_key, self._catalog.entries
        stored = (known.description_digests.get(key), known.state_digests.get(key))
        return same and not found["snapshots"] and stored == digests

    def store(
        self,
        connection: Connection,
        catalog: str,
        format: str,
        found: Sequence[Found],
        present: Collection[tuple[str, str]] = (),
        *,
        full: bool = True,
    ) -> list[TableEntry]:
        """Stores tables, with their column ids, columns, snapshots and constraints. The number of statements does not
        depend on that of the tables.

        A table whose id an inspection found under another name was renamed if that name is no longer in `present`; else
        one of the two is a copy.

        Args:
            found: The tables, of different names.
            present: (schema, name) of all tables of the lake; empty if not all were listed.
            full: Store snapshots again that are stored already.

        Returns:
            The entries of the tables, in order.
        """
        keys, new = self._recognition.keys(connection, catalog, format, found, present)
        tables = dict(zip(keys, found, strict=True))
        known = {key: item for key, item in tables.items() if key not in new}
        self._invalidation.forget_replaced(connection, known)
        places = self._stored_places(connection, known) if known else {}
        if not full:
            tables = {key: _without_stored(key, item, places) for key, item in tables.items()}
        entries = self._catalog.entries.uncommitted.by_key
        digests = {key: Digests.of(item) for key, item in tables.items()}
        changed = {
            key: item for key, item in tables.items() if not self._is_stored(entries[key], format, item, digests[key])
        }
        if changed:
            self._invalidation.follow_schemas(connection, changed, places)
            described = self._catalog.entries.description_digests
            again = {key: item for key, item in changed.items() if described.get(key) != digests[key].description}
            self._store_tables(connection, format, changed, again, new)
            self._store_snapshots(connection, changed, places)
            described |= {key: digests[key].description for key in changed}
            self._catalog.entries.state_digests |= {key: digests[key].state for key in changed}
        return [entries[key] for key in keys]

    def _store_tables(
        self,
        connection: Connection,
        format: str,
        changed: Mapping[int, Found],
        described: Mapping[int, Found],
        new: Collection[int],
    ) -> None:
        """Stores what has changed of tables, besides their snapshots.

        Args:
            described: Those whose description has changed.
            new: Those of which nothing is stored.
        """
        renamed = {key: item for key, item in described.items() if key not in new}
        self._invalidation.forget_other_names(connection, renamed)
        fields = {
            key: found_tables.fields(format, item) | {"metadata_location": item.get("metadata_location")}
            for key, item in changed.items()
        }
        self._catalog.change(connection, {key: fields[key] for key in changed if key not in described})
        details = {key: fields[key] | found_tables.details(item) for key, item in described.items()}
        self._catalog.change(connection, details)
        self._describe(connection, described, new)
        identities = [row for key, item in changed.items() for row in found_tables.identity_rows(key, item)]
        _replace(connection, "identities", changed.keys() - new, identities)

    def _describe(self, connection: Connection, tables: Mapping[int, Found], new: Collection[int]) -> None:
        """Stores the columns and constraints of tables whose description is another one than at their last
        inspection; of the `new` ones none are stored."""
        if not tables:
            return
        ids = self._store_schemas(connection, tables, tables.keys() - new)
        columns = (row for key, item in tables.items() for row in found_tables.column_rows(key, item, ids[key]))
        constraints = (row for key, item in tables.items() for row in found_tables.constraint_rows(key, item))
        _renew(connection, "table_columns", tables, new, list(columns))
        _renew(connection, "table_constraints", tables, new, list(constraints))

    def _stored_places(
        self, connection: Connection, tables: Mapping[int, Found]
    ) -> dict[tuple[int, int], StoredSnapshot]:
        """The stored ones of the found and current snapshots, and those that became live or expired, by table key and
        snapshot id."""
        asked = {(key, snapshot["snapshot_id"]) for key, item in tables.items() for snapshot in item["snapshots"]}
        asked |= {(k, i) for k, item in tables.items() if (i := item["current_snapshot_id"]) is not None}
        live = {(k, i) for k, item in tables.items() for i in item.get("live_snapshot_ids") or ()}
        listed = [key for key, item in tables.items() if item.get("live_snapshot_ids") is not None]
        known = list(asked | live)
        marks = {"is_asked": [pair in asked for pair in known], "is_live": [pair in live for pair in known]}
        is_listed = among("s.table_key", listed, "listed") if listed else "false"
        is_other = f"{is_listed} AND s.is_live IS DISTINCT FROM coalesce(k.is_live, false)"
        rows = execute(
            connection,
            "SELECT s.table_key, s.snapshot_id, s.ordinal, s.schema_hash, s.is_live FROM snapshots s"
            " LEFT JOIN {known} k ON k.table_key = s.table_key AND k.snapshot_id = s.snapshot_id"
            f" WHERE {among('s.table_key', tables)} AND (k.is_asked OR ({is_other}))",
            known=pairs_table(known, **marks),
            moved=keys_table(tables),
            listed=keys_table(listed),
        )
        return {(key, snapshot_id): StoredSnapshot(*stored) for key, snapshot_id, *stored in rows}

    def _store_schemas(
        self, connection: Connection, tables: Mapping[int, Found], old: Collection[int]
    ) -> dict[int, dict[str, int]]:
        """Stores the schemas that are new, and ids for the columns that are.

        Args:
            old: Keys of the tables that may have some stored.

        Returns:
            Table key → column key → id, for every column the table ever had.
        """
        stored: dict[int, dict[str, int]] = {key: {} for key in tables}
        known: set[tuple[Any, ...]] = set()
        if old:
            keys, moved = among("table_key", old), keys_table(old)
            known.update(execute(connection, f"SELECT table_key, schema_hash FROM schemas WHERE {keys}", moved=moved))
            for key, name, column_id in execute(connection, f"SELECT * FROM column_ids WHERE {keys}", moved=moved):
                stored[key][name] = column_id
        ids = {key: found_tables.column_ids(stored[key], item) for key, item in tables.items()}
        gone = [(k, name) for k, of in stored.items() for name, i in of.items() if ids[k].get(name) != i]
        self._invalidation.forget_other_ids(connection, {key: tables[key] for key, name in gone if name in ids[key]})
        if gone:
            names = dict(zip(("table_key", "column_name"), zip(*gone, strict=True), strict=True))
            execute(
                connection,
                "DELETE FROM column_ids c USING {gone} g WHERE c.table_key = g.table_key"
                " AND c.column_name = g.column_name",
                gone=pa.table(names),
            )
        insert_rows(
            connection,
            "schemas",
            [
                [key, schema_hash, json.dumps(columns)]
                for key, item in tables.items()
                for schema_hash, columns in item["schemas"].items()
                if (key, schema_hash) not in known
            ],
        )
        insert_rows(
            connection,
            "column_ids",
            [[key, name, i] for key, of in ids.items() for name, i in of.items() if stored[key].get(name) != i],
        )
        return ids

    def _store_snapshots(
        self,
        connection: Connection,
        tables: Mapping[int, Found],
        places: Mapping[tuple[int, int], StoredSnapshot],
    ) -> None:
        """Stores the snapshots found; `places` are the stored ones, as `_stored_places` returns them."""
        new = [row for key, item in tables.items() for row in found_tables.snapshot_rows(key, item)]
        if new:
            self._insert_snapshots(connection, new, places)
        inserted = {(row[0], row[1]) for row in new}
        self._store_liveness(connection, tables, {pair: of for pair, of in places.items() if pair not in inserted})

    def _insert_snapshots(
        self, connection: Connection, new: Sequence[Sequence[Any]], places: Mapping[tuple[int, int], StoredSnapshot]
    ) -> None:
        """Stores snapshots, in place of those with the same ids, by rows of the table `snapshots`."""
        again = {(row[0], row[1]): (row[2], row[7]) for row in new if (row[0], row[1]) in places}
        if again:
            execute(
                connection,
                "DELETE FROM snapshots s USING {places} p WHERE p.table_key = s.table_key"
                " AND p.snapshot_id = s.snapshot_id",
                places=pairs_table(list(again)),
            )
        insert_rows(connection, "snapshots", new)
        self._catalog.places.cache((row[0], row[1], Place(row[2], row[7])) for row in new)
        entries = self._catalog.entries.uncommitted.by_key
        moved = {pair[0] for pair, place in again.items() if places[pair][:2] != place}
        limited = {row[0] for row in new if entries[row[0]].max_snapshots_behind is not None}
        self._catalog.spans.change(moved | limited)

    def _store_liveness(
        self,
        connection: Connection,
        tables: Mapping[int, Found],
        places: Mapping[tuple[int, int], StoredSnapshot],
    ) -> None:
        """Stores which snapshots are live now, of the stored ones that were not found again."""
        live = {k: set(ids) for k, item in tables.items() if (ids := item.get("live_snapshot_ids")) is not None}
        other = [pair for pair, of in places.items() if pair[0] in live and of.is_live != (pair[1] in live[pair[0]])]
        if other:
            execute(
                connection,
                "UPDATE snapshots SET is_live = p.is_live FROM {places} p"
                " WHERE snapshots.table_key = p.table_key AND snapshots.snapshot_id = p.snapshot_id",
                places=pairs_table(other, is_live=[snapshot_id in live[key] for key, snapshot_id in other]),
            )

    def store_namespaces(self, connection: Connection, catalog: str, namespaces: Collection[str]) -> None:
        """Replaces the list of a catalog's namespaces, which may have no tables."""
        stored = connection.execute("SELECT table_schema FROM namespaces WHERE table_catalog = ?", [catalog]).fetchall()
        if {name for (name,) in stored} != set(namespaces):
            connection.execute("DELETE FROM namespaces WHERE table_catalog = ?", [catalog])
            insert_rows(connection, "namespaces", [[catalog, name] for name in sorted(set(namespaces))])

    def note_tables(
        self,
        connection: Connection,
        table_keys: Collection[int],
        errors: Mapping[int, str] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Records the result of an inspection of tables. The current statistics of those that failed are STALE from
        the commit on, and `checked_at` keeps the time of the last inspection that succeeded.

        Args:
            errors: Table key → why the table cannot be read; the others are ACTIVE.
            at: When the inspection began; None for now.
        """
        inspected: dict[str | None, list[int]] = {}
        for key in table_keys:
            inspected.setdefault((errors or {}).get(key), []).append(key)
        for error, keys in inspected.items():
            execute(
                connection,
                "UPDATE tables SET last_error = $error,"
                " checked_at = CASE WHEN $error IS NULL THEN greatest($now, discovered_at) ELSE checked_at END"
                f" WHERE {among('table_key', keys)}",
                {"now": at or datetime.now(UTC), "error": error},
                moved=keys_table(keys),
            )
            if error is None:
                self._catalog.deadlines.check(keys, at or datetime.now(UTC))
            for entry in map(self._catalog.entries.uncommitted.by_key.__getitem__, keys):
                if entry.last_error != error:
                    self._catalog.entries.set(replace(entry, last_error=error))

    def note_unreadable(
        self, connection: Connection, catalog: str, format: str, schema: str, name: str, reason: str
    ) -> TableEntry:
        """Records a table that exists but cannot be read; a new one is registered without snapshots."""
        entry = self._catalog.entries.uncommitted.by_name.get((catalog, schema, name))
        entry = entry or self._catalog.register(connection, (catalog, schema, name), None, format)
        self.note_tables(connection, [entry.table_key], {entry.table_key: reason})
        return entry

    def forget_missing(
        self, connection: Connection, catalog: str, present: Callable[[TableEntry], bool]
    ) -> list[TableEntry]:
        """Marks the connector's tables that are not `present` in the lake any more as dropped."""
        gone = [
            e for e in self._catalog.tables() if e.table_catalog == catalog and e.format != EXTERNAL and not present(e)
        ]
        return self._catalog.change(connection, {entry.table_key: {"dropped": True} for entry in gone})


def _without_stored(key: int, found: Found, places: Mapping[tuple[int, int], StoredSnapshot]) -> Found:
    """A table without the snapshots that are stored with the same schema."""

    def is_stored(snapshot: Mapping[str, Any]) -> bool:
        place = places.get((key, snapshot["snapshot_id"]))
        return place is not None and bool(place.is_live) and place.schema_hash == snapshot["schema_hash"]

    return {**found, "snapshots": [snapshot for snapshot in found["snapshots"] if not is_stored(snapshot)]}


def _renew(
    connection: Connection, table: str, keys: Collection[int], new: Collection[int], rows: list[list[Any]]
) -> None:
    """Makes `rows` the rows of tables in a table of the catalog; writes nothing about tables that have these already.

    Args:
        keys: Keys of the tables.
        new: Keys of those, among others, that have no rows yet.
    """
    insert_rows(connection, table, [row for row in rows if row[0] in new])
    keys, rows = [key for key in keys if key not in new], [row for row in rows if row[0] not in new]
    if rows:
        wanted = pa.table({f"c{at}": column for at, column in enumerate(zip(*rows, strict=True))})
        stored = f"(SELECT * FROM {table} WHERE {among('table_key', keys)})"
        keys = {
            key
            for (key,) in execute(
                connection,
                f"SELECT DISTINCT table_key FROM (({stored} EXCEPT ALL FROM {{wanted}}) UNION ALL"
                f" (FROM {{wanted}} EXCEPT ALL {stored})) d (table_key)",
                wanted=wanted,
                moved=keys_table(keys),
            )
        }
    _replace(connection, table, keys, [row for row in rows if row[0] in keys])


def _replace(connection: Connection, table: str, keys: Collection[int], rows: list[list[Any]]) -> None:
    if keys:
        execute(connection, f"DELETE FROM {table} WHERE {among('table_key', keys)}", moved=keys_table(keys))
    insert_rows(connection, table, rows)

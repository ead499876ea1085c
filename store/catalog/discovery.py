"""Discovery: tables of a lake as a worker describes them, stored in the catalog."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from store.catalog import found_tables
from store.catalog.catalog import Catalog
from store.catalog.deletion import delete_records
from store.catalog.found_tables import Digests, Found
from store.catalog.places import pairs_table
from store.catalog.schema_changes import SchemaChange, follow
from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.layout import Connection, insert_rows
from store.history.spans import schema_key_sql
from store.model.catalog_entries import EXTERNAL, Place, TableEntry, is_another_table
from store.model.columns import FILE_NAMES

log = logging.getLogger("statflight.store")


class Discovery:
    """Stores the results of discovery. All methods run inside the writer's transaction."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

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
        keys, new = self._keys(connection, catalog, format, found, present)
        tables = dict(zip(keys, found, strict=True))
        known = {key: item for key, item in tables.items() if key not in new}
        self._forget_replaced(connection, known)
        places = self._stored_places(connection, known) if known else {}
        if not full:
            tables = {key: _without_stored(key, item, places) for key, item in tables.items()}
        entries = self._catalog.entries.uncommitted.by_key
        digests = {key: Digests.of(item) for key, item in tables.items()}
        changed = {
            key: item for key, item in tables.items() if not self._is_stored(entries[key], format, item, digests[key])
        }
        if changed:
            self._follow_schemas(connection, changed, places)
            described = self._catalog.entries.description_digests
            again = {key: item for key, item in changed.items() if described.get(key) != digests[key].description}
            self._forget_other_names(connection, {key: item for key, item in again.items() if key not in new})
            fields = {
                key: found_tables.fields(format, item) | {"metadata_location": item.get("metadata_location")}
                for key, item in changed.items()
            }
            self._catalog.change(connection, {key: fields[key] for key in changed if key not in again})
            self._catalog.change(connection, {key: fields[key] | found_tables.details(again[key]) for key in again})
            self._describe(connection, again, new)
            self._store_snapshots(connection, changed, places)
            identities = [row for key, item in changed.items() for row in found_tables.identity_rows(key, item)]
            _replace(connection, "identities", changed.keys() - new, identities)
            described |= {key: digests[key].description for key in changed}
            self._catalog.entries.state_digests |= {key: digests[key].state for key in changed}
        return [entries[key] for key in keys]

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

    def _keys(
        self,
        connection: Connection,
        catalog: str,
        format: str,
        found: Sequence[Found],
        present: Collection[tuple[str, str]],
    ) -> tuple[list[int], set[int]]:
        """The keys of tables, of which new ones are registered, and those are dropped that others replace; and the keys
        of the new ones."""
        known = self._catalog.entries.uncommitted
        keys: dict[tuple[str, str, str], int] = {}
        others: dict[tuple[str, str, str], str | None] = {}  # name → id of tables that no table of the name is
        replaced, adopted = [], {}
        for item in found:
            name, table_id = (catalog, item["schema"], item["name"]), item["table_id"]
            entry = known.by_name.get(name)
            if entry is not None and table_id and entry.table_id not in (table_id, None):
                if entry.format == EXTERNAL:
                    adopted[entry.table_key] = {"table_id": table_id}
                else:  # another table of the same name: the old one was dropped
                    replaced.append(entry.table_key)
                    entry = None
            if entry is None:
                others[name] = table_id
            else:
                keys[name] = entry.table_key
        self._catalog.change(connection, adopted)
        self._catalog.change(connection, {key: {"dropped": True} for key in replaced})
        new_keys = set[int]()
        if others:
            keys |= self._known_elsewhere(others, present)
            new = {name: table_id for name, table_id in others.items() if name not in keys}
            registered = self._catalog.register_all(connection, new, format)
            keys |= {name: entry.table_key for name, entry in registered.items()}
            new_keys = {entry.table_key for entry in registered.values()}
        return [keys[catalog, item["schema"], item["name"]] for item in found], new_keys

    def _known_elsewhere(
        self, names: Mapping[tuple[str, str, str], str | None], present: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str, str], int]:
        """The keys of tables that were renamed, or dropped under the same name. The arguments are those of `_keys`."""
        by_id: dict[tuple[str, str | None], list[TableEntry]] = {}
        dropped: dict[tuple[str, str, str], list[TableEntry]] = {}
        for entry in self._catalog.entries.uncommitted.by_key.values():
            if entry.format != EXTERNAL:  # ids that were put prove nothing
                by_id.setdefault((entry.table_catalog, entry.table_id), []).append(entry)
            if entry.dropped:
                dropped.setdefault(entry.name, []).append(entry)
        keys: dict[tuple[str, str, str], int] = {}
        taken: set[int] = set()
        for name, table_id in names.items():
            candidates = [e for e in dropped.get(name, ()) if table_id in (None, e.table_id)]
            if table_id and present:
                gone = (e for e in by_id.get((name[0], table_id), ()) if e.name[1:] not in present)
                candidates = [*gone, *candidates]
            if (key := next((e.table_key for e in candidates if e.table_key not in taken), None)) is not None:
                keys[name] = key
                taken.add(key)
        return keys

    def _forget_replaced(self, connection: Connection, tables: Mapping[int, Found]) -> None:
        """Deletes the records and snapshots of tables that are others now (`is_another_table`), though some snapshots
        of both have the same id."""
        # formats without identities have none of any snapshot
        keys = [k for k, item in tables.items() if item.get("identities") or item["current_snapshot_id"] is None]
        if not keys:
            return
        rows = execute(
            connection,
            f"SELECT table_key, snapshot_id, identity FROM identities WHERE {among('table_key', keys)}",
            moved=keys_table(keys),
        )
        for key, snapshot_id, identity in rows:
            item = tables[key]
            if not is_another_table(
                (snapshot_id, identity),
                dict(map(tuple, item.get("identities", ()))),
                item.get("live_snapshot_ids", ()),
                item["current_snapshot_id"],
            ):
                continue
            entry = self._catalog.entries.uncommitted.by_key[key]
            log.warning("%s was dropped and created again: its statistics are deleted", entry.full_name)
            self._delete(connection, key)
            for table in ("snapshots", "identities"):
                connection.execute(f"DELETE FROM {table} WHERE table_key = ?", [key])
            self._catalog.places.forget()
            self._catalog.entries.description_digests.pop(key, None)

    def _stored_places(self, connection: Connection, tables: Mapping[int, Found]) -> dict[tuple[int, int], _Stored]:
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
        return {(key, snapshot_id): _Stored(*stored) for key, snapshot_id, *stored in rows}

    def _follow_schemas(
        self,
        connection: Connection,
        tables: Mapping[int, Found],
        places: Mapping[tuple[int, int], _Stored],
    ) -> None:
        """Gives the records of snapshots that have another schema than the stored one the names of that schema, and
        deletes those that do not hold under it (`store.catalog.schema_changes`): of current snapshots whose table got
        another schema since, and of those that have their own again, since they are no longer current.

        Args:
            places: Stored snapshots, as `_stored_places` returns them.
        """
        current, older = self._other_schemas(connection, tables, places), {}
        for key, item in tables.items():
            for snapshot in item["snapshots"]:
                place, own = places.get((key, snapshot["snapshot_id"])), snapshot["schema_hash"]
                is_other = place is not None and place.schema_hash not in (None, own)
                if is_other and snapshot["snapshot_id"] != item["current_snapshot_id"]:
                    older[key, snapshot["snapshot_id"]] = own, frozenset[int]()
        if not current and not older:
            return
        keys = {key for key, _ in (*current, *older)}
        stored = {
            (key, schema_hash): json.loads(columns)
            for key, schema_hash, columns in execute(
                connection, f"SELECT * FROM schemas WHERE {among('table_key', keys)}", moved=keys_table(keys)
            )
        }
        for (key, snapshot_id), (schema_hash, widened) in (current | older).items():
            before = places[key, snapshot_id].schema_hash
            after = tables[key]["schemas"].get(schema_hash) or stored.get((key, schema_hash), ())
            change = SchemaChange.of(schema_hash, stored.get((key, str(before)), ()), after, widened)
            is_current = (key, snapshot_id) in current
            if change is not None:
                entry = self._catalog.entries.uncommitted.by_key[key]
                follow(connection, self._catalog, entry, snapshot_id, change, is_current=is_current)
                self._catalog.outlive(key)
            elif is_current:
                self._delete(connection, key, snapshot_id)
            if is_current:
                self._catalog.entries.description_digests.pop(key, None)
                connection.execute(
                    f"UPDATE snapshots SET schema_hash = $1, schema_key = {schema_key_sql('snapshots', '$1')}"
                    " WHERE table_key = $2 AND snapshot_id = $3",
                    [schema_hash, key, snapshot_id],
                )
                self._catalog.places.forget()

    def _other_schemas(
        self,
        connection: Connection,
        tables: Mapping[int, Found],
        places: Mapping[tuple[int, int], _Stored],
    ) -> dict[tuple[int, int], tuple[str, frozenset[int]]]:
        """The current snapshots whose table got another schema since: table key and snapshot id → hash of the new
        schema, and ids of columns whose type differs though the logical type does not."""
        hashes = {
            key: of.schema_hash
            for (key, snapshot_id), of in places.items()
            if of.schema_hash is not None and key in tables and snapshot_id == tables[key]["current_snapshot_id"]
        }
        if not hashes:
            return {}
        before_of = {
            key: text
            for key, snapshot_id, text in execute(
                connection,
                f"SELECT table_key, current_snapshot_id, format_schema FROM tables WHERE {among('table_key', hashes)}",
                moved=keys_table(hashes),
            )
            if text is not None and snapshot_id == tables[key]["current_snapshot_id"]
        }
        found = {}
        for key, stored_hash in hashes.items():
            item, snapshot_id = tables[key], tables[key]["current_snapshot_id"]
            schema_hash, text = item["schema_hash"], item.get("format_schema")
            before = before_of.get(key, text)
            if stored_hash != schema_hash or found_tables.types(before) != found_tables.types(text):
                found[key, snapshot_id] = schema_hash, found_tables.widened(before, text)
        return found

    def _forget_other_names(self, connection: Connection, tables: Mapping[int, Found]) -> None:
        """Deletes the records of tables whose files are read by name, where a name is another column's now: readers
        find its values there, at earlier snapshots too."""
        before_of = dict(
            execute(
                connection,
                f"SELECT table_key, properties FROM tables WHERE {among('table_key', tables)}"
                f" AND contains(properties, '{FILE_NAMES}')",
                moved=keys_table(tables),
            )
            if tables
            else ()
        )
        for key, text in before_of.items():
            before, now = json.loads(text).get(FILE_NAMES), tables[key].get("properties", {}).get(FILE_NAMES)
            if found_tables.reads_otherwise(before, now):
                entry = self._catalog.entries.uncommitted.by_key[key]
                log.warning("%s reads other columns of its files now: its statistics are deleted", entry.full_name)
                self._delete(connection, key)

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
        self._forget_other_ids(connection, {key: tables[key] for key, name in gone if name in ids[key]})
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

    def _forget_other_ids(self, connection: Connection, tables: Mapping[int, Found]) -> None:
        """Deletes the records of tables whose format gives ids since this inspection, as Delta with a column mapping:
        the ids that names had until then are those of other columns now.

        Args:
            tables: Those of which a name has another id now, before their new schemas are stored.
        """
        tables = {
            key: item
            for key, item in tables.items()
            if any(column[3] is not None for column in item["schemas"].get(item["schema_hash"], ()))
        }
        if not tables:
            return
        had_ids = {
            key
            for key, columns in execute(
                connection,
                f"SELECT table_key, columns FROM schemas WHERE {among('table_key', tables)}",
                moved=keys_table(tables),
            )
            if any(column[3] is not None for column in json.loads(columns))
        }
        for key in tables.keys() - had_ids:
            entry = self._catalog.entries.uncommitted.by_key[key]
            log.warning("%s has other column ids now: its statistics are deleted", entry.full_name)
            self._delete(connection, key)

    def _delete(self, connection: Connection, key: int, snapshot_id: int | None = None) -> None:
        """Deletes the statistics of a table, or of one snapshot; captures that run meanwhile are made again."""
        delete_records(connection, self._catalog, self._catalog.entries.uncommitted.by_key[key], snapshot_id)
        self._catalog.outlive(key)

    def _store_snapshots(
        self,
        connection: Connection,
        tables: Mapping[int, Found],
        places: Mapping[tuple[int, int], _Stored],
    ) -> None:
        """Stores the snapshots found; `places` are the stored ones, as `_stored_places` returns them."""
        new = [row for key, item in tables.items() for row in found_tables.snapshot_rows(key, item)]
        if new:
            again = [(row[0], row[1]) for row in new if (row[0], row[1]) in places]
            if again:
                execute(
                    connection,
                    "DELETE FROM snapshots s USING {places} p WHERE p.table_key = s.table_key"
                    " AND p.snapshot_id = s.snapshot_id",
                    places=pairs_table(again),
                )
            insert_rows(connection, "snapshots", new)
            self._catalog.places.cache((row[0], row[1], Place(row[2], row[7])) for row in new)
            entries = self._catalog.entries.uncommitted.by_key
            moved = {
                row[0] for row in new if (row[0], row[1]) in places and places[row[0], row[1]][:2] != (row[2], row[7])
            }
            limited = {row[0] for row in new if entries[row[0]].max_snapshots_behind is not None}
            self._catalog.spans.change(moved | limited)
        live = {k: set(ids) for k, item in tables.items() if (ids := item.get("live_snapshot_ids")) is not None}
        inserted = {(row[0], row[1]) for row in new}
        other = [
            pair
            for pair, of in places.items()
            if pair[0] in live and pair not in inserted and of.is_live != (pair[1] in live[pair[0]])
        ]
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


class _Stored(NamedTuple):
    """A stored snapshot."""

    ordinal: int
    schema_hash: str | None
    is_live: bool | None


def _without_stored(key: int, found: Found, places: Mapping[tuple[int, int], _Stored]) -> Found:
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

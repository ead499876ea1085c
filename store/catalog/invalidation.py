"""Records that no longer hold after an inspection: of another table, or of columns that are others now.

They are deleted, or follow the columns to their new names. All methods run inside the writer's transaction.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from store.catalog import found_tables
from store.catalog.catalog import Catalog
from store.catalog.deletion import delete_records
from store.catalog.found_tables import Found, StoredSnapshot
from store.catalog.schema_changes import SchemaChange, follow
from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.layout import Connection
from store.history.spans import schema_key_sql
from store.model.catalog_entries import is_another_table
from store.model.columns import FILE_NAMES

log = logging.getLogger("statflight.store")


class Invalidation:
    """Deletes, or renames, records of tables by what an inspection found."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

    def forget_replaced(self, connection: Connection, tables: Mapping[int, Found]) -> None:
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

    def follow_schemas(
        self,
        connection: Connection,
        tables: Mapping[int, Found],
        places: Mapping[tuple[int, int], StoredSnapshot],
    ) -> None:
        """Gives the records of snapshots that have another schema than the stored one the names of that schema, and
        deletes those that do not hold under it (`store.catalog.schema_changes`): of current snapshots whose table got
        another schema since, and of those that have their own again, since they are no longer current.

        Args:
            places: The stored snapshots, by table key and snapshot id.
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
        places: Mapping[tuple[int, int], StoredSnapshot],
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

    def forget_other_names(self, connection: Connection, tables: Mapping[int, Found]) -> None:
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

    def forget_other_ids(self, connection: Connection, tables: Mapping[int, Found]) -> None:
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

"""Registration of the snapshots in puts; the greatest snapshot id of an external table is its current snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from store.catalog.entries import TableEntries, update_tables
from store.catalog.places import Places, pairs_table
from store.duckdb.arrow_sql import execute, within
from store.duckdb.database import Database
from store.duckdb.layout import BY_SNAPSHOT, Connection, insert_rows
from store.history.presence import Presence
from store.history.spans import Spans, move_rows, schema_key_sql
from store.model.catalog_entries import EXTERNAL, UNPLACED, Place


class SnapshotRegistry:
    """Registers the snapshots of puts, inside the writer's transaction."""

    def __init__(self, database: Database, entries: TableEntries, places: Places, spans: Spans, presence: Presence):
        self._database, self._entries, self._places = database, entries, places
        self._spans, self._presence = spans, presence

    def register(self, connection: Connection, seen: pa.Table, new_tables: Collection[int] = ()) -> None:
        """Registers the snapshots of a put, and advances the current snapshot of external tables.

        Args:
            seen: Distinct table_key and snapshot_id, with schema_hash (null if the rows have none).
            new_tables: Keys of tables that have no snapshots yet.
        """
        given = zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id", "schema_hash")), strict=True)
        new = seen.filter(pa.array([self._is_unsure(*each) for each in given], pa.bool_()))
        if new.num_rows:
            self._register(connection, new, new_tables)
        greatest: dict[int, int] = {}
        for key, snapshot_id in zip(seen["table_key"].to_pylist(), seen["snapshot_id"].to_pylist(), strict=True):
            greatest[key] = max(greatest.get(key, snapshot_id), snapshot_id)
        self._database.touch(*greatest)
        if later := {key: snapshot_id for key, snapshot_id in greatest.items() if self._is_later(key, snapshot_id)}:
            self._advance(connection, later)

    def _is_unsure(self, table_key: int, snapshot_id: int, schema_hash: str | None) -> bool:
        """True if a snapshot may not be stored, or without the schema that is given now."""
        place = self._places.cached(table_key, snapshot_id)
        return place is None or (place.schema_hash is None and schema_hash is not None)

    def _is_later(self, table_key: int, snapshot_id: int) -> bool:
        """True if a snapshot is greater than the current one of an external table."""
        entry = self._entries.uncommitted.by_key[table_key]
        current = entry.current_snapshot_id
        return entry.format == EXTERNAL and (current is None or snapshot_id > current)

    def _register(self, connection: Connection, seen: pa.Table, new_tables: Collection[int]) -> None:
        places = list(zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True))
        hashes = dict(zip(places, seen["schema_hash"].to_pylist(), strict=True))
        is_unsure = (key not in new_tables and not self._is_later(key, id_) for key, id_ in places)
        older = seen.filter(pa.array(is_unsure, pa.bool_()))
        stored = self._places.stored(connection, older) if older.num_rows else {}
        new = [place for place in places if place not in stored]
        # whether a snapshot of a lake's table is live is unknown (None) until the next inspection of the lake
        external = {key for key, _ in new if self._entries.uncommitted.by_key[key].format == EXTERNAL}
        known = {(key, id_): Place(id_ if key in external else UNPLACED, hashes[key, id_]) for key, id_ in new}
        _insert(connection, known, external)
        without = [pair for pair, old in stored.items() if old.schema_hash is None]
        gained = {pair: hashes[pair] for pair in without if hashes[pair] is not None}
        if gained:
            _store_schemas(connection, gained)
            self._spans.change({key for key, _ in gained})
        known |= {pair: replace(place, schema_hash=place.schema_hash or hashes[pair]) for pair, place in stored.items()}
        self._places.cache((*pair, place) for pair, place in known.items())
        for key, _ in new:
            self._entries.state_digests.pop(key, None)  # so that the next inspection stores the table again

    def _advance(self, connection: Connection, later: Mapping[int, int]) -> None:
        """Sets the current snapshot of external tables: table key → snapshot id, greater than the previous one."""
        other = self._with_other_schema(connection, later)
        update_tables(connection, {key: {"current_snapshot_id": id_} for key, id_ in later.items()})
        limited = {key for key in other if self._entries.uncommitted.by_key[key].max_snapshots_behind is not None}
        self._spans.change(limited)
        self._spans.advance(later.keys() - other.keys())
        for key, snapshot_id in later.items():
            self._entries.set(replace(self._entries.uncommitted.by_key[key], current_snapshot_id=snapshot_id))
        moved = {key: (later[key], place) for key, place in other.items() if key not in limited}
        flights = [flight for flight in BY_SNAPSHOT if self._presence.has_any(flight, moved.keys())]
        if moved:
            move_rows(connection, flights, moved)

    def _with_other_schema(self, connection: Connection, later: Mapping[int, int]) -> dict[int, Place]:
        """The tables (key → new current snapshot) whose rows may not hold at the new current snapshot, with its place:
        its schema, or the previous one's, is unknown or another, or the age of their distributions is limited."""
        earlier = {
            key: (id_, entry)
            for key in later
            if (id_ := (entry := self._entries.uncommitted.by_key[key]).current_snapshot_id) is not None
        }
        pairs = [pair for key, (id_, _) in earlier.items() for pair in ((key, id_), (key, later[key]))]
        if not pairs:
            return {}
        places, found = self._places.of(connection, pairs_table(pairs)), {}
        for key, (id_, entry) in earlier.items():
            place, before = places[key, later[key]], places.get((key, id_))
            is_same = before is not None and place.schema_hash is not None and place.schema_hash == before.schema_hash
            if not is_same or entry.max_snapshots_behind is not None:
                found[key] = place
        return found


def _insert(connection: Connection, places: Mapping[tuple[int, int], Place], external: Collection[int]) -> None:
    """Stores the places of new snapshots; those of external tables are live."""
    rows = [
        [
            *pair,
            place.ordinal,
            place.schema_hash,
            True if pair[0] in external else None,
            str(place.schema_key(pair[1])),
        ]
        for pair, place in places.items()
    ]
    insert_rows(connection, "snapshots (table_key, snapshot_id, ordinal, schema_hash, is_live, schema_key)", rows)


def _store_schemas(connection: Connection, hashes: Mapping[tuple[int, int], str]) -> None:
    """Stores the schemas of snapshots of which they were not known."""
    rows = pairs_table(list(hashes)).append_column("schema_hash", pa.array(list(hashes.values())))
    execute(
        connection,
        "UPDATE snapshots SET schema_hash = k.schema_hash,"
        f" schema_key = {schema_key_sql('snapshots', 'k.schema_hash')} FROM {{gained}} k WHERE"
        f" snapshots.{within('table_key', rows['table_key'])} AND snapshots.table_key = k.table_key"
        " AND snapshots.snapshot_id = k.snapshot_id",
        gained=rows,
    )

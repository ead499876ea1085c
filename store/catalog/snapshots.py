"""Registration of the snapshots in puts; the greatest snapshot id of an external table is its current snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from store.duckdb.arrow_sql import among, execute, keys_table, within
from store.duckdb.database import Database
from store.duckdb.layout import BY_SNAPSHOT, Connection, insert_rows
from store.duckdb.lru import LruCache
from store.history.presence import Presence
from store.history.spans import SnapshotPlace, Spans, move_rows, schema_key_sql
from store.model.catalog_entries import EXTERNAL, UNPLACED, Entries, Place, TableEntry

_TYPES: Final = {  # of columns of `tables` that are no text
    "current_snapshot_id": pa.int64(),
    "dropped": pa.bool_(),
    "partition_keys": pa.list_(pa.string()),
    "max_snapshots_behind": pa.int64(),
    "watch_seconds": pa.float64(),
}
CACHED_SNAPSHOTS: Final = 65_536  # cached snapshots, which are not looked up again


class SnapshotRegistry(ABC):
    """The part of the catalog that registers the snapshots of puts, inside the writer's transaction."""

    database: Database
    uncommitted: Entries
    spans: Spans
    presence: Presence
    state_digests: dict[int, str]

    def __init__(self) -> None:
        # (table key, snapshot id) → place
        self._places: LruCache[tuple[int, int], Place] = LruCache(CACHED_SNAPSHOTS)

    @abstractmethod
    def set_entry(self, entry: TableEntry) -> None:
        """Makes an entry visible to the writer, and to readers once it is committed."""

    def register_snapshots(self, connection: Connection, seen: pa.Table, new_tables: Collection[int] = ()) -> None:
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
        self.database.touch(*greatest)
        if later := {key: snapshot_id for key, snapshot_id in greatest.items() if self._is_later(key, snapshot_id)}:
            self._advance(connection, later)

    def cache_places(self, places: Iterable[tuple[int, int, Place]]) -> None:
        """Caches the places of registered snapshots: (table key, snapshot id, place) of each."""
        for key, snapshot_id, place in places:
            self._places.put((key, snapshot_id), place)

    def forget_places(self) -> None:
        """Empties the cache of places."""
        self._places.clear()

    def places(self, connection: Connection, seen: pa.Table) -> dict[tuple[int, int], Place]:
        """(table key, snapshot id) → place, of the registered ones of `seen`, distinct table_key and snapshot_id."""
        pairs = list(zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True))
        found = {pair: place for pair in pairs if (place := self._places.get(pair)) is not None}
        if len(found) < len(pairs):
            found |= self._stored_places(connection, seen.filter(pa.array([pair not in found for pair in pairs])))
        return {pair: replace(place, is_newest=self._is_newest(*pair)) for pair, place in found.items()}

    def current_places(self, connection: Connection, table_keys: Collection[int]) -> dict[int, SnapshotPlace]:
        """Table key → id and place of the current snapshot, of those of the tables whose current snapshot is stored."""
        entries = map(self.uncommitted.by_key.__getitem__, table_keys)
        pairs = [(e.table_key, e.current_snapshot_id) for e in entries if e.current_snapshot_id is not None]
        places = self.places(connection, pairs_table(pairs)) if pairs else {}
        return {key: (snapshot_id, place) for (key, snapshot_id), place in places.items()}

    @staticmethod
    def update_tables(connection: Connection, changes: Mapping[int, Mapping[str, Any]]) -> None:
        """Updates columns of `tables`: table key → new values, of the same columns for each."""
        names, keys = list(next(iter(changes.values()))), list(changes)
        if len(keys) == 1:  # the usual case, at half the cost
            sets = ", ".join(f"{name} = ?" for name in names)
            connection.execute(f"UPDATE tables SET {sets} WHERE table_key = ?", [*changes[keys[0]].values(), keys[0]])
            return
        columns = {
            name: pa.array([values[name] for values in changes.values()], _TYPES.get(name, pa.string()))
            for name in names
        }
        sets = ", ".join(f"{name} = v.{name}" for name in names)
        execute(
            connection,
            f"UPDATE tables SET {sets} FROM {{values}} v WHERE tables.table_key = v.table_key"
            f" AND {among('tables.table_key', keys)}",
            values=pa.table({"table_key": pa.array(keys, pa.int64()), **columns}),
            moved=keys_table(keys),
        )

    def _is_unsure(self, table_key: int, snapshot_id: int, schema_hash: str | None) -> bool:
        """True if a snapshot may not be stored, or without the schema that is given now."""
        place = self._places.get((table_key, snapshot_id))
        return place is None or (place.schema_hash is None and schema_hash is not None)

    def _is_newest(self, table_key: int, snapshot_id: int) -> bool:
        entry = self.uncommitted.by_key[table_key]
        return entry.current_snapshot_id == snapshot_id and entry.max_snapshots_behind is None

    def _is_later(self, table_key: int, snapshot_id: int) -> bool:
        """True if a snapshot is greater than the current one of an external table."""
        entry = self.uncommitted.by_key[table_key]
        current = entry.current_snapshot_id
        return entry.format == EXTERNAL and (current is None or snapshot_id > current)

    def _register(self, connection: Connection, seen: pa.Table, new_tables: Collection[int]) -> None:
        places = list(zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True))
        hashes = dict(zip(places, seen["schema_hash"].to_pylist(), strict=True))
        is_unsure = (key not in new_tables and not self._is_later(key, id_) for key, id_ in places)
        older = seen.filter(pa.array(is_unsure, pa.bool_()))
        stored = self._stored_places(connection, older) if older.num_rows else {}
        new = [place for place in places if place not in stored]
        # whether a snapshot of a lake's table is live is unknown (None) until the next inspection of the lake
        external = {key for key, _ in new if self.uncommitted.by_key[key].format == EXTERNAL}
        known = {(key, id_): Place(id_ if key in external else UNPLACED, hashes[key, id_]) for key, id_ in new}
        insert_rows(
            connection,
            "snapshots (table_key, snapshot_id, ordinal, schema_hash, is_live, schema_key)",
            [
                [
                    *pair,
                    place.ordinal,
                    place.schema_hash,
                    True if pair[0] in external else None,
                    str(place.schema_key(pair[1])),
                ]
                for pair, place in known.items()
            ],
        )
        gained = [pair for pair, old in stored.items() if old.schema_hash is None and hashes[pair] is not None]
        if gained:
            columns = {name: [pair[at] for pair in gained] for at, name in enumerate(("table_key", "snapshot_id"))}
            rows = pa.table(columns | {"schema_hash": [hashes[pair] for pair in gained]})
            execute(
                connection,
                "UPDATE snapshots SET schema_hash = k.schema_hash,"
                f" schema_key = {schema_key_sql('snapshots', 'k.schema_hash')} FROM {{gained}} k WHERE"
                f" snapshots.{within('table_key', rows['table_key'])} AND snapshots.table_key = k.table_key"
                " AND snapshots.snapshot_id = k.snapshot_id",
                gained=rows,
            )
            self.spans.change(columns["table_key"])
        known |= {pair: replace(place, schema_hash=place.schema_hash or hashes[pair]) for pair, place in stored.items()}
        self.cache_places((*pair, place) for pair, place in known.items())
        for key, _ in new:
            self.state_digests.pop(key, None)  # so that the next inspection stores the table again

    def _stored_places(self, connection: Connection, seen: pa.Table) -> dict[tuple[int, int], Place]:
        """(table key, snapshot id) → place, of those of the snapshots that are stored."""
        scope = f"{within('n.table_key', seen['table_key'])} AND {within('n.snapshot_id', seen['snapshot_id'])}"
        join = (
            ""
            if seen.num_rows == 1
            else (" SEMI JOIN {seen} s ON s.table_key = n.table_key AND s.snapshot_id = n.snapshot_id")
        )
        rows = execute(
            connection,
            f"SELECT n.table_key, n.snapshot_id, n.ordinal, n.schema_hash FROM snapshots n{join} WHERE {scope}",
            seen=seen,
        )
        return {(key, snapshot_id): Place(ordinal, hash_) for key, snapshot_id, ordinal, hash_ in rows}

    def _advance(self, connection: Connection, later: Mapping[int, int]) -> None:
        """Sets the current snapshot of external tables: table key → snapshot id, greater than the previous one."""
        other = self._with_other_schema(connection, later)
        self.update_tables(connection, {key: {"current_snapshot_id": id_} for key, id_ in later.items()})
        limited = {key for key in other if self.uncommitted.by_key[key].max_snapshots_behind is not None}
        self.spans.change(limited)
        self.spans.advance(later.keys() - other.keys())
        for key, snapshot_id in later.items():
            self.set_entry(replace(self.uncommitted.by_key[key], current_snapshot_id=snapshot_id))
        moved = {key: (later[key], place) for key, place in other.items() if key not in limited}
        flights = [flight for flight in BY_SNAPSHOT if self.presence.has_any(flight, moved.keys())]
        if moved:
            move_rows(connection, flights, moved)

    def _with_other_schema(self, connection: Connection, later: Mapping[int, int]) -> dict[int, Place]:
        """The tables (key → new current snapshot) whose rows may not hold at the new current snapshot, with its place:
        its schema, or the previous one's, is unknown or another, or the age of their distributions is limited."""
        earlier = {
            key: (id_, entry)
            for key in later
            if (id_ := (entry := self.uncommitted.by_key[key]).current_snapshot_id) is not None
        }
        pairs = [pair for key, (id_, _) in earlier.items() for pair in ((key, id_), (key, later[key]))]
        if not pairs:
            return {}
        places, found = self.places(connection, pairs_table(pairs)), {}
        for key, (id_, entry) in earlier.items():
            place, before = places[key, later[key]], places.get((key, id_))
            is_same = before is not None and place.schema_hash is not None and place.schema_hash == before.schema_hash
            if not is_same or entry.max_snapshots_behind is not None:
                found[key] = place
        return found


def pairs_table(pairs: Sequence[tuple[int, int]], **marks: Sequence[bool]) -> pa.Table:
    """Tables and snapshots as an Arrow table: table_key, snapshot_id, and columns of booleans."""
    names = {"table_key": 0, "snapshot_id": 1}
    columns = {name: pa.array([pair[at] for pair in pairs], pa.int64()) for name, at in names.items()}
    return pa.table(columns | {name: pa.array(values, pa.bool_()) for name, values in marks.items()})

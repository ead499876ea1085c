"""Registration of the snapshots in puts; the greatest snapshot id of an external table is its current snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from store.duckdb.arrow_sql import execute, within
from store.duckdb.database import Database
from store.duckdb.layout import Connection, insert_rows
from store.duckdb.lru import LruCache
from store.history.current_rows import CurrentRows
from store.model.catalog_entries import EXTERNAL, Entries, TableEntry

CACHED_SNAPSHOTS: Final = 65_536  # cached snapshots, which are not looked up again


class SnapshotRegistry(ABC):
    """The part of the catalog that registers the snapshots of puts, inside the writer's transaction."""

    database: Database
    uncommitted: Entries
    current_rows: CurrentRows
    table_digests: dict[int, str]

    def __init__(self) -> None:
        # (table key, snapshot id) → schema hash
        self.schema_hashes: LruCache[tuple[int, int], str] = LruCache(CACHED_SNAPSHOTS)

    @abstractmethod
    def set_entry(self, entry: TableEntry) -> None:
        """Makes an entry visible to the writer, and to readers once it is committed."""

    def register_snapshots(self, connection: Connection, seen: pa.Table, new_tables: Collection[int] = ()) -> None:
        """Registers the snapshots of a put, and advances the current snapshot of external tables.

        Args:
            connection: The writer's.
            seen: Distinct table_key and snapshot_id, with schema_hash (null if the rows have none).
            new_tables: Keys of tables that have no snapshots yet.
        """
        places = zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True)
        unsure = pa.array([self.schema_hashes.get(place) is None for place in places], pa.bool_())
        new = seen.filter(unsure)
        if new.num_rows:
            self._register(connection, new, new_tables)
        greatest: dict[int, int] = {}
        for key, snapshot_id in zip(seen["table_key"].to_pylist(), seen["snapshot_id"].to_pylist(), strict=True):
            greatest[key] = max(greatest.get(key, snapshot_id), snapshot_id)
        self.database.touch_all(greatest)
        if later := {key: snapshot_id for key, snapshot_id in greatest.items() if self._is_later(key, snapshot_id)}:
            self._advance(connection, later)

    def cache_hashes(self, hashes: Iterable[tuple[int, int, str | None]]) -> None:
        """Caches the schema hashes of registered snapshots: (table key, snapshot id, hash) of each."""
        for key, snapshot_id, hash_ in hashes:
            if hash_ is None:
                self.schema_hashes.drop((key, snapshot_id))
            else:
                self.schema_hashes.put((key, snapshot_id), hash_)

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
        stored = self._stored_hashes(connection, older) if older.num_rows else {}
        new = [place for place in places if place not in stored]
        # whether a snapshot of a lake's table is live is unknown (None) until the next inspection of the lake
        external = {key for key, _ in new if self.uncommitted.by_key[key].format == EXTERNAL}
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
            self.current_rows.invalidate(columns["table_key"])
        self.cache_hashes((*place, stored.get(place) or hashes[place]) for place in places)
        for key, _ in new:
            self.table_digests.pop(key, None)  # so that the next inspection stores the table again

    def _stored_hashes(self, connection: Connection, seen: pa.Table) -> dict[tuple[int, int], str | None]:
        """(table key, snapshot id) → schema hash, of those of the snapshots that are stored."""
        scope = f"{within('n.table_key', seen['table_key'])} AND {within('n.snapshot_id', seen['snapshot_id'])}"
        join = "" if seen.num_rows == 1 else (
            " SEMI JOIN {seen} s ON s.table_key = n.table_key AND s.snapshot_id = n.snapshot_id")  # fmt: skip
        rows = execute(connection, "SELECT n.table_key, n.snapshot_id, n.schema_hash"
                       f" FROM snapshots n{join} WHERE {scope}", seen=seen)  # fmt: skip
        return {(key, snapshot_id): hash_ for key, snapshot_id, hash_ in rows}

    def _advance(self, connection: Connection, later: Mapping[int, int]) -> None:
        """Sets the current snapshot of external tables: table key → snapshot id, greater than the previous one."""
        pairs = pa.table({
            "table_key": pa.array(later.keys(), pa.int64()), "snapshot_id": pa.array(later.values(), pa.int64()),
        })  # fmt: skip
        hashes = self._hashes(connection, later)
        changed = self._with_other_schema(later, hashes)
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
        self.current_rows.invalidate(changed)
        earlier = [key for key in later if self.uncommitted.by_key[key].current_snapshot_id is not None]
        self.current_rows.invalidate_labels(
            {k: (later[k], hashes.get((k, later[k]))) for k in earlier if k not in changed}
        )
        for key, snapshot_id in later.items():
            self.set_entry(replace(self.uncommitted.by_key[key], current_snapshot_id=snapshot_id))

    def _hashes(self, connection: Connection, later: Mapping[int, int]) -> dict[tuple[int, int], str | None]:
        """(table key, snapshot id) → schema hash, of the new current snapshots (key → id) and the previous ones.
        Tables without a previous one are left out."""
        places = []
        for key, snapshot_id in later.items():
            if (current := self.uncommitted.by_key[key].current_snapshot_id) is not None:
                places += [(key, current), (key, snapshot_id)]
        hashes: dict[tuple[int, int], str | None] = {place: self.schema_hashes.get(place) for place in places}
        if unsure := [place for place, hash_ in hashes.items() if hash_ is None]:
            keys, ids = zip(*unsure, strict=True)
            seen = pa.table({"table_key": pa.array(keys, pa.int64()), "snapshot_id": pa.array(ids, pa.int64())})
            hashes |= self._stored_hashes(connection, seen)
        return hashes

    def _with_other_schema(
        self, later: Mapping[int, int], hashes: Mapping[tuple[int, int], str | None]
    ) -> set[int]:  # fmt: skip
        """The tables (key → new current snapshot) whose new current snapshot has another schema than the previous one.
        The current rows of the other tables stay and only get other labels."""
        current = {key: self.uncommitted.by_key[key].current_snapshot_id for key in later}
        return {
            key for key, before in current.items()
            if before is not None and hashes.get((key, before)) != hashes.get((key, later[key]))
        }  # fmt: skip

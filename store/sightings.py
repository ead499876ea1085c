"""Registration of the snapshots in puts; the greatest snapshot id of an external table is its current snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from store.arrow_sql import execute, query, within
from store.catalog_entries import EXTERNAL, Entries, TableEntry
from store.current_rows import CurrentRows
from store.database import Database
from store.layout import Connection, insert_rows
from store.lru import LruCache

SIGHTED: Final = 65_536  # cached snapshots, which are not looked up again


class Sightings(ABC):
    """The part of the catalog that registers the snapshots of puts, inside the writer's transaction."""

    database: Database
    drafted: Entries
    settling: CurrentRows
    seen_as: dict[int, str]

    def __init__(self) -> None:
        self.sighted: LruCache[tuple[int, int], str] = LruCache(SIGHTED)  # table key, snapshot id → its schema hash

    @abstractmethod
    def keep(self, entry: TableEntry) -> None:
        """Makes an entry visible to the writer, and to readers once it is committed."""

    def sight_snapshots(
        self, connection: Connection, seen: pa.Table, new_tables: Collection[int] = ()
    ) -> set[tuple[int, int]]:
        """Registers the snapshots of a put, and advances the current snapshot of external tables.

        Args:
            connection: The writer's.
            seen: Distinct table_key and snapshot_id, with schema_hash (null if the rows have none).
            new_tables: Keys of tables that have no snapshots yet.

        Returns:
            (table key, snapshot id) of the snapshots that were not registered before.
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
        # whether a snapshot of a lake's table is live is unknown (None) until the next inspection of the lake
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
            self.seen_as.pop(key, None)  # so that the next inspection stores the table again
        return set(new)

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
        """The tables (key → new current snapshot, the same as `pairs`) whose new current snapshot has another schema
        than the previous one. The current rows of the other tables stay and only get other labels."""
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

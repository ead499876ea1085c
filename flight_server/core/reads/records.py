"""Stored records as JSON rows, for `resolve`.

Records are built from the slice of their table, else read from the store, and cached with the slices: building one
takes some fifty times as long as a cache hit. A record is valid for a generation of its table, taken before the store
is read, so that no caller misses an acknowledged write. The absence of a record is cached too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from flight_server.client.conditions.one_table import TableCondition
from flight_server.core.reads.scanner import Scanner
from flight_server.core.reads.slice_cache import Derived, Slice, SliceCache
from flight_server.core.wire.status import to_json
from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import query
from store.model.catalog_entries import TableEntry
from store.model.columns import COUNTS, DISTRIBUTION, DISTRIBUTION_LABELS
from store.model.freshness import EXACT, usable_for
from store.model.puts import FLIGHT_OF
from store.model.schemas import FLIGHTS
from store.model.sketches import is_partial
from store.model.targets import Target, TargetKind
from store.stats_store import DuckDBStatsStore

RECORD_BYTES: Final = 2048  # estimate of a cached record and its JSON text
_HIDDEN: Final = frozenset(
    {
        "table_key",
        "from_pos",
        "to_pos",
        "snapshot_id",
        "generation",
        "created_at",
        *DISTRIBUTION_LABELS,
    }
)

_BY_TABLE: Final = (TargetKind.TABLE, TargetKind.COLUMN)  # kinds whose rows are read from slices


RecordKey = tuple[int, int, Target]
"""Table key, snapshot id, target."""


class Record(dict[str, Any]):
    """A stored record as a flat row of its flight, with JSON values."""

    @cached_property
    def text(self) -> str:
        """JSON text of the record, computed once."""
        return to_json(self)


class RecordFinder:
    """Finds the record of a target stored at exactly a snapshot: in a slice, or else in the store."""

    def __init__(self, store: DuckDBStatsStore, catalog: Catalog, cache: SliceCache, scanner: Scanner):
        self._store, self._catalog, self._cache, self._scanner = store, catalog, cache, scanner
        self._generation = scanner.versions.generation

    def find(self, wanted: Sequence[RecordKey]) -> list[Mapping[str, Any] | None]:
        """The record of each key, None if there is none, in order; one query per table, snapshot and kind of those that
        are not cached. A table that cannot be inspected or read has none at its current snapshot."""
        records: list[Mapping[str, Any] | None] = []
        missing: dict[tuple[int, int, TargetKind], dict[RecordKey, list[int]]] = {}
        unsure = self._catalog.unsure()
        for at, item in enumerate(wanted):
            if item[0] in unsure and item[1] == self._catalog.by_key(item[0]).current_snapshot_id:
                records.append(None)
                continue
            cached = self._cache.derived(item, self._generation)
            records.append(None if cached is None else cached.value)
            if cached is None:
                missing.setdefault((item[0], item[1], item[2].kind), {}).setdefault(item, []).append(at)
        for (table_key, snapshot_id, kind), items in missing.items():
            generation = self._generation(table_key)
            table = self._catalog.by_key(table_key)
            read = self._read(table, snapshot_id, kind, [target for _, _, target in items])
            for item, places in items.items():
                record = read.get(item[2].storage_id)
                for at in places:
                    records[at] = record
                self._cache.put_derived(item, Derived(table_key, generation, record), RECORD_BYTES)
        return records

    def whole_sketches(self, wanted: Sequence[RecordKey]) -> dict[RecordKey, set[str]]:
        """The roles of the sketches stored for targets at exactly their snapshots, without sketches of samples."""
        roles: dict[RecordKey, set[str]] = {}
        of_snapshot: dict[tuple[int, int], dict[str, RecordKey]] = {}
        for key in wanted:
            of_snapshot.setdefault(key[:2], {})[key[2].storage_id] = key
        for (table_key, snapshot_id), targets in of_snapshot.items():
            rows = self._store.database.rows(
                "SELECT storage_id, role, params FROM stats_sketches WHERE table_key = ? AND snapshot_id = ?"
                " AND storage_id IN (SELECT unnest(?::VARCHAR[]))",
                table_key,
                snapshot_id,
                list(targets),
            )
            for storage_id, role, params in rows:
                if not is_partial(params):
                    roles.setdefault(targets[storage_id], set()).add(role)
        return roles

    def sketches(self, key: RecordKey) -> list[dict[str, Any]]:
        """The sketches stored for a target other than a file at exactly a snapshot, as JSON values: `role`,
        `sketch_type`, `data` in base64, and `params`."""
        rows = self._store.database.rows(
            "SELECT role, sketch_type, data, params FROM stats_sketches WHERE table_key = ? AND snapshot_id = ?"
            " AND storage_id = ? ORDER BY role",
            key[0],
            key[1],
            key[2].storage_id,
        )
        names = ("role", "sketch_type", "data", "params")
        return [{name: _jsonable(value) for name, value in zip(names, row, strict=True)} for row in rows]

    def _read(
        self, table: TableEntry, snapshot_id: int, kind: TargetKind, targets: Sequence[Target]
    ) -> dict[str, Mapping[str, Any]]:
        slice_ = self._scanner.rows.of(FLIGHTS[FLIGHT_OF[kind]], table, snapshot_id) if kind in _BY_TABLE else None
        rows: Mapping[str, Mapping[str, Any] | None]
        if slice_ is not None:
            rows = _of_slice(slice_, targets)
        elif kind is TargetKind.COLUMN and len(targets) > 1:
            ids = [target.column_id for target in targets]
            with self._store.database.reading() as cursor:
                read = query(
                    cursor,
                    "SELECT * FROM stats_columns WHERE table_key = ? AND snapshot_id = ?"
                    " AND column_id IN (SELECT unnest(?::BIGINT[]))",
                    [table.table_key, snapshot_id, ids],
                )
            rows = {Target.column(row["column_id"]).storage_id: row for row in read.to_pylist()}
        else:
            rows = {target.storage_id: self._store.get(table, snapshot_id, target) for target in targets}
        return {key: _flat(table, snapshot_id, row) for key, row in rows.items() if row is not None}


def _of_slice(slice_: Slice, targets: Sequence[Target]) -> dict[str, Mapping[str, Any]]:
    """The records of table or column targets at a slice's snapshot, by storage id: rows with the groups of statistics
    that are EXACT."""
    ids = tuple(target.column_id for target in targets if target.column_id is not None)
    rows = slice_.select(TableCondition(None, "column_id", ids) if ids else TableCondition(None)).to_pylist()
    exact = filter(None, map(_exact, rows))
    return {Target.column(row["column_id"]).storage_id if ids else targets[0].storage_id: row for row in exact}


def _exact(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row without a group of statistics that is inherited; None if all are."""
    groups = {"freshness": COUNTS, "distribution_freshness": DISTRIBUTION}
    labels = [label for label in groups if row.get(label) == EXACT]
    if not labels:
        return None
    inherited = (names for label, names in groups.items() if label in row and label not in labels)
    return row | dict.fromkeys(name for names in inherited for name in names)


def _flat(table: TableEntry, snapshot_id: int, row: Mapping[str, Any]) -> Record:
    names = {
        "table_catalog": table.table_catalog,
        "table_schema": table.table_schema,
        "table_name": table.table_name,
        "table_id": table.table_id,
        "snapshot_id": snapshot_id,
    }
    flat = names | {name: _jsonable(value) for name, value in row.items() if name not in _HIDDEN}
    if DISTRIBUTION[0] in row:
        known = any(row[name] is not None for name in DISTRIBUTION)
        flat |= dict(zip(DISTRIBUTION_LABELS, (snapshot_id, EXACT) if known else (None, None), strict=True))
    return Record(flat | {"freshness": EXACT, "usable_for": usable_for(EXACT, row)})


def _jsonable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value

"""Records found again without asking DuckDB: what `resolve` answers from.

An entry holds as of a generation of its table (`store.table_versions`): the generation is taken before the store is
read, so that nobody is shown less than what was acknowledged. That nothing is stored is remembered too.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from flight_server.conditions.one_table import Plan
from flight_server.reads.slice_cache import Slice
from flight_server.wire.status import to_json
from store.catalog_store import Catalog, TableEntry
from store.freshness import EXACT, usable_for
from store.lru import LruCache
from store.puts import FLIGHT_OF
from store.schemas import FLIGHTS, Flight
from store.stats_store import DuckDBStatsStore
from store.table_versions import TableVersions
from store.targets import Target, TargetKind

KEPT: Final = 50_000  # records of about 2 kB
_HIDDEN: Final = frozenset({"table_key", "from_pos", "to_pos", "snapshot_id", "generation", "created_at"})

_BY_TABLE: Final = (TargetKind.TABLE, TargetKind.COLUMN)  # kinds whose row a slice finds

SliceSource = Callable[[Flight, TableEntry, int], Slice | None]
"""From a table and a snapshot to its cached slice of a flight, None if it is not cached."""


def _never_cached(*_: Any) -> None:
    """Default without a slice cache: always query the store."""


RecordKey = tuple[int, int, Target]
"""Table key, snapshot id, target."""


class Record(dict[str, Any]):
    """A stored record as a flat flight row that JSON can carry."""

    @cached_property
    def text(self) -> str:
        """It as JSON: a record that is kept is asked for again and again."""
        return to_json(self)


class RecordCache:
    """The stored record of a target at exactly a snapshot, as a flat flight row that JSON can carry."""

    def __init__(
        self, store: DuckDBStatsStore, catalog: Catalog, versions: TableVersions,
        cached_slice: SliceSource = _never_cached, kept: int = KEPT,
    ):  # fmt: skip
        self._store, self._catalog, self._versions, self._cached_slice = store, catalog, versions, cached_slice
        self._kept: LruCache[RecordKey, tuple[int, Mapping[str, Any] | None]] = LruCache(kept)

    def find(self, wanted: Sequence[RecordKey]) -> list[Mapping[str, Any] | None]:
        """One record or None for each, in order; those not kept are read in one query per table and snapshot."""
        found: dict[RecordKey, Mapping[str, Any] | None] = {}
        missing: dict[tuple[int, int, TargetKind], list[RecordKey]] = {}
        for item in dict.fromkeys(wanted):
            known = self._kept.get(item)
            if known is not None and known[0] == self._versions.generation(item[0]):
                found[item] = known[1]
            else:
                missing.setdefault((item[0], item[1], item[2].kind), []).append(item)
        for (table_key, snapshot_id, kind), items in missing.items():
            generation = self._versions.generation(table_key)
            read = self._read(self._catalog.by_key(table_key), snapshot_id, kind, [target for _, _, target in items])
            for item in items:
                record = read.get(item[2].storage_id)
                found[item] = record
                self._kept.put(item, (generation, record))
        return [found[item] for item in wanted]

    def _read(
        self, table: TableEntry, snapshot_id: int, kind: TargetKind, targets: Sequence[Target]
    ) -> dict[str, Mapping[str, Any]]:
        slice_ = self._cached_slice(FLIGHTS[FLIGHT_OF[kind]], table, snapshot_id) if kind in _BY_TABLE else None
        rows: Mapping[str, Mapping[str, Any] | None]
        if slice_ is not None:
            rows = _of_slice(slice_, targets)
        elif kind is TargetKind.COLUMN and len(targets) > 1:
            ids = [target.column_id for target in targets]
            with self._store.database.reading() as cursor:
                read = cursor.sql(
                    "SELECT * FROM stats_columns WHERE table_key = ? AND snapshot_id = ?"
                    " AND column_id IN (SELECT unnest(?::BIGINT[]))", params=[table.table_key, snapshot_id, ids],
                ).to_arrow_table().to_pylist()  # fmt: skip
            rows = {Target.column(row["column_id"]).storage_id: row for row in read}
        else:
            rows = {target.storage_id: self._store.get(table, snapshot_id, target) for target in targets}
        return {key: _flat(table, snapshot_id, row) for key, row in rows.items() if row is not None}


def _of_slice(slice_: Slice, targets: Sequence[Target]) -> dict[str, Mapping[str, Any]]:
    """The rows, by storage id, of table or column targets that are exactly of the slice's snapshot."""
    ids = tuple(target.column_id for target in targets if target.column_id is not None)
    rows = slice_.select(Plan(None, "column_id", ids) if ids else Plan(None)).to_pylist()
    exact = (row for row in rows if row["freshness"] == "EXACT")
    return {Target.column(row["column_id"]).storage_id if ids else targets[0].storage_id: row for row in exact}


def _flat(table: TableEntry, snapshot_id: int, row: Mapping[str, Any]) -> Record:
    names = {"table_catalog": table.table_catalog, "table_schema": table.table_schema,
             "table_name": table.table_name, "table_id": table.table_id, "snapshot_id": snapshot_id}  # fmt: skip
    flat = names | {name: _jsonable(value) for name, value in row.items() if name not in _HIDDEN}
    return Record(flat | {"freshness": EXACT, "usable_for": usable_for(EXACT, row)})


def _jsonable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value

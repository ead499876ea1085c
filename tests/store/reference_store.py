"""`StatsStore` in memory: the simple reference that tests compare the DuckDB store with.

Every snapshot has its own records by target: nothing is shared between snapshots and nothing is saved. A store of few
records may extend it: `commit` gets each new state.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from store.catalog.catalog import table_uuid
from store.duckdb.layout import stored_columns
from store.history.content_hash import content_hash
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import Conflict, NotFound
from store.model.names import join_name
from store.model.puts import FLIGHT_OF, IDENTITY, Counts, Put, PutMode, codes, contradicts, cosmetic, digest, once
from store.model.targets import Target, TargetKind
from store.stores import Meta, Page, StatsStore

_KEY = ("table_catalog", "table_schema", "table_name", "table_id", "snapshot_id")

Row = dict[str, Any]
Identity = tuple[Any, ...]
Ids = list[int]  # `list` is a method of a store
Texts = list[str]


@dataclass
class State:
    """Contents of the store; a put works on a copy and replaces it when it succeeds."""

    tables: dict[tuple[str, str, str], TableEntry] = field(default_factory=dict)
    snapshots: dict[int, dict[int, str | None]] = field(default_factory=dict)  # table key → id → schema hash
    column_ids: dict[int, dict[str, int]] = field(default_factory=dict)
    # (table key, snapshot id, flight) → identity → record
    records: dict[tuple[int, int, str], dict[Identity, Row]] = field(default_factory=dict)
    keys: dict[str, tuple[str, Counts]] = field(default_factory=dict)


class MemoryStatsStore(StatsStore):
    """Reference store for few records: each put copies the index of all stored ones."""

    def __init__(self, *, require_registered_tables: bool = False):
        self.require_registered_tables = require_registered_tables
        self._lock = threading.RLock()
        self.state = State()
        self.generation = 0

    # Tables.

    def register(self, name: tuple[str, str, str], table_id: str | None = None, format: str = EXTERNAL) -> TableEntry:
        with self._lock:
            state = _copied(self.state)
            entry = _register(state, name, table_id, format)
            self.commit(state)
            return entry

    def find(self, name: tuple[str, str, str]) -> TableEntry | None:
        return self.state.tables.get(name)

    def tables(self) -> list[TableEntry]:
        return [*self.state.tables.values()]

    # Puts.

    def put(self, puts: Sequence[Put], *, idempotency_key: str | None = None) -> Counts:
        with self._lock:
            content = digest(puts) if idempotency_key is not None else ""
            if idempotency_key is not None and (found := self.state.keys.get(idempotency_key)):
                if found[0] != content:
                    raise Conflict("this idempotency_key was used before with other content")
                return found[1]
            state = _copied(self.state)
            self.generation = max(self.generation + 1, time.time_ns() // 1000)
            counts = Counts()
            for put in puts:
                counts += self._put(state, put)
            if idempotency_key is not None:
                state.keys[idempotency_key] = (content, counts)
            self.commit(state)
            return counts

    def commit(self, state: State) -> None:
        self.state = state

    def _put(self, state: State, put: Put) -> Counts:
        counts = Counts()
        for rows in _split(put.rows, ("table_catalog", "table_schema", "table_name")):
            if not rows.num_rows:
                continue
            first = rows.slice(0, 1).to_pylist()[0]
            name = (first["table_catalog"], first["table_schema"], first["table_name"])
            if name not in state.tables and self.require_registered_tables:
                raise NotFound(f'no table "{join_name(*name)}"', code="UNKNOWN_TABLE")
            entry = _register(state, name, first.get("table_id"), EXTERNAL)
            rows = _with_column_ids(state, put.flight, entry, rows)
            for family, part in _families(put.flight, rows):
                for of_snapshot in _split(part, ["snapshot_id"]):
                    counts += self._merge(state, put.mode, family, entry, of_snapshot)
        return counts

    def _merge(self, state: State, mode: PutMode, family: str, entry: TableEntry, rows: pa.Table) -> Counts:
        keys = IDENTITY[family]
        columns = stored_columns(family)
        given = [name for name in columns if name in rows.column_names]
        received, snapshot_id = rows.num_rows, rows["snapshot_id"][0].as_py()
        rows = once(family, lambda _: entry.full_name, rows.select(["snapshot_id", *given]), ("snapshot_id", *keys))
        fresh = [dict.fromkeys(columns) | row for row in rows.to_pylist()]
        _note_snapshot(state, entry, snapshot_id, next((h for row in fresh if (h := row.get("schema_hash"))), None))
        stored = state.records.setdefault((entry.table_key, snapshot_id, family), {})
        created = unchanged = replaced = 0
        for row in fresh:
            identity = _identity(keys, row)
            old = stored.get(identity)
            if old is None:
                created += 1
            elif mode is PutMode.FILL or _same(family, old, row) or (mode is PutMode.CAPTURE and _is_less(old, row)):
                unchanged += 1
                continue
            elif mode is PutMode.CREATE:
                kept = {name: old[name] for name in columns}
                raise contradicts(family, entry.full_name, ("snapshot_id", *keys), kept, row)
            else:
                replaced += 1
            stored[identity] = row | {"generation": self.generation, "created_at": datetime.now(UTC)}
        if mode is PutMode.REPLACE_SNAPSHOT:
            self._drop_absent(state, family, entry, snapshot_id, {_identity(keys, row) for row in fresh})
        return Counts(received, created, unchanged, replaced)

    def _drop_absent(
        self, state: State, family: str, entry: TableEntry, snapshot_id: int, present: set[Identity]
    ) -> None:
        stored = state.records[entry.table_key, snapshot_id, family]
        if family.endswith("sketches"):  # a target that stays keeps the sketches the new set lacks
            targets = {stored[identity]["storage_id"] for identity in present}
            present |= {identity for identity, row in stored.items() if row["storage_id"] in targets}
        for identity in stored.keys() - present:
            del stored[identity]
        kind = next((kind for kind, flight in FLIGHT_OF.items() if flight == family), None)
        if kind is None:
            return
        targets = {_target_of(kind, row).storage_id for row in stored.values()}
        sketches = state.records.get((entry.table_key, snapshot_id, _sketches_of(kind)), {})
        for identity, row in list(sketches.items()):
            if row["target_kind"] == kind and row["storage_id"] not in targets:
                del sketches[identity]

    # Reading.

    def _check_snapshot(self, table: TableEntry, snapshot_id: int) -> None:
        if snapshot_id not in self.state.snapshots.get(table.table_key, {}):
            raise NotFound(f'table "{table.full_name}" has no snapshot {snapshot_id}', code="UNKNOWN_SNAPSHOT")

    def rows(self, table: TableEntry, snapshot_id: int, flight: str) -> pa.Table:
        key = dict(zip(_KEY, (*table.name, table.table_id, snapshot_id), strict=True))
        types = {name: pa.int64() if name == "snapshot_id" else pa.string() for name in _KEY} | stored_columns(flight)
        found = [key | row for row in self._rows(table, snapshot_id, flight)]
        return pa.Table.from_pylist(found, pa.schema(list(types.items())))

    def _rows(self, table: TableEntry, snapshot_id: int, flight: str) -> list[Row]:
        return list(self.state.records.get((table.table_key, snapshot_id, flight), {}).values())

    def get(self, table: TableEntry, snapshot_id: int, target: Target) -> dict[str, Any] | None:
        found = self._find(table, snapshot_id, target)
        return found and {name: found[name] for name in found if name not in ("generation", "created_at")}

    def _find(self, table: TableEntry, snapshot_id: int, target: Target) -> Row | None:
        among = self._rows(table, snapshot_id, FLIGHT_OF[target.kind])
        return next((row for row in among if _target_of(target.kind, row).storage_id == target.storage_id), None)

    def meta(self, table: TableEntry, snapshot_id: int, target: Target) -> Meta:
        self._check_snapshot(table, snapshot_id)
        row = self._find(table, snapshot_id, target)
        if row is None:
            raise NotFound(f"nothing is stored for {target.storage_id}", code="UNKNOWN_TARGET")
        sketches: Texts = [
            f"{s['role']} {s['sketch_type']} {hashlib.sha256(s['data']).hexdigest()}"
            for s in self._rows(table, snapshot_id, _sketches_of(target.kind))
            if s["storage_id"] == target.storage_id
        ]
        hashed = content_hash(FLIGHT_OF[target.kind], row, sketches)
        return Meta(hashed, row["generation"], row["created_at"], row["refreshed_at"] or row["created_at"])

    def count(self, table: TableEntry, snapshot_id: int, kind: TargetKind | None = None) -> int:
        self._check_snapshot(table, snapshot_id)
        return sum(len(self._rows(table, snapshot_id, FLIGHT_OF[each])) for each in ([kind] if kind else FLIGHT_OF))

    def list(
        self,
        table: TableEntry,
        snapshot_id: int,
        kind: TargetKind | None = None,
        *,
        page_token: str = "",
        page_size: int = 1000,
    ) -> Page:
        total = self.count(table, snapshot_id, kind)
        found = [
            {"storage_id": _target_of(each, row).storage_id, "target_kind": str(each)} | row
            for each in ([kind] if kind else FLIGHT_OF)
            for row in self._rows(table, snapshot_id, FLIGHT_OF[each])
        ]
        later = sorted((r for r in found if r["storage_id"] > page_token), key=lambda r: str(r["storage_id"]))
        page = later[:page_size]
        return page, page[-1]["storage_id"] if len(later) > len(page) else "", total

    # Deleting.

    def delete(self, table: TableEntry, snapshot_id: int | None = None, target: Target | None = None) -> int:
        deleted = 0
        with self._lock:
            state = _copied(self.state)
            for (key, snapshot, flight), records in state.records.items():
                if key != table.table_key or snapshot_id not in (None, snapshot):
                    continue
                doomed = [identity for identity, row in records.items() if _is_of_target(flight, row, target)]
                for identity in doomed:
                    del records[identity]
                deleted += 0 if flight.endswith("sketches") else len(doomed)
            self.commit(state)
        return deleted

    def close(self) -> None:
        """Nothing to release."""

    def captured_snapshots(self, table: TableEntry) -> set[int]:
        """Snapshots of a table for which any record is stored."""
        return {
            snapshot for (key, snapshot, _), records in self.state.records.items() if key == table.table_key and records
        }

    def snapshots(self, table: TableEntry) -> Ids:
        return sorted(self.state.snapshots.get(table.table_key, {}))


def _copied(state: State) -> State:
    return State(
        dict(state.tables),
        copy.deepcopy(state.snapshots),
        copy.deepcopy(state.column_ids),
        {key: dict(records) for key, records in state.records.items()},
        dict(state.keys),
    )


def _register(state: State, name: tuple[str, str, str], table_id: str | None, format: str) -> TableEntry:
    if name not in state.tables:
        state.tables[name] = TableEntry(len(state.tables) + 1, *name, table_id or table_uuid(*name), format)
    return state.tables[name]


def _note_snapshot(state: State, entry: TableEntry, snapshot_id: int, schema_hash: str | None) -> None:
    schema_hashes = state.snapshots.setdefault(entry.table_key, {})
    schema_hashes[snapshot_id] = schema_hashes.get(snapshot_id) or schema_hash
    current = state.tables[entry.name].current_snapshot_id
    if entry.format == EXTERNAL and (current is None or snapshot_id > current):
        state.tables[entry.name] = replace(state.tables[entry.name], current_snapshot_id=snapshot_id)


def _with_column_ids(state: State, flight: str, entry: TableEntry, rows: pa.Table) -> pa.Table:
    """Rows with column ids, assigned by name if missing."""
    if flight not in ("stats.columns", "stats.file_columns") or "column_name" not in rows.column_names:
        return rows
    ids_by_name = state.column_ids.setdefault(entry.table_key, {})
    ids = rows["column_id"].to_pylist() if "column_id" in rows.column_names else [None] * rows.num_rows
    filled = []
    for column_id, name in zip(ids, rows["column_name"].to_pylist(), strict=True):
        if name is not None and (column_id is not None or name not in ids_by_name):
            ids_by_name[name] = column_id if column_id is not None else max(ids_by_name.values(), default=0) + 1
        filled.append(ids_by_name[name] if column_id is None else column_id)
    kept = rows.drop_columns(["column_id"]) if "column_id" in rows.column_names else rows
    return kept.append_column("column_id", pa.array(filled, pa.int64()))


def _split(rows: pa.Table, names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows grouped by the values of some columns, one table per group; rows of a group keep their order."""
    numbers = codes(rows, names)
    for number in dict.fromkeys(numbers.tolist()):
        yield rows.filter(pa.array(numbers == number))


def _families(flight: str, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    if flight != "stats.sketches":
        yield flight, rows
        return
    of_file = [kind == "FILE" for kind in rows["target_kind"].to_pylist()]
    for family, keep in (("file_sketches", of_file), (flight, [not each for each in of_file])):
        if any(keep):
            yield family, rows.filter(pa.array(keep))


def _sketches_of(kind: TargetKind) -> str:
    return "file_sketches" if kind is TargetKind.FILE else "stats.sketches"


def _identity(keys: Sequence[str], row: Mapping[str, Any]) -> Identity:
    return tuple(tuple(row[key]) if isinstance(row[key], list) else row[key] for key in keys)


def _same(family: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old[name] == new[name] for name in stored_columns(family) if name not in cosmetic(family))


def _is_less(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if a record of a part would replace one of the whole."""
    if "params" in old:
        parts = ["PARTIAL" in (row["params"] or "") for row in (old, new)]
        return parts == [False, True]
    return old.get("completeness") == "COMPLETE" and new.get("completeness") != "COMPLETE"


def _is_of_target(flight: str, row: Mapping[str, Any], target: Target | None) -> bool:
    if target is None:
        return True
    if flight.endswith("sketches"):
        return bool(row["storage_id"] == target.storage_id)
    if flight == "stats.file_columns":
        return target.kind is TargetKind.FILE and row["file_path"] == target.file_path
    return FLIGHT_OF[target.kind] == flight and _target_of(target.kind, row).storage_id == target.storage_id


def _target_of(kind: TargetKind, row: Mapping[str, Any]) -> Target:
    match kind:
        case TargetKind.COLUMN:
            return Target.column(row["column_id"])
        case TargetKind.FILE:
            return Target.file(row["file_path"])
        case TargetKind.EXPRESSION:
            return Target.expression(row["engine_kind"], row["engine_expression_key"])
        case TargetKind.COLUMN_GROUP:
            return Target.column_group(row["column_ids"])
        case _:
            return Target.table()

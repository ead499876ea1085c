"""Actions on stored records: delete, expire, describe, merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import field

from capture import partitions
from capture.spec_body import parse_partitions
from flight_server.actions.registry import Call, Results, action
from flight_server.checks import learned
from flight_server.views.reader import equal, read_table
from flight_server.wire.scan_request import parse_json
from store.model import logical_types, sketches
from store.model.errors import InvalidArgument, NotFound
from store.model.freshness import EXACT, INHERITED
from store.model.structs import Snapshot, Struct, Table, Text, Truth
from store.model.targets import Target


class _Records(Struct):
    table: Table
    snapshot: Snapshot | None = None
    target: dict[str, Any] | None = None


@action(_Records, "Deletes records; how many")
def delete_stats(call: Call, records: _Records) -> Results:
    target = Target.parse(records.target) if records.target is not None else None
    table = call.app.access.table(records.table, call.principal, "stats.write")
    snapshot_id = None if records.snapshot is None else call.app.catalog.snapshot_id(table, records.snapshot)
    yield {"deleted": call.app.store.delete(table, snapshot_id, target)}
    call.app.commit.on_committed(table)


class _Expected(Struct):
    table: Table
    measure: Text
    snapshot: Snapshot
    column: Text | None = None


@action(_Expected, "Takes a value that a learned rule calls strange for expected")
def expect(call: Call, expected: _Expected) -> Results:
    table = call.app.access.table(expected.table, call.principal, "stats.write")
    measure, column = expected.measure, expected.column
    if measure not in learned.MEASURES or (column is None) != (measure not in learned.OF_COLUMN):
        raise InvalidArgument(
            f"measure: {measure!r} of {'the table' if column is None else 'a column'} is not learned",
            hint=f"of a table are {', '.join(learned.OF_TABLE)}, of a column {', '.join(learned.OF_COLUMN)}",
        )
    if column is not None:
        call.app.catalog.column_id(table, column)
    snapshot_id = call.app.catalog.snapshot_id(table, expected.snapshot)
    call.app.checking.expect(table, snapshot_id, column, measure)
    yield {"table": table.full_name, "snapshot_id": snapshot_id, "column": column, "measure": measure}


class _Expiry(Struct):
    table: Table | None = None
    dry_run: Truth | None = None


@action(_Expiry, "Deletes records of snapshots that the format itself has expired")
def expire(call: Call, expiry: _Expiry) -> Results:
    app = call.app
    if expiry.table is not None:
        tables = [app.access.table(expiry.table, call.principal, "admin")]
    else:
        app.access.require(call.principal, "admin")
        tables = [t for t in app.catalog.tables() if call.principal.sees(*t.name)]
    dry = expiry.dry_run is not False
    expired = app.store.expirable(tables) if dry else app.store.expire(tables)
    for table in tables:
        snapshots = expired.get(table.table_key, [])
        if snapshots or len(tables) == 1:
            yield {"table": table.full_name, "snapshots": snapshots, "dry_run": dry}
        if not dry:
            app.commit.on_committed(table)


class _OneRecord(Struct):
    table: Table
    snapshot: Snapshot
    target: dict[str, Any]


@action(_OneRecord, "Content hash, generation and times of a record")
def stats_meta(call: Call, record: _OneRecord) -> Results:
    target = Target.parse(record.target)
    table = call.app.access.table(record.table, call.principal, "stats.read")
    meta = call.app.store.meta(table, call.app.catalog.snapshot_id(table, record.snapshot), target)
    yield {
        "content_hash": meta.content_hash, "generation": meta.generation,
        "created_at": meta.created_at and meta.created_at.isoformat(),
        "refreshed_at": meta.refreshed_at and meta.refreshed_at.isoformat(),
    }  # fmt: skip


class _SketchedColumn(Struct):
    table: Table
    snapshot: Snapshot
    column: Text


class _SketchMerge(_SketchedColumn):
    partitions: list[Any] | None = None
    allow_partial: Truth | None = None
    other: _SketchedColumn | None = field(default=None, name="with")


@action(_SketchMerge, "NDV of the union (and, of two columns, of the intersection) of stored theta sketches")
def merge_sketches(call: Call, merge: _SketchMerge) -> Results:
    allow_partial = bool(merge.allow_partial)
    first = _theta(call, merge, allow_partial, merge.partitions)
    if merge.other is None:
        yield _estimate(first.data, first) | {"snapshot_id": first.snapshot_id, "freshness": first.freshness}
        return
    second = _theta(call, merge.other, allow_partial)
    estimates = {}
    for name, merged in (("union", sketches.union), ("intersection", sketches.intersection)):
        estimates[name] = _estimate(merged([first.data, second.data]), first, second)
    yield estimates["union"] | estimates


@dataclass(frozen=True, slots=True)
class _Theta:
    """A theta sketch of a column, the snapshot whose rows it holds, and whether it holds all of them."""

    data: bytes
    snapshot_id: int
    freshness: str
    is_whole: bool = True


def _estimate(data: bytes, *of: _Theta) -> dict[str, Any]:
    """The estimate of a sketch; exact only if its parts hold all rows and were captured at their snapshots."""
    found = sketches.estimate(data)._asdict()
    return found | {"exact": found["exact"] and all(theta.freshness == EXACT and theta.is_whole for theta in of)}


def _theta(call: Call, of: _SketchedColumn, allow_partial: bool, chosen: list[Any] | None = None) -> _Theta:
    """A column's theta sketch: its own, else the union of those of its files.

    A sketch of a sample, or of some of the files, is used only with `allow_partial`.
    """
    table = call.app.access.table(of.table, call.principal, "stats.read")
    snapshot_id = call.app.catalog.snapshot_id(table, of.snapshot)
    column_id = call.app.catalog.column_id(table, of.column)
    of_column = equal("role", "NDV"), equal("column_id", column_id)
    rows = read_table(
        call.reader, "stats.sketches", table.full_name, None, *of_column, snapshot=snapshot_id
    ).to_pylist()  # fmt: skip
    files = read_table(call.reader, "stats.files", table.full_name, snapshot=snapshot_id)
    samples = [row for row in rows if sketches.is_partial(row["params"])]
    rows = [row for row in rows if not sketches.is_partial(row["params"])]
    own = [row for row in rows if row["target_kind"] == "COLUMN"]
    if chosen is None and own:
        captured = own[0]["snapshot_id"]
        return _Theta(own[0]["data"], captured, EXACT if captured == snapshot_id else INHERITED)
    partition_paths = None
    if chosen is not None:
        if not files.num_rows:
            raise NotFound(
                f'no files of "{table.full_name}" at snapshot {snapshot_id} are stored, so none are known by partition',
                code="UNKNOWN_SKETCH", hint="capture the table with its columns first",
            )  # fmt: skip
        parsed = [parse_json(p.encode(), "partition") if isinstance(p, str) else p for p in chosen]
        columns = call.app.catalog.schema_columns(table, call.app.catalog.snapshot(table, snapshot_id).schema_hash)
        types = {name: logical_types.parse(text) for name, text, *_ in columns}
        partition_paths = set(partitions.paths_in(files, parse_partitions(parsed), types, table.full_name).to_pylist())
    parts = {
        r["file_path"]: r
        for r in rows
        if r["target_kind"] == "FILE" and (partition_paths is None or r["file_path"] in partition_paths)
    }
    column = f'column "{of.column}" of "{table.full_name}"'
    if not parts and samples and chosen is None:
        if allow_partial:
            return _Theta(sketches.union([row["data"] for row in samples]), snapshot_id, EXACT, is_whole=False)
        raise InvalidArgument(
            f"the theta sketch of {column} is of a sample",
            code="PARTIAL_SKETCH", hint='capture its NDV without sampling, or set "allow_partial": true',
        )  # fmt: skip
    if not parts:
        raise NotFound(
            f"no theta sketch is stored of {column}", code="UNKNOWN_SKETCH", hint="capture its NDV first"
        )  # fmt: skip
    listed = {
        file["file_path"] for file in files.select(["file_path", "file_content", "row_count"]).to_pylist()
        if file["file_content"] in (None, "DATA") and file["row_count"] != 0
    }  # fmt: skip
    lacking = (listed if partition_paths is None else listed & partition_paths) - parts.keys()
    if lacking and not allow_partial:
        raise InvalidArgument(
            f"of {column}, {len(lacking)} of {len(lacking) + len(parts)} files have no theta sketch",
            code="PARTIAL_SKETCH", hint='capture its NDV, or set "allow_partial": true to unite those of the others',
        )  # fmt: skip
    captured_at = {row["snapshot_id"] for row in parts.values()}
    label = EXACT if captured_at == {snapshot_id} else INHERITED
    return _Theta(sketches.union([row["data"] for row in parts.values()]), max(captured_at), label, not lacking)

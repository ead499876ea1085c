"""Stored records: deleted, expired, described and merged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from capture import partitions
from capture.spec import parse_partitions
from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import check_snapshot, check_table_name, parse_body
from flight_server.wire.scan_request import CURRENT, of_json, parse_json
from store import logical_types, sketches
from store.catalog_store import TableEntry
from store.errors import InvalidArgument, NotFound
from store.targets import Target


def _snapshot_id(call: Call, table: TableEntry, snapshot: Any) -> int:
    checked = check_snapshot(snapshot)
    if checked != CURRENT:
        return call.app.catalog.snapshot(table, int(checked)).snapshot_id
    if table.current_snapshot_id is None:
        raise NotFound(f'"{table.full_name}" has no snapshot', code="UNKNOWN_SNAPSHOT")
    return table.current_snapshot_id


@action('{"table", "snapshot"?, "target"?}', "Deletes records; how many")
def delete_stats(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"table": str}, {"snapshot": object, "target": dict})
    check_table_name(fields["table"])
    target = Target.parse(fields["target"]) if fields.get("target") is not None else None
    snapshot = check_snapshot(fields["snapshot"]) if fields.get("snapshot") is not None else None
    table = call.app.access.table(fields["table"], call.principal, "stats.write")
    snapshot_id = None if snapshot is None else _snapshot_id(call, table, snapshot)
    yield {"deleted": call.app.store.delete(table, snapshot_id, target)}
    call.app.publication.on_published(table)


@action('{"table"?, "dry_run": true}', "Deletes records of snapshots that the format itself has expired")
def expire(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {}, {"table": str, "dry_run": bool})
    app = call.app
    if fields.get("table") is not None:
        check_table_name(fields["table"])
        tables = [app.access.table(fields["table"], call.principal, "admin")]
    else:
        app.access.require(call.principal, "admin")
        tables = [t for t in app.catalog.tables() if call.principal.sees(*t.name)]
    dry = fields.get("dry_run", True) is not False
    expired = app.store.expirable(tables) if dry else app.store.expire(tables)
    for table in tables:
        snapshots = expired.get(table.table_key, [])
        if snapshots or len(tables) == 1:
            yield {"table": table.full_name, "snapshots": snapshots, "dry_run": dry}
        if not dry:
            app.publication.on_published(table)


@action('{"table", "snapshot", "target"}', "Content hash, generation and times of a record")
def stats_meta(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"table": str, "snapshot": object, "target": dict})
    check_table_name(fields["table"])
    check_snapshot(fields["snapshot"])
    target = Target.parse(fields["target"])
    table = call.app.access.table(fields["table"], call.principal, "stats.read")
    meta = call.app.store.meta(table, _snapshot_id(call, table, fields["snapshot"]), target)
    yield {
        "content_hash": meta.content_hash, "generation": meta.generation,
        "created_at": meta.created_at and meta.created_at.isoformat(),
        "refreshed_at": meta.refreshed_at and meta.refreshed_at.isoformat(),
    }  # fmt: skip


@action('{"table", "snapshot", "column", "partitions"?, "allow_partial"?, "with"?: {"table", "snapshot", "column"}}',
         "NDV of the union (and, of two columns, of the intersection) of stored theta sketches")  # fmt: skip
def merge_sketches(call: Call, body: bytes) -> Results:
    fields = parse_body(
        body,
        {"table": str, "snapshot": object, "column": str},
        {"partitions": list, "with": dict, "allow_partial": bool},
    )
    allow_partial = fields.get("allow_partial") is True
    first = _theta(call, fields, allow_partial)
    if fields.get("with") is None:
        yield sketches.estimate(first)._asdict()
        return
    other = parse_body(json.dumps(fields["with"]).encode(), {"table": str, "snapshot": object, "column": str})
    second = _theta(call, other, allow_partial)
    estimates = {}
    for name, merge in (("union", sketches.union), ("intersection", sketches.intersection)):
        estimates[name] = sketches.estimate(merge([first, second]))._asdict()
    yield estimates["union"] | estimates


def _theta(call: Call, fields: Mapping[str, Any], allow_partial: bool) -> bytes:
    """The union of a column's theta sketches: of its files where they are kept, else its own.

    The sketch of a sample is used only where `allow_partial` says so, and only if there is no other.
    """
    check_table_name(fields["table"])
    check_snapshot(fields["snapshot"])
    table = call.app.access.table(fields["table"], call.principal, "stats.read")
    snapshot_id = _snapshot_id(call, table, fields["snapshot"])
    column_id = call.app.catalog.column_id(table, fields["column"])
    sketches_of, files = (
        call.app.scanner.table(of_json({
            "table": name, "snapshot": snapshot_id,
            "predicates": [{"column": c, "op": "EQ", "values": [v]} for c, v in zip(
                ("table_catalog", "table_schema", "table_name"), table.name, strict=True)] + more,
        }), call.principal)
        for name, more in (
            ("stats.sketches", [{"column": "role", "op": "EQ", "values": ["NDV"]},
                                {"column": "column_id", "op": "EQ", "values": [column_id]}]),
            ("stats.files", []),
        )
    )  # fmt: skip
    rows = sketches_of.to_pylist()
    samples = [row for row in rows if sketches.is_partial(row["params"])]
    rows = [row for row in rows if not sketches.is_partial(row["params"])]
    own = [row["data"] for row in rows if row["target_kind"] == "COLUMN"]
    if fields.get("partitions") is None and own:
        return own[0]
    partition_paths = None
    if fields.get("partitions") is not None:
        if not files.num_rows:
            raise NotFound(
                f'no files of "{table.full_name}" at snapshot {snapshot_id} are stored, so none are known by partition',
                code="UNKNOWN_SKETCH", hint="capture the table with its columns first",
            )  # fmt: skip
        parsed = [parse_json(p.encode(), "partition") if isinstance(p, str) else p for p in fields["partitions"]]
        columns = call.app.catalog.schema_columns(table, call.app.catalog.snapshot(table, snapshot_id).schema_hash)
        types = {name: logical_types.parse(text) for name, text, *_ in columns}
        partition_paths = set(partitions.paths_in(files, parse_partitions(parsed), types, table.full_name).to_pylist())
    parts = [
        r["data"]
        for r in rows
        if r["target_kind"] == "FILE" and (partition_paths is None or r["file_path"] in partition_paths)
    ]
    if not parts and samples and fields.get("partitions") is None:
        if allow_partial:
            return sketches.union([row["data"] for row in samples])
        raise InvalidArgument(
            f'the theta sketch of column "{fields["column"]}" of "{table.full_name}" is of a sample',
            code="PARTIAL_SKETCH", hint='capture its NDV without sampling, or set "allow_partial": true',
        )  # fmt: skip
    if not parts:
        raise NotFound(
            f'no theta sketch is stored of column "{fields["column"]}" of "{table.full_name}"',
            code="UNKNOWN_SKETCH", hint="capture its NDV first",
        )  # fmt: skip
    return sketches.union(parts)

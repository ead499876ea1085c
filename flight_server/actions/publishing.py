"""Actions that write a table's statistics where other engines look for them, and remove them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capture.publishers import check_home
from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import check_snapshot, check_table_name, parse_body
from flight_server.wire.scan_request import CURRENT
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import InvalidArgument, InvalidField, NotFound


@action('{"table", "snapshot"?, "to": "iceberg" | "spark" | "trino" | "paimon" | "lance" | "glue" | "hive" |'
        ' "ducklake", "dry_run"?, "allow_inherited"?, "options"?}',
        "Writes statistics where other engines look for them")  # fmt: skip
def publish(call: Call, body: bytes) -> Results:
    fields = parse_body(
        body, {"table": str, "to": str},
        {"snapshot": object, "dry_run": bool, "allow_inherited": bool, "options": dict},
    )  # fmt: skip
    options = _check(fields)
    snapshot = check_snapshot(CURRENT if fields.get("snapshot") is None else fields["snapshot"])
    app = call.app
    table = _table(call, fields["table"])
    if snapshot != CURRENT:
        snapshot_id = app.catalog.snapshot(table, int(snapshot)).snapshot_id
    elif table.current_snapshot_id is None:
        raise NotFound(f'"{table.full_name}" has no snapshot', code="UNKNOWN_SNAPSHOT")
    else:
        snapshot_id = app.publishing.snapshot_of(table, table.current_snapshot_id)
    yield app.publishing.publish(
        table, fields["to"], snapshot_id, dry_run=fields.get("dry_run") is True,
        allow_inherited=fields.get("allow_inherited") is True, options=options, is_cancelled=call.is_cancelled,
    )  # fmt: skip


@action('{"table", "to", "options"?}', "Removes published statistics from where `publish` has written them")
def withdraw(call: Call, body: bytes) -> Results:
    fields = parse_body(body, {"table": str, "to": str}, {"options": dict})
    options = _check(fields)
    table = _table(call, fields["table"])
    withdrawn = call.app.publishing.withdraw(table, fields["to"], options=options, is_cancelled=call.is_cancelled)
    yield {"table": table.full_name, "to": fields["to"], "withdrawn": withdrawn}


def _check(fields: Mapping[str, Any]) -> dict[str, str]:
    """Checks the table's name, the home and its options; returns the options."""
    check_table_name(fields["table"])
    check_home(fields["to"])
    options = fields.get("options") or {}
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidField(f"options.{name}", "must be a string", expected="a string", actual=value)
    return options


def _table(call: Call, name: str) -> TableEntry:
    table = call.app.access.table(name, call.principal, "admin")
    if table.format == EXTERNAL:
        raise InvalidArgument(f'"{table.full_name}" has no connector: its statistics were put by a client')
    return table

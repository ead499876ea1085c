"""The action `publish`: writes a table's statistics where other engines look for them."""

from __future__ import annotations

from capture.publishers import check_home
from flight_server.actions.registry import Call, Results, action
from flight_server.wire.action_bodies import check_snapshot, check_table_name, parse_body
from flight_server.wire.scan_request import CURRENT
from store.catalog_store import EXTERNAL
from store.errors import InvalidArgument, InvalidField, NotFound


@action('{"table", "snapshot"?, "to": "iceberg" | "spark" | "trino" | "paimon" | "lance" | "glue" | "hive", "dry_run"?,'
        ' "allow_inherited"?, "options"?}', "Writes statistics where other engines look for them")  # fmt: skip
def publish(call: Call, body: bytes) -> Results:
    fields = parse_body(
        body, {"table": str, "to": str},
        {"snapshot": object, "dry_run": bool, "allow_inherited": bool, "options": dict},
    )  # fmt: skip
    check_table_name(fields["table"])
    check_home(fields["to"])
    options = fields.get("options") or {}
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidField(f"options.{name}", "must be a string", expected="a string", actual=value)
    snapshot = check_snapshot(CURRENT if fields.get("snapshot") is None else fields["snapshot"])
    app = call.app
    table = app.access.table(fields["table"], call.principal, "admin")
    if table.format == EXTERNAL:
        raise InvalidArgument(f'"{table.full_name}" has no connector: it is known only by what was put of it')
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

"""Planned scans, for DoGet and GetFlightInfo: who may, and a capture first where that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flight_server.actions.registry import Call
from flight_server.reads.scan_plan import Plan
from flight_server.wire.plan_request import PlanRequest


def planned(call: Call, request: PlanRequest, capture: Callable[[bytes], list[Any]]) -> Plan:
    """Plans a scan with the permissions of its caller.

    Args:
        call: The call.
        request: The scan.
        capture: Runs the action `capture` on a body.

    Raises:
        NotFound: UNKNOWN_TABLE, UNKNOWN_SNAPSHOT.
        PermissionDenied: The caller does not see the table, or may not capture.
        InvalidArgument: The condition does not suit the table.
        NotCaptured: The files of the snapshot are not known.
    """
    app = call.app
    table = app.access.table(request.table, call.principal, "stats.read")
    if request.capture:
        app.access.require(call.principal, "capture.run")
        if not app.planner.is_captured(table, request.snapshot):
            body = {"table": table.full_name, "snapshot": request.snapshot, "target": {"kind": "TABLE"}, "mode": "SYNC"}
            capture(json.dumps({"requests": [body]}).encode())
            table = app.catalog.by_key(table.table_key)
    plan = app.planner.plan(table, request.node, request.columns, request.snapshot, call.is_cancelled)
    app.usage.note(table.table_key, plan.columns)
    return plan

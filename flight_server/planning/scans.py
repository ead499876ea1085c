"""Planned scans, for DoGet and GetFlightInfo: who may, and a capture first where that is asked for. Queries that
statistics answer by themselves."""

from __future__ import annotations

import json
import uuid
from typing import Any

from flight_server.core.actions.registry import ACTIONS, Call, offered
from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.control.access import Access
from flight_server.core.part import Asking
from flight_server.core.reads.usage import Usage
from flight_server.core.wire.lag import Read
from flight_server.core.wire.scan_request import CURRENT
from flight_server.planning import answer_request, answers
from flight_server.planning.plan_request import PlanRequest, condition_of
from flight_server.planning.scan_plan import Plan, ScanPlanner
from store.catalog.catalog import Catalog
from store.model.catalog_entries import TableEntry
from store.model.errors import UpstreamError
from store.model.structs import Snapshot, Table, Text


class Scans:
    """Plans scans with the permissions of their callers."""

    def __init__(self, planner: ScanPlanner, catalog: Catalog, access: Access, usage: Usage):
        self._planner, self._catalog, self._access, self._usage = planner, catalog, access, usage

    def planned(self, request: PlanRequest, asking: Asking) -> Plan:
        """Plans a scan with the permissions of its caller.

        Raises:
            NotFound: UNKNOWN_TABLE, UNKNOWN_SNAPSHOT.
            PermissionDenied: The caller does not see the table, or may not capture.
            InvalidArgument: The condition does not suit the table.
            NotCaptured: The files of the snapshot are not known.
            Lagging: What this server has is older than the request allows.
        """
        asking.check_read(request.max_lag_ms, request.min_generation)
        table = self._access.table(request.table, asking.principal, "stats.read")
        if request.capture:
            self._access.require(asking.principal, "capture.run")
            if not self._planner.is_captured(table, request.snapshot):
                asking.capture(_files_of(table, request.snapshot))
                table = self._catalog.by_key(table.table_key)
        plan = self._planner.plan(table, request.node, request.columns, request.snapshot, asking.is_cancelled)
        self._usage.note(table.table_key, plan.columns)
        return plan


class _Query(Read, kw_only=True):
    sql: Text
    snapshot: Snapshot = CURRENT


@offered(_Query, "Counts, minima and maxima of a table that statistics know exactly, or why they do not")
def answer(call: Call, query: _Query) -> list[Any]:
    request = answer_request.of_sql(query.sql)
    app = call.app
    table = app.access.table(app.access.full_name(request.table, call.principal), call.principal, "stats.read")
    found = answers.answer(app.parts["planning"].planner, table, request, query.snapshot, call.is_cancelled)
    app.usage.note(table.table_key, found.columns)
    return [
        {
            "snapshot_id": found.snapshot_id,
            "exact": found.results is not None,
            "results": found.results,
            "reason": found.reason,
        }
    ]


class _Estimate(Read, kw_only=True):
    table: Table
    where: Any = None
    columns: list[Text] | None = None
    snapshot: Snapshot = CURRENT


@offered(_Estimate, "Rows, bytes, nulls and distinct values that a condition leaves of a table", exact=True)
def estimate(call: Call, asked: _Estimate) -> list[Any]:
    node = condition_of(asked.where)
    app = call.app
    table = app.access.table(asked.table, call.principal, "stats.read")
    estimator = app.parts["planning"].estimator
    found = estimator.estimate(table, node, asked.columns or None, asked.snapshot, call.is_cancelled)
    app.usage.note(table.table_key, found.named)
    return [found.body]


def capture_files(app: App, table: TableEntry, snapshot: str | int) -> None:
    """Captures the files of a table, which metadata lists, for a reader without the scope `capture.run`.

    Args:
        snapshot: "current" or an id.

    Raises:
        UpstreamError: They cannot be captured; the message has the reason.
    """
    call = Call(app, ANONYMOUS, str(uuid.uuid4()), lambda: app.queue.closing)
    (outcome,) = ACTIONS["capture"].run(call, _files_of(table, snapshot))
    if not app.parts["planning"].planner.is_captured(app.catalog.by_key(table.table_key), snapshot):
        raise UpstreamError(f'the files of "{table.full_name}" cannot be listed: {outcome["detail"]}')


def _files_of(table: TableEntry, snapshot: str | int) -> bytes:
    body = {"table": table.full_name, "snapshot": snapshot, "target": {"kind": "TABLE"}, "mode": "SYNC"}
    return json.dumps({"requests": [body]}).encode()

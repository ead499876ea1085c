"""What starts captures: on order, or because a record is asked for that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capture.orchestrator import Answer
from capture.spi import Mode
from flight_server.actions.registry import Call, Results, action
from flight_server.control.capture_plane import question
from flight_server.reads.record_cache import Record
from flight_server.wire.action_bodies import Ask, parse_asks
from flight_server.wire.scan_request import CURRENT
from store.catalog_store import EXTERNAL, TableEntry


def _tables(call: Call, asks: Sequence[Ask]) -> list[TableEntry]:
    """The tables asked about; an unknown table or snapshot fails the whole request."""
    by_name = {
        name: call.service.access.table(name, call.principal, "capture.run")
        for name in dict.fromkeys(a.table for a in asks)
    }
    for name, snapshot in dict.fromkeys((a.table, a.snapshot) for a in asks if isinstance(a.snapshot, int)):
        call.service.catalog.snapshot(by_name[name], int(snapshot))
    selectors: dict[str, set[str]] = {}
    for ask in asks:
        selectors.setdefault(ask.table, set()).update(ask.column_selectors)
    for name, columns in selectors.items():
        call.service.catalog.refuse_ambiguous(by_name[name], columns)
    return [by_name[ask.table] for ask in asks]


@action('{"requests": [{"table", "snapshot"?, "target"?, "kinds"?, "mode"?, …}]}', "Captures; one outcome per request")
def capture(call: Call, body: bytes) -> Results:
    asks = parse_asks(body, allow_all=True)
    tables = _tables(call, asks)
    service = call.service
    service.lakes.refresh([t for a, t in zip(asks, tables, strict=True) if a.snapshot == CURRENT], call.is_cancelled)
    outcomes: list[dict[str, Any] | None] = [None] * len(asks)
    queued: dict[tuple[int, str | int], list[int]] = {}
    now: dict[int, list[tuple[int, int]]] = {}  # table key → (request, snapshot id)
    known: dict[tuple[int, str | int], list[int]] = {}
    for at, (ask, table) in enumerate(zip(asks, tables, strict=True)):
        if table.format == EXTERNAL:
            outcomes[at] = _outcome("UNCAPTURABLE", "no connector: the table is known by what was put of it alone")
            continue
        ids = service.captures.snapshots_of(ask.snapshot, table, known)
        if not ids:
            outcomes[at] = _outcome("DEGRADED", "the table has no snapshot")
        elif ask.mode is Mode.ASYNC:
            queued.setdefault((table.table_key, ask.snapshot), []).append(at)
        else:
            now.setdefault(table.table_key, []).extend((at, snapshot_id) for snapshot_id in ids)
    for (key, snapshot), members in queued.items():
        job_id = service.captures.enqueue(
            service.catalog.by_key(key), snapshot, [asks[at].told for at in members], call.correlation_id
        )
        for at in members:
            outcomes[at] = _outcome("QUEUED", "", job_id=job_id)
    started = []
    for key, pairs in now.items():
        requests = [{**asks[at].told, "snapshot_id": snapshot_id} for at, snapshot_id in pairs]
        table = service.catalog.by_key(key)
        started.append((pairs, service.captures.start(table, requests, call.correlation_id)))
    for pairs, task in started:
        results = (service.dispatcher.wait(task, None, call.is_cancelled) or {})["outcomes"]
        for (at, _), result in zip(pairs, results, strict=True):
            outcomes[at] = _worse(outcomes[at], result)
    for outcome in outcomes:
        assert outcome is not None
        yield outcome


def _outcome(outcome: str, detail: str, **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "engine_id": None, "job_id": None, "detail": detail, "attributes": {}} | more


def _worse(sofar: dict[str, Any] | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """Of several snapshots of one request, the outcome that says what went wrong."""
    told = _outcome(result["outcome"], result["detail"], engine_id=result["engine_id"], attributes=result["attributes"])
    return told if sofar is None or sofar["outcome"] == "CAPTURED" else sofar


@action('{"requests": [{"table", "snapshot"?, "target"?, "kinds"?, "mode"?, "latency_budget_ms"?}]}',
         "The stored record, or a capture within the budget; one answer per request")  # fmt: skip
def resolve(call: Call, body: bytes) -> list[Any]:
    asks = parse_asks(body, allow_all=False)
    tables = _tables(call, asks)
    service = call.service
    unpinned: dict[int, dict[str, Any]] = {}
    questions, places = [], []
    known: dict[tuple[int, str | int], list[int]] = {}
    for at, (ask, table) in enumerate(zip(asks, tables, strict=True)):
        ids = service.captures.snapshots_of(ask.snapshot, table, known)
        if ids:
            questions.append(question(ask, table, ids[0]))
            places.append(at)
        else:
            unpinned[at] = {"outcome": "FAILED", "detail": "the table has no snapshot", "record": None}
    answers = dict(zip(places, service.orchestrator.resolve(questions), strict=True))
    columns: dict[int, list[int]] = {}
    for asked in questions:
        noted = columns.setdefault(asked.table_key, [])
        if asked.target.column_id is not None:
            noted.append(asked.target.column_id)
    for key, ids in columns.items():
        service.usage.note(key, tuple(ids))
    return [unpinned[at] if at in unpinned else _told(answers[at]) for at in range(len(asks))]


def _told(answer: Answer) -> dict[str, Any] | bytes:
    if isinstance(answer.record, Record) and not answer.detail:
        return f'{{"outcome": "{answer.outcome}", "detail": "", "record": {answer.record.text}}}'.encode()
    return {"outcome": answer.outcome, "detail": answer.detail, "record": answer.record}

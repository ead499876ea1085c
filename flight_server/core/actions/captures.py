"""Actions that start captures: `capture` always, `resolve` when a record is missing."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from capture.engines import refused
from capture.orchestrator import Answer, Question
from capture.spi import Mode
from flight_server.client.conditions.exact_json import dumps
from flight_server.client.table_names import of_table
from flight_server.core.actions.registry import Call, action
from flight_server.core.auth.principal import Principal
from flight_server.core.part import LeftBy
from flight_server.core.reads.records import Record
from flight_server.core.wire import answer_budget
from flight_server.core.wire.action_bodies import CaptureBody, CaptureItem, ResolveBody, capture_items
from flight_server.core.wire.scan_request import CURRENT, of_json
from flight_server.core.wire.tickets import to_ticket
from store.model.catalog_entries import EXTERNAL, TableEntry
from store.model.errors import NotCaptured, StatflightError, UpstreamError
from store.model.puts import FLIGHT_OF
from store.model.targets import NO_COLUMN
from store.queue.jobs import Job


def _tables(call: Call, items: Sequence[CaptureItem]) -> list[TableEntry]:
    """Finds the requested tables; an unknown table or snapshot fails the whole request."""
    access, principal = call.app.access, call.principal
    found = {
        name: access.table(name, principal, "capture.run")
        for name in dict.fromkeys(item.table for item in items if item.table is not None)
    }
    ids = {item.table_id for item in items if item.table_id is not None}
    found |= access.tables_by_id(ids, principal, "capture.run") if ids else {}
    for name, snapshot in dict.fromkeys((i.named, i.snapshot) for i in items if isinstance(i.snapshot, int)):
        call.app.catalog.snapshot(found[name], int(snapshot))
    selectors: dict[str, set[str]] = {}
    for item in items:
        selectors.setdefault(item.named, set()).update(item.spec.column_selectors)
    for name, columns in selectors.items():
        call.app.catalog.refuse_ambiguous(found[name], columns)
    return [found[item.named] for item in items]


@action(CaptureBody, "Captures; one outcome per request")
def capture(call: Call, body: CaptureBody) -> list[Any]:
    with call.app.captures.cancellable(call.principal.name, call.correlation_id) as is_ended:
        return _capture(call._replace(is_cancelled=lambda: is_ended() or call.is_cancelled()), body)


def _capture(call: Call, body: CaptureBody) -> list[Any]:
    items = capture_items(body)
    tables = _tables(call, items)
    app = call.app
    current = [table for item, table in zip(items, tables, strict=True) if item.snapshot == CURRENT]
    with app.lakes.refreshed(current, call.is_cancelled):
        if current:
            tables = _tables(call, items)  # one that was created again has another entry now
        outcomes, queued, now = _divided(call, items, tables)
        jobs = [
            (app.catalog.by_key(key), snapshot, [(None, items[at].spec) for at in members])
            for (key, snapshot), members in queued.items()
        ]
        job_ids = app.captures.enqueue(jobs, call.correlation_id) if jobs else []
        captures = [
            (app.catalog.by_key(key), [(snapshot_id, items[at].spec) for at, snapshot_id in pairs])
            for key, pairs in now.items()
        ]
        started = app.captures.start(captures, call.correlation_id) if captures else []
    for job_id, members in zip(job_ids, queued.values(), strict=True):
        for at in members:
            outcomes[at] = _outcome("QUEUED", "", job_id=job_id)
    try:
        for pairs, job in zip(now.values(), started, strict=True):
            results = _results(call, job, len(pairs))
            for (at, _), result in zip(pairs, results, strict=True):
                outcomes[at] = merge_outcome(outcomes[at], result)
    except StatflightError:  # nobody waits for the others any more
        app.queue.abandon(started)
        raise
    return outcomes


def _results(call: Call, job: Job, count: int) -> Sequence[Mapping[str, Any]]:
    """The outcomes of a capture's `count` requests. A table that ends the workers that read it fails alone."""
    try:
        result = call.app.queue.wait(job, None, call.is_cancelled) or {}
    except UpstreamError as error:
        if error.code != "WORKER_LOST":
            raise
        return [_outcome("DEGRADED", f"[{error.code}] {error}")] * count
    outcomes: Sequence[Mapping[str, Any]] = result["outcomes"]
    return outcomes


_Known = dict[tuple[int, str | int], list[int]]


def _divided(
    call: Call, items: Sequence[CaptureItem], tables: Sequence[TableEntry]
) -> tuple[list[dict[str, Any] | None], dict[tuple[int, str | int], list[int]], dict[int, list[tuple[int, int]]]]:
    """Divides requests into those with an outcome already, those to queue, and those to capture now.

    Returns:
        The outcome of each request so far; (table key, snapshot) → requests to queue; table key → requests to capture,
        each with a snapshot id.
    """
    outcomes: list[dict[str, Any] | None] = [None] * len(items)
    queued: dict[tuple[int, str | int], list[int]] = {}
    now: dict[int, list[tuple[int, int]]] = {}
    snapshot_ids: _Known = {}
    for at, (item, table) in enumerate(zip(items, tables, strict=True)):
        if table.format == EXTERNAL:
            outcomes[at] = _outcome("UNCAPTURABLE", "no connector: the table only has statistics that were put")
            continue
        if (refusal := refused(item.spec.target)) is not None:
            outcomes[at] = _outcome(*refusal, engine_id=item.spec.target.engine_kind, attributes={"retryable": False})
            continue
        ids = _snapshots_of(call, item, table, snapshot_ids)
        if not ids:
            outcomes[at] = _outcome("DEGRADED", _no_snapshot(call, table))
        elif item.mode is Mode.ASYNC:
            queued.setdefault((table.table_key, item.snapshot), []).append(at)
        else:
            now.setdefault(table.table_key, []).extend((at, snapshot_id) for snapshot_id in ids)
    return outcomes, queued, now


def _snapshots_of(call: Call, item: CaptureItem, table: TableEntry, snapshot_ids: _Known) -> list[int]:
    """The snapshot ids of a request; those of equal requests of one call are looked up once."""
    key = (table.table_key, item.snapshot)
    if key not in snapshot_ids:
        snapshot_ids[key] = call.app.captures.snapshots_of(item.snapshot, table)
    return snapshot_ids[key]


def _no_snapshot(call: Call, table: TableEntry) -> str:
    """The error for a table without a snapshot, with the reason found by the last inspection."""
    ((reason,),) = call.app.database.rows("SELECT last_error FROM tables WHERE table_key = ?", table.table_key)
    return f"the table cannot be read: {reason}" if reason else "the table has no snapshot"


def _outcome(outcome: str, detail: str, **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "engine_id": None, "job_id": None, "detail": detail, "attributes": {}} | more


def merge_outcome(sofar: dict[str, Any] | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the outcomes of one request over several snapshots: the first that is not CAPTURED wins, but that of a
    snapshot without the column only if there is no other one."""
    outcome = _outcome(
        result["outcome"], result["detail"], engine_id=result["engine_id"], attributes=result["attributes"]
    )
    if sofar is None or sofar["outcome"] == "CAPTURED":
        return outcome
    is_worse = outcome["outcome"] != "CAPTURED" and NO_COLUMN not in outcome["detail"]
    return outcome if is_worse and NO_COLUMN in sofar["detail"] else sofar


@action(ResolveBody, "The stored record, or a capture within the budget; one answer per request", exact=True)
def resolve(call: Call, asked: ResolveBody) -> list[Any]:
    all_items = capture_items(asked)
    tables = _tables(call, all_items)
    left_by = _conditions(call, all_items, tables)
    within = _within(all_items, tables, asked.max_targets)
    items, tables = [all_items[at] for at in within], [tables[at] for at in within]
    app = call.app
    unpinned: dict[int, dict[str, Any]] = {}
    questions, places = [], []
    snapshot_ids: _Known = {}
    for at, (item, table) in enumerate(zip(items, tables, strict=True)):
        ids = _snapshots_of(call, item, table, snapshot_ids)
        if ids:
            has_connector = table.format != EXTERNAL
            questions.append(Question(table.table_key, ids[0], item.spec, item.mode, has_connector))
            places.append(at)
        else:
            unpinned[at] = {"outcome": "FAILED", "detail": _no_snapshot(call, table), "record": None}
    answers = dict(zip(places, app.orchestrator.resolve(questions), strict=True))
    _note_usage(call, questions)
    asked_of = dict(zip(places, questions, strict=True))
    estimates = _estimates(call, {at: (items[at], asked_of[at]) for at in places}, answers, left_by)
    if asked.max_bytes is None and not estimates and not any(item.extras for item in items):
        results: list[Any] = [unpinned[at] if at in unpinned else _as_json(answers[at]) for at in range(len(items))]
    else:
        results = [
            unpinned[at] if at in unpinned else _with_extras(call, item, asked_of[at], answers[at])
            for at, item in enumerate(items)
        ]
        results = [answer | estimates.get(at, {}) for at, answer in enumerate(results)]
    if asked.max_bytes is not None:
        results = answer_budget.limit(results, [item.kinds for item in items], asked.max_bytes)
    placed = dict(zip(within, results, strict=True))
    return [placed.get(at) or answer_budget.omitted("max_targets") for at in range(len(all_items))]


def _note_usage(call: Call, questions: Sequence[Question]) -> None:
    """Counts what is asked about, by table and column."""
    columns: dict[int, list[int]] = {}
    for question in questions:
        noted = columns.setdefault(question.table_key, [])
        if question.spec.target.column_id is not None:
            noted.append(question.spec.target.column_id)
    for key, ids in columns.items():
        call.app.usage.note(key, tuple(ids))


_Conditions = dict[str, LeftBy]
"""JSON of a condition → what estimates the rows that it leaves."""


def _conditions(call: Call, items: Sequence[CaptureItem], tables: Sequence[TableEntry]) -> _Conditions:
    """Reads the conditions of requests, before anything is captured.

    Raises:
        InvalidArgument: One is not a condition.
        PermissionDenied: The caller may not read the statistics of a table with a condition.
    """
    found: _Conditions = {}
    for item, table in zip(items, tables, strict=True):
        if item.where is None:
            continue
        call.app.access.table(table.full_name, call.principal, "stats.read")
        if (text := dumps(item.where)) not in found:
            found[text] = call.app.parts.left_by(item.where, call.is_cancelled)
    return found


def _estimates(
    call: Call,
    asked: Mapping[int, tuple[CaptureItem, Question]],
    answers: Mapping[int, Answer],
    left_by: _Conditions,
) -> dict[int, dict[str, Any]]:
    """The key `estimate` of the answers to requests with a condition, by their places: null where the files of the
    snapshot are not known, with the reason in `detail`. Requests about one table and condition are answered together.
    """
    groups: dict[tuple[int, int, str], list[int]] = {}
    for at, (item, question) in asked.items():
        if item.where is not None:
            groups.setdefault((question.table_key, question.snapshot_id, dumps(item.where)), []).append(at)
    found: dict[int, dict[str, Any]] = {}
    for (key, snapshot_id, text), places in groups.items():
        columns = [asked[at][1].spec.target.column_id for at in places]
        try:
            estimates = left_by[text](call.app.catalog.by_key(key), snapshot_id, columns)
        except NotCaptured as error:
            for at in places:
                told = "; ".join(filter(None, [answers[at].detail, f"[{error.code}] {error}"]))
                found[at] = {"estimate": None, "detail": told}
        else:
            found |= {at: {"estimate": each} for at, each in zip(places, estimates, strict=True)}
    return found


def _within(items: Sequence[CaptureItem], tables: Sequence[TableEntry], max_targets: int | None) -> Sequence[int]:
    """The places of the requests about the first `max_targets` targets; None for all."""
    if max_targets is None:
        return range(len(items))
    targets: dict[tuple[int, str | int, str], bool] = {}
    for item, table in zip(items, tables, strict=True):
        targets.setdefault((table.table_key, item.snapshot, item.spec.target.storage_id), len(targets) < max_targets)
    return [
        at
        for at, (item, table) in enumerate(zip(items, tables, strict=True))
        if targets[table.table_key, item.snapshot, item.spec.target.storage_id]
    ]


def _sketches(call: Call, item: CaptureItem, question: Question) -> list[Any]:
    """The sketches of the kinds of statistics that a request is about."""
    kinds = item.kinds or answer_budget.ROLES_OF
    roles = {role for kind in kinds for role in answer_budget.ROLES_OF.get(kind, ())}
    found = call.app.records.sketches((question.table_key, question.snapshot_id, question.spec.target))
    return [sketch for sketch in found if sketch["role"] in roles]


def _with_extras(call: Call, item: CaptureItem, question: Question, answer: Answer) -> dict[str, Any]:
    """The answer to a request, with what it asks for besides."""
    result: dict[str, Any] = {"outcome": answer.outcome, "detail": answer.detail, "record": answer.record}
    if answer.record is None:
        return result
    app, spec = call.app, question.spec
    table = app.catalog.by_key(question.table_key)
    if "sketches" in item.extras:
        result["sketches"] = _sketches(call, item, question)
    if "constraints" in item.extras:
        result["constraints"] = [_seen(each, table, call.principal) for each in app.catalog.constraints(table)]
    if "ticket" in item.extras:
        command = {
            "table": FLIGHT_OF[spec.target.kind],
            "snapshot": question.snapshot_id,
            "predicates": of_table(table.full_name),
        }
        pinned = app.scanner.pin(of_json(command), call.principal)
        result["ticket"] = base64.b64encode(to_ticket(pinned).ticket).decode()
    return result


def _seen(constraint: dict[str, Any], table: TableEntry, caller: Principal) -> dict[str, Any]:
    """A constraint of a table; without its clause if that names a table that the caller does not see."""
    if constraint["kind"] != "FOREIGN KEY" or constraint["clause"] is None:
        return constraint
    schema, name, _ = json.loads(constraint["clause"])
    return constraint if caller.sees(table.table_catalog, schema, name) else constraint | {"clause": None}


def _as_json(answer: Answer) -> dict[str, Any] | bytes:
    if isinstance(answer.record, Record) and not answer.detail:
        return f'{{"outcome": "{answer.outcome}", "detail": "", "record": {answer.record.text}}}'.encode()
    return {"outcome": answer.outcome, "detail": answer.detail, "record": answer.record}

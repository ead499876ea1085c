"""DoAction: one small function per action. A body comes in as JSON bytes, each result goes out as JSON bytes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from capture import partitions
from capture.orchestrator import Answer
from capture.spi import Mode
from flight_server import ingest
from flight_server.auth import Principal
from flight_server.descriptors import CURRENT, check_query_id, of_command, of_json, parse_json
from flight_server.lookup import Record
from flight_server.requests import (
    Ask,
    check_decisions,
    check_engines,
    check_error,
    check_leases,
    check_object,
    check_outcomes,
    check_snapshot,
    check_table_name,
    parse_asks,
    parse_body,
)
from flight_server.service import Service, question
from store import logical_types, sketches
from store.catalog_store import EXTERNAL, TableEntry
from store.errors import (
    Cancelled,
    InvalidArgument,
    InvalidField,
    NotFound,
    PermissionDenied,
    ShuttingDown,
    Unimplemented,
)
from store.job_store import ENDED
from store.listings import Listing
from store.targets import Target

Results = Iterator[Any]  # JSON values, or bytes as they are
Run = Callable[["Call", bytes], Results | list[Any]]


@dataclass(frozen=True)
class Call:
    """What an action may know of its caller."""

    service: Service
    principal: Principal
    correlation_id: str
    is_cancelled: Callable[[], bool]
    query_id: str | None = None


@dataclass(frozen=True)
class Action:
    name: str
    run: Run
    arguments: str
    description: str
    open: bool = False  # needs no credentials


ACTIONS: Final[dict[str, Action]] = {}


def _action(arguments: str, description: str, open: bool = False) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        name = run.__name__
        ACTIONS[name] = Action(name, run, arguments, description, open)
        return run

    return add


# Connectors.


@_action('{"catalog", "format", "uri", "options"?}', "Registers a connector once its namespaces can be listed")
def register_connector(call: Call, body: bytes) -> Results:
    config = parse_body(body, {"catalog": str, "format": str, "uri": str}, {"options": dict})
    options = config.get("options") or {}
    if "." in config["catalog"] or not config["catalog"].strip():
        raise InvalidField("catalog", "is no name", expected="a name without dots", actual=config["catalog"])
    for name, value in options.items():
        if not isinstance(value, str):
            raise InvalidField(f"options.{name}", "is no text", expected="text", actual=value)
    call.service.require_catalog(call.principal, config["catalog"])
    yield call.service.register_connector(config | {"options": options}, call.is_cancelled)


@_action('{"catalog"}', "Looks whether a connector can be reached")
def validate_connector(call: Call, body: bytes) -> Results:
    catalog = parse_body(body, {"catalog": str})["catalog"]
    call.service.connector(catalog, call.principal)
    config = call.service.config(catalog)
    found = call.service.control("validate", config, call.is_cancelled)
    yield {"catalog": catalog, "state": "ACTIVE", "namespaces": found.get("namespaces", [])}


@_action('{"catalog"}', "Forgets a connector and its tables")
def drop_connector(call: Call, body: bytes) -> Results:
    catalog = parse_body(body, {"catalog": str})["catalog"]
    service = call.service
    service.connector(catalog, call.principal)
    service.database.write(lambda connection: service.catalog.drop_connector(connection, catalog))
    service.vault.drop(catalog)
    yield {"catalog": catalog, "state": "DROPPED"}


@_action('{"catalog", "table"?, "full_rescan"?}', "Finds tables and snapshots; one result per table")
def discover(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"catalog": str}, {"table": str, "full_rescan": bool})
    call.service.connector(asked["catalog"], call.principal)
    found = call.service.discover(
        asked["catalog"], asked.get("table"), asked.get("full_rescan") or False, call.is_cancelled
    )
    yield from found


# Captures.


def _tables(call: Call, asks: Sequence[Ask]) -> list[TableEntry]:
    """The tables asked about; an unknown table or snapshot fails the whole request."""
    by_name = {
        name: call.service.table(name, call.principal, "capture.run") for name in dict.fromkeys(a.table for a in asks)
    }
    for name, snapshot in dict.fromkeys((a.table, a.snapshot) for a in asks if isinstance(a.snapshot, int)):
        call.service.catalog.snapshot(by_name[name], int(snapshot))
    return [by_name[ask.table] for ask in asks]


@_action('{"requests": [{"table", "snapshot"?, "target"?, "kinds"?, "mode"?, …}]}', "Captures; one outcome per request")
def capture(call: Call, body: bytes) -> Results:
    asks = parse_asks(body, allow_all=True)
    tables = _tables(call, asks)
    service = call.service
    service.refresh(asks, tables, call.is_cancelled)
    outcomes: list[dict[str, Any] | None] = [None] * len(asks)
    queued: dict[tuple[int, str | int], list[int]] = {}
    now: dict[int, list[tuple[int, int]]] = {}  # table key → (request, snapshot id)
    known: dict[tuple[int, str | int], list[int]] = {}
    for at, (ask, table) in enumerate(zip(asks, tables, strict=True)):
        if table.format == EXTERNAL:
            outcomes[at] = _outcome("UNCAPTURABLE", "no connector: the table is known by what was put of it alone")
            continue
        ids = service.snapshots_of(ask.snapshot, table, known)
        if not ids:
            outcomes[at] = _outcome("DEGRADED", "the table has no snapshot")
        elif ask.mode is Mode.ASYNC:
            queued.setdefault((table.table_key, ask.snapshot), []).append(at)
        else:
            now.setdefault(table.table_key, []).extend((at, snapshot_id) for snapshot_id in ids)
    for (key, snapshot), members in queued.items():
        job_id = service.enqueue(
            service.catalog.by_key(key), snapshot, [asks[at].told for at in members], call.correlation_id
        )
        for at in members:
            outcomes[at] = _outcome("QUEUED", "", job_id=job_id)
    started = []
    for key, pairs in now.items():
        requests = [{**asks[at].told, "snapshot_id": snapshot_id} for at, snapshot_id in pairs]
        table = service.catalog.by_key(key)
        started.append((pairs, service.start_capture(table, requests, call.correlation_id)))
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


@_action('{"requests": [{"table", "snapshot"?, "target"?, "kinds"?, "mode"?, "latency_budget_ms"?}]}',
         "The stored record, or a capture within the budget; one answer per request")  # fmt: skip
def resolve(call: Call, body: bytes) -> list[Any]:
    asks = parse_asks(body, allow_all=False)
    tables = _tables(call, asks)
    service = call.service
    unpinned: dict[int, dict[str, Any]] = {}
    questions, places = [], []
    known: dict[tuple[int, str | int], list[int]] = {}
    for at, (ask, table) in enumerate(zip(asks, tables, strict=True)):
        ids = service.snapshots_of(ask.snapshot, table, known)
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


# Jobs.


def _job(call: Call, body: bytes, *scopes: str) -> dict[str, Any]:
    """The job that the body names, for a caller who has one of the scopes and sees its table."""
    job = call.service.jobs.get(str(parse_body(body, {"job_id": str})["job_id"]))
    if not any(map(call.principal.may, scopes)):
        call.service.require(call.principal, scopes[-1])
    if not call.principal.sees(job["table_catalog"], job["table_schema"], job["table_name"]):
        raise PermissionDenied("the job is of a table that is not among those you may use")
    return job


@_action('{"job_id"}', "A job as it is now")
def get_job(call: Call, body: bytes) -> Results:
    yield _job(call, body, "stats.read", "capture.run")


@_action('{"job_id"}', "Cancels a job; again, or of one that has ended, changes nothing")
def cancel_job(call: Call, body: bytes) -> Results:
    job = call.service.jobs.cancel(_job(call, body, "capture.run")["job_id"])
    call.service.dispatcher.notify()
    yield job


@_action('{"job_id"}', "Waits until a job has ended")
def wait_job(call: Call, body: bytes) -> Results:
    job_id = _job(call, body, "stats.read", "capture.run")["job_id"]
    pause = 0.01
    while (job := call.service.jobs.get(job_id))["state"] not in ENDED:
        if call.is_cancelled():
            raise Cancelled("the caller went away")
        if call.service.dispatcher.closing:
            raise ShuttingDown("the server is shutting down", hint="wait again once it is back")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
    yield job


@_action('{"worker_id", "kinds", "wait_seconds"?, "engines"?}', "For capture workers: the next piece of work, if any")
def lease_job(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"worker_id": str, "kinds": list}, {"wait_seconds": float, "engines": list})
    call.service.require_worker(call.principal)
    wait = min(float(asked.get("wait_seconds") or 0.0), 60.0)
    found = call.service.dispatcher.lease(
        asked["worker_id"], check_leases(asked["kinds"]), wait, check_engines(asked.get("engines") or []),
        call.is_cancelled,
    )  # fmt: skip
    if found is not None:
        yield found


@_action('{"job_id", "lease_token", "progress"?, "message"?}', "For capture workers: prolongs a lease")
def renew_lease(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"job_id": str, "lease_token": str}, {"progress": float, "message": str})
    call.service.require_worker(call.principal)
    wanted = call.service.dispatcher.renew(
        asked["job_id"], asked["lease_token"], asked.get("progress"), asked.get("message")
    )
    yield {"job_id": asked["job_id"], "wanted": wanted}


@_action('{"job_id", "lease_token", "snapshot_id", "mark", "base"?, "removed"?}',
         "For capture workers: tells how the files of a snapshot are going to be put")  # fmt: skip
def declare_listing(call: Call, body: bytes) -> Results:
    asked = parse_body(
        body, {"job_id": str, "lease_token": str, "snapshot_id": int, "mark": str}, {"base": dict, "removed": list}
    )
    call.service.require_worker(call.principal)
    removed = asked.get("removed") or []
    if not all(isinstance(path, str) for path in removed):
        raise InvalidField("removed", "are no paths", expected="a list of texts", actual=removed)
    listing = Listing(int(check_snapshot(asked["snapshot_id"])), asked["mark"], removed=tuple(removed))
    if asked.get("base") is not None:
        base = check_object(asked["base"], {"snapshot_id": int, "mark": str}, {})
        listing = replace(listing, base_snapshot_id=base["snapshot_id"], base_mark=base["mark"])
    accepted = call.service.dispatcher.declare_listing(asked["lease_token"], listing)
    yield {"job_id": asked["job_id"], "accepted": accepted}


@_action('{"job_id", "lease_token", "outcomes"?, "decisions"?, "result"?, "error"?, "message"?, "rows"?, "final"?}',
         "For capture workers: publishes what was put under the lease and ends it")  # fmt: skip
def finish_job(call: Call, body: bytes) -> Results:
    asked = parse_body(
        body, {"job_id": str, "lease_token": str},
        {"outcomes": list, "decisions": list, "result": dict, "error": dict, "message": str, "final": bool,
         "rows": list},
    )  # fmt: skip
    asked |= {
        "outcomes": check_outcomes(asked.get("outcomes")), "decisions": check_decisions(asked.get("decisions")),
        "error": check_error(asked.get("error")),
    }  # fmt: skip
    call.service.require_worker(call.principal)
    dispatcher, token = call.service.dispatcher, asked["lease_token"]
    for item in asked.pop("rows", None) or []:
        put, whole = ingest.inline(item, token, call.principal, call.service.policy, call.is_cancelled)
        dispatcher.add_to_draft(token, put, whole)
    state = dispatcher.finish(asked["job_id"], token, asked)
    yield {"job_id": asked["job_id"], "state": state}


# Records.


def _snapshot_id(call: Call, table: TableEntry, snapshot: Any) -> int:
    checked = check_snapshot(snapshot)
    if checked != CURRENT:
        return call.service.catalog.snapshot(table, int(checked)).snapshot_id
    if table.current_snapshot_id is None:
        raise NotFound(f'"{table.full_name}" has no snapshot', code="UNKNOWN_SNAPSHOT")
    return table.current_snapshot_id


@_action('{"table", "snapshot"?, "target"?}', "Deletes records; how many")
def delete_stats(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"table": str}, {"snapshot": object, "target": dict})
    check_table_name(asked["table"])
    target = Target.parse(asked["target"]) if asked.get("target") is not None else None
    snapshot = check_snapshot(asked["snapshot"]) if asked.get("snapshot") is not None else None
    table = call.service.table(asked["table"], call.principal, "stats.write")
    snapshot_id = None if snapshot is None else _snapshot_id(call, table, snapshot)
    yield {"deleted": call.service.store.delete(table, snapshot_id, target)}
    call.service.dispatcher.on_published(table)


@_action('{"table"?, "dry_run": true}', "Deletes records of snapshots that the format itself has expired")
def expire(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {}, {"table": str, "dry_run": bool})
    service = call.service
    if asked.get("table") is not None:
        check_table_name(asked["table"])
        tables = [service.table(asked["table"], call.principal, "admin")]
    else:
        service.require(call.principal, "admin")
        tables = [t for t in service.catalog.tables() if call.principal.sees(*t.name)]
    dry = asked.get("dry_run", True) is not False
    for table in tables:
        expired = service.store.expirable(table) if dry else list(service.store.expire(table))
        if expired or len(tables) == 1:
            yield {"table": table.full_name, "snapshots": expired, "dry_run": dry}
        if not dry:
            service.dispatcher.on_published(table)


@_action('{"table", "snapshot", "target"}', "Content hash, generation and times of a record")
def stats_meta(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"table": str, "snapshot": object, "target": dict})
    check_table_name(asked["table"])
    check_snapshot(asked["snapshot"])
    target = Target.parse(asked["target"])
    table = call.service.table(asked["table"], call.principal, "stats.read")
    meta = call.service.store.meta(table, _snapshot_id(call, table, asked["snapshot"]), target)
    yield {
        "content_hash": meta.content_hash, "generation": meta.generation,
        "created_at": meta.created_at and meta.created_at.isoformat(),
        "refreshed_at": meta.refreshed_at and meta.refreshed_at.isoformat(),
    }  # fmt: skip


@_action('{"table", "snapshot", "column", "partitions"?, "with"?: {"table", "snapshot", "column"}}',
         "NDV of the union (and, of two columns, of the intersection) of stored theta sketches")  # fmt: skip
def merge_sketches(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"table": str, "snapshot": object, "column": str}, {"partitions": list, "with": dict})
    first = _theta(call, asked)
    if asked.get("with") is None:
        estimate = sketches.estimate(first)
        yield {"ndv": estimate.ndv, "lower": estimate.lower, "upper": estimate.upper, "exact": estimate.exact}
        return
    other = parse_body(json.dumps(asked["with"]).encode(), {"table": str, "snapshot": object, "column": str})
    second = _theta(call, other)
    told = {}
    for name, merge in (("union", sketches.union), ("intersection", sketches.intersection)):
        estimate = sketches.estimate(merge([first, second]))
        told[name] = {"ndv": estimate.ndv, "lower": estimate.lower, "upper": estimate.upper, "exact": estimate.exact}
    yield told["union"] | told


def _theta(call: Call, asked: Mapping[str, Any]) -> bytes:
    """The union of a column's theta sketches: of its files where they are kept, else its own."""
    check_table_name(asked["table"])
    check_snapshot(asked["snapshot"])
    table = call.service.table(asked["table"], call.principal, "stats.read")
    snapshot_id = _snapshot_id(call, table, asked["snapshot"])
    column_id = call.service.catalog.column_ids(table).get(asked["column"])
    if column_id is None:
        raise NotFound(f'"{table.full_name}" has no column "{asked["column"]}"', code="UNKNOWN_COLUMN")
    sketches_of, files = (
        call.service.scanner.table(of_json({
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
    own = [row["data"] for row in rows if row["target_kind"] == "COLUMN"]
    if asked.get("partitions") is None and own:
        return own[0]
    wanted = None
    if asked.get("partitions") is not None:
        told = [parse_json(p.encode(), "partition") if isinstance(p, str) else p for p in asked["partitions"]]
        columns = call.service.catalog.schema_columns(
            table, call.service.catalog.snapshot(table, snapshot_id).schema_hash
        )
        types = {name: logical_types.parse(text) for name, text, *_ in columns}
        wanted = set(partitions.paths_in(files, partitions.parse(told), types, table.full_name).to_pylist())
    parts = [r["data"] for r in rows if r["target_kind"] == "FILE" and (wanted is None or r["file_path"] in wanted)]
    if not parts:
        raise NotFound(
            f'no theta sketch is stored of column "{asked["column"]}" of "{table.full_name}"',
            code="UNKNOWN_SKETCH", hint="capture its NDV first",
        )  # fmt: skip
    return sketches.union(parts)


@_action('{"table", "snapshot"?, "to": "iceberg" | "paimon" | "lance" | "spark"}', "Writes statistics for engines")
def publish(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"table": str, "to": str}, {"snapshot": object})
    check_table_name(asked["table"])
    if asked["to"] not in ("iceberg", "paimon", "lance", "spark"):
        raise InvalidField("to", "is unknown", expected="iceberg | paimon | lance | spark", actual=asked["to"])
    snapshot = check_snapshot(asked.get("snapshot") or CURRENT)
    service = call.service
    table = service.table(asked["table"], call.principal, "admin")
    if asked["to"] != "spark" and table.format != asked["to"]:
        raise InvalidArgument(
            f'"{table.full_name}" is a {table.format} table: its statistics cannot be published to {asked["to"]}'
        )
    if asked["to"] != "iceberg":
        raise Unimplemented(f"publishing to {asked['to']} is not built yet", hint="iceberg is")
    snapshot_id = _snapshot_id(call, table, snapshot)
    rows = service.scanner.table(of_json({
        "table": "stats.sketches", "snapshot": snapshot_id, "predicates": [
            {"column": c, "op": "EQ", "values": [v]} for c, v in zip(
                ("table_catalog", "table_schema", "table_name", "role", "target_kind"),
                (*table.name, "NDV", "COLUMN"), strict=True)],
    }), call.principal).to_pylist()  # fmt: skip
    thetas = [
        [row["column_id"], base64.b64encode(row["data"]).decode(), sketches.estimate(row["data"]).ndv]
        for row in rows if row["snapshot_id"] == snapshot_id
    ]  # fmt: skip
    if not thetas:
        raise NotFound(
            f'no NDV sketch of "{table.full_name}" at snapshot {snapshot_id} is stored',
            code="UNKNOWN_SKETCH", hint="capture its columns first",
        )  # fmt: skip
    written = service.control(
        "publish", service.config(table.table_catalog), call.is_cancelled, to=asked["to"],
        schema=table.table_schema, name=table.table_name, snapshot_id=snapshot_id, sketches=thetas,
    )  # fmt: skip
    yield {"table": table.full_name, "snapshot": snapshot_id, "to": asked["to"]} | dict(written)


# Reads and health.


@_action("a JSON command", "What DoGet answers to the command, as one Arrow IPC stream in a single result")
def read(call: Call, body: bytes) -> list[Any]:
    request = of_command(body, call.query_id)
    call.service.require(call.principal, "stats.read")
    message = call.service.scanner.message(request, call.principal, call.is_cancelled)
    call.service.note_read(request)
    return [message]


@_action('{"query_id", "table", "required_columns"?, "predicates"?, "output_format"?}',
         "A read of any flight as raw Arrow IPC messages (schema first), or one JSON row each")  # fmt: skip
def scan_system_table(call: Call, body: bytes) -> Results:
    asked = parse_body(
        body, {"query_id": str, "table": str},
        {"required_columns": list, "predicates": list, "output_format": str},
    )  # fmt: skip
    check_query_id(asked["query_id"], call.query_id)
    command = {"table": asked["table"], "columns": asked.get("required_columns"), "predicates": asked.get("predicates"),
               "output_format": asked.get("output_format"), "query_id": asked["query_id"]}  # fmt: skip
    request = of_json({name: value for name, value in command.items() if value is not None})
    call.service.require(call.principal, "stats.read")
    schema, batches = call.service.scanner.reader(request, call.principal)
    call.service.note_read(request)
    if request.rows:
        for batch in batches:
            yield from (row.encode() for row in batch.column(0).to_pylist())
        return
    yield schema.serialize().to_pybytes()
    for batch in batches:
        yield (
            pa.record_batch(batch.columns, schema=schema).serialize().to_pybytes()
            if schema.names
            else (batch.serialize().to_pybytes())
        )


@_action('{"path"}', "Writes a copy of the database to a new file of the server's machine, while serving")
def backup(call: Call, body: bytes) -> Results:
    asked = parse_body(body, {"path": str})
    call.service.require(call.principal, "admin")
    if not call.principal.sees_all:
        raise PermissionDenied("a backup needs a token for all tables", hint="its tables are limited")
    started = time.perf_counter()
    size = call.service.database.backup(asked["path"])
    yield {"path": asked["path"], "bytes": size, "elapsed_ms": int((time.perf_counter() - started) * 1000)}


@_action("{}", "Whether the server is well; needs no credentials", open=True)
def health(call: Call, body: bytes) -> Results:
    parse_body(body, {})
    yield {
        "status": "draining" if call.service.dispatcher.closing else "ok", "version": release(),
        "uptime_ms": int((time.time() - call.service.started) * 1000), "jobs": call.service.jobs.counts(),
    }  # fmt: skip


def release() -> str:
    """The version of this server."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("statflight")
    except PackageNotFoundError:
        return "0.1.0"

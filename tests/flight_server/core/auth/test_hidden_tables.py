"""A caller limited to some tables cannot tell a hidden table that exists from one that does not."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from capture.spec import CaptureSpec
from flight_server.core.actions import Call
from flight_server.core.auth.principal import ALL_SCOPES, Principal
from flight_server.core.part import Asking
from flight_server.core.wire import tickets
from flight_server.core.wire.flight_sql import write_any
from flight_server.faces.sql.endpoint import SqlEndpoint
from flight_server.process.parts import actions
from store.model.errors import NotFound, PermissionDenied, StatflightError
from store.model.names import join_name
from store.model.targets import Target
from tests.flight_server.faces.web.serving import Browser, pages_of
from tests.flight_server.serving import app_in, put, rows

ACTIONS = actions()

SEEN = ("lake.seen.*",)
THERE, MISSING = "salaries", "salariez"  # of one length, so that sizes of answers are equal
COLUMN = {"kind": "COLUMN", "column_id": 1}
TOKEN = "a token of a limited caller"


def limited(*scopes: str) -> Principal:
    return Principal("low", frozenset(scopes) or ALL_SCOPES, SEEN)


def fill(app):
    put(app, rows("t", 1, [1], table_schema="seen"))
    put(app, rows(THERE, 1, [1, 2], table_schema="hidden"))
    put(app, rows(THERE, 1, [1], table_catalog="vault"))
    put(app, rows("files", 1, [1], table_schema=f"hidden.{THERE}"))


@pytest.fixture(scope="module")
def app():
    with app_in(fill=fill) as app:
        yield app


ACTION_BODIES: dict[str, list[dict[str, Any]]] = {
    "changed": [{"tables": ["@"]}, {"tables": ["lake.seen.t", "@"]}],
    "capture": [
        {"requests": [{"table": "@"}]},
        {"requests": [{"table": "@", "mode": "ASYNC"}]},
        {"requests": [{"table": "@", "snapshot": 1, "target": COLUMN}]},
        {"requests": [{"table": "@", "snapshot": 9}]},
        {"requests": [{"table": "@", "column_selectors": ["c9"]}]},
        {"requests": [{"table": "lake.seen.t"}, {"table": "@"}]},
    ],
    "resolve": [
        {"requests": [{"table": "@", "target": COLUMN}]},
        {"requests": [{"table": "@", "snapshot": 9}]},
        {"requests": [{"table_id": "@"}]},
    ],
    "delete_stats": [{"table": "@"}, {"table": "@", "snapshot": 9}, {"table": "@", "target": COLUMN}],
    "expect": [{"table": "@", "measure": "row_count", "snapshot": 1}, {"table": "@", "measure": "x", "snapshot": 9}],
    "expire": [{"table": "@"}, {"table": "@", "dry_run": False}],
    "stats_meta": [{"table": "@", "snapshot": 1, "target": COLUMN}, {"table": "@", "snapshot": 9, "target": COLUMN}],
    "merge_sketches": [
        {"table": "@", "snapshot": 1, "column": "c1"},
        {"table": "@", "snapshot": 9, "column": "c9"},
        {"table": "@", "snapshot": "current", "column": "c1", "partitions": ["{}"]},
    ],
    "publish": [
        {"table": "@", "to": "iceberg"},
        {"table": "@", "to": "spark", "snapshot": 9, "dry_run": True},
    ],
    "withdraw": [{"table": "@", "to": "iceberg"}],
    "unique": [{"table": "@", "column_id": 1}, {"table": "@", "column_id": 9, "snapshot": 9}],
    "describe": [{"table": "@"}, {"table": "@", "owner": "me"}],
    "answer": [{"sql": "SELECT count(*) FROM @"}, {"sql": "SELECT max(c9) FROM @", "snapshot": 9}],
    "estimate": [{"table": "@"}, {"table": "@", "where": "c9 = 1", "columns": ["c9"], "snapshot": 9}],
    "read": [{"table": "stats.columns", "predicates": "@"}],
    "scan_system_table": [{"query_id": "q", "table": "stats.columns", "predicates": "@"}],
}
# Actions that name no table.
OTHERS = {
    "health", "backup", "register_connector", "validate_connector", "drop_connector", "discover", "get_job",
    "cancel_job", "wait_job", "lease_job", "renew_lease", "finish_job", "finish_jobs", "return_leases",
    "declare_listing", "segment_place", "add_segment", "note_costs",
}  # fmt: skip
STATEMENTS = [
    "ANALYZE @",
    "ANALYZE TABLE @ COMPUTE STATISTICS NOSCAN",
    "ANALYZE TABLE @ COMPUTE STATISTICS FOR COLUMNS c1, c9",
    "ANALYZE TABLES IN lake.@",
    "SHOW STATS FOR @",
    "SHOW COLUMNS IN @",
    "SHOW TABLES IN lake.@",
    "DESCRIBE @",
    "DESCRIBE TABLE @",
    "EXPLAIN SELECT * FROM stats.columns WHERE table_name = '@'",
    "SELECT * FROM stats.columns WHERE table_name = '@'",
    "SELECT * FROM @",
    "SELECT count(*) FROM information_schema.tables WHERE table_name = '@'",
]
SCANS: list[dict[str, Any]] = [
    {"scan": "@"},
    {"scan": "@", "where": "c1 = 1"},
    {"scan": "@", "where": "c9 = 'x'", "columns": ["c9"]},
    {"scan": "@", "snapshot": 9},
    {"scan": "@", "capture": True},
]
READS: list[dict[str, Any]] = [
    {"table": "stats.columns"},
    {"table": "stats.columns", "snapshot": "current"},
    {"table": "stats.columns", "snapshot": 1},
    {"table": "stats.columns", "snapshot": 9},
    {"table": "stats.columns", "allow_stale": True, "snapshot": "current", "strict": True},
    {"table": "stats.partitions"},
    {"table": "sys.tables"},
    {"table": "sys.snapshots"},
    {"table": "information_schema.columns"},
]
ICEBERG = "/iceberg/v1/namespaces/lake%1Fhidden/tables/@"
URLS = [
    ("GET", "/table?name=lake.hidden.@"),
    ("GET", "/table.json?name=lake.hidden.@"),
    ("GET", "/table.json?name=lake.hidden.@&snapshot=9"),
    ("GET", "/column?table=lake.hidden.@&column=c1"),
    ("GET", "/column.json?table=lake.hidden.@&name=c1"),
    ("GET", "/column.json?name=lake.hidden.@&column=c1"),
    ("GET", "/index.json?q=@"),
    ("GET", "/index.json?schema=hidden&catalog=lake"),
    ("GET", "/sql.json?sql=SHOW%20STATS%20FOR%20lake.hidden.@"),
    ("GET", "/sql.json?q=SELECT%20*%20FROM%20stats.columns%20WHERE%20table_name%3D%27@%27"),
    ("GET", ICEBERG),
    ("HEAD", ICEBERG),
    ("POST", f"{ICEBERG}/plan"),
    ("POST", f"{ICEBERG}/tasks"),
    ("POST", f"{ICEBERG}/metrics"),
    ("POST", ICEBERG),
    ("DELETE", ICEBERG),
    ("GET", "/iceberg/v1/namespaces/lake%1Fhidden%1F@"),
    ("HEAD", "/iceberg/v1/namespaces/lake%1Fhidden%1F@"),
    ("GET", "/iceberg/v1/namespaces/lake%1Fhidden%1F@/tables"),
    ("GET", "/iceberg/v1/namespaces?parent=lake%1Fhidden%1F@"),
    ("GET", "/iceberg/v1/namespaces/lake%1Fhidden%1F@/tables/files"),
]
NAMES = ["lake.hidden.@", 'lake."hidden".@', "vault.s.@", "LAKE.hidden.@", "lake.hidden.@.files"]


def named(value: Any, name: str) -> Any:
    """The value with a table's name in place of `@`, and predicates on its parts in place of those."""
    body = json.dumps(value)
    if '"predicates": "@"' in body:
        return value | {"predicates": [{"column": "table_name", "op": "EQ", "values": [name.rpartition(".")[2]]}]}
    return json.loads(body.replace("@", json.dumps(name)[1:-1]))


def outcome(run: Any) -> tuple[str, ...]:
    """What a caller learns: the answer, or code, status, message, hint and parameters of the error."""
    try:
        return ("answered", repr(run()))
    except StatflightError as error:
        return (type(error).__name__, error.code, str(error), repr(error.params))


def alike(run: Any, *, name: str) -> tuple[str, ...]:
    """The outcome for a hidden table, after it was found to be that for a missing one but for the name sent."""
    there, missing = (outcome(lambda table=table: run(name.replace("@", table))) for table in (THERE, MISSING))
    assert tuple(part.replace(MISSING, THERE) for part in missing) == there
    return there


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("action", ACTION_BODIES)
def test_actions_answer_alike(app, action, name):
    for body in ACTION_BODIES[action]:
        for scopes in ((), ("stats.read",)):

            def run(table: str, body: Any = body, scopes: Any = scopes) -> Any:
                call = Call(app, limited(*scopes), "c", lambda: False)
                results = ACTIONS[action].run(call, json.dumps(named(body, table)).encode())
                return [bytes(result) if isinstance(result, pa.Buffer) else result for result in results]

            told = alike(run, name=name)
            if action not in ("read", "scan_system_table") and "table_id" not in json.dumps(body):
                assert told[:2] == ("PermissionDenied", "PERMISSION_DENIED"), told


def test_every_action_is_tried_or_names_no_table():
    assert set(ACTIONS) == set(ACTION_BODIES) | (OTHERS & set(ACTIONS))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_answer_alike(app, statement, name):
    endpoint = SqlEndpoint(app, "1")

    def run(table: str) -> Any:
        table = table.removeprefix("lake.") if "lake.@" in statement else table
        command = write_any("CommandStatementQuery", (1, statement.replace("@", table).encode()))
        schema, answer = endpoint.get(command, limited(), lambda: False, lambda body: [])
        return schema, answer.to_pylist()

    try:
        alike(run, name=name)
    finally:
        endpoint.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scan", SCANS)
def test_scans_answer_alike(app, scan, name):
    def run(table: str) -> Any:
        data = json.dumps(named(scan, table)).encode()
        command = app.parts.find(data, Asking(limited(), lambda: False, None, lambda body: []))
        return command.get()

    assert alike(run, name=name)[0] == "PermissionDenied"


@pytest.mark.parametrize("command", READS)
@pytest.mark.parametrize("full", [True, False])
def test_reads_and_tickets_answer_alike(app, command, full):
    def run(table: str) -> Any:
        values = {"table_catalog": "lake", "table_schema": "hidden"} if full else {}
        predicates = [
            {"column": column, "op": "EQ", "values": [value]}
            for column, value in (values | {"table_name": table.rpartition(".")[2]}).items()
        ]
        request = tickets.of_ticket(json.dumps(command | {"predicates": predicates}).encode())
        return app.scanner.pin(request, limited()), app.scanner.table(request, limited()).to_pylist()

    alike(run, name="lake.hidden.@")


@pytest.mark.parametrize(("method", "url"), URLS)
def test_pages_and_the_iceberg_door_answer_alike(app, tmp_path, method, url):
    tokens = tmp_path / "tokens.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens.write_text(
        f'[[token]]\nname = "low"\nsha256 = "{digest}"\nscopes = {json.dumps(sorted(ALL_SCOPES))}\n'
        f"tables = {json.dumps(SEEN)}\n"
    )
    with pages_of(app, tokens) as base:
        browser = Browser(base)

        def run(table: str) -> Any:
            form = {} if method == "POST" else None
            answer = browser.get(url.replace("@", quote(table)), form, method, Authorization=f"Bearer {TOKEN}")
            text = re.sub(r'_ms": [0-9.]+', "", answer.text)
            varying = {"date", "content-length"} if text != answer.text else {"date"}
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in varying}
            return answer.status, headers, text

        told = alike(run, name="@")
    assert "(200" in told[1] if "index" in url or "/sql" in url else "(40" in told[1], told


def test_a_job_of_a_hidden_table_is_an_unknown_one(app):
    call = Call(app, limited(), "c", lambda: False)
    table = app.catalog.get(f"lake.hidden.{THERE}")
    (job_id,) = app.captures.enqueue([(table, "current", [(None, CaptureSpec(Target.table()))])], "c")
    for action in ("get_job", "wait_job", "cancel_job"):
        told = []
        for id in (job_id, "0" * len(job_id)):
            with pytest.raises(NotFound) as refusal:
                list(ACTIONS[action].run(call, json.dumps({"job_id": id}).encode()))
            told.append(str(refusal.value).replace(id, "ID"))
        assert told[0] == told[1]


@pytest.mark.parametrize("action", ["validate_connector", "drop_connector", "discover"])
def test_connectors_of_hidden_catalogs_answer_alike(app, action):
    told = []
    for catalog in ("vault", "vaulx"):
        with pytest.raises(PermissionDenied) as refusal:
            list(
                ACTIONS[action].run(Call(app, limited(), "c", lambda: False), json.dumps({"catalog": catalog}).encode())
            )
        told.append(str(refusal.value).replace("vaulx", "vault"))
    assert told[0] == told[1]


def test_a_visible_name_without_a_table_is_not_found_and_only_visible_ones_are_suggested(app):
    call = Call(app, limited(), "c", lambda: False)
    for name, hint in (
        ("lake.seen.tt", 'did you mean "lake.seen.t"?'),
        ("lake.seen.salaries", 'did you mean "lake.seen.t"?'),
    ):
        with pytest.raises(NotFound, match=re.escape(f'no table "{name}"; {hint}')):
            list(ACTIONS["describe"].run(call, json.dumps({"table": name}).encode()))
    assert app.access.table("lake.seen.t", limited(), "admin").full_name == join_name("lake", "seen", "t")

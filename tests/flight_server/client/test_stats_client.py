"""The Python client: requests, results, and error messages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import stamina
from hypothesis import given
from hypothesis import strategies as st

from flight_server.client import StatsClient, join_name, of_table, reason, split_name
from store.model import names
from tests.flight_server.fake_server import FakeServer

TABLE = {"table_catalog": "lake", "table_schema": "sales", "table_name": "orders"}


@pytest.fixture
def server():
    with FakeServer() as server:
        yield server


@pytest.fixture
def client(server):
    with StatsClient(server.uri) as client:
        yield client


# Names.


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lake.sales.orders", ("lake", "sales", "orders")),
        ("lake.eu.sales.orders", ("lake", "eu.sales", "orders")),
        ('lake."my.schema".t', ("lake", "my.schema", "t")),
        ('lake.s."a.b"', ("lake", "s", "a.b")),
        ('lake.s."say ""hi"""', ("lake", "s", 'say "hi"')),
        ("lake.s.größe ☃", ("lake", "s", "größe ☃")),
    ],
)
def test_full_name_has_three_parts(name, parts):
    assert split_name(name) == parts
    assert split_name(join_name(*parts)) == parts


@given(st.lists(st.text('ab."é ', min_size=1, max_size=5), min_size=3, max_size=3), st.text('ab."é ', max_size=12))
def test_client_names_are_parsed_like_store_names(parts, text):
    assert join_name(*parts) == names.join_name(*parts)
    assert split_name(join_name(*parts)) == (parts[0], parts[1], parts[2])
    results = []
    for split in (split_name, names.split_name):
        try:
            results.append(split(text))
        except ValueError as error:
            results.append(str(error))
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["", "t", "a.b", "a..b.c", ".a.b", "a.b.", 'a."b.c', 'a.b"c.d', '"".b.c'])
def test_incomplete_name_is_rejected(name):
    with pytest.raises(ValueError, match=r"catalog\.schema\.table"):
        split_name(name)


@pytest.mark.parametrize("schema", ["s", "a.b", 'we"ird', "a..b", "ünder.ß"])
def test_joined_name_splits_into_its_parts(schema):
    assert split_name(join_name("c.d", schema, 't"t.')) == ("c.d", schema, 't"t.')


# Reading.


def test_read_sends_the_command_as_a_ticket(server, client):
    tree = {"or": [{"column": "ndv", "op": "IS_NULL"}, {"column": "ndv", "op": "GT", "values": [10]}]}
    client.read("stats.columns", ["column_name", "ndv"], tree, "current", True, 5)
    assert server.commands == [
        {
            "table": "stats.columns",
            "strict": True,
            "columns": ["column_name", "ndv"],
            "filter": tree,
            "snapshot": "current",
            "allow_stale": True,
            "limit": 5,
        }
    ]


def test_read_leaves_out_unset_arguments(server, client):
    client.read("sys.flights")
    assert server.commands == [{"table": "sys.flights", "strict": True}]


def test_empty_columns_and_limit_0_are_sent(server, client):
    client.read("sys.flights", columns=[], limit=0)
    assert server.commands == [{"table": "sys.flights", "strict": True, "columns": [], "limit": 0}]


def test_list_of_leaves_is_sent_as_predicates_and_of_trees_as_filter(server, client):
    leaf = {"column": "ndv", "op": "GT", "values": [10]}
    client.read("stats.columns", where=[leaf, leaf])
    client.read("stats.columns", where=[leaf, {"not": leaf}])
    assert server.commands[0]["predicates"] == [leaf, leaf]
    assert server.commands[1]["filter"] == {"and": [leaf, {"not": leaf}]}


def test_columns_reads_the_rows_of_a_table(server, client):
    server.rows("stats.columns", TABLE | {"snapshot_id": 3, "column_id": 1, "column_name": "id", "ndv": 7.0})
    table = client.columns("lake.sales.orders", snapshot=3)
    assert isinstance(table, pa.Table)
    assert table["ndv"].to_pylist() == [7.0]
    assert server.commands == [
        {"table": "stats.columns", "strict": True, "predicates": of_table("lake.sales.orders"), "snapshot": 3},
    ]


def test_columns_are_of_the_current_snapshot_unless_all_are_asked_for(server, client):
    server.rows("information_schema.tables", TABLE)
    client.columns("lake.sales.orders")
    client.columns("lake.sales.orders", snapshot=None)
    commands = [command for command in server.commands if command["table"] == "stats.columns"]
    assert [command.get("snapshot") for command in commands] == ["current", None]


def test_condition_is_combined_with_the_table_predicates(server, client):
    tree = {"not": {"column": "file_format", "op": "EQ", "values": ["PARQUET"]}}
    server.rows("information_schema.tables", TABLE)
    client.files("lake.sales.orders", where=tree)
    assert server.commands[0]["filter"] == {"and": [*of_table("lake.sales.orders"), tree]}


def test_empty_table_is_distinguished_from_an_unknown_table(server, client):
    server.rows("information_schema.tables", TABLE)
    assert client.columns("lake.sales.orders").num_rows == 0
    server.tables.clear()
    with pytest.raises(pa.ArrowKeyError, match=r'\[UNKNOWN_TABLE\] no table "lake.sales.ordrs"'):
        client.columns("lake.sales.ordrs")


def test_stream_returns_a_record_batch_reader(server, client):
    server.rows("stats.columns", *[TABLE | {"snapshot_id": 1, "column_id": i} for i in range(1, 4)])
    reader = client.read("stats.columns", stream=True)
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_all().num_rows == 3


def test_token_is_sent_as_bearer_header(server):
    with StatsClient(server.uri, token="s3cret") as client:
        client.tables()
    assert server.headers["authorization"] == ["Bearer s3cret"]


def test_history_is_in_commit_order(server, client):
    ids = (7, 3, 5)
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    column = TABLE | {"column_id": 1, "column_name": "id"}
    server.rows("stats.columns", *[column | {"snapshot_id": i, "ndv": float(i)} for i in (3, 5, 7, 9)])
    server.rows(
        "sys.snapshots", *[TABLE | {"snapshot_id": i, "committed_at": at} for i, at in zip(ids, times, strict=True)]
    )
    found = client.history("lake.sales.orders", "id")
    assert found["snapshot_id"].to_pylist() == [9, 7, 3, 5]  # unlisted snapshots come first
    assert found["committed_at"].to_pylist() == [None, *times]


def test_history_of_an_ambiguous_column_name_is_an_error(server, client):
    rows = [{"snapshot_id": s, "column_id": i, "column_name": "st.x"} for s in (3, 4) for i in (4, 5)]
    server.rows("stats.columns", *[TABLE | row for row in rows])
    with pytest.raises(pa.ArrowInvalid, match=r"\[AMBIGUOUS_COLUMN\] .*\"st.x\"; name one by its id: #4 or #5"):
        client.history("lake.sales.orders", "st.x")


def test_history_by_name_is_of_the_column_that_has_the_name_now(server, client):
    rows = [(1, 1, "id"), (1, 2, "old"), (2, 2, "id")]
    server.rows(
        "stats.columns",
        *[TABLE | dict(zip(("column_id", "snapshot_id", "column_name"), row, strict=True)) for row in rows],
    )
    now = ((1, "old"), (2, "id"), (3, "st.x"))
    server.rows("information_schema.tables", TABLE)
    server.rows("information_schema.columns", *[TABLE | {"column_id": i, "column_name": name} for i, name in now])
    found = {name: client.history("lake.sales.orders", name)["column_id"].to_pylist() for name in ("id", "old", "st.x")}
    assert found == {"id": [2], "old": [1, 1], "st.x": []}


def test_history_of_an_unknown_column(server, client):
    server.rows("information_schema.tables", TABLE)
    server.rows("information_schema.columns", TABLE | {"column_name": "id", "column_id": 1})
    assert client.history("lake.sales.orders", "id").num_rows == 0
    with pytest.raises(pa.ArrowKeyError, match=r'\[UNKNOWN_COLUMN\] .* no column "di"'):
        client.history("lake.sales.orders", "di")


@pytest.mark.parametrize("call", ["read", "stream", "act", "put"])
def test_unavailable_server_is_retried(server, call):
    failures = [flight.FlightUnavailableError("[SHUTTING_DOWN] bye")] * 2

    def respond(_):
        if failures:
            raise failures.pop()
        return [{"status": "ok"}]

    server.rows("sys.flights", {"name": "stats.columns"})
    server.answers["health"] = respond
    server.failures = failures
    calls = {
        "read": lambda client: client.read("sys.flights").num_rows,
        "stream": lambda client: client.read("sys.flights", stream=True).read_all().num_rows,
        "act": lambda client: client.actions.call("health"),
        "put": lambda client: client.put("stats.tables", pa.table({"table_name": ["a"]})),
    }
    with StatsClient(server.uri) as client, pytest.raises(flight.FlightUnavailableError):
        calls[call](client)
    with stamina.set_testing(True, attempts=3), StatsClient(server.uri, attempts=3) as client:
        assert calls[call](client)
    assert not failures


def test_threads_share_a_client(server, client):
    server.rows("sys.flights", {"name": "stats.columns"})
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: client.read("sys.flights").num_rows, range(64))) == [1] * 64


# Writing.


@pytest.mark.parametrize("form", [lambda t: t, lambda t: t.to_reader(), lambda t: t.to_batches()[0]])
def test_put_returns_the_counts(server, client, form):
    table = pa.table({"table_name": ["a", "b"]})
    counts = client.put("stats.tables", form(table), mode="upsert", idempotency_key="k")
    assert counts == {"received": 2, "created": 2, "unchanged": 0, "replaced": 0}
    ((command, received),) = server.puts
    assert command == {"table": "stats.tables", "mode": "upsert", "idempotency_key": "k"}
    assert received.equals(table)


def test_rejected_put_raises_the_reason_of_the_server(server, client):
    server.refusal = pa.ArrowInvalid("[CONFLICT] it is there already")
    many = pa.table({"table_name": pa.array(range(1_000_000))})
    with pytest.raises(pa.ArrowInvalid) as failure:
        client.put("stats.tables", many)
    assert failure.value.args[0] == "[CONFLICT] it is there already"


# Capture.


@pytest.fixture
def orders(server):
    server.rows("information_schema.tables", TABLE | {"table_type": "BASE TABLE"})
    columns = [("id", "INT"), ("place", "STRUCT<lat DOUBLE>"), ("place.lat", "DOUBLE"), ("tags", "ARRAY<STRING>")]
    server.rows(
        "information_schema.columns",
        *[
            TABLE | {"column_name": name, "data_type": kind, "column_id": i}
            for i, (name, kind) in enumerate(columns, 1)
        ],
    )
    server.answers["capture"] = lambda body: [{"outcome": "CAPTURED", "engine_id": "spark"} for _ in body["requests"]]


def _targets(server):
    ((_, body),) = server.actions
    return [request["target"] for request in body["requests"]]


def test_capture_requests_the_table_and_each_scalar_column(server, client, orders):
    outcomes = client.capture("lake.sales.orders")
    assert _targets(server) == [
        {"kind": "TABLE"},
        {"kind": "COLUMN", "column_id": 1},
        {"kind": "COLUMN", "column_id": 3},
    ]
    assert [outcome["outcome"] for outcome in outcomes] == ["CAPTURED"] * 3
    assert all(outcome["table"] == "lake.sales.orders" for outcome in outcomes)


def test_capture_goes_on_with_columns_that_it_finds_to_be_new(server, client):
    columns = [TABLE | {"column_id": i, "column_name": name, "data_type": "INT"} for i, name in ((1, "id"), (2, "new"))]

    def capture(body):
        server.rows("information_schema.columns", *columns)
        return [{"outcome": "CAPTURED"} for _ in body["requests"]]

    server.rows("information_schema.columns", columns[0])
    server.answers["capture"] = capture
    outcomes = client.capture("lake.sales.orders")
    assert [outcome["target"].get("column_id") for outcome in outcomes] == [None, 1, 2]
    assert len(client.capture("lake.sales.orders")) == 3 and len(server.actions) == 3


def test_capture_leaves_out_columns_that_it_finds_to_be_gone(server, client):
    columns = [TABLE | {"column_id": i, "column_name": name, "data_type": "INT"} for i, name in ((1, "id"), (2, "old"))]

    def capture(body):
        server.rows("information_schema.columns", columns[0])
        lacks = {"outcome": "DEGRADED", "detail": "no column with id 2 in snapshot 5"}
        return [lacks if one["target"].get("column_id") == 2 else {"outcome": "CAPTURED"} for one in body["requests"]]

    server.rows("information_schema.columns", *columns)
    server.answers["capture"] = capture
    assert [one["target"].get("column_id") for one in client.capture("lake.sales.orders")] == [None, 1]
    server.rows("information_schema.columns", *columns)
    assert client.capture("lake.sales.orders", columns=["old"])[1]["outcome"] == "DEGRADED"


def test_kinds_are_split_between_table_and_columns(server, client, orders):
    client.capture("lake.sales.orders", columns=["id"], kinds=["MIN_MAX", "ROW_COUNT"], snapshot=4, mode="ASYNC")
    ((_, body),) = server.actions
    common = {"table": "lake.sales.orders", "snapshot": 4, "mode": "ASYNC"}
    assert body["requests"] == [
        common | {"target": {"kind": "TABLE"}, "column_selectors": ["id"]},
        common | {"target": {"kind": "COLUMN", "column_id": 1}, "kinds": ["MIN_MAX"]},
    ]


def test_table_kinds_request_no_column(server, client, orders):
    client.capture("lake.sales.orders", kinds=["ROW_COUNT"])
    assert _targets(server) == [{"kind": "TABLE"}]


def test_explicit_capture_requests_are_sent_unchanged(server, client, orders):
    client.capture([{"table": "lake.sales.orders", "target": {"kind": "COLUMN", "column_id": 9}}])
    assert _targets(server) == [{"kind": "COLUMN", "column_id": 9}]


def test_capture_of_an_unknown_table_is_a_key_error(server, client, orders):
    server.tables["information_schema.columns"] = server.tables["information_schema.columns"].slice(0, 0)
    server.rows("information_schema.tables")
    with pytest.raises(pa.ArrowKeyError, match="no table"):
        client.capture("lake.sales.order")


def test_capture_of_an_unknown_column_names_it(client, orders):
    with pytest.raises(pa.ArrowKeyError, match='no column "nosuch"'):
        client.capture("lake.sales.orders", columns=["nosuch"])


# Actions.


def test_action_with_one_result_returns_it(server, client):
    server.answers["health"] = lambda body: [{"status": "ok"}]
    server.answers["discover"] = lambda body: [{"table": "a"}, {"table": "b"}]
    assert client.actions.health() == {"status": "ok"}
    assert client.actions.call("health") == [{"status": "ok"}]
    assert [result["table"] for result in client.actions.discover(catalog="lake")] == ["a", "b"]
    assert server.actions[-1] == ("discover", {"catalog": "lake"})


# Errors.

SERVER_ERRORS = [
    pa.ArrowInvalid,
    pa.ArrowKeyError,
    pa.ArrowNotImplementedError,
    flight.FlightUnavailableError,
    flight.FlightInternalError,
    flight.FlightUnauthenticatedError,
    flight.FlightUnauthorizedError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
]
MESSAGE = '[UNKNOWN_TABLE] no table "lake.sales.evnts"; did you mean "lake. Detail"?'


@pytest.mark.parametrize("kind", SERVER_ERRORS)
@pytest.mark.parametrize("call", ["read", "act"])
def test_server_error_keeps_its_class_and_plain_message(server, client, kind, call):
    def fail(_):
        raise kind(MESSAGE)

    server.tables["sys.flights"] = kind(MESSAGE)
    server.answers["health"] = fail
    with pytest.raises(kind) as failure:
        client.read("sys.flights") if call == "read" else client.actions.health()
    assert type(failure.value) is kind
    assert failure.value.args[0] == MESSAGE
    assert reason(failure.value) == MESSAGE


def test_server_error_keeps_its_extra_info(server, client):
    server.tables["sys.flights"] = flight.FlightUnavailableError("[SHUTTING_DOWN] bye", b'{"retryable": true}')
    with pytest.raises(flight.FlightUnavailableError) as failure:
        client.tables()
        client.read("sys.flights")
    assert failure.value.extra_info == b'{"retryable": true}'


def test_a_table_is_found_by_the_end_of_its_name(server, client):
    others = [TABLE | {"table_schema": "eu"}, TABLE | {"table_name": "items"}]
    server.rows("information_schema.tables", *(row | {"table_type": "BASE TABLE"} for row in (TABLE, *others)))
    assert client.find_table("items") == "lake.sales.items"
    assert client.find_table("sales.orders") == "lake.sales.orders"
    with pytest.raises(pa.ArrowInvalid, match=r"AMBIGUOUS_TABLE.*lake\.eu\.orders or lake\.sales\.orders"):
        client.find_table("orders")
    with pytest.raises(pa.ArrowKeyError, match=r"UNKNOWN_TABLE.*did you mean"):
        client.columns("sales.order")
    with pytest.raises(pa.ArrowKeyError, match=r'UNKNOWN_TABLE.*did you mean "lake\.sales\.items"'):
        client.columns("itms")
    server.commands.clear()
    assert client.find_table("a.b.c") == "a.b.c"
    assert not server.commands  # a full name costs no call
    client.columns("items")
    assert {leaf["values"][0] for leaf in server.commands[1]["predicates"]} == {"lake", "sales", "items"}


def test_a_client_shows_its_address(server, client):
    assert repr(client) == f"<StatsClient of {server.uri}>"


def test_reason_always_has_a_code():
    assert reason(flight.FlightUnavailableError("nobody there")) == "[UNAVAILABLE] nobody there"
    assert reason(pa.ArrowKeyError("what?")) == "[NOT_FOUND] what?"
    assert reason(RuntimeError()) == "[INTERNAL] RuntimeError"
    wrapped = "Flight returned unavailable error, with message: [X] y. gRPC client debug context: z"
    assert reason(flight.FlightUnavailableError(wrapped)) == "[X] y"


def test_columns_with_the_same_name_are_captured_by_id(server, client):
    server.rows("information_schema.tables", TABLE | {"table_type": "BASE TABLE"})
    server.rows(
        "information_schema.columns",
        *[
            TABLE | {"column_name": n, "data_type": t, "column_id": i}
            for i, (n, t) in enumerate([("st.x", "INT"), ("st", "STRUCT"), ("st.x", "INT"), ("k", "INT")], 1)
        ],
    )
    server.answers["capture"] = lambda body: [{"outcome": "CAPTURED"} for _ in body["requests"]]
    with pytest.raises(pa.ArrowInvalid, match=r'AMBIGUOUS_COLUMN.*"st.x"; name one by its id: #1 or #3'):
        client.capture("lake.sales.orders", columns=["st.x"])
    client.capture("lake.sales.orders", columns=["#3", "k"])
    ((_, body),) = server.actions
    assert body["requests"][0]["column_selectors"] == ["#3", "k"]
    assert [request["target"].get("column_id") for request in body["requests"]] == [None, 3, 4]
    assert [r["target"].get("column_id") for r in client.capture_requests("lake.sales.orders")] == [None, 1, 3, 4]

"""Flight SQL over a running server: statements, prepared statements, cancellation, sessions, and errors."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

import hashlib
import re
import threading
import time
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import dbapi

from flight_server.core.wire.flight_sql import read_any, write_any
from flight_server.core.wire.protobuf import Message, read_message, write_message
from tests.flight_server.faces.sql.test_plan import HUGE
from tests.flight_server.live_server import Client, serving

CATALOG = "endpoint"
KEY = {"table_catalog": CATALOG, "table_schema": "s", "table_name": "t", "snapshot_id": 1}
LONG = "SELECT count(*) FROM stats.columns a, stats.columns b, stats.columns c, stats.columns d, stats.columns e"


@pytest.fixture(scope="module", autouse=True)
def stored(live_server):
    at = datetime(2026, 5, 1, tzinfo=UTC)
    rows = [
        KEY | {"column_id": i, "column_name": f"c{i}", "ndv": i * 1.5, "max": "x" * 100, "captured_at": at}
        for i in range(1, 501)
    ]
    with live_server.connect() as client:
        client.put("stats.columns", pa.Table.from_pylist(rows))
        client.put("stats.tables", pa.Table.from_pylist([KEY | {"row_count": 7}]))


def query(client: Client, sql: str) -> pa.Table:
    return client.get(write_any("CommandStatementQuery", (1, sql.encode())))


def ids(client: Client, where: str) -> list[int]:
    return query(client, f"SELECT column_id FROM stats.columns WHERE table_catalog = '{CATALOG}' AND {where}")[
        "column_id"
    ].to_pylist()


def prepare(client: Client, sql: str) -> Message:
    (result,) = client.act_raw("CreatePreparedStatement", write_any("Request", (1, sql.encode())))
    return read_any(result)


def execution_of(prepared: Message | bytes) -> bytes:
    handle = prepared if isinstance(prepared, bytes) else prepared.data(1)
    return write_any("CommandPreparedStatementQuery", (1, handle))


def bind(client: Client, prepared: Message, *batches: pa.RecordBatch) -> bytes:
    descriptor = flight.FlightDescriptor.for_command(execution_of(prepared))
    writer, reader = client.flight.do_put(descriptor, batches[0].schema, client.options())
    with writer:
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        return reader.read().to_pybytes()


def params(**values) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values])


# Statements.


def test_flight_info_has_the_schema_of_the_result(live_client):
    for sql in (
        "SELECT * FROM stats.columns",
        "SELECT ndv AS n, captured_at FROM stats_all.columns LIMIT 0",
        "SELECT 1 AS one, 'x', NULL",
        "SELECT sum(column_id), avg(ndv), max(captured_at) FROM stats.columns",
        "SELECT * FROM adbc.statistics",
        "SELECT * FROM stats.columns a JOIN stats.tables b USING (table_name) LIMIT 3",
        "SELECT a.ndv, a.ndv FROM stats.columns a",
    ):
        command = write_any("CommandStatementQuery", (1, sql.encode()))
        info = live_client.info(command)
        found = live_client.get(info.endpoints[0].ticket)
        assert found.schema == info.schema, sql
        assert live_client.flight.get_schema(flight.FlightDescriptor.for_command(command)).schema == info.schema
        assert not any(pa.types.is_timestamp(type_) and type_.tz for type_ in found.schema.types)


def test_batches_of_large_results_are_at_most_4_mib(live_client):
    for sql in (
        "SELECT a.max || b.max AS m FROM stats.columns a, stats.columns b ORDER BY a.column_id",
        "SELECT * FROM stats.columns",
    ):
        command = write_any("CommandStatementQuery", (1, sql.encode()))
        sizes = [
            chunk.data.nbytes for chunk in live_client.flight.do_get(flight.Ticket(command), live_client.options())
        ]
        assert max(sizes) <= 4 << 20


def test_condition_selects_the_same_rows_in_a_scan_and_in_duckdb(live_client):
    """Run as a scan, and in DuckDB with an added condition that scans do not support."""
    for where in (
        "ndv > 700",
        "column_name IN ('c1', 'c7', 'x')",
        "NOT (column_id < 499)",
        "column_id = 3.0",
        "min IS NOT NULL",
    ):
        assert sorted(ids(live_client, where)) == sorted(ids(live_client, f"{where} AND column_name LIKE 'c%'")), where


def test_put_invalidates_cached_rows_of_stats_all_columns(live_client):
    """Repeated statements are cached, and run again after a put."""
    rows_sql, count_sql = (
        "SELECT column_name AS n, ndv FROM stats_all.columns WHERE ndv = {}",
        "SELECT count(*) FROM stats_all.columns WHERE ndv = {}",
    )
    for ndv in (1e6 + 1, 1e6 + 2):
        for _ in range(4):
            assert query(live_client, rows_sql.format(ndv)).num_rows == 0
            assert query(live_client, count_sql.format(ndv)).to_pylist() == [{"count_star()": 0}]
        row = KEY | {"column_id": int(ndv), "column_name": f"n{ndv}", "ndv": ndv, "table_name": "u"}
        live_client.put("stats.columns", pa.Table.from_pylist([row]))
        for _ in range(4):
            assert query(live_client, rows_sql.format(ndv)).to_pylist() == [{"n": f"n{ndv}", "ndv": ndv}]
            assert query(live_client, count_sql.format(ndv)).to_pylist() == [{"count_star()": 1}]


def test_condition_on_a_table_name_matches_it_in_every_catalog(live_client):
    """First there is one table of that name, then there are two."""
    sql = "SELECT count(*) AS n, count(DISTINCT table_catalog) AS c FROM stats_all.columns WHERE table_name = 'alone'"
    direct = "SELECT table_catalog FROM stats_all.columns WHERE table_name = 'alone'"
    for number, catalog in enumerate(("one", "two"), 1):
        row = KEY | {"table_catalog": catalog, "table_name": "alone", "column_id": 1}
        live_client.put("stats.columns", pa.Table.from_pylist([row]))
        for _ in range(3):
            assert query(live_client, sql).to_pylist() == [{"n": number, "c": number}]
            assert query(live_client, direct).num_rows == number


def test_unions_windows_and_date_bins_are_supported(live_client):
    """Statements of dashboards: combined SELECTs, and ranks among rows."""
    rows = f"FROM stats.columns WHERE table_catalog = '{CATALOG}' AND table_name = 't'"
    both = query(live_client, f"SELECT max(ndv) AS n {rows} UNION ALL SELECT count(*) {rows} ORDER BY n")
    assert both.to_pylist() == [{"n": 500.0}, {"n": 750.0}]
    first = f"SELECT column_id, rank() OVER (ORDER BY ndv DESC) AS r {rows} QUALIFY r <= 2 ORDER BY r"
    assert query(live_client, first).to_pylist() == [{"column_id": 500, "r": 1}, {"column_id": 499, "r": 2}]
    binned = f"SELECT date_bin(interval '1 day', captured_at, timestamp '1970-01-01T00:00:00Z') AS t, count(*) AS n {rows} GROUP BY 1"
    assert query(live_client, binned)["n"].to_pylist() == [500]
    prepared = prepare(live_client, f"SELECT column_id {rows} AND column_id = ? UNION SELECT CAST(? AS BIGINT)")
    bind(live_client, prepared, params(a=3, b=9))
    assert sorted(live_client.get(execution_of(prepared))["column_id"].to_pylist()) == [3, 9]


def test_error_of_a_statement_is_one_line_with_a_code(live_client):
    for sql, code, mention in (
        ("SELECT nvd FROM stats.columns", "UNKNOWN_COLUMN", 'did you mean "ndv"'),
        ("SELECT 1 FROM stats.colums", "UNKNOWN_TABLE", "stats.columns"),
        ("DROP TABLE stats.columns", "BAD_SQL", "DROP"),
        ("SELECT ndv FROM stats.columns WHERE column_id = 'seven'", "BAD_SQL", "seven"),
        ("SELECT ndv FROM stats.columns WHERE ndv = ?", "UNBOUND_PARAMETER", "1 parameters"),
        ("SELECT 1/0 + 'x'", "BAD_SQL", ""),
        ("SELECT CAST(max AS BIGINT) FROM stats.columns WHERE max LIKE 'x%'", "BAD_SQL", "INT64"),
        ("", "BAD_SQL", "empty"),
    ):
        with pytest.raises(pa.ArrowException) as refusal:
            query(live_client, sql)
        message = str(refusal.value).strip("'")
        assert message.startswith(f"[{code}] ") and mention in message and "\n" not in message, message
    assert query(live_client, "SELECT 1 AS one").to_pylist() == [{"one": 1}]


@pytest.mark.parametrize("name", ["parentheses", "ten megabytes", "parameters", "joins without conditions"])
def test_huge_statement_is_rejected_in_one_line(live_client, name):
    """Each call that takes a statement rejects it, and the next statement succeeds."""
    sql = HUGE[name]
    command = write_any("CommandStatementQuery", (1, sql.encode()))
    for call in (
        lambda: live_client.info(command),
        lambda: live_client.get(command),
        lambda: prepare(live_client, sql),
    ):
        with pytest.raises(pa.ArrowException) as refusal:
            call()
        message = str(refusal.value).strip("'")
        assert re.match(r"\[(BAD_SQL|UNKNOWN_TABLE)\] ", message) and "\n" not in message and len(message) < 500
    assert query(live_client, "SELECT 1 AS one").num_rows == 1


def test_long_patterns_of_metadata_commands_match_nothing(live_client):
    """pandas looks for a table named like the statement; a pattern may have any length and form."""
    for pattern in ("SELECT * FROM stats.columns " * 400, "%_" * 5000, "%a" * 5000, "(" * 10_000, "\\" * 10_000):
        fields = [(3, pattern.encode()), (2, pattern.encode())]
        assert [live_client.get(write_any("CommandGetTables", field)).num_rows for field in fields] == [0, 0]
        assert live_client.get(write_any("CommandGetDbSchemas", (2, pattern.encode()))).num_rows == 0


def test_unknown_and_malformed_commands_are_rejected(live_client):
    for data in (
        write_any("CommandStatementUpdate", (1, b"DELETE FROM x")),
        write_any("CommandNothing"),
        write_any("CommandStatementQuery")[:-1] + b"\xff",
        write_message((1, b"type.googleapis.com/other.Message")),
        write_any("CommandStatementQuery", (1, b"\xff")),
    ):
        with pytest.raises(pa.ArrowInvalid, match=r"^\[[A-Z_]+\] "):
            live_client.get(data)


def test_statement_above_the_memory_limit_is_resource_exhausted(live_client):
    sql = "SELECT count(DISTINCT a.max || b.max || c.column_id || b.column_id || a.column_id) FROM stats.columns a, stats.columns b, stats.columns c"
    with pytest.raises(flight.FlightUnavailableError, match=r"\[RESOURCE_EXHAUSTED\] .*MiB"):
        query(live_client, sql)


# Prepared statements.


def test_prepared_statement_runs_with_new_parameters_until_closed(live_client):
    prepared = prepare(
        live_client, f"SELECT column_id FROM stats.columns WHERE table_catalog = '{CATALOG}' AND column_id <= ? LIMIT ?"
    )
    parameters = pa.ipc.read_schema(pa.py_buffer(prepared.data(3)))
    assert parameters.types == [pa.int64(), pa.int64()]
    assert pa.ipc.read_schema(pa.py_buffer(prepared.data(2))).names == ["column_id"]
    for most, limit, count in ((3, 100, 3), (5.5, 4, 4), ("7", None, 7), (None, 3, 0)):
        assert read_message("Result", bind(live_client, prepared, params(a=most, b=limit))).data(1) == prepared.data(1)
        assert live_client.read(execution_of(prepared)).num_rows == count
    assert live_client.act_raw("ClosePreparedStatement", write_any("Request", (1, prepared.data(1)))) == []
    with pytest.raises(pa.ArrowKeyError, match="UNKNOWN_STATEMENT"):
        live_client.get(execution_of(prepared))


def test_timestamp_parameters_of_every_unit_are_accepted(live_client):
    """Declared in milliseconds, which the JDBC driver writes; other units are accepted too."""
    prepared = prepare(
        live_client, f"SELECT column_id FROM stats.columns WHERE table_catalog = '{CATALOG}' AND captured_at < ?"
    )
    assert pa.ipc.read_schema(pa.py_buffer(prepared.data(3))).types == [pa.timestamp("ms")]
    for unit in ("s", "ms", "us", "ns"):
        for year, found in ((2000, False), (2100, True)):
            given = pa.array([datetime(year, 1, 1)], pa.timestamp(unit))
            bind(live_client, prepared, pa.record_batch([given], ["a"]))
            assert bool(live_client.get(execution_of(prepared)).num_rows) is found, (unit, year)


def test_empty_batches_of_parameters_are_skipped(live_client):
    prepared = prepare(live_client, "SELECT name FROM sys.flights WHERE name = ?")
    empty = params(a="x").slice(0, 0)
    bind(live_client, prepared, empty, params(a="sys.flights"), empty)
    assert live_client.get(execution_of(prepared)).to_pylist() == [{"name": "sys.flights"}]


def test_parameters_are_bound_in_statements_for_duckdb(live_client):
    prepared = prepare(
        live_client, "SELECT ? AS a, CAST(? AS DOUBLE) AS b, upper(name) AS c FROM sys.flights WHERE name LIKE ?"
    )
    bind(live_client, prepared, params(a="it's", b=1.5, c="sys.fl%"))
    assert live_client.get(execution_of(prepared)).to_pylist() == [{"a": "it's", "b": 1.5, "c": "SYS.FLIGHTS"}]


def test_parameters_of_wrong_count_or_type_are_rejected(live_client):
    prepared = prepare(live_client, "SELECT ndv FROM stats.columns WHERE column_id = ? LIMIT ?")
    two = pa.RecordBatch.from_pylist([{"a": 1, "b": 1}] * 2)
    for batches, mention in (
        ((two,), "one row"),
        ((params(a=1),), "2 parameters, and 1"),
        ((params(a=1, b=1).slice(0, 0),), "one row"),
        ((params(a="x" * 2_000_000, b=1),), "bytes"),
    ):
        with pytest.raises(pa.ArrowInvalid, match=mention):
            bind(live_client, prepared, *batches)
    with pytest.raises(pa.ArrowInvalid, match="UNBOUND_PARAMETER"):
        live_client.get(execution_of(prepared))
    for values, mention in (
        ({"a": "seven", "b": 1}, "parameter 1.*seven"),
        ({"a": 1, "b": -1}, "LIMIT"),
        ({"a": 1, "b": "x"}, "LIMIT"),
    ):
        bind(live_client, prepared, params(**values))
        with pytest.raises(pa.ArrowInvalid, match=rf"BAD_LITERAL.*{mention}"):
            live_client.get(execution_of(prepared))


def test_prepared_statement_is_accessible_to_its_caller_only(tmp_path):
    entries = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\nscopes = ["stats.read"]\n'
        for name in "ab"
    ]
    (tmp_path / "tokens.toml").write_text("\n".join(entries))
    with (
        serving(tmp_path, "--auth", tmp_path / "tokens.toml") as server,
        server.connect(authorization="Bearer a") as a,
        server.connect(authorization="Bearer b") as b,
        server.connect() as anonymous,
    ):
        prepared = prepare(a, "SELECT 1 AS one")
        assert a.get(execution_of(prepared)).num_rows == 1
        for handle in (prepared.data(1), b"", b"x" * 16):
            with pytest.raises(pa.ArrowKeyError, match="UNKNOWN_STATEMENT"):
                b.get(execution_of(handle))
        b.act_raw("ClosePreparedStatement", write_any("Request", (1, prepared.data(1))))
        assert a.get(execution_of(prepared)).num_rows == 1
        for call in (
            lambda: anonymous.get(execution_of(prepared)),
            lambda: prepare(anonymous, "SELECT 1"),
            lambda: bind(anonymous, prepared, params(a=1)),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError):
                call()
        token = anonymous.flight.authenticate_basic_token("anybody", "b")
        assert token == (b"authorization", b"Bearer b")
        with pytest.raises(flight.FlightUnauthenticatedError):
            anonymous.flight.authenticate_basic_token("anybody", "c")


# Sessions and cancellation.


def test_sessions_as_drivers_open_them(live_server):
    with dbapi.connect(live_server.uri, autocommit=True) as connection:
        assert connection.adbc_current_catalog == "statflight"
        connection.adbc_current_catalog = "statflight"
        with pytest.raises(dbapi.Error, match="invalid name"):
            connection.adbc_current_db_schema = "stats"


def test_session_actions_are_listed(live_client):
    listed = {action.type for action in live_client.flight.list_actions()}
    assert {"CreatePreparedStatement", "CancelFlightInfo", "SetSessionOptions"} <= listed


def cancel(client: Client, ticket: bytes) -> int:
    info = write_message((3, write_message((1, write_message((1, ticket))))))
    (message,) = client.act_raw("CancelFlightInfo", write_message((1, info)))
    return read_message("CancelFlightInfoResult", message).integers(1)[0]


def test_cancel_flight_info_cancels_a_running_statement(live_server):
    command, errors = write_any("CommandStatementQuery", (1, LONG.encode())), []

    def run():
        with live_server.connect() as client, pytest.raises(flight.FlightCancelledError) as refusal:
            client.get(command)
        errors.append(refusal.value)

    thread = threading.Thread(target=run)
    thread.start()
    with live_server.connect() as client:
        deadline = time.monotonic() + 20
        while cancel(client, command) != 1:
            assert time.monotonic() < deadline
        thread.join(20)
        assert "[CANCELLED] the call was cancelled" in str(errors[0])
        assert cancel(client, command) == 3  # no statement is running any more


def test_statement_ends_when_its_call_times_out(live_server):
    with live_server.connect() as client:
        client.timeout = 0.5
        with pytest.raises((flight.FlightTimedOutError, flight.FlightCancelledError)):
            query(client, LONG)
    with live_server.connect() as client:
        deadline = time.monotonic() + 20
        while cancel(client, write_any("CommandStatementQuery", (1, LONG.encode()))) != 3:
            assert time.monotonic() < deadline
        assert query(client, "SELECT 1 AS one").num_rows == 1

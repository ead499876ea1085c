"""Types of parameters, and the values that a client sends."""

from __future__ import annotations

from datetime import date, datetime

import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.wire.flight_sql import read_any, write_any
from flight_server.faces.sql import parameters, plan
from flight_server.faces.sql.endpoint import SqlEndpoint
from store.model.errors import InvalidArgument
from tests.flight_server.serving import app_in


@pytest.fixture(scope="module")
def endpoint():
    with app_in() as app:
        endpoint = SqlEndpoint(app, "1")
        yield endpoint
        endpoint.close()


@pytest.fixture
def run(endpoint):
    """Prepares a statement, binds values, runs it: the types of its parameters, and its first row."""

    def run(sql, *values):
        (answer,) = endpoint.act("CreatePreparedStatement", write_any("Request", (1, sql.encode())), ANONYMOUS)
        prepared = read_any(answer)
        handle = write_any("CommandPreparedStatementQuery", (1, prepared.data(1)))
        columns = [pa.array([value]) for value in values]
        endpoint.put(handle, [pa.record_batch(columns, [str(n) for n, _ in enumerate(columns)])], ANONYMOUS)
        _, rows = endpoint.get(handle, ANONYMOUS, lambda: False, lambda body: [])
        rows = rows if isinstance(rows, pa.Table) else pa.Table.from_batches(rows)
        return pa.ipc.read_schema(pa.py_buffer(prepared.data(3))).types, rows.to_pylist()[0]

    return run


@pytest.mark.parametrize(
    ("sql", "value", "type_", "result"),
    [
        ("SELECT ?::DATE AS x", "2026-01-31", pa.date32(), date(2026, 1, 31)),
        ("SELECT CAST(? AS DATE) AS x", "2026-01-31", pa.date32(), date(2026, 1, 31)),
        ("SELECT ?::BIGINT + 1 AS x", 2**40, pa.int64(), 2**40 + 1),
        ("SELECT ?::BLOB = x'00FF' AS x", b"\x00\xff", pa.binary(), True),
        ("SELECT round(1.256::DOUBLE, ?) AS x", 1, pa.int32(), 1.3),
        ("SELECT power(?, 2) AS x", 1.5, pa.int64(), 2.25),
        ("SELECT coalesce(column_count, ?) > 0 AS x FROM sys.flights", 1, pa.int64(), True),
        ("SELECT date_trunc('day', ?) AS x", datetime(2026, 1, 31, 5), pa.timestamp("ms"), datetime(2026, 1, 31)),
        ("SELECT upper(?) AS x", "a", pa.string(), "A"),
    ],
)
def test_a_parameter_has_the_type_that_the_statement_needs(run, sql, value, type_, result):
    (declared,), row = run(sql, value)
    assert (declared, row["x"]) == (type_, result)


def test_types_are_found_one_by_one(run):
    declared, row = run("SELECT substr(?, ?, ?) AS x", "statistics", 2, 3)
    assert (declared, row["x"]) == ([pa.string(), pa.int64(), pa.int64()], "tat")


def test_statement_that_no_type_fits_says_why(endpoint):
    with pytest.raises(InvalidArgument, match=r"No function matches .*strftime"):
        endpoint.act("CreatePreparedStatement", write_any("Request", (1, b"SELECT strftime(1, ?)")), ANONYMOUS)


def test_explain_takes_parameters_bound_or_not(run, endpoint):
    sql = "EXPLAIN SELECT name FROM sys.flights WHERE column_count > ?"
    assert run(sql, 3) == ([pa.int64()], {"plan": "read sys.flights: name"})
    command = write_any("CommandStatementQuery", (1, sql.encode()))
    _, rows = endpoint.get(command, ANONYMOUS, lambda: False, lambda body: [])
    assert "?1" in str(rows)


@pytest.mark.parametrize("text", ["x'0'", "X'zz'"])
def test_binary_literals_that_are_not_hexadecimal_are_refused(text):
    with pytest.raises(InvalidArgument, match="hexadecimal"):
        plan.make(f"SELECT {text}")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([10**13]).cast(pa.timestamp("s")),
        pa.array([-62_135_596_800]).cast(pa.timestamp("s", "America/New_York")),
        pa.array([0]).cast(pa.timestamp("us", "No/Where")),
        pa.array([2**62]).cast(pa.duration("s")),
        pa.array([b"\xff"]).view(pa.utf8()),
        pa.array([1_500], pa.timestamp("ns")),
        pa.array([1_500], pa.time64("ns")),
    ],
    ids=["year 300000", "before year 1", "zone", "duration", "text", "nanoseconds", "time"],
)
def test_value_that_cannot_be_read_is_refused_by_its_number(column):
    batch = pa.record_batch([pa.array(["a"]), column], names=["a", "b"])
    with pytest.raises(InvalidArgument, match="parameter 2 cannot be read"):
        parameters.read([batch], plan.make("SELECT ?, ?"))


def test_nanoseconds_of_whole_microseconds_are_read():
    batch = pa.record_batch(
        [pa.array([1_000], pa.timestamp("ns", "UTC")), pa.array([1_000], pa.time64("ns"))], ["a", "b"]
    )
    _, (instant, time) = parameters.read([batch], plan.make("SELECT ?, ?"))
    assert instant.microsecond == time.microsecond == 1

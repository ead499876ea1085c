"""Reads of flights by a statement: shared, cached, and limited in total."""

# ruff: noqa: E501  statements are read more easily on one line

from datetime import UTC, datetime

import duckdb
import pytest

from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, Principal
from flight_server.core.wire.flight_sql import write_any
from flight_server.faces.sql import planner, relations, sandbox
from flight_server.faces.sql.endpoint import SqlEndpoint
from store.model.errors import Cancelled, DeadlineExceeded, ResourceExhausted, ShuttingDown
from tests.flight_server.serving import app_in, put, rows


def with_table(app):
    put(app, rows("t", 1, range(1, 201)))


@pytest.fixture
def app():
    with app_in(fill=with_table) as app:
        yield app


@pytest.fixture
def sql(app):
    sql_endpoint = SqlEndpoint(app, "1")

    def run(text, caller=ANONYMOUS):
        return sql_endpoint.get(
            write_any("CommandStatementQuery", (1, text.encode())), caller, lambda: False, lambda body: []
        )[1]

    run.endpoint = sql_endpoint
    yield run
    sql_endpoint.close()


DASHBOARD = "SELECT table_name, count(*) AS n, max(ndv) AS m FROM stats.columns WHERE row_count > {} GROUP BY table_name ORDER BY 1"


def test_cached_columns_give_the_same_result_and_follow_puts(app, sql, monkeypatch):
    reads, read = [], app.scanner.read
    monkeypatch.setattr(app.scanner, "read", lambda request, *more: (reads.append(request), read(request, *more))[1])
    results = [sql(DASHBOARD.format(number)) for number in range(4)]
    assert results[0].to_pylist() == [{"table_name": "t", "n": 200, "m": 88.5}]
    assert all(result.equals(results[0]) for result in results)
    assert len(reads) == 2
    put(app, rows("u", 1, range(1, 3)))
    assert [row["table_name"] for row in sql(DASHBOARD.format(0)).to_pylist()] == ["t", "u"]


def test_cached_columns_are_used_only_for_callers_of_all_tables(app, sql):
    put(app, rows("u", 1, range(1, 3)))
    some = Principal("some", ALL_SCOPES, ("lake.s.u",))
    assert [sql(DASHBOARD.format(0)).num_rows for _ in range(3)] == [2, 2, 2]
    for _ in range(3):
        assert sql(DASHBOARD.format(0), some).to_pylist() == [{"table_name": "u", "n": 2, "m": 3.0}]
    for _ in range(3):
        assert sql("SELECT table_name FROM stats.columns WHERE row_count > 0", some).num_rows == 2
        assert sql("SELECT table_name FROM stats.columns WHERE row_count > 0").num_rows == 202


def test_cached_column_queries_recover_from_a_fatal_duckdb_error(sql):
    assert [sql(DASHBOARD.format(0)).num_rows for _ in range(3)] == [1, 1, 1]
    sql.endpoint._sandbox.error_for(duckdb.FatalException("FATAL"), ())
    assert [sql(DASHBOARD.format(0)).num_rows for _ in range(3)] == [1, 1, 1]


def test_repeated_conditions_on_instants_give_the_same_result(app, sql):
    put(app, [row | {"captured_at": datetime(2026, 1, 1, tzinfo=UTC)} for row in rows("u", 1, range(1, 3))])
    statement = "SELECT column_id FROM stats.columns WHERE captured_at > '2025-12-31' ORDER BY 1"
    for text in (statement, statement.removesuffix(" ORDER BY 1")):
        for _ in range(3):
            assert sorted(sql(text)["column_id"].to_pylist()) == [1, 2]


ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"


@pytest.mark.parametrize(
    ("seconds", "left", "closing", "reason"),
    [
        (0.01, False, False, DeadlineExceeded),
        (60.0, True, False, Cancelled),
        (60.0, False, True, ShuttingDown),
    ],
)
def test_binding_ends_with_its_time_its_caller_and_the_server(app, sql, monkeypatch, seconds, left, closing, reason):
    monkeypatch.setattr(planner, "BIND_SECONDS", seconds)
    monkeypatch.setattr(sandbox.Sandbox, "schema", lambda self, cursor, *_: cursor.execute(ENDLESS).fetchall())
    if closing:
        app.queue.close()
    statement = b"SELECT column_name || '' FROM stats.columns"
    with pytest.raises(reason):
        sql.endpoint.schema(write_any("CommandStatementQuery", (1, statement)), ANONYMOUS, lambda: left)


def test_equal_reads_of_a_flight_are_executed_once(app, sql, monkeypatch):
    reads, read = [], app.scanner.read
    monkeypatch.setattr(app.scanner, "read", lambda request, *more: (reads.append(request), read(request, *more))[1])
    some = "FROM stats_all.columns WHERE ndv > 1"
    text = f"SELECT max(ndv) AS n {some} UNION SELECT min(ndv) {some}"
    assert sorted(row["n"] for row in sql(text).to_pylist()) == [1.5, 88.5]
    assert len(reads) == 1


def test_sum_of_all_source_reads_is_limited(sql, monkeypatch):
    one = "SELECT count(*) FROM stats_all.columns WHERE column_name LIKE 'c1%'"
    two = f"{one} UNION ALL SELECT count(*) FROM stats_all.columns WHERE column_name LIKE 'c%' AND ndv > 0"
    monkeypatch.setattr(relations, "MAX_SOURCE_BYTES", 3000)
    assert sql(one).num_rows == 1
    with pytest.raises(ResourceExhausted, match=r"from stats\.columns"):
        sql(two)

"""Flights that DuckDB scans for a statement: conditions reach the scans, and never change a result."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

import re

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.wire.flight_sql import write_any
from flight_server.faces.sql.endpoint import SqlEndpoint
from store.model.errors import PermissionDenied, StatflightError
from store.model.predicates.tree import And, Leaf, Op, Or
from tests.flight_server.faces.sql.test_plan import CONDITIONS
from tests.flight_server.serving import app_in, put, rows


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        values = [
            (1, "a", 1.5, True),
            (2, "b", None, False),
            (3, "o'c", 3.0, None),
            (4, "", 4.0, True),
            (2**53 + 1, "é", 0.0, None),
            (7, "7", 6.5, False),
        ]
        for id_, name, ndv, exact in values:
            put(
                app,
                [
                    row | {"column_id": id_, "column_name": name, "ndv": ndv, "ndv_exact": exact}
                    for row in rows("t", 1, [1], min="10", logical_type="INT")
                ],
            )
        put(app, rows("u", 1, range(1, 4)))
        yield app


@pytest.fixture(scope="module")
def sql(app):
    endpoint = SqlEndpoint(app, "1")

    def run(text):
        command = write_any("CommandStatementQuery", (1, text.encode()))
        schema, reply = endpoint.get(command, ANONYMOUS, lambda: False, lambda body: [])
        return reply if isinstance(reply, pa.Table) else pa.Table.from_batches(reply, schema)

    run.endpoint = endpoint
    yield run
    endpoint.close()


@pytest.fixture
def scans(app, monkeypatch):
    reads, read = [], app.scanner.read
    monkeypatch.setattr(app.scanner, "read", lambda request, *more: (reads.append(request), read(request, *more))[1])
    return reads


T = Leaf("table_name", Op.EQ, ("t",), True)
PUSHED = {
    "SELECT count(*) FROM stats.columns WHERE table_name = 't' AND column_name LIKE '%c%'": T,
    "WITH x AS (SELECT * FROM stats.columns) SELECT max(ndv) FROM x WHERE table_name = 't'": T,
    "SELECT max(n) FROM (SELECT ndv AS n, table_name AS t FROM stats.columns) s WHERE t = 't'": T,
    "SELECT max(ndv) FROM stats.columns WHERE table_name = 't' OR column_id = 7": Or(
        (T, Leaf("column_id", Op.EQ, (7,), True))
    ),
    "SELECT max(ndv) FROM stats.columns WHERE column_id IN (1, 7)": Leaf("column_id", Op.IN, (1, 7), True),
    "SELECT max(ndv) FROM stats.columns WHERE column_id BETWEEN 2 AND 7": And(
        (Leaf("column_id", Op.GTE, (2,), True), Leaf("column_id", Op.LTE, (7,), True))
    ),
    "SELECT max(ndv) FROM stats.columns WHERE null_count IS NULL": Leaf("null_count", Op.IS_NULL, (), True),
    "SELECT max(ndv) FROM stats.columns WHERE captured_at >= '2020-01-01'": Leaf(
        "captured_at", Op.GTE, ("2020-01-01T00:00:00Z",), True
    ),
    "SELECT max(ndv) FROM stats.columns WHERE min = '10'": Leaf("min", Op.EQ, ("10",), True),  # text in SQL
    "SELECT max(ndv) FROM stats.columns WHERE ndv > 1": None,  # DuckDB compares floats itself, because of NaN
}


@pytest.mark.parametrize("text", PUSHED)
def test_conditions_reach_the_scan(sql, scans, text):
    assert sql(text).num_rows == 1
    assert [request.node for request in scans] == [PUSHED[text]]


def test_only_the_columns_of_a_scan_are_read(sql, scans):
    sql(
        "SELECT c.column_name FROM stats.columns c JOIN stats.columns d ON d.column_id = c.null_count WHERE d.table_name = 'u'"
    )
    assert {request.columns for request in scans} == {("column_name", "null_count"), ("column_id",)}


def test_error_of_a_read_is_that_of_the_statement(app, sql, monkeypatch):
    def refuse(*_):
        raise PermissionDenied("no")

    monkeypatch.setattr(app.scanner, "read", refuse)
    with pytest.raises(PermissionDenied):
        sql("SELECT count(*), 'x' FROM stats.columns WHERE row_count > 0")


PLAIN = "stats.columns"
ITEMS = st.recursive(
    st.just(PLAIN),
    lambda inner: st.one_of(
        st.builds("(SELECT * FROM {} i)".format, inner),
        st.builds("(SELECT * FROM {} i WHERE {})".format, inner, CONDITIONS),
        st.builds("(SELECT ndv_exact, column_name, ndv AS column_id, column_id AS ndv FROM {} i)".format, inner),
        st.builds(
            "(SELECT column_id, CAST(rank() OVER (ORDER BY i.ndv) AS DOUBLE) AS ndv, column_name, ndv_exact FROM {} i WHERE {})".format,
            inner,
            CONDITIONS,
        ),
        st.builds("(SELECT * FROM {} i ORDER BY column_name, ndv LIMIT 3)".format, inner),
        st.builds("(SELECT DISTINCT column_id, ndv, column_name, ndv_exact FROM {} i)".format, inner),
        st.builds(
            "(SELECT column_id, max(ndv) AS ndv, min(column_name) AS column_name, bool_or(ndv_exact) AS ndv_exact FROM {} i GROUP BY 1)".format,
            inner,
        ),
        st.builds(
            "(SELECT column_id, ndv, column_name, ndv_exact FROM {} i UNION ALL SELECT column_id, ndv, column_name, ndv_exact FROM stats.columns)".format,
            inner,
        ),
    ),
    max_leaves=3,
)


def qualified(alias, condition):
    return re.sub(r"\b(column_id|ndv|column_name|ndv_exact)\b", rf"{alias}.\1", condition)


STATEMENTS = st.one_of(
    st.builds("SELECT column_id, ndv, column_name, ndv_exact FROM {} a WHERE {}".format, ITEMS, CONDITIONS),
    st.builds(
        "WITH x AS (SELECT * FROM {} a WHERE {}) SELECT column_id, ndv FROM x WHERE {}".format,
        ITEMS,
        CONDITIONS,
        CONDITIONS,
    ),
    st.builds(
        lambda kind, left, right, on, where: (
            f"SELECT a.column_id, a.ndv, b.column_id, b.ndv FROM {left} a {kind} JOIN {right} b"
            f" ON a.column_id = b.column_id AND {qualified('a', on[0])} AND {qualified('b', on[1])} WHERE {qualified('a', where[0])} AND {qualified('b', where[1])}"
        ),
        st.sampled_from(["", "LEFT", "RIGHT", "FULL"]),
        ITEMS,
        ITEMS,
        st.tuples(CONDITIONS, CONDITIONS),
        st.tuples(st.one_of(st.just("TRUE"), CONDITIONS), st.one_of(st.just("TRUE"), CONDITIONS)),
    ),
    st.builds(
        lambda item, inner, where: (
            f"SELECT ndv FROM {item} a WHERE EXISTS (SELECT 1 FROM {inner} b WHERE b.column_id = a.column_id AND {where})"
        ),
        ITEMS,
        ITEMS,
        CONDITIONS.map(lambda condition: qualified("b", condition)),
    ),
)


@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=list(HealthCheck))
@given(STATEMENTS)
def test_scans_never_change_a_result(sql, statement):
    whole = sql("SELECT column_id, ndv, column_name, ndv_exact FROM stats.columns")
    with duckdb.connect() as plain:
        plain.register("whole", whole)
        expected = plain.sql(statement.replace("stats.columns", "whole")).fetchall()
    try:
        found = sql(statement)
    except StatflightError as error:
        assert "ambiguous" in str(error).lower(), statement
        return
    assert sorted(map(repr, zip(*(column.to_pylist() for column in found.columns), strict=True))) == sorted(
        map(repr, expected)
    )

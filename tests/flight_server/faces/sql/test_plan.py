"""Statements: accepted and rejected SQL, error messages, and those that are read directly."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

import contextlib
import math
from datetime import date

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.faces.sql import plan, pushdown
from flight_server.faces.sql.flights import naive
from flight_server.faces.sql.sandbox import _SETTINGS, Sandbox
from store.model.errors import StatflightError
from store.model.predicates.arrow import to_arrow
from store.model.predicates.tree import BadLiteral, Leaf, Op
from store.model.schemas import FLIGHTS

ACCEPTED = [
    "SELECT 1",
    "SELECT 1;",
    "select * from STATS.columns",
    'SELECT "NDV" FROM "statflight"."stats"."columns"',
    "SELECT c.* FROM stats.columns AS c WHERE c.ndv > 1 -- a comment",
    "SELECT count(*) FILTER (WHERE ndv > 1) FROM stats.columns",
    "SELECT DISTINCT table_name FROM stats_all.tables ORDER BY 1 DESC NULLS LAST LIMIT 3 OFFSET 1",
    "SELECT a.ndv FROM stats.columns a LEFT JOIN stats.tables b USING (table_name)",
    "SELECT max(ndv) FROM stats.columns GROUP BY ALL HAVING count(*) > 1",
    "FROM sys.flights",
    "SELECT CASE ndv WHEN 1 THEN 'a' ELSE 'b' END, CAST(ndv AS DECIMAL(10, 2)), ndv::BIGINT FROM stats.columns",
    "SELECT * EXCLUDE (ndv) FROM stats.columns WHERE EXISTS (SELECT 1 FROM stats.tables)",
    "SELECT now(), current_date",
    "SELECT date_trunc('day', captured_at) + INTERVAL 1 DAY FROM stats.columns WHERE captured_at > TIMESTAMPTZ '2026-01-01 00:00:00+01'",
    "SELECT column_name || '!' FROM stats.columns WHERE column_name ILIKE 'a%' ESCAPE '!' AND ndv IS DISTINCT FROM 3",
    "SELECT string_agg(column_name, ',' ORDER BY ndv DESC), array_agg(column_name ORDER BY ndv), percentile_cont(0.5) WITHIN GROUP (ORDER BY ndv),"
    " percentile_disc(0.9) WITHIN GROUP (ORDER BY ndv DESC), max(ndv) + ? FROM stats.columns WHERE ndv > ? AND captured_at < now()",
    "SELECT ndv FROM stats.columns ORDER BY 1 OFFSET 2 ROWS FETCH FIRST 5 ROWS ONLY",
    "SELECT {fn ucase(column_name)}, {t '10:00:00'}, ? FROM stats.columns WHERE captured_at > {ts '2026-01-01 00:00:00'} AND ndv = ? AND ndv > 1",
    "SELECT 1 UNION SELECT 2",
    "(SELECT ndv FROM stats.columns) EXCEPT SELECT 2 ORDER BY 1 LIMIT 3",
    "SELECT 1 INTERSECT ALL SELECT 1",
    "(SELECT 1)",
    "SELECT table_name FROM (SELECT table_name FROM stats.columns UNION ALL BY NAME SELECT table_name FROM stats.tables) t GROUP BY 1",
    "SELECT table_name, row_number() OVER (PARTITION BY table_name ORDER BY ndv DESC) AS r FROM stats.columns QUALIFY r = 1",
    "SELECT sum(ndv) OVER w, lag(ndv, 1, 0) IGNORE NULLS OVER (ORDER BY column_id) FROM stats.columns WINDOW w AS (ORDER BY ndv ROWS 2 PRECEDING)",
    "SELECT avg(ndv) OVER (ORDER BY captured_at RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM stats.columns",
    "WITH x(a, b) AS (SELECT table_name, ndv FROM stats.columns) SELECT a FROM x UNION ALL SELECT y FROM (VALUES (1, 'a'), (2, 'b')) AS t(x, y)",
    "SELECT date_bin(interval '60 second', captured_at, timestamp '1970-01-01T00:00:00Z') AS t, count(*) FROM stats_all.tables GROUP BY 1",  # Grafana
    'select "_"."a0" from (select sum("ndv") as "a0" from "statflight"."stats"."columns" "$Table" where "ndv" > 1) "_" limit 1001',  # Power BI
    'SELECT SUM(1) AS "cnt:columns:ok" FROM "stats"."columns" "columns" HAVING (COUNT(1) > 0)',  # Tableau
    "SELECT make_timestamp(2026, 1, 31, 12, 0, 0.5), make_timestamp(row_count), epoch_ms(row_count), epoch_ms(captured_at) FROM stats.columns",
    "SELECT ?::DATE, x'00ff', X'' = sketch FROM (SELECT data AS sketch FROM stats.sketches WHERE data = x'61')",
    "SELECT strftime(captured_at, '%Y'), length(column_name), round(ndv, 1), string_agg(column_name, ',') FROM stats.columns GROUP BY 1, 2, 3",
]


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def schema_of(sandbox, made):
    if made.direct:
        return
    fields = {s.label: naive(pa.schema([s.table.flight.schema.field(n) for n in s.columns])) for s in made.sources}
    sandbox.schema(
        sandbox.cursor(), made.typed_sql, fields, [name for schema in fields.values() for name in schema.names]
    )


@pytest.mark.parametrize("sql", ACCEPTED)
def test_statement_is_accepted(sandbox, sql):
    schema_of(sandbox, plan.make(sql))


REJECTED = {
    "": "empty",
    " ; ": "empty",
    "SELECT lenght(table_name) FROM stats.columns": 'did you mean "length"?',
    "SELECT x.ndv FROM stats.columns c": 'no table "x" in the FROM clause',
    "SELECT 1; SELECT 2": "2 statements",
    "SELEC 1": "cannot be read",
    "SELECT 'x": "quote",
    "SELECT when": 'cannot be read at "when" (line 1, column 8)',
    "INSERT INTO stats.columns VALUES (1)": "INSERT",
    "EXPLAIN SELECT 1": "EXPLAIN",
    "VALUES (1)": "VALUES",
    "SHOW TABLES": "SHOW",
    "WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT 1 FROM x) SELECT * FROM x": "RECURSIVE",
    "PRAGMA version": "PRAGMA",
    "SET x = 1": "SET",
    "WITH x AS (DELETE FROM stats.columns RETURNING *) SELECT * FROM x": "DELETE",
    "SELECT /* /* */ 1 */ FROM sys.flights": "without columns",
    "WITH x AS (SELECT 1 UNION ALL SELECT 1 FROM x) SELECT * FROM x": "circular",
    "SELECT 1 INTO x": "INTO",
    "SELECT * FROM read_csv('/etc/passwd')": "read_csv",
    "SELECT read_text('/etc/passwd')": "read_text",
    "SELECT \"read_text\"('x')": "read_text",
    "SELECT getenv('HOME')": "getenv",
    "SELECT * FROM range(9)": "generate_series",
    "SELECT unnest([1, 2])": "",
    "SELECT read_text('x') OVER () FROM stats.columns": "read_text",
    "SELECT query('SELECT 1')": "query",
    "SELECT current_setting('x')": "current_setting",
    "SELECT repeat('x', 1000000000)": "repeat",
    "SELECT COLUMNS('x')": "columns",
    "SELECT * FROM stats.columns TABLESAMPLE 1%": "SAMPLE",
    "SELECT 1 UNION SELECT * FROM read_csv('x')": "read_csv",
    "SELECT * FROM (VALUES (read_text('x'))) t": "read_text",
    "WITH read_text(a) AS (SELECT 1) SELECT read_text(a) FROM read_text": "read_text",
    "SELECT 1 FROM stats.columns FETCH FIRST 5 PERCENT ROWS WITH TIES": "FETCH",
    "SELECT * FROM stats.columns, LATERAL (SELECT 1)": "LATERAL",
    "SELECT x -> x + 1": "",
    "SELECT {'a': 1}": "",
    "SELECT CAST(1 AS JSON)": "type",
    "SELECT $1": '"?"',
    "SELECT * FROM (PIVOT stats.columns ON ndv)": "",
    "SELECT 1 FROM duckdb_settings()": "duckdb_settings",
    "SELECT md5(random()::VARCHAR)": "md5",
    "SELECT current_user": "current_user",
    "SELECT @x": '"?"',
    "SELECT * FROM pg_catalog.pg_class": "pg_catalog.pg_class",
    "SELECT * FROM '/etc/passwd'": "/etc/passwd",
    "SELECT * FROM columns": 'did you mean "stats.columns"',
    "SELECT * FROM stats.colums": 'did you mean "stats.columns"',
    "SELECT * FROM other.stats.columns": "other.stats.columns",
    "SELECT * FROM lake.sales.orders": "rows of stats.columns",
}
HUGE = {
    "parentheses": "SELECT " + "(" * 10_000 + "1" + ")" * 10_000,
    "NOT": "SELECT " + "NOT " * 10_000 + "TRUE",
    "minus": "SELECT " + "- " * 10_000 + "1",
    "sums": "SELECT " + "1+" * 10_000 + "1",
    "casts": "SELECT 1" + "::INT" * 10_000,
    "subqueries": "SELECT 1 FROM " + "(SELECT * FROM " * 5000 + "stats.columns" + ")" * 5000,
    "CASE": "SELECT " + "CASE WHEN " * 5000,
    "calls": "SELECT " + "abs(" * 10_000 + "1" + ")" * 10_000,
    "brackets": "SELECT " + "[" * 10_000,
    "dots": "SELECT a" + ".a" * 10_000,
    "unions": "SELECT 1 " + "UNION SELECT 1 " * 5000,
    "joins": "SELECT 1 FROM stats.columns" + " JOIN stats.columns" * 2000,
    "tables": "SELECT 1 FROM sys.flights" + ", sys.flights" * 64,
    "a long union": "SELECT 1" + " UNION SELECT 1" * 200,
    "windows": "SELECT " + "sum(" * 3000 + "1" + ") OVER ()" * 3000,
    "ten megabytes": "SELECT '" + "x" * 10_000_000 + "'",
    "parameters": "SELECT " + "?, " * 5000 + "1",
    "words": "SELECT " + "1, " * 20_000 + "1",
    "or of and": "SELECT " + "(1 = 1 AND (1 = 1 OR " * 2000 + "TRUE" + "))" * 2000,
    # parsed in two ways or expanded repeatedly: the time doubles with each level
    "joins without conditions": "SELECT 1 FROM sys.flights" + " LEFT JOIN sys.flights" * 40,
    "joins with half of their conditions": "SELECT 1 FROM sys.flights"
    + " JOIN sys.flights JOIN sys.flights ON TRUE" * 30,
    "calls of types": "SELECT " + "int(" * 40 + "1" + ")" * 40,
    "rounded up": "SELECT " + "ceil(1, " * 25 + "1" + ")" * 25,
    "searches": "SELECT " + "strpos('a', 'a', " * 25 + "1" + ")" * 25,
    "many deep calls": "SELECT " + ", ".join(["floor(1, " * 8 + "1" + ")" * 8] * 600),
    "groups in groups": "SELECT " + "percentile_cont(0.5) WITHIN GROUP (ORDER BY " * 20 + "1" + ")" * 20,
}


@pytest.mark.parametrize(("sql", "mention"), REJECTED.items(), ids=lambda part: part[:40])
def test_statement_is_rejected_with_a_short_reason(sandbox, sql, mention):
    with pytest.raises(StatflightError) as raised:
        schema_of(sandbox, plan.make(sql))
    assert mention.lower() in str(raised.value).lower(), str(raised.value)
    assert len(str(raised.value)) < 500 and "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


@pytest.mark.parametrize("sql", HUGE.values(), ids=HUGE)
def test_oversized_statement_is_rejected_quickly(sandbox, sql):
    with pytest.raises(StatflightError) as raised:
        schema_of(sandbox, plan.make(sql))
    assert len(str(raised.value)) < 500 and "\n" not in str(raised.value)


def test_nested_calls_are_accepted(sandbox):
    nested = "replace(" * 12 + "table_name" + ", 'a', 'b')" * 12
    schema_of(
        sandbox,
        plan.make(
            f"SELECT round(avg(length({nested})), 1), sum(count(*)) OVER () FROM stats.columns GROUP BY {nested}"
        ),
    )


def test_long_chain_of_conditions_is_accepted(sandbox):
    made = plan.make("SELECT ndv FROM stats.columns WHERE " + " OR ".join(f"column_id = {i}" for i in range(2000)))
    assert made.direct and len(made.sources[0].node.children) == 2000


# Conditions.

DIRECT = [
    "SELECT ndv FROM stats.columns FETCH NEXT ROW ONLY",
    "SELECT * FROM stats.columns",
    "SELECT ndv AS n, c.table_name FROM stats.columns c LIMIT 3",
    "SELECT * FROM sys.flights WHERE name = ?",
    "SELECT ndv FROM stats.columns WHERE table_name = 'a' AND (ndv > 1.5 OR ndv IS NULL) AND NOT ndv_exact LIMIT ?",
    "SELECT ndv FROM stats_all.columns WHERE column_id IN (1, 2) AND captured_at BETWEEN '2026-01-01' AND TIMESTAMP '2026-02-01 12:00:00'",
]
NOT_DIRECT = [
    "SELECT ndv FROM stats.columns WHERE column_name LIKE 'a%'",
    "SELECT ndv FROM stats.columns ORDER BY 1",
    "SELECT 1",
    "SELECT DISTINCT ndv FROM stats.columns",
    "SELECT count(*) FROM stats.columns",
    "SELECT ndv + 1 FROM stats.columns",
    "SELECT ndv, ndv FROM stats.columns",
    "SELECT ndv FROM stats.columns LIMIT 1 OFFSET 1",
    "SELECT ndv FROM stats.columns WHERE column_id = '1'",
    "SELECT nothing FROM stats.columns",
    "SELECT ndv FROM stats.columns WHERE ndv > column_id",
    "SELECT x.ndv FROM stats.columns c",
]


def test_simple_statements_are_read_directly_without_duckdb():
    assert all(plan.make(sql).direct for sql in DIRECT)
    assert not any(plan.make(sql).direct for sql in NOT_DIRECT)


def test_column_aliases_are_positional(sandbox):
    for sql in (
        "SELECT row_count FROM stats.tables AS t(row_count) WHERE row_count > 5",
        "SELECT x FROM stats.tables AS t(x, y) WHERE y = 'a' GROUP BY x",
        "SELECT * FROM (SELECT * FROM stats.tables AS t(row_count)) AS u WHERE row_count > 5",
    ):
        made = plan.make(sql)
        (source,) = made.sources
        assert made.direct is None
        assert list(source.columns) == FLIGHTS["stats.tables"].schema.names
    fields = naive(FLIGHTS["stats.tables"].schema)
    assert sandbox.schema(sandbox.cursor(), 'SELECT y FROM "t" AS t(x, y)', {"t": fields}, []) == pa.schema(
        {"y": pa.string()}
    )


def test_time_escapes_become_timestamps():
    day = Leaf("captured_at", Op.GTE, ("2026-01-01T00:00Z",))
    at = Leaf("captured_at", Op.LT, ("2026-05-01T12:30:00Z",))
    sql = "SELECT ndv FROM stats.columns WHERE captured_at >= {d '2026-01-01'} AND captured_at < {ts '2026-05-01 12:30:00'} AND ndv = ?"
    made = plan.make(sql)
    assert made.direct and made.sources[0].node.children[:2] == (day, at)
    assert made.parameters == (pa.float64(),)


def test_only_referenced_columns_are_read():
    made = plan.make(
        "SELECT count(*), upper(min) FROM stats.columns c JOIN stats.tables t USING (table_name) WHERE t.row_count > 1 GROUP BY 2"
    )
    assert [source.columns for source in made.sources] == [
        ("table_name", "row_count", "min"),
        ("table_name", "row_count"),
    ]
    assert plan.make("SELECT count(*) FROM stats.columns").sources[0].columns == ("snapshot_id",)


def test_parameter_types_follow_their_context():
    sql = (
        "SELECT CAST(? AS DOUBLE) FROM stats.columns WHERE column_name LIKE ? AND ? < column_id AND ndv BETWEEN ? AND ? AND"
        " captured_at IN (?) AND ndv_exact = (?) LIMIT ? OFFSET ?"
    )
    assert [str(type_) for type_ in plan.make(sql).parameters] == [
        "double",
        "string",
        "int64",
        "double",
        "double",
        "timestamp[us]",
        "bool",
        "int64",
        "int64",
    ]
    assert plan.make("SELECT '?', ?").parameters == (pa.string(),)
    assert plan.make("SELECT ndv FROM stats.columns WHERE column_id IN (?,?)").parameters == (pa.int64(), pa.int64())
    numbers = plan.make("SELECT ? + 1, 2.5 * -?, (? - ndv) FROM stats.columns WHERE column_id > ? + 1").parameters
    assert numbers == (pa.int64(), pa.float64(), pa.float64(), pa.int64())


# Conditions compared with DuckDB.

ROWS = pa.table(
    {
        "column_id": pa.array([1, 2, 3, None, 2**53 + 1, 7]),
        "ndv": pa.array([1.5, None, 3.0, 4.0, 0.0, -1.0]),
        "column_name": pa.array(["a", "b", None, "o'c", "", "é"]),
        "ndv_exact": pa.array([True, False, None, True, None, False]),
    }
)


@pytest.fixture(scope="module")
def duck():
    with duckdb.connect() as connection:
        connection.register("t", ROWS)
        yield connection


TERMS = st.sampled_from(
    [
        "column_id = 2",
        "column_id <> 2",
        "2 >= column_id",
        "column_id BETWEEN 2 AND 3",
        "column_id IN (1, 7)",
        "column_id NOT IN (1, 7)",
        "column_id IN (1, NULL)",
        "column_id = NULL",
        "column_id < 2.5",
        "column_id = 9007199254740993",
        "column_id > -1",
        "ndv > 1.5",
        "ndv = 3",
        "ndv IS NULL",
        "ndv IS NOT NULL",
        "ndv <= -1",
        "column_name = 'o''c'",
        "column_name < 'b'",
        "column_name IN ('a', '')",
        "ndv_exact",
        "ndv_exact = FALSE",
        "NOT ndv_exact",
        "column_name IS NULL",
    ]
)
CONDITIONS = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(CONDITIONS)
def test_direct_condition_selects_the_rows_of_duckdb(duck, condition):
    made = plan.make(f"SELECT column_id FROM stats.columns WHERE {condition}")
    assert made.direct
    (batch,) = ROWS.to_batches()
    kept = batch.take(to_arrow(made.sources[0].node, ROWS.schema)(batch))["column_id"].to_pylist()
    assert kept == [i for (i,) in duck.sql(f"SELECT column_id FROM t WHERE {condition}").fetchall()]


@pytest.mark.parametrize(
    ("column", "value", "bound"),
    [
        ("ndv_exact", 1, True),
        ("ndv_exact", 0, False),
        ("ndv_exact", 2, None),
        ("ndv", math.nan, None),
        ("row_count", math.nan, None),
        ("ndv", math.inf, "Infinity"),
        ("row_count", 1.5, 1.5),
        ("column_name", 10, None),
        ("column_name", date(2026, 1, 31), None),
        ("captured_at", 1.5, None),
        ("captured_at", date(2026, 1, 31), "2026-01-31T00:00Z"),
        ("column_id", True, None),
        ("min", "10", "10"),
        ("ndv", " 7 ", " 7 "),
    ],
)
def test_parameter_is_compared_as_in_duckdb_or_refused(column, value, bound):
    node = plan.make(f"SELECT ndv FROM stats.columns WHERE {column} < ?").sources[0].node
    with pytest.raises(BadLiteral, match=column) if bound is None else contextlib.nullcontext():
        assert pushdown.bind(node, [value]).values == (bound,)


# The sandbox that runs statements.


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/statflight_out'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '/tmp/statflight_x.db'",
        "SET memory_limit = '1TB'",
        "SET enable_external_access = true",
        "SELECT * FROM ROWS",
        "SELECT * FROM '/etc/passwd'",
    ],
)
def test_sandbox_blocks_files_extensions_and_settings(sandbox, sql):
    with pytest.raises(duckdb.Error):
        sandbox.cursor().sql(sql).fetchall()


def test_schema_of_a_statement_is_found_without_running_it(sandbox):
    sql = "SELECT cast(x AS INTEGER) AS y, x || '!' AS z FROM (VALUES ('no number')) t(x)"
    assert sandbox.schema(sandbox.cursor(), sql, {}, []) == pa.schema({"y": pa.int32(), "z": pa.string()})


def test_statement_memory_is_limited(monkeypatch):
    monkeypatch.setitem(_SETTINGS, "memory_limit", "32MiB")  # instead of many times as much, which takes seconds
    with contextlib.closing(Sandbox()) as sandbox:
        sql = "SELECT list(repeat('x', 10_000 + a.i::INT % 9)) FROM t a, t b"
        cursor, table = sandbox.cursor(), {"t": pa.table({"i": range(12_000)})}
        with pytest.raises(StatflightError, match="MiB of memory for statements"):
            list(sandbox.rows(cursor, sql, [], table, pa.schema([("list", pa.list_(pa.string()))])))
        assert sandbox.cursor().sql("SELECT 1").fetchall() == [(1,)]

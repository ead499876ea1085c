"""Kept columns: equal rows and results, until the next write, and dropped after their last reference."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.faces.sql import plan
from flight_server.faces.sql import sandbox as sandboxes
from flight_server.faces.sql.flights import naive
from flight_server.faces.sql.kept_tables import KeptTable, WholeColumns
from flight_server.faces.sql.sandbox import Sandbox
from store.model.errors import StatflightError
from store.model.schemas import FLIGHTS

ROWS = pa.table(
    {
        "few": pa.array(["b", None, "a", "é", "b", "", None, "a"] * 4),
        "many": [f"text {i}" for i in range(32)],
        "id": pa.array(range(32), pa.int64()),
        "ids": [[1, 2], None] * 16,
        "nothing": pa.nulls(32, pa.string()),
        "at": pa.array([None, 1] * 16, pa.timestamp("us")),
        "exact": [True, None] * 16,
    }
)


@pytest.fixture
def cursor():
    sandbox = Sandbox()
    cursor = sandbox.cursor()
    yield cursor, sandbox
    cursor.close()
    sandbox.close()


def test_kept_table_has_equal_rows_and_enum_types(cursor):
    cursor, sandbox = cursor
    kept = sandbox.keep(ROWS)
    assert cursor.sql(kept.query(as_text=True)).to_arrow_table().equals(ROWS)
    types = {name: str(type_) for name, type_, *_ in cursor.execute(f"DESCRIBE {kept.query(as_text=False)}").fetchall()}
    assert types.pop("few") == "ENUM('', 'a', 'b', 'é')"
    assert types["many"] == types["nothing"] == "VARCHAR" and types["ids"] == "BIGINT[]"
    assert kept.nbytes > 32 * 40


def test_empty_table_can_be_kept(cursor):
    cursor, sandbox = cursor
    kept = sandbox.keep(ROWS.schema.empty_table())
    assert cursor.sql(kept.query(as_text=True)).to_arrow_table().equals(ROWS.schema.empty_table())


def test_kept_table_without_a_reference_is_dropped_by_the_next_statement(cursor):
    cursor, sandbox = cursor
    kept, other = sandbox.keep(ROWS), sandbox.keep(ROWS)
    cursor.execute(f"CREATE TEMP VIEW v AS {kept.query(as_text=True)}")
    assert cursor.execute("SELECT count(*) FROM v").fetchall() == [(32,)]
    del kept
    sandbox.cursor().close()
    tables, types = (
        "SELECT count(*) FROM duckdb_tables()",
        "SELECT count(*) FROM duckdb_types() WHERE schema_name LIKE 'kept%'",
    )
    assert [cursor.execute(sql).fetchall() for sql in (tables, types)] == [[(1,)], [(1,)]]
    assert cursor.sql(other.query(as_text=True)).to_arrow_table().equals(ROWS)


def test_table_beyond_the_memory_limit_is_not_kept(monkeypatch):
    monkeypatch.setitem(sandboxes._SETTINGS, "memory_limit", "3MiB")
    sandbox = Sandbox()
    assert sandbox.keep(pa.table({"id": pa.array(range(2_000_000), pa.int64())})) is None
    assert sandbox.keep(pa.table({"id": [1]})).num_rows == 1
    sandbox.close()


KEY = ("stats.columns", "current", ("table_name", "ndv"))


def test_columns_are_cached_until_a_write():
    epoch, reads = [1], []

    def read(most):
        reads.append(most)
        return ROWS.slice(0)

    cache = WholeColumns(lambda: epoch[0], 1 << 20)
    first = cache.get(KEY, read)
    assert first.equals(ROWS)
    assert cache.get(KEY, read) is first and reads == [1 << 20]
    epoch[0] = 2
    assert cache.get(KEY, read) is not first and len(reads) == 2


def test_write_during_the_read_prevents_caching():
    epoch = [1]

    def read(_):
        epoch[0] += 1
        return ROWS.slice(0)

    cache = WholeColumns(lambda: epoch[0], 1 << 20)
    assert cache.get(KEY, read) is not cache.get(KEY, read)


def test_oversized_columns_are_read_only_once():
    reads = []
    cache = WholeColumns(lambda: 1, 100)
    assert [cache.get(KEY, lambda most: reads.append(most)) for _ in range(6)] == [None] * 6
    assert reads == [100]


# Statements over kept columns, whose texts are ENUMs.

TEXTS = [
    None,
    "",
    "a",
    "A",
    "b",
    "é",
    "z",
    "zz",
    "a longer text than twelve bytes",
    "a longer text than twelve byte",
    "\U0001f600",
    "10",
    "9",
]
SOME = {
    "table_name": [TEXTS[i * 7 % 13] for i in range(400)],
    "column_name": [TEXTS[i * i % 11] for i in range(400)],
    "column_id": range(400),
    "ndv": [None if i % 17 == 0 else float(i % 29) for i in range(400)],
}
FIELDS = naive(FLIGHTS["stats.columns"].schema)
COLUMNS = pa.table([pa.array(SOME.get(field.name, [None] * 400), field.type) for field in FIELDS], FIELDS)

ALIASES = ("columns.", "COLUMNS.", "")
names = st.sampled_from(["table_name", "column_name", '"table_name"', "Column_Name"])
column = st.builds("{}{}".format, st.sampled_from(ALIASES), names)
key = st.one_of(column, column, column, st.sampled_from(["column_id % 3", "upper(column_name)", "1", "2", "ndv"]))
measure = st.one_of(
    st.sampled_from(
        [
            "count(*)",
            "max(ndv)",
            "min(column_id)",
            "sum(column_id) FILTER (WHERE ndv > 3)",
            "sum(count(*)) OVER ()",
            "'b'",
        ]
    ),
    st.builds(
        "{}{})".format, st.sampled_from(["count(", "count(DISTINCT ", "max(", "min(", "lower(", "any_value("]), column
    ),
    st.builds("CASE WHEN {} = 'a' THEN 1 ELSE 0 END".format, column),
    st.builds("coalesce({}, 'none')".format, column),
)
shown = st.builds(
    "{}{}".format, st.one_of(column, column, measure), st.sampled_from(["", "", "", " AS x", " AS table_name", " AS y"])
)
condition = st.one_of(
    st.sampled_from(["", "", "", "ndv > 5", "column_id < 300"]),
    st.builds(
        "{} {}".format, column, st.sampled_from(["IS NOT NULL", "> 'a'", "LIKE '%a%'", "IN ('a', 'é')", "= table_name"])
    ),
)
having = st.one_of(st.sampled_from(["", "", "", "count(*) > 3"]), st.builds("{} < 'b'".format, column))
order = st.lists(
    st.builds(
        "{}{}".format,
        st.one_of(column, st.sampled_from(["1", "2", "x", "count(*)"])),
        st.sampled_from(["", " DESC", " NULLS FIRST"]),
    ),
    max_size=2,
)


def clause(word: str, text: str) -> str:
    return f" {word} {text}" if text else ""


any_select = st.builds(
    lambda distinct, shown, where, keys, having, order: (
        f"SELECT {distinct}{', '.join(shown)} FROM stats.columns{clause('WHERE', where)}"
        f"{clause('GROUP BY', ', '.join(keys))}{clause('HAVING', having)}{clause('ORDER BY', ', '.join(order))}"
    ),
    st.sampled_from(["", "", "", "DISTINCT "]),
    st.lists(shown, min_size=1, max_size=3),
    condition,
    st.one_of(st.lists(key, min_size=1, max_size=3), st.just(["ALL"])),
    having,
    order,
)


@st.composite
def grouping(draw: st.DrawFn) -> str:
    """A SELECT that usually has group keys, in a fully determined order."""
    keys = draw(st.lists(st.sampled_from(["table_name", "column_name"]), min_size=1, max_size=2, unique=True))

    def named(name: str) -> str:
        return draw(st.sampled_from(ALIASES)) + draw(st.sampled_from([name, name.upper(), f'"{name}"']))

    measures = [
        "count(*) AS n",
        "max(ndv) m",
        "sum(sum(column_id)) OVER ()",
        *(f"count({name})" for name in keys),
        *(f"count(DISTINCT {name}) AS d" for name in keys),
        "min(upper(logical_type))",
    ]
    shown = [f"{named(name)}{draw(st.sampled_from(['', f' AS {name}', ' AS x', ' AS logical_type']))}" for name in keys]
    by = [str(at) if draw(st.booleans()) else named(name) for at, name in enumerate(keys, 1)]
    end = draw(st.sampled_from(["", " DESC", " NULLS FIRST"]))
    return (
        f"SELECT {draw(st.sampled_from(['', 'DISTINCT ']))}{', '.join([*shown, *draw(st.lists(st.sampled_from(measures), max_size=2))])} "
        f"FROM stats.columns{draw(st.sampled_from(['', ' WHERE ndv > 5', ' WHERE column_id = 7']))} GROUP BY {', '.join(by)}"
        f"{draw(st.sampled_from(['', ' HAVING count(*) > 9']))} ORDER BY {', '.join(named(name) + end for name in keys)}"
    )


select = st.one_of(any_select, grouping())
statement = st.one_of(
    any_select,
    grouping(),
    grouping(),
    st.builds("SELECT * FROM ({}) t".format, select),
    st.builds("SELECT t.*, count(*) OVER () FROM ({}) t WHERE {} <> 'z'".format, select, names),
    st.builds(
        "WITH t AS ({}) SELECT count(*), max({}) FROM t".format,
        select,
        st.sampled_from(["x", "table_name", "column_name"]),
    ),
    st.builds("({}) {} ({})".format, select, st.sampled_from(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]), select),
    st.builds(
        "SELECT * FROM ({}) a {} JOIN ({}) b USING (table_name)".format, select, st.sampled_from(["", "LEFT"]), select
    ),
    st.builds("SELECT * FROM ({}) a NATURAL JOIN ({}) b".format, select, select),
)


def run(sandbox: Sandbox, made: plan.Plan, schema: pa.Schema, tables: dict[str, pa.Table | KeptTable]) -> pa.Table:
    cursor = sandbox.cursor()
    try:
        return pa.Table.from_batches(sandbox.rows(cursor, made.sql, (), tables, schema), schema)
    finally:
        cursor.close()


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


@settings(suppress_health_check=list(HealthCheck))
@given(statement)
def test_enums_never_change_a_result(sandbox, sql):
    made = plan.make(sql)
    plain = {source.label: COLUMNS.select(source.columns) for source in made.sources}
    kept = {label: sandbox.keep(table) for label, table in plain.items()}
    try:
        empty = {label: table.schema for label, table in plain.items()}
        schema = naive(sandbox.schema(sandbox.cursor(), made.typed_sql, empty, []))
        expected = run(sandbox, made, schema, plain)
    except StatflightError:
        return
    found = run(sandbox, made, schema, kept)
    assert sorted(map(repr, rows_of(found))) == sorted(map(repr, rows_of(expected))), sql
    if sql.startswith("SELECT") and " ORDER BY table_name" in sql and sql.count("SELECT") == 1:
        assert rows_of(found) == rows_of(expected), sql


@pytest.mark.parametrize(
    "shown",
    [
        "coalesce(table_name, 'none')",
        "nullif(table_name, 'q')",
        "lag(table_name, 1, 'none') OVER (ORDER BY column_id)",
        "list(table_name ORDER BY column_id)",
        "greatest(table_name, 'zz')",
        "table_name = column_name",
        "table_name < column_name",
        "table_name BETWEEN 'A' AND 'c'",
        "table_name IN ('q', 'a')",
        "CASE WHEN ndv > 9 THEN table_name ELSE column_name END",
        "CASE table_name WHEN 'q' THEN 1 END",
        "try_cast(table_name AS INTEGER)",
        "min(table_name) OVER ()",
        "mode(table_name) OVER ()",
        "table_name || column_name",
        "string_agg(table_name, ',') OVER (ORDER BY column_id)",
        "(SELECT max(t.table_name) FROM stats.columns t)",
        "first_value(table_name) OVER (ORDER BY table_name DESC NULLS LAST, column_id)",
        "rank() OVER (ORDER BY table_name)",
        "array_agg(DISTINCT table_name ORDER BY table_name)",
        "table_name IN (SELECT column_name FROM stats.columns)",
        "ifnull(table_name, column_name)",
        "quantile_disc(table_name, 0.5)",
        "arg_max(table_name, column_id)",
    ],
)
def test_expressions_of_enums_have_the_values_of_texts(sandbox, shown):
    test_enums_never_change_a_result.hypothesis.inner_test(sandbox, f"SELECT {shown} AS x FROM stats.columns")

"""Columns grouped as ENUMs: their choice, and equal results with and without them."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.sql import group_keys, plan
from flight_server.sql.flights import naive
from flight_server.sql.sandbox import Sandbox, View
from store.model.errors import StatflightError
from store.model.schemas import FLIGHTS

KEYS = {
    "SELECT table_name, count(*) FROM stats.columns WHERE ndv > 1 GROUP BY table_name": {"table_name"},
    'SELECT "c"."table_name" AS "table_name", max(ndv) FROM stats.columns c GROUP BY 1 ORDER BY c.table_name DESC': {"table_name"},
    "SELECT TABLE_NAME x, column_name, table_name FROM stats.columns GROUP BY Table_Name, 2 ORDER BY x": {"table_name", "column_name"},
    "SELECT count(table_name), count(DISTINCT column_name) FROM stats.columns GROUP BY table_name, column_name": {"table_name", "column_name"},
    "SELECT * FROM (SELECT table_name, max(ndv) m FROM stats.columns GROUP BY table_name) t WHERE m > 1": {"table_name"},
    "WITH x AS (SELECT column_name FROM stats.columns GROUP BY 1) SELECT * FROM x UNION ALL SELECT table_name FROM stats.tables": {"column_name"},
    "SELECT DISTINCT table_name, count(*) FROM stats.columns GROUP BY table_name, column_name ORDER BY table_name": {"table_name", "column_name"},
}  # fmt: skip
NO_KEYS = [
    "SELECT table_name FROM stats.columns", "SELECT count(DISTINCT table_name) FROM stats.columns",
    "SELECT table_name FROM stats.columns GROUP BY table_name HAVING table_name > 'a'",
    "SELECT table_name FROM stats.columns WHERE table_name LIKE 'a%' GROUP BY table_name",
    "SELECT upper(table_name) FROM stats.columns GROUP BY table_name", "SELECT max(table_name) FROM stats.columns GROUP BY table_name",
    "SELECT table_name FROM stats.columns GROUP BY table_name ORDER BY lower(table_name)",
    "SELECT lower(column_name) AS table_name FROM stats.columns GROUP BY table_name, column_name ORDER BY column_name || 'a'",
    "SELECT table_name FROM (SELECT table_name FROM stats.columns GROUP BY table_name) t", "SELECT * FROM stats.columns GROUP BY ALL",
    "SELECT table_name, row_number() OVER (PARTITION BY table_name) FROM stats.columns GROUP BY table_name",
    "SELECT c.table_name FROM stats.columns c, sys.flights GROUP BY c.table_name", "SELECT max(c), table_name FROM stats.columns c GROUP BY table_name",
    "SELECT table_name FROM stats.columns AS t(table_name) GROUP BY table_name", "SELECT column_id FROM stats.columns GROUP BY column_id",
    "SELECT table_name, (SELECT count(*) FROM sys.flights WHERE name = table_name) FROM stats.columns GROUP BY table_name",
    "SELECT table_name FROM stats.columns GROUP BY table_name UNION SELECT table_name FROM stats.columns GROUP BY table_name",
    "SELECT table_name FROM stats.columns GROUP BY 2", "SELECT coalesce(table_name, 'none') FROM stats.columns GROUP BY table_name",
]  # fmt: skip


def test_group_keys_are_found_where_they_are_safe():
    for sql, keys in KEYS.items():
        assert frozenset().union(*(source.keys for source in plan.make(sql).sources)) == keys, sql
    for sql in NO_KEYS:
        assert not any(source.keys for source in plan.make(sql).sources), sql


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


TEXTS = [None, "", "a", "A", "b", "é", "z", "zz", "a longer text than twelve bytes", "a longer text than twelve byte", "\U0001f600", "10", "9"]  # fmt: skip
SOME = {
    "table_name": [TEXTS[i * 7 % 13] for i in range(400)], "column_name": [TEXTS[i * i % 11] for i in range(400)],
    "column_id": range(400), "ndv": [None if i % 17 == 0 else float(i % 29) for i in range(400)],
}  # fmt: skip
FIELDS = naive(FLIGHTS["stats.columns"].schema)
ROWS = pa.table([pa.array(SOME.get(field.name, [None] * 400), field.type) for field in FIELDS], FIELDS)

ALIASES = ("columns.", "COLUMNS.", "")
names = st.sampled_from(["table_name", "column_name", '"table_name"', "Column_Name"])
column = st.builds("{}{}".format, st.sampled_from(ALIASES), names)
key = st.one_of(column, column, column, st.sampled_from(["column_id % 3", "upper(column_name)", "1", "2", "ndv"]))
measure = st.one_of(
    st.sampled_from(["count(*)", "max(ndv)", "min(column_id)", "sum(column_id) FILTER (WHERE ndv > 3)", "sum(count(*)) OVER ()", "'b'"]),
    st.builds("{}{})".format, st.sampled_from(["count(", "count(DISTINCT ", "max(", "min(", "lower(", "any_value("]), column),
    st.builds("CASE WHEN {} = 'a' THEN 1 ELSE 0 END".format, column),
    st.builds("coalesce({}, 'none')".format, column),
)  # fmt: skip
shown = st.builds(
    "{}{}".format, st.one_of(column, column, measure), st.sampled_from(["", "", "", " AS x", " AS table_name", " AS y"])
)
condition = st.one_of(
    st.sampled_from(["", "", "", "ndv > 5", "column_id < 300"]),
    st.builds("{} {}".format, column, st.sampled_from(["IS NOT NULL", "> 'a'", "LIKE '%a%'", "IN ('a', 'é')", "= table_name"])),
)  # fmt: skip
having = st.one_of(st.sampled_from(["", "", "", "count(*) > 3"]), st.builds("{} < 'b'".format, column))
order = st.lists(st.builds("{}{}".format, st.one_of(column, st.sampled_from(["1", "2", "x", "count(*)"])),
                           st.sampled_from(["", " DESC", " NULLS FIRST"])), max_size=2)  # fmt: skip


def clause(word: str, text: str) -> str:
    return f" {word} {text}" if text else ""


any_select = st.builds(
    lambda distinct, shown, where, keys, having, order: (
        f"SELECT {distinct}{', '.join(shown)} FROM stats.columns{clause('WHERE', where)}"
        f"{clause('GROUP BY', ', '.join(keys))}{clause('HAVING', having)}{clause('ORDER BY', ', '.join(order))}"
    ),
    st.sampled_from(["", "", "", "DISTINCT "]), st.lists(shown, min_size=1, max_size=3), condition,
    st.one_of(st.lists(key, min_size=1, max_size=3), st.just(["ALL"])), having, order,
)  # fmt: skip


@st.composite
def grouping(draw: st.DrawFn) -> str:
    """A SELECT that usually has group keys, in a fully determined order."""
    keys = draw(st.lists(st.sampled_from(["table_name", "column_name"]), min_size=1, max_size=2, unique=True))

    def named(name: str) -> str:
        return draw(st.sampled_from(ALIASES)) + draw(st.sampled_from([name, name.upper(), f'"{name}"']))

    measures = ["count(*) AS n", "max(ndv) m", "sum(sum(column_id)) OVER ()", *(f"count({name})" for name in keys),
                *(f"count(DISTINCT {name}) AS d" for name in keys), "min(upper(logical_type))"]  # fmt: skip
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
    any_select, grouping(), grouping(),
    st.builds("SELECT * FROM ({}) t".format, select),
    st.builds("SELECT t.*, count(*) OVER () FROM ({}) t WHERE {} <> 'z'".format, select, names),
    st.builds("WITH t AS ({}) SELECT count(*), max({}) FROM t".format, select, st.sampled_from(["x", "table_name", "column_name"])),
    st.builds("({}) {} ({})".format, select, st.sampled_from(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]), select),
    st.builds("SELECT * FROM ({}) a {} JOIN ({}) b USING (table_name)".format, select, st.sampled_from(["", "LEFT"]), select),
    st.builds("SELECT * FROM ({}) a NATURAL JOIN ({}) b".format, select, select),
)  # fmt: skip


def run(sandbox: Sandbox, made: plan.Plan, rows: dict[str, pa.Table | View]) -> pa.Table:
    fields = {s.label: naive(pa.schema([s.table.flight.schema.field(n) for n in s.columns])) for s in made.sources}
    schema = naive(sandbox.schema(sandbox.cursor(), made.typed_sql, fields, []))
    cursor = sandbox.cursor()
    try:
        return pa.Table.from_batches(sandbox.rows(cursor, made.sql, (), rows, schema), schema)
    finally:
        cursor.close()


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_enum_group_keys_never_change_a_result(sandbox):
    grouped = []

    @given(statement)
    @settings(suppress_health_check=list(HealthCheck))
    def check(sql):
        made = plan.make(sql)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_keys, "separate", lambda *_: frozenset())
            plain = plan.make(sql)
        in_order = sql.startswith("SELECT") and " ORDER BY table_name" in sql and sql.count("SELECT") == 1
        try:
            expected = run(sandbox, plain, {source.label: ROWS.select(source.columns) for source in plain.sources})
        except StatflightError:
            with pytest.raises(StatflightError):
                run(sandbox, made, {source.label: ROWS.select(source.columns) for source in made.sources})
            return
        for cached in (False, True):
            rows = {source.label: ROWS.select(source.columns) for source in made.sources}
            if cached:
                tables = {source.columns: sandbox.keep(ROWS.select(source.columns)) for source in made.sources}
                rows = {source.label: View(tables[source.columns], source.keys) for source in made.sources}
            found = run(sandbox, made, rows)
            assert found.schema.equals(expected.schema), sql
            assert sorted(map(repr, rows_of(found))) == sorted(map(repr, rows_of(expected))), sql
            if in_order:
                assert rows_of(found) == rows_of(expected), sql
        grouped.append(any(source.keys for source in made.sources))

    check()
    assert sum(grouped) > len(grouped) / 5

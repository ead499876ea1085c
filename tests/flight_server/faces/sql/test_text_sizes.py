"""Limits of the texts and patterns of statements, which DuckDB would compute without looking for an interruption."""

# ruff: noqa: E501  statements are read more easily on one line

from __future__ import annotations

import pytest

from flight_server.faces.sql import language, text_sizes
from store.model.errors import InvalidArgument

LONG = "'" + "a" * 20_000 + "'"
FILES = "FROM stats.files"


def ctes(head: str, step: str, levels: int = 22) -> str:
    return f"WITH c0{head}" + "".join(f", c{i}{step.format(i - 1)}" for i in range(1, levels))


LARGE = {
    "replace": f"SELECT length(replace({LONG}, 'a', {LONG}))",
    "replace of a column": f"SELECT replace(file_path, 'a', {LONG}) {FILES}",
    "regexp_replace": f"SELECT length(regexp_replace({LONG}, 'a', {LONG}, 'g'))",
    "groups of regexp_replace": "SELECT regexp_replace(regexp_replace('"
    + "a" * 2000
    + r"', '(.*)', '"
    + r"\1" * 1000
    + "'), 'b', 'c')",
    "CTEs": ctes(" AS (SELECT 'aaaaaaaaaaaaaaaa' AS x)", " AS (SELECT x || x AS x FROM c{})")
    + " SELECT length(x) FROM c21",
    "columns by position": ctes("(x) AS (SELECT 'aaaaaaaaaaaaaaaa')", "(x) AS (SELECT x || x FROM c{})")
    + " SELECT length(x) FROM c21",
    "columns of VALUES": f"SELECT replace(x, 'a', x) FROM (VALUES ({LONG})) t(x)",
    "aliases beside each other": "SELECT 'aaaaaaaaaa' AS x0"
    + "".join(f", x{i} || x{i} AS x{i + 1}" for i in range(30)),
    "a column of another branch": f"SELECT replace(q, 'a', q) FROM (SELECT 'x' AS q UNION ALL SELECT {LONG}) t",
    "unnamed columns": f'SELECT replace("(x || x)", \'a\', "(x || x)") FROM (SELECT x || x FROM (VALUES ({LONG})) t(x)) u',
    "a scalar subquery": f"SELECT replace({LONG}, 'a', (SELECT {LONG} || 'b'))",
    "concat_ws": f"SELECT concat_ws({LONG}, {', '.join(['1'] * 100)})",
    "a format": f"SELECT strftime(strftime(current_timestamp, {LONG}), {LONG})",
    "many": "SELECT " + ", ".join(f"replace('{'a' * 800}', 'a', '{'b' * 1000}{i}')" for i in range(30)),
}


@pytest.mark.parametrize("sql", LARGE.values(), ids=LARGE)
def test_texts_that_grow_without_bound_are_refused(sql: str):
    with pytest.raises(InvalidArgument, match=r"texts of more than \d+ bytes"):
        text_sizes.check(language.parse(sql))


PATTERNS = {
    "SELECT regexp_matches('a', '((a?){100}){50}')": "has 15",
    "SELECT regexp_replace(file_path, '(.?){1000}(.?){1000}', '') FROM stats.files": "has 60",
    "SELECT file_path ~ table_name FROM stats.files": "must be a constant",
    "SELECT regexp_extract(file_path, ?) FROM stats.files": "must be a constant",
    "SELECT "
    + " || ".join(f"regexp_extract('{'a' * 700}', '(.?){{300}}{i}')" for i in range(80)): "too large for their texts",
}


@pytest.mark.parametrize(("sql", "reason"), PATTERNS.items())
def test_large_patterns_are_refused(sql: str, reason: str):
    with pytest.raises(InvalidArgument, match=reason):
        text_sizes.check(language.parse(sql))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT replace(file_path, 's3://', '') || '/' || upper(table_name) AS p FROM stats.files WHERE regexp_matches(file_path, '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}')",
        "SELECT upper(a || a) AS a, b || a AS b, 1 AS c, 2 AS d, 3 AS e FROM (VALUES ('x', 'y')) t(a, b)",
        "SELECT 'x' AS q UNION ALL SELECT replace('aaaa', 'a', table_name) FROM stats.tables",
        "SELECT x || x AS x FROM (SELECT x || x AS x FROM (SELECT table_name AS x FROM stats.tables) a) b",
        "SELECT count(*) FROM stats.columns WHERE " + " AND ".join(f"column_name <> 'c{i}'" for i in range(1500)),
        "SELECT strftime(captured_at, '%Y-%m-%d') || '!', concat_ws(', ', table_catalog, table_schema, table_name) FROM stats.tables",
        "SELECT string_agg(column_name, ', ') FROM stats.columns GROUP BY table_name",
        "SELECT regexp_extract(file_path, '(\\d{4})-(\\d{2})', 1), replace(file_path, table_name, column_name) FROM stats.file_columns",
    ],
)
def test_ordinary_statements_are_allowed(sql: str):
    text_sizes.check(language.parse(sql))


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("", 0),
        ("abc", 3),
        ("a{5}", 5),
        ("a{2,7}", 7),
        ("a{3,}", 3),
        ("(ab){10}", 30),
        ("(a{10}){10}", 110),
        (r"a\{5}", 4),
        (r"\d{4}", 4),
        ("x{y}", 4),
        ("x{", 2),
        ("a{0}", 1),
        ("a*{3}", 4),
        (")", 1),
        ("((", 2),
    ],
)
def test_repetitions_count(pattern: str, steps: int):
    assert text_sizes.pattern_steps(pattern) == steps

"""Databases of every released layout open with all that was in them."""

from __future__ import annotations

import json
from collections import Counter

import duckdb
import pytest

from store.duckdb.backup import wal
from store.duckdb.database import Database
from store.duckdb.layout import OLDEST, VERSION
from store.duckdb.upgrades import STEPS
from store.invariants import check_file
from tests.layouts import LAYOUTS, Rows, expected, readings, serving, unpack
from tests.store.empty_store import empty_store


def test_every_layout_has_a_step_and_a_database():
    assert list(STEPS) == list(range(OLDEST, VERSION))
    assert set(STEPS) <= set(LAYOUTS) <= {*STEPS, VERSION}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_flight_has_the_rows_that_it_had(tmp_path, layout):
    with serving(unpack(layout, tmp_path)) as app:
        found = readings(app)
    for name, before in expected(layout).items():
        columns = list(before[0]) if before else []  # later columns may have been added
        now = _counted([{column: row[column] for column in columns} for row in found[name]] if columns else found[name])
        assert now == _counted(before), name


def _counted(rows: Rows) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_wrong_in_an_upgraded_database(tmp_path, layout):
    path = unpack(layout, tmp_path)
    assert list(check_file(path)) == []  # of a copy
    assert wal(path).exists()
    Database(path).close()
    assert list(check_file(path)) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_upgraded_file_has_the_tables_of_a_new_one(tmp_path, layout):
    path = unpack(layout, tmp_path)
    Database(path).close()
    assert _tables(path) == _tables(empty_store(tmp_path / "new.duckdb"))


def _tables(path):
    """Columns in their order, by table and view; and the definition of each, without the forms in which DuckDB stores
    columns: a file keeps those that it was made with, and they are read alike."""
    with duckdb.connect(str(path), read_only=True) as connection:
        columns = connection.execute(
            "SELECT table_name, list((column_name, data_type, is_nullable, column_default) ORDER BY column_index)"
            " FROM duckdb_columns() WHERE NOT internal GROUP BY 1 ORDER BY 1"
        ).fetchall()
        tables = connection.execute(
            "SELECT table_name, regexp_replace(sql, ' USING COMPRESSION \\w+', '', 'g') FROM duckdb_tables() ORDER BY 1"
        ).fetchall()
        views = connection.execute("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY 1").fetchall()
        return columns, tables, views

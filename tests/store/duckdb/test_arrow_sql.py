"""Arrow tables and values as parameters of SQL."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from store.duckdb.arrow_sql import execute, query, query_few


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 300])
def test_tables_and_values_are_bound_for_one_statement(rows: int):
    table = pa.table({
        "key": pa.array(range(rows), pa.int64()),
        "text": pa.array([None if n % 3 == 2 else f"it's {{{n}}} \0 \"$x\"" for n in range(rows)], pa.string()),
        "flag": pa.array([[True, None, False][n % 3] for n in range(rows)], pa.bool_()),
    })  # fmt: skip
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE kept (key BIGINT, text VARCHAR, flag BOOLEAN, word VARCHAR)")
        execute(
            connection, "INSERT INTO kept SELECT key, text, flag, $word FROM {source}", {"word": "{}"}, source=table
        )
        found = query(connection, "SELECT k.* FROM {source} m JOIN kept k ON k.key = m.key ORDER BY 1", source=table)
        assert found.drop_columns("word").to_pylist() == table.to_pylist()
        assert set(found["word"].to_pylist()) <= {"{}"}
        with pytest.raises(duckdb.CatalogException):
            connection.execute("SELECT * FROM _arrow_1")


@pytest.mark.parametrize("rows", [0, 1, 30])
def test_query_few_returns_the_rows_of_query(rows: int):
    schema = pa.schema([("key", pa.int64()), ("flag", pa.bool_()), ("text", pa.string())])
    table = pa.table([
        pa.array(range(rows), pa.int64()), pa.array([n % 2 == 0 for n in range(rows)], pa.bool_()),
        pa.array([None if n % 3 else str(n) for n in range(rows)], pa.string()),
    ], schema)  # fmt: skip
    with duckdb.connect() as connection:
        found = query_few(connection, "SELECT * FROM {source} ORDER BY key", schema, source=table)
        assert found.equals(query(connection, "SELECT * FROM {source} ORDER BY key", source=table))
        assert found.schema == schema

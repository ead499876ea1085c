"""Arrow tables and values as parameters of SQL."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from store.duckdb.arrow_sql import execute, query


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 300])
def test_tables_and_values_are_bound_for_one_statement(rows: int):
    table = pa.table(
        {
            "key": pa.array(range(rows), pa.int64()),
            "text": pa.array([None if n % 3 == 2 else f'it\'s {{{n}}} \0 "$x"' for n in range(rows)], pa.string()),
            "flag": pa.array([[True, None, False][n % 3] for n in range(rows)], pa.bool_()),
        }
    )
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

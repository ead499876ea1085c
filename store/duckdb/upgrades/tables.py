"""Changes of tables that more than one step makes."""

from __future__ import annotations

import duckdb


def rebuild(connection: duckdb.DuckDBPyConnection, table: str, ddl: str) -> None:
    """Gives a table other columns, or its columns another order; rows keep theirs. Views of it have to be made again.

    Args:
        table: Name of the table.
        ddl: The statement that creates the table as it is to be. Columns that the table lacks are null, those that it
            has in addition are gone.
    """
    connection.execute(f"ALTER TABLE {table} RENAME TO former")
    connection.execute(ddl)
    kept = connection.execute(
        "SELECT c.column_name FROM duckdb_columns() c JOIN duckdb_columns() f ON f.column_name = c.column_name"
        " WHERE c.table_name = ? AND f.table_name = 'former' ORDER BY c.column_index",
        [table],
    ).fetchall()
    names = ", ".join(f'"{name}"' for (name,) in kept)
    connection.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM former")
    connection.execute("DROP TABLE former")

"""Arrow tables as views of a DuckDB connection."""

from __future__ import annotations

import pyarrow as pa

from store.layout import Connection


class view:  # noqa: N801  a context manager that reads like a function
    """Arrow tables as views of a connection, by name, while the block runs."""

    def __init__(self, connection: Connection, **tables: pa.Table):
        self.connection, self.tables = connection, tables

    def __enter__(self) -> None:
        for name, table in self.tables.items():
            self.connection.register(name, table)

    def __exit__(self, *_: object) -> None:
        for name in self.tables:
            self.connection.unregister(name)

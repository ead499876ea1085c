"""Arrow tables as views of a DuckDB connection."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

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


_FEW_ROWS: Final = 4  # up to which parameters cost a third of what a view does
_SQL_TYPES: Final = {pa.int64(): "BIGINT", pa.string(): "VARCHAR", pa.bool_(): "BOOLEAN"}


def execute(connection: Connection, sql: str, given: Mapping[str, Any] | None = None, **tables: pa.Table) -> None:
    """Runs a statement over Arrow tables: a few rows become parameters, more become a view.

    Args:
        connection: A connection.
        sql: The statement, with `$name` for values, and `{name}` for a table where a FROM clause names it.
        given: The values by name.
        tables: The tables by name; of columns of int64, string and bool.
    """
    with ExitStack() as stack:
        text, parameters = _bound(stack, connection, sql, given or {}, tables)
        connection.execute(text, parameters)


def query(connection: Connection, sql: str, given: Mapping[str, Any] | None = None, **tables: pa.Table) -> pa.Table:
    """Reads the rows of a query; its arguments are those of `execute`."""
    with ExitStack() as stack:
        text, parameters = _bound(stack, connection, sql, given or {}, tables)
        return connection.sql(text, params=parameters).to_arrow_table()


def _bound(
    stack: ExitStack, connection: Connection, sql: str, given: Mapping[str, Any], tables: Mapping[str, pa.Table]
) -> tuple[str, dict[str, Any]]:
    """The SQL with its tables, as views of the stack or as values, and all parameters."""
    parameters, relations = dict(given), {}
    for name, table in tables.items():
        if table.num_rows > _FEW_ROWS or not table.num_rows:
            stack.enter_context(view(connection, **{name: table}))
            relations[name] = name
            continue
        types = [_SQL_TYPES[type_] for type_ in table.schema.types]
        rows = []
        for number, row in enumerate(table.to_pylist()):
            keys = [f"{name}_{number}_{place}" for place in range(len(types))]
            parameters |= dict(zip(keys, row.values(), strict=True))
            rows.append(f"({', '.join(f'${key}::{type_}' for key, type_ in zip(keys, types, strict=True))})")
        columns = ", ".join(f'"{column}"' for column in table.column_names)
        relations[name] = f"(VALUES {', '.join(rows)}) {name}({columns})"
    return sql.format(**relations), parameters

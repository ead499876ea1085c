"""SQL statements that read Arrow tables, and conditions made from Arrow values."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from store.duckdb.layout import Connection

Given: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""Values of a statement, by name or in order."""

# A copy of the result costs less than to parse and bind the statement twice, as DuckDB recommends.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning, re.escape(__name__))

# DuckDB resolves an unknown table name to a local variable of the function that runs the statement. Registering a view
# instead would cost as much as a small statement.
_VARIABLES = ("_arrow_1", "_arrow_2", "_arrow_3")
LITERALS = 16  # at most that many values are written into a condition
_FEW_ROWS = 64  # at most that many row ids are written into a condition


class OverArrow(ABC):
    """Takes the place of a connection, and gets the Arrow tables that a statement reads."""

    @abstractmethod
    def execute(self, sql: str, given: Any = None, tables: Mapping[str, pa.Table] = MappingProxyType({})) -> Any:
        """Runs a statement.

        Args:
            tables: Name in the statement → table; they are variables of the function that calls this one, too.
        """


def execute(connection: Connection, sql: str, given: Given | None = None, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """Runs a statement over Arrow tables.

    Args:
        sql: The statement, with `$name` or `?` for values and `{name}` for tables.
        tables: Up to three tables by name.
    """
    _arrow_1, _arrow_2, _arrow_3 = _three(tables)
    if isinstance(connection, OverArrow):
        named = dict(zip(_VARIABLES, tables.values(), strict=False))
        return connection.execute(_named(sql, tables), given, named).fetchall()
    return connection.execute(_named(sql, tables), given).fetchall()


def query(connection: Connection, sql: str, given: Given | None = None, **tables: pa.Table) -> pa.Table:
    """The rows of a query; the arguments are those of `execute`."""
    _arrow_1, _arrow_2, _arrow_3 = _three(tables)
    return answer_of(connection.execute(_named(sql, tables), given))  # `sql` would parse and bind it twice


def answer_of(executed: Connection) -> pa.Table:
    """The rows of the statement that a connection has run."""
    return executed.to_arrow_table()


def _three(tables: Mapping[str, pa.Table]) -> tuple[pa.Table | None, pa.Table | None, pa.Table | None]:
    first, second, third, *more = [*tables.values(), None, None, None]
    assert more == [None] * len(tables), "more than three tables"
    return first, second, third


def _named(sql: str, tables: Mapping[str, pa.Table]) -> str:
    """The SQL with `{name}` replaced by the local variables of the tables."""
    return sql.format(**dict(zip(tables, _VARIABLES, strict=False))) if tables else sql


def quoted(text: str) -> str:
    """SQL of a text."""
    return "'" + text.replace("'", "''") + "'"


def tuple_of(values: pa.ChunkedArray | pa.Array) -> str:
    """SQL of integers as a list in parentheses."""
    return f"({', '.join(str(int(value)) for value in values.to_pylist())})"


def rowid_in(rids: pa.ChunkedArray, table: str) -> str:
    """A condition that selects rows by id: with few ids a list of literals, else a subquery of the Arrow table
    `doomed`, which must have them in a column `rid`.

    Args:
        rids: Row ids (int64).
        table: Name of the physical table.
    """
    among = tuple_of(rids) if 0 < len(rids) <= _FEW_ROWS else "(SELECT rid FROM {doomed})"
    return f"{table}.rowid IN {among}"


def among(column: str, keys: Collection[int], table: str = "moved") -> str:
    """A condition that selects exactly the rows with these keys: with few keys a list of literals, else a range and a
    subquery. DuckDB skips row groups by the list and by the range.

    Args:
        keys: Integer keys, at least one.
        table: Name of the Arrow table that `keys_table` makes of them.
    """
    if len(keys) <= LITERALS:
        return f"{column} IN ({', '.join(str(int(key)) for key in keys)})"
    return f"{column} BETWEEN {int(min(keys))} AND {int(max(keys))} AND {column} IN (SELECT key FROM {{{table}}})"


def keys_table(keys: Collection[int]) -> pa.Table:
    """The Arrow table of keys for `among`."""
    return pa.table({"key": pa.array(list(keys), pa.int64())})


def within(column: str, values: pa.ChunkedArray) -> str:
    """A condition that is true for all the values: with few values a list of literals, else their range, which is true
    for the values between them too.

    Args:
        values: Values (int64), at least one.
    """
    distinct = values.unique()
    if len(distinct) <= LITERALS:
        return f"{column} IN {tuple_of(distinct)}"
    numbers = distinct.to_numpy(zero_copy_only=False)
    return f"{column} BETWEEN {int(numbers.min())} AND {int(numbers.max())}"

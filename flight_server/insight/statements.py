"""The value of a SELECT over the statistics, run by the server's Flight SQL: read-only, with its guards."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from flight_server.client.table_names import COLUMNS, split_name
from flight_server.core.views.reader import Reader
from flight_server.insight import measures
from store.model.errors import InvalidArgument, NotFound, first_line


def value_of(reader: Reader, statement: str, table: str) -> float | Fraction | str:
    """Runs a statement, with the names of a table for `{table_catalog}`, `{table_schema}` and `{table_name}`.

    Args:
        statement: A SELECT of one value.
        table: Full name of the table.

    Raises:
        UnknownValue: The value is NULL.
        NeverKnown: The statement is refused, names what does not exist, or does not answer one value.
    """
    from store.duckdb.arrow_sql import quoted  # imports DuckDB, which most commands that check rules need not

    for name, part in zip(COLUMNS, split_name(table), strict=True):
        statement = statement.replace(f"{{{name}}}", quoted(part))
    try:
        answer = reader.sql(statement)
    except (InvalidArgument, NotFound, pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise measures.NeverKnown(first_line(error)) from None
    if (answer.num_rows, answer.num_columns) != (1, 1):
        shape = f"{answer.num_rows} rows of {answer.num_columns} columns"
        raise measures.NeverKnown(f"the SELECT answers {shape}; it must answer one value")
    value = answer.column(0)[0].as_py()
    if value is None:
        raise measures.UnknownValue("the SELECT answers NULL")
    if isinstance(value, float):
        return value
    return Fraction(value) if isinstance(value, bool | int | Decimal) else str(value)

"""Parameters of a prepared statement: their schema, and the values that a client sends."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from flight_server.faces.sql.plan import Plan
from store.model.errors import InvalidArgument

MAX_PARAMETER_BYTES: Final = 1 << 20
_MILLISECONDS: Final = pa.timestamp("ms")


def schema(parsed: Plan) -> pa.Schema:
    """The schema of a statement's parameters, one field for each.

    Timestamps are declared in milliseconds, because the JDBC driver (18.3 at least) writes milliseconds whatever unit
    is declared.
    """
    types = [_MILLISECONDS if pa.types.is_timestamp(type_) else type_ for type_ in parsed.parameters]
    return pa.schema([pa.field(f"parameter_{number}", type_) for number, type_ in enumerate(types, 1)])


def read(batches: Iterable[pa.RecordBatch], parsed: Plan) -> tuple[int, tuple[Any, ...]]:
    """Reads the values of parameters. All batches are read before any error is raised.

    Args:
        batches: Batches with one row in all.

    Returns:
        The size in bytes, and the values in order.

    Raises:
        InvalidArgument: The values are too large, not one row, not one for each parameter, or cannot be read.
    """
    rows: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if batch.num_rows and size <= MAX_PARAMETER_BYTES:
            rows.append(batch)
    if size > MAX_PARAMETER_BYTES:
        raise InvalidArgument(f"parameters: more than {MAX_PARAMETER_BYTES} bytes")
    count = sum(batch.num_rows for batch in rows)
    if count != 1:
        raise InvalidArgument(f"parameters: one row must be sent, not {count}")
    (batch,) = rows
    if batch.num_columns != len(parsed.parameters):
        raise InvalidArgument(
            f"the statement has {len(parsed.parameters)} parameters, and {batch.num_columns} were sent"
        )
    return size, tuple(_python(number, column) for number, column in enumerate(batch.columns, 1))


def _python(number: int, column: pa.Array) -> Any:
    try:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", column.type.tz))  # fails if digits would be lost
        if column.type == pa.time64("ns"):
            column = column.cast(pa.time64("us"))
        return column[0].as_py()
    except (OverflowError, ValueError, LookupError) as error:  # a year after 9999, say, or bytes that are no text
        raise InvalidArgument(f"parameters: parameter {number} cannot be read: {error}") from None


def require(parsed: Plan, values: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """The values of a statement's parameters; `values` is None if none were bound.

    Raises:
        InvalidArgument: The statement has parameters that are not bound (UNBOUND_PARAMETER).
    """
    if parsed.parameters and values is None:
        raise InvalidArgument(
            f"the statement has {len(parsed.parameters)} parameters that are not bound",
            code="UNBOUND_PARAMETER",
            hint="prepare it and put their values",
        )
    return values or ()


def for_duckdb(value: Any) -> Any:
    """A value with a timestamp converted to naive UTC; other values are unchanged."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value

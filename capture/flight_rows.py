"""Rows of the flights as Arrow tables: mostly few rows of many columns, of which the fixed cost of a column rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from store.schemas import DERIVED, FLIGHTS, KEY, RECORDED

_NONE: Final[Mapping[str, Any]] = {}


def flight_rows(flight: str, rows: Sequence[Mapping[str, Any]], constants: Mapping[str, Any] = _NONE) -> pa.Table:
    """Records as a table.

    Args:
        flight: A flight that can be written.
        rows: Values by column name; what is missing is null.
        constants: Values that all rows have.

    Returns:
        One row per record, in the flight's schema without derived columns.
    """
    count, schema = len(rows), _schema(flight)
    given = dict.fromkeys(name for row in rows for name in row)
    blank = _blank(flight, count)
    arrays = [
        repeated(constants[field.name], field.type, count) if field.name in constants
        else pa.array([row.get(field.name) for row in rows], field.type) if field.name in given
        else blank[field.name]
        for field in schema
    ]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=schema)


def with_constants(table: pa.Table, constants: Mapping[str, Any], flight: str) -> pa.Table:
    """A table with key and provenance as constant columns.

    Args:
        table: Some columns of the flight.
        constants: Values by column name; those of the table's own columns are not used.
        flight: A flight that can be written.

    Returns:
        The same rows, columns in the flight's order; those that are neither given nor constant are left out.
    """
    columns, blank = dict(zip(table.column_names, table.columns, strict=True)), _blank(flight, table.num_rows)
    kept = {}
    for field in _schema(flight):
        name = field.name
        if name in columns:
            kept[name] = columns[name]
        elif name in KEY or name in RECORDED:
            value = constants.get(name)
            kept[name] = blank[name] if value is None else repeated(value, field.type, table.num_rows)
    return pa.table(kept)


def repeated(value: Any, type: pa.DataType, count: int) -> pa.Array:
    """A value as often as there are rows."""
    return pa.repeat(pa.scalar(value, type), count)


@lru_cache(64)
def _schema(flight: str) -> pa.Schema:
    return pa.schema([field for field in FLIGHTS[flight].schema if field.name not in DERIVED])


@lru_cache(256)
def _blank(flight: str, count: int) -> Mapping[str, pa.Array]:
    """Columns of nulls, of as many rows as were asked for before: they are never written to."""
    return {field.name: pa.nulls(count, field.type) for field in _schema(flight)}

"""Arrow tables in the flights' schemas. Most have few rows and many columns, so the cost per column dominates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from store.model.columns import COMPUTED, KEY, RECORDED
from store.model.schemas import FLIGHTS

_NONE: Final[Mapping[str, Any]] = {}


def flight_rows(flight: str, rows: Sequence[Mapping[str, Any]], constants: Mapping[str, Any] = _NONE) -> pa.Table:
    """Converts records to rows in the flight's schema, without derived columns.

    Args:
        flight: Name of a writable flight.
        rows: Values by column name; missing ones are null.
        constants: Values that are the same in all rows; they take precedence.
    """
    schema = _schema(flight)
    columns = pa.array(rows, _struct(flight)).flatten()  # half the cost of an array for each column
    for name, value in constants.items():
        at = schema.get_field_index(name)
        columns[at] = repeated(value, schema.field(at).type, len(rows))
    return pa.Table.from_arrays(columns, schema=schema)


def with_constants(table: pa.Table, constants: Mapping[str, Any], flight: str) -> pa.Table:
    """Adds key and provenance as constant columns where the table lacks them; all in the flight's order."""
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
    """An array of `count` equal values."""
    return pa.repeat(pa.scalar(value, type), count)


@lru_cache(64)
def _schema(flight: str) -> pa.Schema:
    return pa.schema([field for field in FLIGHTS[flight].schema if field.name not in COMPUTED])


@lru_cache(64)
def _struct(flight: str) -> pa.DataType:
    return pa.struct(list(_schema(flight)))


@lru_cache(256)
def _blank(flight: str, count: int) -> Mapping[str, pa.Array]:
    """Columns of nulls, cached because Arrow arrays are immutable."""
    return {field.name: pa.nulls(count, field.type) for field in _schema(flight)}

"""Columns of a table as DuckLake has them: types, bounds as texts, and where files have their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.spi import TableDescriptor
from capture.publishers.spi import TableStatistics
from store.model.errors import InvalidArgument
from store.model.logical_types import Kind, parse

_TYPES: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "int64",
    Kind.FLOAT: "float32",
    Kind.DOUBLE: "float64",
    Kind.STRING: "varchar",
    Kind.JSON: "varchar",
    Kind.UUID: "uuid",
    Kind.BINARY: "blob",
    Kind.DATE: "date",
    Kind.TIME: "time",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
}
_WITHOUT_BOUNDS: Final = frozenset({"blob", "uuid", "time"})
_MAX_DECIMAL: Final = 38


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a DuckLake table."""

    id: int
    name: str
    type: str
    nullable: bool

    @property
    def is_float(self) -> bool:
        """True if NaN may be among the values."""
        return self.type in ("float32", "float64")

    @property
    def has_bounds(self) -> bool:
        """True if bounds of the type are written."""
        return self.type not in _WITHOUT_BOUNDS


def columns_of(
    table: TableDescriptor, format: str, statistics: TableStatistics, left_out: dict[str, str]
) -> list[Column]:
    """The columns that DuckLake can read from the files as they are.

    Args:
        statistics: Statistics of the table; the columns of the catalog get the ids that columns have here.
        left_out: Column name → reason; updated in place.

    Raises:
        InvalidArgument: Files name their columns otherwise than the table does.
    """
    properties = table.properties
    mapped = properties.get("delta.columnMapping.mode", "none") != "none"
    if mapped or "schema.name-mapping.default" in properties:
        why = "has column mapping" if mapped else "has files without field ids (schema.name-mapping.default)"
        raise InvalidArgument(f'ducklake: "{statistics.full_name}" {why}, which DuckLake cannot read')
    ids = {column.name: column.column_id for column in statistics.columns}
    next_id = max([*ids.values(), *(column.field_id or 0 for column in table.schema.columns), 0]) + 1
    columns = []
    spellings = Counter(name.lower() for name in {column.path[0] for column in table.schema.columns})
    for column in table.schema.columns:
        type, name = _type(column.logical_type), column.path[0]
        if spellings[name.lower()] > 1:  # with both of them in a table, DuckDB cannot read the catalog at all
            left_out[name] = "has the name of another column but for its case, which DuckLake ignores"
        elif len(column.path) > 1 or (not column.is_leaf and column.logical_type != "VARIANT"):
            left_out[name] = "is nested: only columns of plain values are registered"
        elif type is None:
            left_out[column.name] = f"DuckLake has no type for {column.logical_type}"
        else:
            id = column.field_id if format == "iceberg" else ids.get(column.name)
            if id is None:
                id, next_id = next_id, next_id + 1
            columns.append(Column(id, column.name, type, column.nullable))
    return columns


def _type(logical_type: str) -> str | None:
    type = parse(logical_type)
    if type.kind == Kind.DECIMAL:
        fits = type.precision is not None and type.precision <= _MAX_DECIMAL
        return f"decimal({type.precision},{type.scale or 0})" if fits else None
    return _TYPES.get(type.kind)


def name_mapping(columns: Sequence[Column], table: TableDescriptor, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of `ducklake_name_mapping`, for files without field ids.

    Args:
        paths: Paths of the files, in which partition columns have their values.

    Raises:
        InvalidArgument: The path of a file does not have the values of the partition columns.
    """
    for name in table.partition_keys:
        part = re.compile(rf"/{re.escape(name)}=([^/]*)/")
        for path in paths:
            if not (found := part.search(path)) or "%" in found[1]:
                raise InvalidArgument(
                    f'ducklake: "{table.namespace}.{table.name}" is partitioned by {name}, and the path of {path} does '
                    "not have its plain value, from which DuckLake would take it"
                )
    return [
        {
            "column_id": number,
            "source_name": column.name,
            "target_field_id": column.id,
            "is_partition": column.name in table.partition_keys,
        }
        for number, column in enumerate(columns)
    ]


def bound_text(values: Any, column: Column) -> Any:
    """Canonical bounds as texts that DuckDB casts; null if the type has none, or if a bound is NaN."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if not column.has_bounds:
        return pa.nulls(len(values), pa.string())
    if column.type.startswith("timestamp"):
        return pc.replace_substring_regex(pc.replace_substring(values, "T", " "), "Z$", "+00")
    if column.is_float:
        texts = pc.replace_substring(values, "Infinity", "inf")
        return pc.if_else(pc.equal(texts, "NaN"), None, texts)
    return values

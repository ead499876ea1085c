"""`adbc.statistics`: current statistics in the schema of ADBC 1.1's GetStatistics, one row for each catalog.

Unknown statistics are left out. Counts are exact if their row is COMPLETE and EXACT; bounds and distinct counts have
flags of their own, which do not count for rows of an earlier snapshot or incomplete ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from flight_server.wire.scan_request import ScanRequest
from store.freshness import EXACT, NAN_TYPES
from store.predicates.arrow import to_arrow
from store.schemas import ADBC_STATISTIC, FLIGHTS

FLIGHT: Final = FLIGHTS["adbc.statistics"]
AVERAGE_BYTE_WIDTH, DISTINCT_COUNT, MAX_BYTE_WIDTH, MAX_VALUE, MIN_VALUE, NULL_COUNT, ROW_COUNT = range(
    7
)  # ADBC's keys
_INT64, _FLOAT64, _BINARY = 0, 2, 3  # children of the union
_NAMES: Final = ("table_catalog", "table_schema", "table_name")
_SURE: Final = ("freshness", "completeness")
TABLE_COLUMNS: Final = (*_NAMES, "row_count", *_SURE)
COLUMNS: Final = (
    *_NAMES, "column_name", "logical_type", "null_count", "ndv", "ndv_exact", "min", "max", "min_is_exact",
    "max_is_exact", "avg_width_bytes", "max_width_bytes", "nan_count", *_SURE,
)  # fmt: skip

Rows = Sequence[Mapping[str, Any]]
Statistic = tuple[str | None, int, Any, bool]
"""Column (None for the table), key, value, True if approximate."""


def answer(request: ScanRequest, tables: Rows, columns: Rows) -> pa.Table:
    """The result of a scan of the flight, built without DuckDB, which does not support dense unions.

    Args:
        request: The scan.
        tables: Rows of stats.tables with `TABLE_COLUMNS`.
        columns: Rows of stats.columns with `COLUMNS`.
    """
    names = pa.schema([FLIGHT.schema.field("catalog_name")])

    def keep(catalog: str) -> bool:
        if request.node is None:
            return True
        return len(to_arrow(request.node, names)(pa.record_batch([pa.array([catalog])], names))) > 0

    result = build(tables, columns, keep).slice(0, request.limit).select(request.names)
    if not request.rows:
        return result
    texts = [json.dumps([v if isinstance(v, str) else json.dumps(v, default=_json) for v in row.values()])
             for row in result.to_pylist()]  # fmt: skip
    return pa.table([pa.array(texts, pa.string())], schema=request.schema)


def _json(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def build(tables: Rows, columns: Rows, keep: Callable[[str], bool] = lambda _: True) -> pa.Table:
    """The flight's rows.

    Args:
        tables: Current rows of `stats.tables`, with TABLE_COLUMNS.
        columns: Current rows of `stats.columns`, with COLUMNS.
        keep: True for a catalog to include.
    """
    statistics: dict[tuple[str, str, str], list[Statistic]] = {}
    for row in tables:
        if row["row_count"] is not None:
            statistics.setdefault(_name(row), []).append((None, ROW_COUNT, row["row_count"], not _is_sure(row)))
    for row in columns:
        statistics.setdefault(_name(row), []).extend(_of_column(row))
    builder = _Builder()
    catalogs: list[str] = []
    for catalog, of_catalog in groupby(sorted(name for name in statistics if keep(name[0])), key=lambda name: name[0]):
        catalogs.append(catalog)
        for schema, names in groupby(of_catalog, key=lambda name: name[1]):
            for name in names:
                builder.add(name[2], statistics[name])
            builder.end_schema(schema)
        builder.end_catalog()
    return pa.Table.from_arrays([pa.array(catalogs, pa.string()), builder.schemas()], schema=FLIGHT.schema)


def _name(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["table_catalog"], row["table_schema"], row["table_name"]


def _is_sure(row: Mapping[str, Any]) -> bool:
    return bool(row["freshness"] == "EXACT" and row["completeness"] == "COMPLETE")


def _may_be_exact(row: Mapping[str, Any]) -> bool:
    """False for records of an earlier snapshot and for records marked incomplete."""
    return bool(row["freshness"] in (None, EXACT) and row["completeness"] in (None, "COMPLETE"))


def _of_column(row: Mapping[str, Any]) -> Iterator[Statistic]:
    name, rough = row["column_name"], not _is_sure(row)
    if row["avg_width_bytes"] is not None:
        yield name, AVERAGE_BYTE_WIDTH, float(row["avg_width_bytes"]), rough
    if (ndv := row["ndv"]) is not None:
        exact = bool(row["ndv_exact"]) and float(ndv).is_integer() and _may_be_exact(row)
        yield name, DISTINCT_COUNT, int(ndv) if exact else float(ndv), not exact
    if row["max_width_bytes"] is not None:
        yield name, MAX_BYTE_WIDTH, row["max_width_bytes"], rough
    for key, bound in ((MAX_VALUE, "max"), (MIN_VALUE, "min")):
        if row[bound] is not None:
            nan_is_known = row["logical_type"] not in NAN_TYPES or row["nan_count"] is not None
            exact = row[f"{bound}_is_exact"] and nan_is_known and _may_be_exact(row)
            yield name, key, _value(row[bound], row["logical_type"] or ""), not exact
    if row["null_count"] is not None:
        yield name, NULL_COUNT, row["null_count"], rough


def _value(text: str, logical_type: str) -> int | float | bytes:
    """A bound as a value of the union: integers and floats as numbers, others as the bytes of their canonical text."""
    try:
        if logical_type.startswith("INT") and -(2**63) <= (number := int(text)) < 2**63:
            return number
        if logical_type.startswith(("FLOAT", "DOUBLE")):
            return float(text)
    except ValueError:
        pass
    return text.encode()


@dataclass
class _Builder:
    """Collects statistics in flat lists, with the offsets at which schemas and catalogs end."""

    tables: list[str] = field(default_factory=list)
    columns: list[str | None] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    rough: list[bool] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    values: tuple[list[Any], ...] = field(default_factory=lambda: ([], [], [], []))
    names: list[str] = field(default_factory=list)
    statistic_ends: list[int] = field(default_factory=lambda: [0])
    schema_ends: list[int] = field(default_factory=lambda: [0])

    def add(self, table: str, statistics: Sequence[Statistic]) -> None:
        for column, key, value, rough in statistics:
            kind = _BINARY if isinstance(value, bytes) else _FLOAT64 if isinstance(value, float) else _INT64
            self.tables.append(table)
            self.columns.append(column)
            self.keys.append(key)
            self.rough.append(rough)
            self.kinds.append(kind)
            self.places.append(len(self.values[kind]))
            self.values[kind].append(value)

    def end_schema(self, name: str) -> None:
        self.names.append(name)
        self.statistic_ends.append(len(self.keys))

    def end_catalog(self) -> None:
        self.schema_ends.append(len(self.names))

    def schemas(self) -> pa.ListArray:
        union = ADBC_STATISTIC.field("statistic_value").type
        children = [pa.array(values, each.type) for values, each in zip(self.values, union, strict=True)]
        value = pa.UnionArray.from_dense(
            pa.array(self.kinds, pa.int8()), pa.array(self.places, pa.int32()), children, [each.name for each in union]
        )
        statistics = pa.StructArray.from_arrays(
            [pa.array(self.tables, pa.string()), pa.array(self.columns, pa.string()), pa.array(self.keys, pa.int16()),
             value, pa.array(self.rough, pa.bool_())],
            fields=list(ADBC_STATISTIC),
        )  # fmt: skip
        outer = FLIGHT.schema.field("catalog_db_schemas").type
        inner = outer.value_type
        listed = pa.ListArray.from_arrays(
            pa.array(self.statistic_ends, pa.int32()), statistics, type=inner.field("db_schema_statistics").type
        )
        schemas = pa.StructArray.from_arrays([pa.array(self.names, pa.string()), listed], fields=list(inner))
        return pa.ListArray.from_arrays(pa.array(self.schema_ends, pa.int32()), schemas, type=outer)

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

from flight_server.estimates import COLUMN_FIELDS, TABLE_FIELDS, Estimate, of_column, of_table
from flight_server.wire.scan_request import ScanRequest
from store.model.predicates.arrow import to_arrow
from store.model.schemas import ADBC_STATISTIC, FLIGHTS

FLIGHT: Final = FLIGHTS["adbc.statistics"]
_KEYS: Final = {
    "avg_width_bytes": 0, "ndv": 1, "max_width_bytes": 2, "max": 3, "min": 4, "null_count": 5, "row_count": 6,
}  # of ADBC  # fmt: skip
_INT64, _FLOAT64, _BINARY = 0, 2, 3  # children of the union
_NAMES: Final = ("table_catalog", "table_schema", "table_name")
TABLE_COLUMNS: Final = (*_NAMES, *TABLE_FIELDS)
COLUMNS: Final = (*_NAMES, "column_name", *COLUMN_FIELDS)

Rows = Sequence[Mapping[str, Any]]
Statistic = tuple[str | None, int, Any, bool]
"""Column (None for the table), key, value, True if approximate."""


def answer(request: ScanRequest, tables: Rows, columns: Rows) -> pa.Table:
    """The result of a scan of the flight, built without DuckDB, which does not support dense unions.

    Args:
        tables: Rows of stats.tables with `TABLE_COLUMNS`.
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
    """The flight's rows of current `stats.tables` rows with TABLE_COLUMNS, for the catalogs to `keep`."""
    statistics: dict[tuple[str, str, str], list[Statistic]] = {}
    for row in tables:
        if found := of_table(row):
            statistics.setdefault(_name(row), []).extend(_statistics(None, found))
    for row in columns:
        statistics.setdefault(_name(row), []).extend(_statistics(row["column_name"], of_column(row)))
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


def _statistics(column: str | None, estimates: Mapping[str, Estimate]) -> Iterator[Statistic]:
    for name, key in _KEYS.items():
        if name in estimates:
            value, is_exact = estimates[name]
            yield column, key, value.encode() if isinstance(value, str) else value, not is_exact


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

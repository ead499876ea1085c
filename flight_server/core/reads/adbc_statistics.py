"""`adbc.statistics`: current statistics in the schema of ADBC 1.1's GetStatistics, one row for each catalog.

Unknown statistics are left out. Counts are exact if their row is COMPLETE and EXACT; bounds and distinct counts have
flags of their own, which do not count for rows of an earlier snapshot or incomplete ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from flight_server.client.estimates import COLUMN_FIELDS, KEYS, TABLE_FIELDS, Estimate, of_column, of_table
from flight_server.core.wire.dense_union import dense_union
from flight_server.core.wire.scan_request import CURRENT, ScanRequest
from store.model.predicates.arrow import to_arrow
from store.model.schemas import FLIGHTS
from store.model.server_flights import ADBC_STATISTIC

FLIGHT: Final = FLIGHTS["adbc.statistics"]
_NAMES_BY_KEY: Final = sorted((keys.adbc, name) for name, keys in KEYS.items())
_INT64, _FLOAT64, _BINARY = 0, 2, 3  # children of the union
_NAMES: Final = ("table_catalog", "table_schema", "table_name")
TABLE_COLUMNS: Final = (*_NAMES, *TABLE_FIELDS)
COLUMNS: Final = (*_NAMES, "column_name", *COLUMN_FIELDS)

Rows = Sequence[Mapping[str, Any]]
Statistic = tuple[str | None, int, Any, bool]
"""Column (None for the table), key, value, True if approximate."""


def answer(request: ScanRequest, read: Callable[[ScanRequest], pa.Table]) -> pa.Table:
    """The result of a scan of the flight, built without DuckDB, which does not support dense unions.

    Args:
        read: Reads all rows of another scan, for the same caller.
    """
    tables, columns = (
        read(ScanRequest(FLIGHTS[name], names, snapshot=CURRENT)).to_pylist()
        for name, names in (("stats.tables", TABLE_COLUMNS), ("stats.columns", COLUMNS))
    )
    # conditions on lists are whether they are null, which they are not
    schema = pa.schema([("catalog_name", pa.string()), ("catalog_db_schemas", pa.list_(pa.null()))])

    def keep(catalog: str) -> bool:
        if request.node is None:
            return True
        return len(to_arrow(request.node, schema)(pa.record_batch([[catalog], [[]]], schema))) > 0

    result = build(tables, columns, keep).slice(0, request.limit).select(request.names)
    if not request.rows:
        return result
    texts = [
        json.dumps([v if isinstance(v, str) else json.dumps(v, default=_json) for v in row.values()])
        for row in result.to_pylist()
    ]
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
    rows: list[tuple[Any, ...]] = []
    schemas: list[str] = []
    catalogs: list[str] = []
    row_ends, schema_ends = [0], [0]
    for catalog, of_catalog in groupby(sorted(name for name in statistics if keep(name[0])), key=lambda name: name[0]):
        for schema, names in groupby(of_catalog, key=lambda name: name[1]):
            for name in names:
                rows.extend((name[2], *statistic) for statistic in statistics[name])
            schemas.append(schema)
            row_ends.append(len(rows))
        catalogs.append(catalog)
        schema_ends.append(len(schemas))
    schema_list = FLIGHT.schema.field("catalog_db_schemas").type
    statistic_list = schema_list.value_type.field("db_schema_statistics").type
    by_field = list(zip(*rows, strict=True)) or [()] * len(ADBC_STATISTIC)
    fields = [
        dense_union(values, _kind, each.type) if pa.types.is_union(each.type) else pa.array(values, each.type)
        for values, each in zip(by_field, ADBC_STATISTIC, strict=True)
    ]
    by_schema = _lists(row_ends, fields, statistic_list)
    by_catalog = _lists(schema_ends, [pa.array(schemas, pa.string()), by_schema], schema_list)
    return pa.Table.from_arrays([pa.array(catalogs, pa.string()), by_catalog], schema=FLIGHT.schema)


def _name(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["table_catalog"], row["table_schema"], row["table_name"]


def _statistics(column: str | None, estimates: Mapping[str, Estimate]) -> Iterator[Statistic]:
    for key, name in _NAMES_BY_KEY:
        if name in estimates:
            value, is_exact = estimates[name]
            if isinstance(value, int) and not -(2**63) <= value < 2**63:  # one such value would stop the flight
                value, is_exact = float(value), False
            yield column, key, value.encode() if isinstance(value, str) else value, not is_exact


def _kind(value: Any) -> int:
    """The index of a value's child in the union."""
    return _BINARY if isinstance(value, bytes) else _FLOAT64 if isinstance(value, float) else _INT64


def _lists(ends: Sequence[int], columns: Sequence[pa.Array], type: pa.ListType) -> pa.ListArray:
    """Rows of these columns as one list up to each of the `ends`."""
    rows = pa.StructArray.from_arrays(columns, fields=list(type.value_type))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), rows, type=type)

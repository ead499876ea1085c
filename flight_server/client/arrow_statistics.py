"""Statistics of a table in Arrow's statistics schema, built by the client from rows of `stats.*`.

`struct<column: int32, statistics: map<dictionary<utf8>, dense_union<…>>>`, one row for the table (column null) and one
for each column that has statistics. The keys state what is exact, such as `ARROW:distinct_count:approximate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

TABLE_COLUMNS: Final = ("row_count", "freshness", "completeness")
COLUMNS: Final = (
    "column_id", "column_name", "logical_type", "null_count", "ndv", "ndv_exact", "min", "max", "min_is_exact",
    "max_is_exact", "avg_width_bytes", "max_width_bytes", "freshness", "completeness", "nan_count",
)  # fmt: skip
_KINDS: Final = (pa.field("int64", pa.int64()), pa.field("float64", pa.float64()), pa.field("utf8", pa.string()))
_VALUE: Final = pa.dense_union(_KINDS)
_KEY: Final = pa.dictionary(pa.int32(), pa.string())
TYPE: Final = pa.struct([
    pa.field("column", pa.int32()),
    pa.field("statistics", pa.map_(_KEY, pa.field("items", _VALUE, False)), False),
])  # fmt: skip

Row = Mapping[str, Any]


def build(table: Row | None, columns: Sequence[Row], order: Mapping[int, int]) -> pa.StructArray:
    """Builds the array.

    Args:
        table: The current row of `stats.tables`, with TABLE_COLUMNS; None if there is none.
        columns: The current rows of `stats.columns`, with COLUMNS.
        order: Column id → position in the table's schema, from 0, struct fields after their struct.

    Returns:
        An array of TYPE: the table first, then columns in the order of the schema.
    """
    rows: list[tuple[int | None, list[tuple[str, Any]]]] = []
    if table is not None and table["row_count"] is not None:
        rows.append((None, [_statistic("row_count", table["row_count"], _is_sure(table))]))
    placed = ((order[row["column_id"]], row) for row in columns if row["column_id"] in order)
    rows += [(place, found) for place, row in sorted(placed, key=lambda each: each[0]) if (found := list(_of(row)))]
    keys, kinds, places, ends = [], [], [], [0]
    values: tuple[list[Any], ...] = ([], [], [])
    for _, statistics in rows:
        for key, value in statistics:
            kind = 2 if isinstance(value, str) else 1 if isinstance(value, float) else 0
            keys.append(key)
            kinds.append(kind)
            places.append(len(values[kind]))
            values[kind].append(value)
        ends.append(len(keys))
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(places, pa.int32()),
        [pa.array(each, field.type) for each, field in zip(values, _KINDS, strict=True)],
        [field.name for field in _KINDS],
    )  # fmt: skip
    names = pa.array(keys, pa.string()).dictionary_encode().cast(_KEY)
    maps = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), names, union, type=TYPE.field("statistics").type)
    return pa.StructArray.from_arrays([pa.array([place for place, _ in rows], pa.int32()), maps], fields=list(TYPE))


def _is_sure(row: Row) -> bool:
    return bool(row["freshness"] == "EXACT" and row["completeness"] == "COMPLETE")


def _may_be_exact(row: Row) -> bool:
    """False for records of an earlier snapshot and for records marked incomplete."""
    return row["freshness"] in (None, "EXACT") and row["completeness"] in (None, "COMPLETE")


def _statistic(name: str, value: Any, exact: bool) -> tuple[str, Any]:
    return f"ARROW:{name}:{'exact' if exact else 'approximate'}", value


def _of(row: Row) -> Iterator[tuple[str, Any]]:
    sure = _is_sure(row)
    if row["null_count"] is not None:
        yield _statistic("null_count", row["null_count"], sure)
    if (ndv := row["ndv"]) is not None:
        exact = bool(row["ndv_exact"]) and float(ndv).is_integer() and _may_be_exact(row)
        yield _statistic("distinct_count", int(ndv) if exact else float(ndv), exact)
    for name, bound in (("max_value", "max"), ("min_value", "min")):
        if row[bound] is not None:
            nan_is_known = row["logical_type"] not in ("FLOAT", "DOUBLE") or row["nan_count"] is not None
            exact = bool(row[f"{bound}_is_exact"]) and nan_is_known and _may_be_exact(row)
            yield _statistic(name, _value(row[bound], row["logical_type"] or ""), exact)
    if row["avg_width_bytes"] is not None:
        yield _statistic("average_byte_width", float(row["avg_width_bytes"]), sure)
    if row["max_width_bytes"] is not None:
        yield _statistic("max_byte_width", row["max_width_bytes"], sure)


def _value(text: str, logical_type: str) -> int | float | str:
    """A bound as an integer or float if its column is one, else as its canonical text."""
    try:
        if logical_type.startswith("INT") and -(2**63) <= (number := int(text)) < 2**63:
            return number
        if logical_type.startswith(("FLOAT", "DOUBLE")):
            return float(text)
    except ValueError:
        pass
    return text

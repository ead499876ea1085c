"""Statistics of a table in Arrow's statistics schema, built by the client from rows of `stats.*`.

`struct<column: int32, statistics: map<dictionary<utf8>, dense_union<…>>>`, one row for the table (column null) and one
for each column that has statistics. The keys state what is exact, such as `ARROW:distinct_count:approximate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from flight_server.client.estimates import COLUMN_FIELDS, KEYS, TABLE_FIELDS, Estimate, Row, of_column, of_table

TABLE_COLUMNS: Final = TABLE_FIELDS
COLUMNS: Final = ("column_id", "column_name", *COLUMN_FIELDS)
_KINDS: Final = (pa.field("int64", pa.int64()), pa.field("float64", pa.float64()), pa.field("utf8", pa.string()))
_VALUE: Final = pa.dense_union(_KINDS)
_KEY: Final = pa.dictionary(pa.int32(), pa.string())
TYPE: Final = pa.struct(
    [
        pa.field("column", pa.int32()),
        pa.field("statistics", pa.map_(_KEY, pa.field("items", _VALUE, False)), False),
    ]
)


def build(table: Row | None, columns: Sequence[Row], order: Mapping[int, int]) -> pa.StructArray:
    """Builds an array of TYPE: the table first, then columns in the order of the schema.

    Args:
        table: The current row of `stats.tables`, with TABLE_COLUMNS; None if there is none.
        columns: The current rows of `stats.columns`, with COLUMNS.
        order: Column id → position in the table's schema, from 0, struct fields after their struct.
    """
    rows: list[tuple[int | None, dict[str, Estimate]]] = []
    if table is not None and (found := of_table(table)):
        rows.append((None, found))
    placed = ((order[row["column_id"]], row) for row in columns if row["column_id"] in order)
    rows += [(place, found) for place, row in sorted(placed, key=lambda each: each[0]) if (found := of_column(row))]
    keys, kinds, places, ends = [], [], [], [0]
    values: tuple[list[Any], ...] = ([], [], [])
    for _, estimates in rows:
        for name, of_name in KEYS.items():
            if name not in estimates:
                continue
            value, is_exact = estimates[name]
            kind = 2 if isinstance(value, str) else 1 if isinstance(value, float) else 0
            keys.append(f"ARROW:{of_name.arrow}:{'exact' if is_exact else 'approximate'}")
            kinds.append(kind)
            places.append(len(values[kind]))
            values[kind].append(value)
        ends.append(len(keys))
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(places, pa.int32()),
        [pa.array(each, field.type) for each, field in zip(values, _KINDS, strict=True)],
        [field.name for field in _KINDS],
    )
    names = pa.array(keys, pa.string()).dictionary_encode().cast(_KEY)
    maps = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), names, union, type=TYPE.field("statistics").type)
    return pa.StructArray.from_arrays([pa.array([place for place, _ in rows], pa.int32()), maps], fields=list(TYPE))

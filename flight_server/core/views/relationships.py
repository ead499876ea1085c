"""Foreign keys between tables, for pages and commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from flight_server.client.table_names import join_name
from flight_server.core.views.numbers import number
from flight_server.core.views.reader import Reader, codes_of

_ENDS: Final = {end: [f"{end}_{part}" for part in ("catalog", "schema", "table")] for end in ("from", "to")}


def among(reader: Reader, is_meant: Callable[[str], bool]) -> list[dict[str, Any]]:
    """The rows of `sys.relationships` with `from` and `to`, full names, of which at least one `is_meant`."""
    import pyarrow.compute as pc

    found = reader.read("sys.relationships")
    chosen = pa.repeat(False, found.num_rows)
    for columns in _ENDS.values():  # a name is made for each table, not for each row
        (numbers,) = codes_of([found], columns)
        tables = numbers.dictionary_encode()
        named = found.select(columns).take(pc.index_in(tables.dictionary, numbers)).to_pylist()
        meant = pa.array([is_meant(join_name(*table.values())) for table in named], pa.bool_())
        chosen = pc.or_(chosen, meant.take(tables.indices))
    rows = [
        {end: join_name(*map(row.pop, columns)) for end, columns in _ENDS.items()} | row
        for row in found.filter(chosen).to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["from"], row["from_columns"], row["to"], row["to_columns"]))


def contained(row: dict[str, Any]) -> str:
    """The share of values that the key has, in percent, with its bounds unless it is exact; empty if unknown."""
    low, high = row["containment_low"], row["containment_high"]
    if low is None or high is None:
        return ""
    percent = f"{number(100 * row['containment'], 4)} %"
    return percent if low == high else f"{percent} ({number(100 * low, 3)}–{number(100 * high, 3)})"

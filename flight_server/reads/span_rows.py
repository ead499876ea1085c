"""SQL of the stored rows of one listing."""

from __future__ import annotations

from store.duckdb.layout import BY_SPAN


def rows_of(flight: str, table_key: int, pos: int, condition: str = "TRUE") -> str:
    """FROM and WHERE clauses of the rows `s` of a listing at position `pos`, -1 for none, of a flight with spans."""
    return (
        f"FROM {BY_SPAN[flight]} s WHERE s.table_key = {int(table_key)} AND s.from_pos <= {int(pos)}"
        f" AND s.to_pos > {int(pos)} AND {condition}"
    )

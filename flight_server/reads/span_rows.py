"""SQL of the stored rows of one listing."""

from __future__ import annotations

from store.duckdb.layout import BY_SPAN


def rows_of(flight: str, table_key: int, pos: int, condition: str = "TRUE") -> str:
    """FROM and WHERE clauses of the rows `s` of a listing.

    Args:
        flight: A flight whose rows have spans, or `file_sketches`.
        pos: Position of the listing; -1 for no rows.
    """
    return (
        f"FROM {BY_SPAN[flight]} s WHERE s.table_key = {int(table_key)} AND s.from_pos <= {int(pos)}"
        f" AND s.to_pos > {int(pos)} AND {condition}"
    )

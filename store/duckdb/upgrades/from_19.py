"""From layout 19 to layout 20."""

from __future__ import annotations

import duckdb


def upgrade(connection: duckdb.DuckDBPyConnection) -> None:
    """Changes nothing yet."""

"""The reader behind pages and commands: a client over Flight, or the server's own scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from flight_server.table_names import of_table

Leaf = dict[str, Any]


class Reader(Protocol):
    """Reads the flights of a server with the permissions of one caller."""

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
    ) -> pa.Table:
        """Reads a flight; the arguments are those of `StatsClient.read`."""

    def sql(self, statement: str) -> pa.Table:
        """Runs a SELECT."""


def equal(column: str, *values: Any) -> Leaf:
    """The condition that a column equals one of the values."""
    return {"column": column, "op": "EQ" if len(values) == 1 else "IN", "values": list(values)}


def read_table(
    reader: Reader, flight: str, name: str, columns: Sequence[str] | None = None, *more: Leaf,
    snapshot: str | int | None = None, allow_stale: bool = False,
) -> pa.Table:  # fmt: skip
    """Reads the rows of one table from any flight with table_catalog, table_schema and table_name."""
    return reader.read(flight, columns, [*of_table(name), *more], snapshot, allow_stale)


def rows_of(reader: Reader, flight: str, name: str, *more: Leaf, **options: Any) -> list[dict[str, Any]]:
    """Reads all columns as `read_table` does, as dicts."""
    return read_table(reader, flight, name, None, *more, **options).to_pylist()

"""Requests to lakes, as workers report them, summed by day (`sys.costs`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from store.duckdb.arrow_sql import execute
from store.duckdb.database import Connection, Database

log = logging.getLogger("statflight.server")

KEPT_DAYS: Final = 400

_KEY: Final = ("day", "catalog", "operation", "reason")
_SCHEMA: Final = pa.schema(
    {
        "day": pa.date32(),
        "catalog": pa.string(),
        "operation": pa.string(),
        "reason": pa.string(),
        "requests": pa.int64(),
        "bytes": pa.int64(),
    }
)
_SAME: Final = " AND ".join(f"c.{name} = v.{name}" for name in _KEY)
_ADD: Final = (
    "UPDATE costs AS c SET requests = c.requests + v.requests, bytes = c.bytes + v.bytes FROM {values} v"
    f" WHERE {_SAME}"
)
_INSERT: Final = (
    f"INSERT INTO costs SELECT {', '.join(_SCHEMA.names)} FROM {{values}} v"
    f" WHERE NOT EXISTS (FROM costs c WHERE {_SAME})"
)


class Ledger:
    """The sums of a server."""

    def __init__(self, database: Database):
        self._database = database
        self._swept: date | None = None

    def add(self, costs: Sequence[Mapping[str, Any]]) -> None:
        """Adds costs to those of this day, in UTC.

        Args:
            costs: `catalog`, `operation`, `reason`, `requests` and `bytes` of each.
        """
        today = datetime.now(UTC).date()
        sums: dict[tuple[str, str, str], list[int]] = {}
        for cost in costs:
            found = sums.setdefault((cost["catalog"], cost["operation"], cost["reason"]), [0, 0])
            found[0] += cost["requests"]
            found[1] += cost["bytes"]
        rows = [dict(zip(_SCHEMA.names, (today, *key, *counts), strict=True)) for key, counts in sums.items()]
        if not rows:
            return
        values = pa.Table.from_pylist(rows, _SCHEMA)

        def run(connection: Connection) -> None:
            execute(connection, _ADD, values=values)
            execute(connection, _INSERT, values=values)
            if self._swept != today:
                connection.execute("DELETE FROM costs WHERE day < ?", [today - timedelta(days=KEPT_DAYS)])

        self._database.write(run)
        self._swept = today

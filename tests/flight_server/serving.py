"""An app without its network server, and helpers that put and read rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.core.actions import functions
from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.config import Settings
from flight_server.core.wire import tickets
from flight_server.process.parts import parts
from store.duckdb.database import Database
from store.history import validation
from store.model.schemas import FLIGHTS
from store.role import Role
from store.stats_store import Put, PutMode
from tests.store.empty_store import empty_store, place_for_database

CATALOG = "lake"

Fill = Callable[[App], None]


@contextmanager
def app_in(directory: Path | None = None, fill: Fill | None = None, **settings: Any) -> Iterator[App]:
    """An app on a file in the directory, or else on any that is empty or has what `fill` wrote into the first one."""
    place = empty_store(directory / "stats.duckdb") if directory else place_for_database(fill and _filling(fill))
    app = App(Settings(db=place, **settings), functions, parts=parts)
    try:
        yield app
    finally:
        app.close()


@cache
def _filling(fill: Fill) -> Callable[[Database], None]:
    def write(database: Database) -> None:
        app = App(Settings(db=Path(database.path)), functions, lambda _: (database, Role()), parts)
        fill(app)
        app.close()

    return write


def rows(table: str, snapshot: int, columns: Iterable[int], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "table_catalog": CATALOG,
            "table_schema": "s",
            "table_name": table,
            "snapshot_id": snapshot,
            "column_id": i,
            "column_name": f"c{i}",
            "row_count": 100 + i,
            "null_count": None if i % 3 == 0 else i,
            "ndv": i % 60 * 1.5,
        }
        | more
        for i in columns
    ]


def put(app: App, given: list[dict[str, Any]], flight: str = "stats.columns", mode: str = "upsert") -> None:
    table = pa.Table.from_pylist(given, pa.schema([FLIGHTS[flight].schema.field(name) for name in given[0]]))
    app.store.put([Put(flight, validation.prepare(FLIGHTS[flight], table), PutMode(mode))])


def command(table: str | None = None, flight: str = "stats.columns", **more: Any) -> bytes:
    body: dict[str, Any] = {"table": flight, **more}
    if table is not None:
        named = {"table_catalog": CATALOG, "table_schema": "s", "table_name": table}
        body["predicates"] = [{"column": c, "op": "EQ", "values": [v]} for c, v in named.items()]
    return json.dumps(body).encode()


def read(app: App, data: bytes, principal: Any = ANONYMOUS) -> pa.Table:
    return app.scanner.table(tickets.of_ticket(data), principal)

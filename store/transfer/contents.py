"""The content of an export: a folder for each flight of records and each table of the catalog, with its columns.

A folder of records has the columns of its flight that are stored, then those of `MORE`. A folder of the catalog has the
columns of its table in the database, by the names that its flight gives them; the key of a table is its full name.
Columns that reads compute (`freshness`, `usable_for`, `is_current`, …) are in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import duckdb
import pyarrow as pa

from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, SQL_TYPES, Connection, prepare
from store.model.columns import COMPUTED, INSTANT
from store.model.schemas import FLIGHTS

NAME: Final = ("table_catalog", "table_schema", "table_name")
SKETCHES: Final = "stats.sketches"
FILE_SKETCHES: Final = "file_sketches"
RECORDS: Final = (*BY_SNAPSHOT, *(family for family in BY_SPAN if family != FILE_SKETCHES))
"""The flights of records; file sketches are rows of `stats.sketches`."""

LISTED: Final = {"listed_from": pa.int64(), "listed_to": pa.int64()}
"""Positions of the first listing that contains a row of a file, and of the first later one without it."""
MORE: Final = {"generation": pa.int64(), "created_at": INSTANT}
"""Columns of records besides those of their flight."""

_TYPES: Final = {sql: type for type, sql in SQL_TYPES.items()} | {
    "TIMESTAMP WITH TIME ZONE": INSTANT,
    "UBIGINT": pa.uint64(),
}


@dataclass(frozen=True)
class CatalogFolder:
    """A folder with the rows of a table of the catalog.

    Attributes:
        table: The table in the database.
        renamed: Column of the database → its name in the folder.
        is_keyed: True if the rows belong to tables of lakes.
        has_id: True if the folder has `table_id`, as its flight does.
    """

    table: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    is_keyed: bool = True
    has_id: bool = False


TABLES: Final = "sys.tables"
CONNECTORS: Final = "sys.connectors"
SCHEMATA: Final = "information_schema.schemata"
CATALOG: Final[Mapping[str, CatalogFolder]] = {
    TABLES: CatalogFolder("tables", {"current_snapshot_id": "snapshot_id"}),
    CONNECTORS: CatalogFolder("connectors", is_keyed=False),
    SCHEMATA: CatalogFolder(
        "namespaces", {"table_catalog": "catalog_name", "table_schema": "schema_name"}, is_keyed=False
    ),
    "sys.snapshots": CatalogFolder("snapshots", has_id=True),
    "information_schema.columns": CatalogFolder("table_columns"),
    # the state in the flight is STALE for a publication of an earlier snapshot, which reads compute
    "sys.publications": CatalogFolder("publications", {"state": "published_state"}, has_id=True),
    "sys.checks": CatalogFolder("checks", has_id=True),
    "sys.column_usage": CatalogFolder("column_usage"),
    # what no flight has: earlier schemas, ids of earlier columns, constraints, file listings, identities of tables
    "schemas": CatalogFolder("schemas"),
    "column_ids": CatalogFolder("column_ids"),
    "table_constraints": CatalogFolder("table_constraints"),
    "file_snapshots": CatalogFolder("file_snapshots"),
    "identities": CatalogFolder("identities"),
}
"""Folder → its table, in the order in which they are loaded. An import gives tables new keys."""

LEFT_OUT: Final = frozenset(
    {
        "settings",
        "staged_listings",
        "segments",
        "segment_ends",
        "footers",
        "idempotency",
        "jobs",
        "capture_decisions",
        "costs",
    }
)
"""Tables of the database that no export has: what belongs to this server, or to work that goes on. The rows in segments
are rows of their flights."""

FOLDERS: Final = (*CATALOG, *RECORDS)


def database_columns(connection: Connection, table: str) -> dict[str, pa.DataType]:
    """The columns of a table of a database, by their Arrow types."""
    rows = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND NOT internal"
        " ORDER BY column_index",
        [table],
    ).fetchall()
    return {name: _TYPES[type] for name, type in rows}


def catalog_columns(columns: Mapping[str, pa.DataType], folder: CatalogFolder) -> dict[str, str]:
    """The columns of a table of the database that its folder has → their names there, without those of its key."""
    left_out = {"table_key", "dropped"} if folder.table == "tables" else {"table_key", *NAME}
    keys = left_out if folder.is_keyed else set()
    return {name: folder.renamed.get(name, name) for name in columns if name not in keys}


def catalog_schema(columns: Mapping[str, pa.DataType], folder: CatalogFolder) -> pa.Schema:
    """The schema of a folder of the catalog.

    Args:
        columns: The columns of its table.
    """
    fields: dict[str, pa.DataType] = {}
    if folder.is_keyed and folder.table != "tables":
        fields |= dict.fromkeys([*NAME, *(["table_id"] if folder.has_id else [])], pa.string())
    fields |= {shown: columns[name] for name, shown in catalog_columns(columns, folder).items()}
    return pa.schema(list(fields.items()))


@cache
def record_schema(flight: str) -> pa.Schema:
    """The schema of a folder of records."""
    fields = [field for field in FLIGHTS[flight].schema if field.name not in COMPUTED]
    more = MORE | (LISTED if flight in BY_SPAN or flight == SKETCHES else {})
    return pa.schema([*fields, *more.items()])


def schemas(connection: Connection) -> dict[str, pa.Schema]:
    """The schema of each folder of a database."""
    catalog = {
        name: catalog_schema(database_columns(connection, folder.table), folder) for name, folder in CATALOG.items()
    }
    return catalog | {flight: record_schema(flight) for flight in RECORDS}


@cache
def current_schemas() -> Mapping[str, pa.Schema]:
    """The schema of each folder of a database of this layout."""
    with duckdb.connect(":memory:") as connection:
        prepare(connection, ":memory:")
        return schemas(connection)

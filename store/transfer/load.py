"""Import: the rows of an export into an empty database, in one transaction.

The catalog is stored as it is, with new keys of tables; records of tables, columns, expressions, groups and their
sketches get spans that are right where a target has one record per schema, and `respan` mends all others; rows of files
get back the span of listings that each of their copies in the export names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import execute, query
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, GROUPED, OPEN_END, Connection, parts, stored_columns
from store.history.spans import respan
from store.model.columns import DISTRIBUTION
from store.model.errors import InvalidArgument
from store.model.freshness import has_sql
from store.transfer.contents import (
    CATALOG,
    FILE_SKETCHES,
    NAME,
    RECORDS,
    SKETCHES,
    TABLES,
    CatalogFolder,
    catalog_columns,
    current_schemas,
    database_columns,
)
from store.transfer.manifest import path_of, refusal

_MEMORY_BYTES: Final = 400 << 20
_RESPANNED_ROWS: Final = 250_000  # of the tables whose spans are computed by one statement, about
_BATCH_ROWS: Final = 16_384
_BATCH_SKETCHES: Final = 256
_NAMED: Final = ", ".join(NAME)
_PLACE: Final = f"{_NAMED}, snapshot_id"
# Rows of a file are joined with Arrow tables: DuckDB knows the size of neither side then, and builds its hash table of
# the narrower one. With a table of its own it would build one of all rows.
_KEYS_SQL: Final = f"SELECT {_NAMED}, table_key FROM tables"
_PLACES_SQL: Final = (
    f"SELECT {_NAMED}, n.snapshot_id, n.table_key, n.schema_key, n.ordinal,"
    " coalesce(n.snapshot_id = c.current_snapshot_id, false) AS is_current"
    " FROM snapshots n JOIN tables c ON c.table_key = n.table_key"
)

Files = Mapping[str, IO[bytes]]
"""Folder → its Parquet file, which may be read from any place."""


def check_empty(connection: Connection) -> None:
    """Refuses a database that has a catalog or records.

    Raises:
        InvalidArgument: It is not empty.
    """
    for folder in CATALOG.values():
        if connection.execute(f"SELECT 1 FROM {folder.table} LIMIT 1").fetchall():
            raise InvalidArgument(
                "import: the server is not empty; nothing was stored",
                code="NOT_EMPTY",
                hint="start one with a new --db and without lakes, and import into that",
            )


def load(connection: Connection, catalog: Catalog, files: Files) -> int:
    """Stores the rows of an export; called inside of a write. Returns the number of records.

    Args:
        catalog: The database's, whose entries follow.
        files: The files, checked before.

    Raises:
        InvalidArgument: The database is not empty, or a file names a table or snapshot that the export lacks.
    """
    check_empty(connection)
    with _bounded_memory(connection):
        return _load(connection, catalog, files)


@contextlib.contextmanager
def _bounded_memory(connection: Connection) -> Iterator[None]:
    """Limits what DuckDB keeps in memory; what is more goes to files beside the database."""
    bytes_now, before = connection.execute(
        "SELECT memory_usage_bytes, current_setting('memory_limit') FROM"
        " (SELECT sum(memory_usage_bytes)::BIGINT AS memory_usage_bytes FROM duckdb_memory())"
    ).fetchall()[0]
    if bytes_now > _MEMORY_BYTES // 2:  # others use it too
        yield
        return
    connection.execute(f"SET memory_limit = '{_MEMORY_BYTES}B'")
    try:
        yield
    finally:
        connection.execute(f"SET memory_limit = '{before}'")


def _load(connection: Connection, catalog: Catalog, files: Files) -> int:
    for name, folder in CATALOG.items():
        _load_catalog(connection, catalog, name, folder, files[name])
    catalog.read_entries(connection)
    count = sum(_load_records(connection, flight, files[flight]) for flight in RECORDS)
    catalog.presence.load(connection)
    keys = [key for (key,) in connection.execute("SELECT table_key FROM tables").fetchall()]
    catalog.database.touch(*keys)
    for some in _groups(connection):
        respan(connection, some)
    _tell(connection, catalog)
    return count


def _load_catalog(connection: Connection, catalog: Catalog, name: str, folder: CatalogFolder, file: IO[bytes]) -> None:
    columns = catalog_columns(database_columns(connection, folder.table), folder)
    columns = {own: shown for own, shown in columns.items() if shown in _names(file)}
    own, shown = ", ".join(f'"{each}"' for each in columns), [f'r."{each}"' for each in columns.values()]
    if folder.table == "tables":
        first = catalog.entries.reserve_key()
        into = f"table_key, dropped, {own}"
        select = f"{first - 1} + row_number() OVER (), false, {', '.join(shown)} FROM {{rows}} r"
    elif folder.is_keyed:
        named = _names_of_table(database_columns(connection, folder.table))
        into = ", ".join(["table_key", *named, own])
        values = ", ".join(["k.table_key", *(f"k.{each}" for each in named), *shown])
        select = f"{values} FROM {{rows}} r JOIN {{known}} k USING ({_NAMED})"
    else:
        into, select = own, f"{', '.join(shown)} FROM {{rows}} r"
    keys = query(connection, _KEYS_SQL)
    stored = _insert(connection, f"INSERT INTO {folder.table} ({into}) SELECT {select}", name, file, keys)
    if stored != (rows := pq.ParquetFile(file).metadata.num_rows):
        raise refusal(f"{rows - stored} rows of {path_of(name)} are of tables that {path_of(TABLES)} lacks")


def _names_of_table(columns: Mapping[str, Any]) -> list[str]:
    """The parts of a table's name that a table of the database has besides its key."""
    return [name for name in NAME if name in columns]


def _load_records(connection: Connection, flight: str, file: IO[bytes]) -> int:
    """Stores the records of a flight; returns how many rows of the export they are."""
    rows: int = pq.ParquetFile(file).metadata.num_rows
    if not rows:
        return 0
    places = query(connection, _PLACES_SQL)
    _check_places(connection, flight, file, places)
    if flight in BY_SPAN:
        _insert(connection, _by_span_sql(flight, "true"), flight, file, query(connection, _listings_sql(flight)))
        return rows
    is_of_file = "coalesce(r.target_kind = 'FILE', false)" if flight == SKETCHES else "false"
    for table, part in zip(parts(flight), ("p.is_current", "NOT p.is_current"), strict=True):
        _insert(connection, _by_snapshot_sql(flight, table, f"{part} AND NOT {is_of_file}"), flight, file, places)
    if flight == SKETCHES:
        listings = query(connection, _listings_sql(FILE_SKETCHES))
        _insert(connection, _by_span_sql(FILE_SKETCHES, is_of_file), flight, file, listings)
    return rows


def _check_places(connection: Connection, flight: str, file: IO[bytes], places: pa.Table) -> None:
    """Refuses records of tables or snapshots that the export lacks, which no statement would store."""
    lost = execute(
        connection,
        f"SELECT {_PLACE} FROM {{rows}} r ANTI JOIN {{known}} p USING ({_PLACE}) ORDER BY ALL LIMIT 1",
        rows=_rows(file, "", [*NAME, "snapshot_id"]),
        known=places,
    )
    for *name, snapshot_id in lost:
        raise refusal(f"{path_of(flight)}: sys.snapshots lacks snapshot {snapshot_id} of {'.'.join(name)}")


def _by_snapshot_sql(flight: str, table: str, where: str) -> str:
    """SQL that stores records in one of the tables of a flight, each from its snapshot on."""
    values = [f'"{name}"' for name in stored_columns(flight)]
    columns = {name: f"r.{name}" for name in ("snapshot_id", *values, "generation", "created_at")}
    columns |= {"schema_key": "p.schema_key", "from_ord": "p.ordinal", "to_ord": str(OPEN_END), "is_copy": "false"}
    if flight in GROUPED:
        has_own = has_sql("r", DISTRIBUTION)
        columns["distribution_snapshot_id"] = f"CASE WHEN {has_own} THEN r.snapshot_id END"
        columns["distribution_generation"] = f"CASE WHEN {has_own} THEN r.generation END"
    return (
        f"INSERT INTO {table} (table_key, {', '.join(columns)}) SELECT p.table_key, {', '.join(columns.values())}"
        f" FROM {{rows}} r JOIN {{known}} p USING ({_PLACE}) WHERE {where}"
    )


def _by_span_sql(family: str, where: str) -> str:
    """SQL that stores rows of files: the one of the first listing of each span. A listing that was being stored while
    the database was exported is not in the export, so rows that end there are rows of the newest one."""
    columns = [*(f'"{name}"' for name in stored_columns(family)), "generation", "created_at"]
    return (
        f"INSERT INTO {BY_SPAN[family]} (table_key, from_pos, to_pos, {', '.join(columns)})"
        f" SELECT p.table_key, r.listed_from, CASE WHEN r.listed_to > p.newest THEN {OPEN_END} ELSE r.listed_to END,"
        f" {', '.join(f'r.{name}' for name in columns)} FROM {{rows}} r JOIN {{known}} p USING ({_PLACE})"
        f" WHERE {where} AND (p.before IS NULL OR p.before < r.listed_from)"
    )


def _listings_sql(family: str) -> str:
    """SQL of the listings of a family: their places, the position before, and that of the newest one."""
    return (
        f"SELECT {_NAMED}, f.snapshot_id, f.table_key, lag(f.pos) OVER listings AS before,"
        " max(f.pos) OVER (PARTITION BY f.table_key) AS newest"
        f" FROM file_snapshots f JOIN tables c ON c.table_key = f.table_key WHERE f.family = '{family}'"
        " WINDOW listings AS (PARTITION BY f.table_key ORDER BY f.pos)"
    )


def _groups(connection: Connection) -> Iterator[Sequence[int]]:
    """The tables, in groups that have about as many records as one statement is to compare."""
    tables = " UNION ALL ".join(f"SELECT table_key FROM {part}" for flight in BY_SNAPSHOT for part in parts(flight))
    counts = connection.execute(f"SELECT table_key, count(*) FROM ({tables}) GROUP BY 1 ORDER BY 1").fetchall()
    group: list[int] = []
    rows = 0
    for key, count in counts:
        if group and rows + count > _RESPANNED_ROWS:
            yield group
            group, rows = [], 0
        group.append(key)
        rows += count
    if group:
        yield group


def _tell(connection: Connection, catalog: Catalog) -> None:
    """Registers what is stored as changed, for a store behind the database."""
    for table in catalog.tables():
        catalog.behind.registered(table)
    for flight in (*BY_SNAPSHOT, *BY_SPAN):
        source = BY_SNAPSHOT.get(flight) or f"file_snapshots WHERE family = '{flight}'"
        catalog.behind.stored(flight, query(connection, f"SELECT DISTINCT table_key, snapshot_id FROM {source}"))


# Files as tables of statements.


def _names(file: IO[bytes]) -> list[str]:
    names: list[str] = pq.ParquetFile(file).schema_arrow.names
    return names


def _rows(file: IO[bytes], folder: str, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """The rows of a file, with nulls in columns that an earlier layout lacks."""
    opened = pq.ParquetFile(file, pre_buffer=False)
    batches = opened.iter_batches(_BATCH_SKETCHES if folder == SKETCHES else _BATCH_ROWS, columns=columns)
    schema = current_schemas()[folder] if columns is None else pa.schema(map(opened.schema_arrow.field, columns))
    lacking = set(schema.names).difference(opened.schema_arrow.names)
    if lacking:
        batches = (_widened(batch, schema) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    given, rows = set(batch.schema.names), batch.num_rows
    columns = [batch[field.name] if field.name in given else pa.nulls(rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _insert(connection: Connection, sql: str, folder: str, file: IO[bytes], known: pa.Table) -> int:
    """Runs a statement that stores rows of a file, `{rows}`; returns how many it stored.

    Args:
        known: The table `{known}` of the statement.
    """
    ((stored,),) = execute(connection, sql, rows=_rows(file, folder), known=known)
    return int(stored)

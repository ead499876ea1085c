"""Import: the rows of an export into an empty database, in one transaction.

The catalog is stored as it is, with new keys of tables; records of tables, columns, expressions, groups and their
sketches get spans that are right where a target has one record per schema, and `respan` mends all others; rows of files
get back the span of listings that each of their copies in the export names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import execute, query
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, GROUPED, OPEN_END, Connection, parts, stored_columns
from store.history.spans import respan
from store.model.errors import InvalidArgument
from store.model.freshness import has_sql
from store.model.schemas import DISTRIBUTION
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

_RESPANNED_ROWS: Final = 250_000  # of the tables whose spans are computed by one statement, about
_BATCH_ROWS: Final = 16_384
_BATCH_SKETCHES: Final = 256
_KEYS: Final = f"SELECT {', '.join(NAME)}, table_key, current_snapshot_id FROM tables"

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
        first = catalog.reserve_key()
        into = f"table_key, dropped, {own}"
        select = f"{first - 1} + row_number() OVER (), false, {', '.join(shown)} FROM {{rows}} r"
    elif folder.is_keyed:
        named = _names_of_table(database_columns(connection, folder.table))
        into = ", ".join(["table_key", *named, own])
        values = ", ".join(["k.table_key", *(f"k.{each}" for each in named), *shown])
        select = f"{values} FROM {{rows}} r JOIN ({_KEYS}) k USING ({', '.join(NAME)})"
    else:
        into, select = own, f"{', '.join(shown)} FROM {{rows}} r"
    stored = _insert(connection, f"INSERT INTO {folder.table} ({into}) SELECT {select}", name, file)
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
    _check_places(connection, flight, file)
    if flight in BY_SNAPSHOT:
        is_of_file = "coalesce(r.target_kind = 'FILE', false)" if flight == SKETCHES else "false"
        for table, is_current in zip(parts(flight), (True, False), strict=True):
            where = f"NOT {is_of_file} AND (r.snapshot_id IS NOT DISTINCT FROM k.current_snapshot_id) = {is_current}"
            _insert(connection, _by_snapshot_sql(flight, table, where), flight, file)
        if flight == SKETCHES:
            _insert(connection, _by_span_sql(FILE_SKETCHES, is_of_file), flight, file)
    else:
        _insert(connection, _by_span_sql(flight, "true"), flight, file)
    return rows


def _check_places(connection: Connection, flight: str, file: IO[bytes]) -> None:
    """Refuses records of tables or snapshots that the export lacks, which no statement would store."""
    named = f"{', '.join(NAME)}, snapshot_id"
    lost = _select(
        connection,
        f"SELECT DISTINCT {', '.join(f'r.{name}' for name in NAME)}, r.snapshot_id FROM {{rows}} r ANTI JOIN"
        f" (SELECT {named} FROM ({_KEYS}) JOIN snapshots USING (table_key)) n USING ({named}) LIMIT 1",
        file,
        [*NAME, "snapshot_id"],
    )
    for *name, snapshot_id in lost:
        raise refusal(f"{path_of(flight)}: sys.snapshots lacks snapshot {snapshot_id} of {'.'.join(name)}")


def _by_snapshot_sql(flight: str, table: str, where: str) -> str:
    """SQL that stores records in one of the tables of a flight, each from its snapshot on."""
    values = [f'"{name}"' for name in stored_columns(flight)]
    columns = {name: f"r.{name}" for name in ("snapshot_id", *values, "generation", "created_at")}
    columns |= {"schema_key": "n.schema_key", "from_ord": "n.ordinal", "to_ord": str(OPEN_END), "is_copy": "false"}
    if flight in GROUPED:
        has_own = has_sql("r", DISTRIBUTION)
        columns["distribution_snapshot_id"] = f"CASE WHEN {has_own} THEN r.snapshot_id END"
        columns["distribution_generation"] = f"CASE WHEN {has_own} THEN r.generation END"
    return (
        f"INSERT INTO {table} (table_key, {', '.join(columns)}) SELECT k.table_key, {', '.join(columns.values())}"
        f" FROM {{rows}} r JOIN ({_KEYS}) k USING ({', '.join(NAME)})"
        f" JOIN snapshots n ON n.table_key = k.table_key AND n.snapshot_id = r.snapshot_id WHERE {where}"
    )


def _by_span_sql(family: str, where: str) -> str:
    """SQL that stores rows of files: the one of the first listing of each span. A listing that was being stored while
    the database was exported is not in the export, so rows that end there are rows of the newest one."""
    columns = [*(f'"{name}"' for name in stored_columns(family)), "generation", "created_at"]
    return (
        f"INSERT INTO {BY_SPAN[family]} (table_key, from_pos, to_pos, {', '.join(columns)})"
        f" SELECT k.table_key, r.listed_from, CASE WHEN r.listed_to > f.newest THEN {OPEN_END} ELSE r.listed_to END,"
        f" {', '.join(f'r.{name}' for name in columns)}"
        f" FROM {{rows}} r JOIN ({_KEYS}) k USING ({', '.join(NAME)}) JOIN (SELECT table_key, snapshot_id,"
        " lag(pos) OVER listings AS before, max(pos) OVER (PARTITION BY table_key) AS newest"
        f" FROM file_snapshots WHERE family = '{family}' WINDOW listings AS (PARTITION BY table_key ORDER BY pos)) f"
        " ON f.table_key = k.table_key AND f.snapshot_id = r.snapshot_id"
        f" WHERE {where} AND (f.before IS NULL OR f.before < r.listed_from)"
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
        catalog.changes.registered(table)
    for flight in (*BY_SNAPSHOT, *BY_SPAN):
        source = BY_SNAPSHOT.get(flight) or f"file_snapshots WHERE family = '{flight}'"
        catalog.changes.stored(flight, query(connection, f"SELECT DISTINCT table_key, snapshot_id FROM {source}"))


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


def _insert(connection: Connection, sql: str, folder: str, file: IO[bytes]) -> int:
    """Runs a statement that stores rows of a file, `{rows}`; returns how many it stored."""
    ((stored,),) = execute(connection, sql, rows=_rows(file, folder))
    return int(stored)


def _select(connection: Connection, sql: str, file: IO[bytes], columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return execute(connection, sql, rows=_rows(file, "", columns))

"""The tables of the DuckDB file, which store the rows of the flights.

Rows of most flights are stored once per snapshot. In the flights of `BY_SNAPSHOT` each row has a span
(`store.history.spans`): it holds at the snapshots of `schema_key` with from_ord <= ordinal < to_ord. They have two
tables: `…_current` has the rows that hold at their table's current snapshot, so that a scan of current statistics is a
plain scan; `…_history` has all others. For the flights of `GROUPED` a row is the record with the counts, with the
distribution that is served; where that is another record's or none, `own_…` has the record's own. A record whose
distribution changes within its span has a copy for each further one (`is_copy`). A view with the flight's name has the
records of both tables. Rows of files are stored once while they do not change: they belong to the file listings at
positions from_pos <= pos < to_pos (`store.history.file_spans`). Those of large listings lie outside of the file, in
Parquet files that `segments` lists (`store.duckdb.segments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa

from store.model.columns import COMPUTED, DELETE_FILE, DISTRIBUTION, KEY
from store.model.errors import InvalidArgument
from store.model.schemas import FLIGHTS

Connection: TypeAlias = duckdb.DuckDBPyConnection
"""A connection or cursor; the parameter `connection` of a function that writes is the writer's, in its transaction."""

VERSION: Final = 20
"""The layout of the file; a file of an older one is upgraded (`store.duckdb.upgrades`), a newer one is refused."""

OLDEST: Final = 19
"""The oldest layout that can be upgraded."""

OPEN_END = 2**62  # `to_pos` of a row that belongs to the newest file listing, `to_ord` of one that nothing replaced

# Flight → the view with all of its stored records.
BY_SNAPSHOT = {
    "stats.tables": "stats_tables",
    "stats.columns": "stats_columns",
    "stats.expressions": "stats_expressions",
    "stats.column_groups": "stats_column_groups",
    "stats.sketches": "stats_sketches",
}
BY_SPAN = {"stats.files": "stats_files", "stats.file_columns": "stats_file_columns", "file_sketches": "file_sketches"}
STORED = BY_SNAPSHOT | BY_SPAN
GROUPED: Final = ("stats.columns", "stats.expressions", "stats.column_groups")
"""The flights of `BY_SNAPSHOT` whose rows are served as two groups, counts and distribution (`store.history.spans`)."""

SPAN: Final = {"schema_key": "UBIGINT", "from_ord": "BIGINT", "to_ord": "BIGINT"}
"""The columns of a span, by their types."""

SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BLOB",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    pa.list_(pa.int64()): "BIGINT[]",
    pa.list_(pa.string()): "VARCHAR[]",
    pa.list_(DELETE_FILE): "STRUCT(file_path VARCHAR, file_content VARCHAR, content_offset BIGINT,"
    " content_size BIGINT)[]",
}

_CATALOG = """
CREATE TABLE settings (name VARCHAR, value VARCHAR);
CREATE TABLE connectors (catalog VARCHAR, format VARCHAR, uri VARCHAR, options VARCHAR, state VARCHAR,
    last_seen_at TIMESTAMPTZ, last_error VARCHAR);
CREATE TABLE tables (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    table_id VARCHAR, format VARCHAR, location VARCHAR, current_snapshot_id BIGINT, dropped BOOLEAN,
    partition_keys VARCHAR[], properties VARCHAR, last_error VARCHAR, capture_error VARCHAR,
    discovered_at TIMESTAMPTZ, checked_at TIMESTAMPTZ, metadata_location VARCHAR, format_schema VARCHAR,
    description VARCHAR, owner VARCHAR, tags VARCHAR[], notes VARCHAR, max_snapshots_behind BIGINT,
    watch_seconds DOUBLE);
CREATE TABLE namespaces (table_catalog VARCHAR, table_schema VARCHAR);
CREATE TABLE schemas (table_key BIGINT, schema_hash VARCHAR, columns VARCHAR);
CREATE TABLE table_columns (table_key BIGINT, column_name VARCHAR, data_type VARCHAR, ordinal_position BIGINT,
    is_nullable VARCHAR, column_id BIGINT, column_path VARCHAR[], comment VARCHAR);
CREATE TABLE column_ids (table_key BIGINT, column_name VARCHAR, column_id BIGINT);
CREATE TABLE table_constraints (table_key BIGINT, kind VARCHAR, name VARCHAR, ordinal_position BIGINT,
    column_name VARCHAR, clause VARCHAR);
CREATE TABLE snapshots (table_key BIGINT, snapshot_id BIGINT, ordinal BIGINT, parent_snapshot_id BIGINT,
    sequence_number BIGINT, committed_at TIMESTAMPTZ, operation VARCHAR, schema_hash VARCHAR, is_live BOOLEAN,
    manifest_list VARCHAR, summary VARCHAR, schema_key UBIGINT);
CREATE TABLE identities (table_key BIGINT, snapshot_id BIGINT, identity VARCHAR);
CREATE TABLE file_snapshots (table_key BIGINT, family VARCHAR, snapshot_id BIGINT, pos BIGINT,
    schema_key UBIGINT, from_ord BIGINT, to_ord BIGINT, mark VARCHAR);
CREATE TABLE staged_listings (table_key BIGINT, family VARCHAR, pos BIGINT, generation BIGINT);
CREATE TABLE segments (segment BIGINT, table_key BIGINT, family VARCHAR, name VARCHAR, digest VARCHAR,
    size_bytes BIGINT, row_count BIGINT, from_pos BIGINT, to_pos BIGINT, generation BIGINT, created_at TIMESTAMPTZ,
    has_ends BOOLEAN);
CREATE TABLE segment_ends (segment BIGINT, row_number BIGINT, to_pos BIGINT);
CREATE TABLE checks (table_key BIGINT, snapshot_id BIGINT, column_name VARCHAR, rule VARCHAR, measure VARCHAR,
    level VARCHAR, state VARCHAR, value DOUBLE, detail VARCHAR, checked_at TIMESTAMPTZ, changed_at TIMESTAMPTZ);
CREATE TABLE publications (table_key BIGINT, home VARCHAR, snapshot_id BIGINT, state VARCHAR, location VARCHAR,
    columns VARCHAR[], published_at TIMESTAMPTZ, detail VARCHAR, made_snapshot_id BIGINT);
CREATE TABLE footers (path VARCHAR, size_bytes BIGINT, modified BIGINT, footer BLOB, kept_at TIMESTAMPTZ);
CREATE TABLE idempotency (key VARCHAR, content_hash VARCHAR, answer VARCHAR, stored_at TIMESTAMPTZ);
CREATE TABLE jobs (job_id VARCHAR, state VARCHAR, table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR,
    table_name VARCHAR, snapshot VARCHAR, mode VARCHAR, targets VARCHAR, request VARCHAR, dedupe VARCHAR,
    attempts BIGINT, priority BIGINT, queued_at TIMESTAMPTZ, started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ,
    not_before TIMESTAMPTZ, progress DOUBLE, degraded BOOLEAN, stats_processed BIGINT, message VARCHAR, holder VARCHAR);
CREATE TABLE capture_decisions (decided_at TIMESTAMPTZ, correlation_id VARCHAR, table_key BIGINT,
    table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, snapshot_id BIGINT, target_kind VARCHAR,
    storage_id VARCHAR, outcome VARCHAR, engine_id VARCHAR, detail VARCHAR, elapsed_ms DOUBLE);
CREATE TABLE costs (day DATE, catalog VARCHAR, operation VARCHAR, reason VARCHAR, requests BIGINT, bytes BIGINT);
CREATE TABLE column_usage (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    column_name VARCHAR, reads BIGINT, last_read_at TIMESTAMPTZ);
"""


def insert_rows(connection: Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Appends rows in one statement; `executemany` would take a millisecond per row.

    Args:
        table: Name of the table, optionally followed by columns in parentheses.
        rows: Values in the order of the columns; each column has values of one type.
    """
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        # one value instead of a list takes half the time for a single row
        is_one = [column.count(column[0]) == len(rows) for column in columns]
        is_one[0] &= len(rows) == 1
        values = ", ".join("?" if one else "unnest(?)" for one in is_one)
        given = [column[0] if one else column for column, one in zip(columns, is_one, strict=True)]
        connection.execute(f"INSERT INTO {table} SELECT {values}", given)


@cache
def stored_columns(flight: str) -> Mapping[str, pa.DataType]:
    """The columns of a flight's physical table after its key: payload, then recorded provenance."""
    schema = FLIGHTS["stats.sketches" if flight == "file_sketches" else flight].schema
    names = [n for n in schema.names if n not in KEY and n not in COMPUTED]
    return MappingProxyType({name: schema.field(name).type for name in names})


def parts(flight: str) -> tuple[str, str]:
    """The physical tables of a flight of `BY_SNAPSHOT`, of current and other rows."""
    table = BY_SNAPSHOT[flight]
    return f"{table}_current", f"{table}_history"


@cache
def record_columns(flight: str) -> str:
    """SQL of the columns of the records in a physical table of a flight of `BY_SNAPSHOT`: key, payload, provenance."""
    values = stored_columns(flight)
    is_served = set(DISTRIBUTION) if flight in GROUPED else set()
    own_values = (f'{own_sql(name)} AS "{name}"' if name in is_served else f'"{name}"' for name in values)
    return ", ".join(["table_key", "snapshot_id", *own_values, "generation", "created_at"])


def own(name: str) -> str:
    """The column with a record's own value where another record's, or none, is served."""
    return f"own_{name}"


def own_sql(name: str) -> str:
    """SQL of a record's own value of a column of its distribution, in a physical table of `GROUPED`."""
    return f"CASE WHEN distribution_snapshot_id IS DISTINCT FROM snapshot_id THEN {own(name)} ELSE {name} END"


def ddl(flight: str, table: str, leading: str, more: str = "") -> str:
    """The CREATE TABLE statement of a flight's physical table.

    Args:
        leading: SQL of the columns between `table_key` and the flight's own.
        more: SQL of columns at the end, each after a comma.
    """
    columns = []
    for name, type in stored_columns(flight).items():
        # zstd makes sketches of few values, and those that resemble others near them, several times smaller.
        # DuckDB's own choice costs three times as much, and is often one that compresses less.
        extra = " USING COMPRESSION zstd" if name == "data" else ""
        columns.append(f'"{name}" {SQL_TYPES[type]}{extra}')
    return (
        f"CREATE TABLE {table} (table_key BIGINT, {leading}, {', '.join(columns)}, generation BIGINT, "
        f"created_at TIMESTAMPTZ{more});"
    )


def parted_ddl(flight: str) -> list[str]:
    """The statements that create both tables of a flight of `BY_SNAPSHOT`, and the view of their records."""
    more = SPAN | {"is_copy": "BOOLEAN"}
    if flight in GROUPED:
        types = stored_columns(flight)
        more |= {"distribution_snapshot_id": "BIGINT", "distribution_generation": "BIGINT"}
        more |= {own(name): SQL_TYPES[types[name]] for name in DISTRIBUTION}
    columns = "".join(f", {name} {type}" for name, type in more.items())
    selects = (f"SELECT {record_columns(flight)} FROM {table} WHERE NOT is_copy" for table in parts(flight))
    return [
        *(ddl(flight, table, "snapshot_id BIGINT", columns) for table in parts(flight)),
        f"CREATE VIEW {BY_SNAPSHOT[flight]} AS {' UNION ALL '.join(selects)}",
    ]


def records_sql(flight: str, columns: Sequence[str]) -> str:
    """SQL of some columns of all records of a flight of `BY_SNAPSHOT`, planned in half of the time of its view.

    Args:
        columns: Columns of the database's tables that are not those of `GROUPED` distributions.
    """
    return " UNION ALL ".join(f"SELECT {', '.join(columns)} FROM {table} WHERE NOT is_copy" for table in parts(flight))


class OlderLayout(InvalidArgument):
    """A file of an older layout, `found`, which can be upgraded."""

    def __init__(self, name: str, found: int):
        super().__init__(
            f'database "{name}": it has layout {found}, this statflight reads layout {VERSION}',
            code="DATABASE",
            hint="statflight upgrade --db upgrades it, as serve does",
        )
        self.found = found


def prepare(connection: Connection, name: str) -> None:
    """Creates the tables in an empty file, in one transaction; checks the layout of any other.

    Raises:
        OlderLayout: The file can be upgraded.
        InvalidArgument: A newer statflight, one of before the first release, or another program wrote the file.
    """
    if check(connection, name):
        return
    connection.execute("BEGIN")
    try:
        _create(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def check(connection: Connection, name: str) -> bool:
    """Checks the layout of a file; False for an empty one. Raises as `prepare` does."""
    if (version := _version(connection)) == VERSION:
        return True
    if version is not None and OLDEST <= version < VERSION:
        raise OlderLayout(name, version)
    if version is not None:
        newer = version > VERSION
        raise InvalidArgument(
            f'database "{name}": it has layout {version}, this statflight reads layout {VERSION}',
            code="DATABASE",
            hint="install the version that wrote it" + (", or a newer one" if newer else ", or capture again"),
        )
    if connection.execute("SELECT 1 FROM duckdb_tables()").fetchall():
        raise InvalidArgument(
            f'database "{name}": it has tables that are not of statflight',
            code="DATABASE",
            hint="name another file with --db",
        )
    return False


def _version(connection: Connection) -> int | None:
    """The layout of a store; None for a file without its tables, which are named here because listing all tables would
    take half the time of opening a file."""
    try:
        rows = connection.execute(
            "SELECT value::INTEGER FROM settings WHERE name = 'schema_version'"
            " AND NOT EXISTS (SELECT 1 FROM snapshots, stats_sketches LIMIT 0)"
        ).fetchall()
    except (duckdb.CatalogException, duckdb.BinderException, duckdb.ConversionException):
        return None
    return rows[0][0] if rows else None


def _create(connection: Connection) -> None:
    statements = [_CATALOG]
    for flight in BY_SNAPSHOT:
        statements += parted_ddl(flight)
    statements += [ddl(flight, table, "from_pos BIGINT, to_pos BIGINT") for flight, table in BY_SPAN.items()]
    statements.append(f"INSERT INTO settings VALUES ('schema_version', '{VERSION}')")
    for statement in statements:
        connection.execute(statement)

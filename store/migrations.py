"""Migrations of the DuckDB file: each step upgrades a stored database from one layout to the next."""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from store.current_rows import refresh, refresh_listings
from store.errors import InvalidArgument
from store.layout import PARTED, SQL_TYPES, Connection, create, current_ddl, parts
from store.schemas import DELETES, MOMENTS

VERSION = 8  # current version of the layout


def _add_column_usage(connection: Connection) -> None:
    """Layout 2. Earlier servers created the table themselves; their counts are kept."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS column_usage (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR,"
        " table_name VARCHAR, column_name VARCHAR, reads BIGINT, last_read_at TIMESTAMPTZ)"
    )


def _add_file_marks(connection: Connection) -> None:
    """Layout 3. Earlier listings have no mark: the next capture of a table puts all its files once more."""
    connection.execute("CREATE TABLE file_marks (table_key BIGINT, snapshot_id BIGINT, mark VARCHAR)")


def _add_packed(connection: Connection) -> None:
    """Layout 4. The values are derived from the rows later."""
    connection.execute(
        "CREATE TABLE packed (flight VARCHAR, table_key BIGINT, snapshot_id BIGINT,"
        " data BLOB USING COMPRESSION uncompressed)"
    )


def _add_moments(connection: Connection) -> None:
    """Layout 5. Stored rows have null in the new columns until they are captured again."""
    scalar = {name: SQL_TYPES[type] for name, type in MOMENTS.items()}
    tables = ("stats_columns", "stats_file_columns", "stats_expressions", "stats_column_groups")
    added = dict.fromkeys(tables, scalar)
    added["stats_files"] = {name: SQL_TYPES[type] for name, type in DELETES.items()}
    added["table_columns"] = {"column_path": "VARCHAR[]"}
    added["tables"] = {
        "partition_keys": "VARCHAR[]", "properties": "VARCHAR", "state": "VARCHAR", "last_error": "VARCHAR",
        "discovered_at": "TIMESTAMPTZ", "checked_at": "TIMESTAMPTZ",
    }  # fmt: skip
    for table, columns in added.items():
        for name, type in columns.items():
            connection.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {type}')
    connection.execute("UPDATE tables SET state = 'ACTIVE'")
    connection.execute(
        "CREATE TABLE publications (table_key BIGINT, home VARCHAR, snapshot_id BIGINT, state VARCHAR,"
        " location VARCHAR, columns VARCHAR[], published_at TIMESTAMPTZ, detail VARCHAR, made_snapshot_id BIGINT)"
    )


def _part_current(connection: Connection) -> None:
    """Layout 6. Current rows move to tables of their own."""
    for flight in PARTED:
        history = parts(flight)[1]
        connection.execute(f"ALTER TABLE {history.removesuffix('_history')} RENAME TO {history}")
        for statement in current_ddl(flight):
            connection.execute(statement)
    connection.execute("ALTER TABLE file_snapshots ADD COLUMN freshness VARCHAR")
    keys = [key for (key,) in connection.execute("SELECT table_key FROM tables").fetchall()]
    refresh(connection, keys)
    refresh_listings(connection, keys)


def _add_checks(connection: Connection) -> None:
    """Layout 7."""
    connection.execute(
        "CREATE TABLE checks (table_key BIGINT, snapshot_id BIGINT, column_name VARCHAR, rule VARCHAR,"
        " measure VARCHAR, level VARCHAR, state VARCHAR, value DOUBLE, detail VARCHAR, checked_at TIMESTAMPTZ,"
        " changed_at TIMESTAMPTZ)"
    )


def _add_identities(connection: Connection) -> None:
    """Layout 8. The next inspection fills the table."""
    connection.execute("CREATE TABLE identities (table_key BIGINT, snapshot_id BIGINT, identity VARCHAR)")


MIGRATIONS: dict[int, Callable[[Connection], None]] = {
    1: _add_column_usage, 2: _add_file_marks, 3: _add_packed, 4: _add_moments, 5: _part_current,
    6: _add_checks, 7: _add_identities,
}  # fmt: skip
"""Version → the step that upgrades a file of that version to the next one."""


def migrate(connection: Connection, name: str) -> None:
    """Upgrades a file to the newest layout, in one transaction; creates the tables of an empty one.

    Args:
        connection: A connection to the file.
        name: Name of the file, for messages.

    Raises:
        InvalidArgument: A newer statflight, or another program, wrote the file.
    """
    if (version := _version(connection)) == VERSION:
        return
    connection.execute("BEGIN")
    try:
        if version is not None:
            _migrate_from(connection, version)
        elif connection.execute("SELECT 1 FROM duckdb_tables()").fetchall():
            raise InvalidArgument(
                f'database "{name}": it has tables that are not of statflight',
                code="DATABASE", hint="name another file with --db",
            )  # fmt: skip
        else:
            create(connection, VERSION)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


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


def _migrate_from(connection: Connection, version: int) -> None:
    if version > VERSION:
        raise InvalidArgument(
            f"the database was written by a newer statflight (layout {version}, this one knows {VERSION})",
            code="DATABASE", hint="install that version or newer, or name another file with --db",
        )  # fmt: skip
    for step in range(version, VERSION):
        MIGRATIONS[step](connection)
    connection.execute("UPDATE settings SET value = ? WHERE name = 'schema_version'", [str(VERSION)])

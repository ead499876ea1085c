"""Checks of a database's content: what the layout promises (`store.duckdb.layout`, `store/README.md`), as one table.

Each check is SQL with a row for each violation, and the key of the table that it is about (null for none). Spans are
compared with those that the writer would compute (`store.history.spans`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa

from store.duckdb.arrow_sql import execute, keys_table
from store.duckdb.layout import (
    BY_SNAPSHOT,
    BY_SPAN,
    GROUPED,
    OPEN_END,
    Connection,
    own,
    parts,
    prepare,
)
from store.duckdb.opening import opened_read_only
from store.duckdb.segment_files import SegmentError
from store.duckdb.segment_location import of_file
from store.duckdb.segments import Segments
from store.history.spans import changes, listing_changes, misserved, schema_key_sql
from store.model.columns import DISTRIBUTION
from store.model.puts import IDENTITY
from store.queue.job_store import ACTIVE, ENDED

RESTORE: Final = "restore a backup, or a generation from before: statflight restore URL NEW --at GENERATION"
CAPTURE: Final = f"delete the statistics of these tables and capture them again, or {RESTORE}"

_NAMED: Final = 3  # tables that a violation names


Find = Callable[[Connection, pa.Table], Sequence[int | None]]
"""Finds violations, given the keys of all tables (at least one): the key of the table of each."""


class Check(NamedTuple):
    """A check: what is wrong where it finds something, how that is found, and what to do."""

    name: str
    find: str | Find
    remedy: str


class Violation(NamedTuple):
    """A broken invariant, how often, in which tables (at most three, and the number of others), and the remedy."""

    what: str
    number: int | None
    where: str
    remedy: str


def check_file(path: Path) -> Iterator[Violation]:
    """Checks a database file, which is opened for reading; its server must not run.

    Yields:
        The violations. After one that keeps the others from being found there is no other.

    Raises:
        InvalidArgument: There is no such file, a process has it open, or it is of another layout.
    """
    with opened_read_only(path) as connection:
        yield from violations(connection)
        yield from _segment_violations(connection, of_file(connection, path.absolute()))


def _segment_violations(connection: Connection, segments: Segments) -> Iterator[Violation]:
    """The segments that are missing, damaged, or have other rows than their entries say."""
    for segment in segments.find(connection):
        try:
            rows = segments.numbered_sql(segment.family, [segment])
            ((found,),) = connection.execute(f"SELECT count(*) FROM {rows}").fetchall()
        except SegmentError as error:
            yield Violation(error.message, None, _names(connection, [segment.table_key]), RESTORE)
        else:
            if found != segment.row_count:
                yield Violation(
                    f"the segment {segment.name} has {found} rows of {segment.row_count}",
                    None,
                    _names(connection, [segment.table_key]),
                    RESTORE,
                )


def violations(connection: Connection, only: Sequence[Check] | None = None) -> Iterator[Violation]:
    """The violations in an open database; see `check_file`.

    Args:
        only: The checks to run; None for all.
    """
    for check in (*_WHOLE, *checks()) if only is None else only:
        try:
            if isinstance(check.find, str):
                found: Sequence[int | None] = _column(connection, check.find)
            else:
                keys = pa.array(_column(connection, "SELECT table_key FROM tables"), pa.int64())
                found = check.find(connection, pa.table({"key": keys})) if len(keys) or check in _WHOLE else ()
            where = _names(connection, found) if found else ""
        except duckdb.Error as error:
            yield Violation(f"{check.name}: {str(error).splitlines()[0]}", None, "", RESTORE)
            return
        if found:
            yield Violation(check.name, len(found), where, check.remedy)
            if check in _WHOLE:
                return


def _column(connection: Connection, sql: str) -> list[int | None]:
    return [key for (key,) in connection.execute(sql).fetchall()]


def _names(connection: Connection, found: Sequence[int | None]) -> str:
    keys = sorted({key for key in found if key is not None})
    named = dict(
        execute(
            connection,
            "SELECT table_key, concat_ws('.', table_catalog, table_schema, table_name) FROM tables"
            " WHERE table_key IN (SELECT key FROM {keys})",
            keys=keys_table(keys[:_NAMED]),
        )
    )
    more = [f"{len(keys) - _NAMED} more"] if len(keys) > _NAMED else []
    return ", ".join([*(named.get(key, f"table_key {key}") for key in keys[:_NAMED]), *more])


def _read_all(connection: Connection, _: pa.Table) -> Sequence[None]:
    """Reads all values, so that DuckDB compares the checksums of all blocks; a wrong one is an error of DuckDB."""
    for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall():
        connection.execute(f'SELECT bit_xor(hash(t)) FROM "{name}" t').fetchall()
    return []


def _other_columns(connection: Connection, _: pa.Table) -> Sequence[None]:
    """One for each column that should be there and is not, or is there and should not be."""
    return [None] * len(_layout() ^ _columns(connection))


@cache
def _layout() -> Set[tuple[str, ...]]:
    """The columns of a new database, which takes 70 ms to make."""
    with duckdb.connect() as empty:
        prepare(empty, "empty")
        return _columns(empty)


def _columns(connection: Connection) -> Set[tuple[str, ...]]:
    """Table, name and type of all columns."""
    listed = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    return frozenset(connection.execute(listed).fetchall())


def _spanned(flight: str) -> Find:
    return lambda connection, keys: _tables(changes(connection, flight, keys["key"].to_pylist(), keys))


def _served(flight: str) -> Find:
    return lambda connection, keys: _tables(misserved(connection, flight, keys["key"].to_pylist(), keys))


def _listed(connection: Connection, keys: pa.Table) -> Sequence[int | None]:
    return _tables(listing_changes(connection, keys["key"].to_pylist(), keys))


def _tables(changes: pa.Table) -> Sequence[int | None]:
    return list(changes["table_key"].to_pylist())


def _twice(table: str, *columns: str) -> str:
    """SQL of the rows that have the same values as others."""
    key = "any_value(table_key)" if table != "idempotency" else "NULL"
    return f"SELECT {key} FROM {table} GROUP BY {', '.join(columns)} HAVING count(*) > 1"


def _unregistered(table: str, column: str = "snapshot_id") -> str:
    """SQL of the rows whose snapshot is not registered."""
    return (
        f"SELECT r.table_key FROM {table} r ANTI JOIN snapshots n ON n.table_key = r.table_key"
        f" AND n.snapshot_id = r.{column} WHERE r.{column} IS NOT NULL"
    )


_WHOLE: Final = (
    Check("the file has damaged blocks", _read_all, RESTORE),
    Check("the file has other tables or columns than its layout", _other_columns, RESTORE),
)


@cache
def checks() -> Sequence[Check]:
    """All checks but `_WHOLE`, which keep others from being run."""
    files, live = tuple(BY_SPAN.items()), "(FROM tables WHERE NOT dropped)"
    found = [
        Check("tables: several of one key", _twice("tables", "table_key"), RESTORE),
        Check("tables: several of one name", _twice(live, "table_catalog", "table_schema", "table_name"), RESTORE),
        Check("tables: the current snapshot is not registered", _unregistered(live, "current_snapshot_id"), RESTORE),
        Check("snapshots: several of one id", _twice("snapshots", "table_key", "snapshot_id"), RESTORE),
        Check(
            "snapshots: another schema key than the schema gives",
            f"SELECT table_key FROM snapshots WHERE schema_key IS DISTINCT FROM {schema_key_sql('snapshots')}",
            RESTORE,
        ),
        Check("column_ids: several of one name", _twice("column_ids", "table_key", "column_name"), RESTORE),
        Check("jobs: several of one id", _twice("jobs", "job_id"), RESTORE),
        Check("jobs: unknown state", f"SELECT table_key FROM jobs WHERE state NOT IN {(*ACTIVE, *ENDED)}", RESTORE),
        Check("idempotency: several answers to one key", _twice("idempotency", "key"), RESTORE),
        Check(
            "file_snapshots: several listings of one snapshot",
            _twice("file_snapshots", "table_key", "family", "snapshot_id"),
            CAPTURE,
        ),
        Check(
            "file_snapshots: several listings at one position",
            _twice("file_snapshots", "table_key", "family", "pos"),
            CAPTURE,
        ),
        Check("file_snapshots: the span of a listing is another", _listed, CAPTURE),
        Check("staged_listings: several of one table", _twice("staged_listings", "table_key", "family"), CAPTURE),
        Check(
            "staged_listings: a snapshot has the position",
            "SELECT table_key FROM staged_listings SEMI JOIN file_snapshots USING (table_key, family, pos)",
            CAPTURE,
        ),
    ]
    physical = [(table, flight) for flight in BY_SNAPSHOT for table in parts(flight)] + [(t, f) for f, t in files]
    referring = (
        "schemas",
        "table_columns",
        "column_ids",
        "table_constraints",
        "snapshots",
        "identities",
        "file_snapshots",
        "checks",
        "publications",
    )
    found += [
        Check(
            f"{table}: rows of no table",
            f"SELECT table_key FROM {table} ANTI JOIN (SELECT table_key FROM tables UNION"
            " ALL SELECT table_key FROM staged_listings) USING (table_key)",
            RESTORE,
        )
        for table in (*referring, *(table for table, _ in physical))
    ]
    found += [
        Check(f"{table}: the snapshot is not registered", _unregistered(table), CAPTURE)
        for table in ("file_snapshots", *(table for table, flight in physical if flight in BY_SNAPSHOT))
    ]
    for flight, stored in BY_SNAPSHOT.items():
        columns = ("table_key", "snapshot_id", *IDENTITY[flight])
        found.append(
            Check(f"{stored}: several records of one target at one snapshot", _twice(stored, *columns), CAPTURE)
        )
    for flight in BY_SNAPSHOT:
        stored, target = BY_SNAPSHOT[flight], ", ".join(("table_key", *IDENTITY[flight]))
        both = " UNION ALL ".join(f"SELECT * FROM {table}" for table in parts(flight))
        found += [
            Check(
                f"{stored}: spans of one target overlap",
                "SELECT table_key FROM (SELECT table_key, from_ord,"
                f" max(to_ord) OVER (PARTITION BY {target}, schema_key ORDER BY from_ord, to_ord ROWS BETWEEN"
                f" UNBOUNDED PRECEDING AND 1 PRECEDING) AS until FROM ({both}) WHERE from_ord < to_ord)"
                " WHERE from_ord < until",
                CAPTURE,
            ),
            Check(
                f"{stored}: a row has another span, part or distribution than its records give",
                _spanned(flight),
                CAPTURE,
            ),
        ]
    for flight in GROUPED:
        some = " OR ".join(f"{own(name)} IS NOT NULL" for name in DISTRIBUTION)
        found += [
            check
            for table in parts(flight)
            for check in (
                Check(
                    f"{table}: the distribution's snapshot is not registered",
                    _unregistered(table, "distribution_snapshot_id"),
                    CAPTURE,
                ),
                Check(
                    f"{table}: own_ columns of a row that is served with its own distribution",
                    f"SELECT table_key FROM {table} WHERE distribution_snapshot_id = snapshot_id AND ({some})",
                    CAPTURE,
                ),
            )
        ]
        found.append(
            Check(
                f"{BY_SNAPSHOT[flight]}: the values of a distribution are not those of its record",
                _served(flight),
                CAPTURE,
            )
        )
    for family, table in files:
        listings = (
            f"(SELECT table_key, pos FROM file_snapshots WHERE family = '{family}'"
            f" UNION ALL SELECT table_key, pos FROM staged_listings WHERE family = '{family}')"
        )
        newest = f"(SELECT table_key, max(pos) AS pos FROM {listings} GROUP BY ALL)"
        target = ", ".join(("table_key", *IDENTITY[family]))
        found += [
            Check(f"{table}: empty spans", f"SELECT table_key FROM {table} WHERE from_pos >= to_pos", CAPTURE),
            Check(
                f"{table}: spans of one file overlap",
                "SELECT table_key FROM (SELECT table_key, from_pos,"
                f" max(to_pos) OVER (PARTITION BY {target} ORDER BY from_pos, to_pos ROWS BETWEEN"
                f" UNBOUNDED PRECEDING AND 1 PRECEDING) AS until FROM {table}) WHERE from_pos < until",
                CAPTURE,
            ),
            Check(
                f"{table}: spans without a listing",
                f"SELECT r.table_key FROM {table} r ANTI JOIN {listings} f"
                " ON f.table_key = r.table_key AND f.pos >= r.from_pos AND f.pos < r.to_pos",
                CAPTURE,
            ),
            Check(
                f"{table}: spans that end before or after the newest listing",
                "SELECT r.table_key"
                f" FROM {table} r JOIN {newest} f USING (table_key) WHERE (r.to_pos > f.pos)"
                f" <> (r.to_pos = {OPEN_END})",
                CAPTURE,
            ),
        ]
    return found

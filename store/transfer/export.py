"""Export: all records and the catalog of one moment as Parquet files, in pieces as they are made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from store.duckdb.arrow_sql import keys_table
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, VERSION, Connection, stored_columns
from store.duckdb.segments import Segments
from store.transfer.contents import (
    CATALOG,
    CONNECTORS,
    FILE_SKETCHES,
    NAME,
    SCHEMATA,
    SKETCHES,
    catalog_columns,
    database_columns,
    schemas,
)
from store.transfer.manifest import FORMAT, MANIFEST, FileEntry, Manifest, path_of

PIECE_BYTES: Final = 1 << 20
_GROUP_ROWS: Final = 122_880  # of a row group
_GROUP_BYTES: Final = 32 << 20  # of a row group in memory, about
_BATCH_ROWS: Final = 16_384
_BATCH_SKETCHES: Final = 64
_CHECKS: Final = "sys.checks"


class Piece(NamedTuple):
    """A part of a file of an export; the parts of a file follow each other."""

    file: str
    data: bytes


@dataclass(frozen=True)
class Scope:
    """The part of a database that a caller may see.

    Attributes:
        keys: Keys of the tables; None for all.
        catalogs: The catalogs whose connector's options may be seen; None for all.
        rules: `table_key` and `rule` of the checks of other tables that may be seen; None for all.
        of_others: Measures of checks whose values may come from other tables.
    """

    keys: Sequence[int] | None = None
    catalogs: Sequence[str] | None = None
    rules: pa.Table | None = None
    of_others: Sequence[str] = ()


EVERYTHING: Final = Scope()


def export(connection: Connection, segments: Segments, scope: Scope = EVERYTHING) -> Iterator[Piece]:
    """The files of an export, of one moment; the manifest is the last.

    Args:
        connection: A connection of its own, in which the transaction ends with the last piece.
        segments: The segments of the database.
        scope: What the caller may see.
    """
    segments.begin(connection, scope.keys)
    connection.register("exported_keys", keys_table(scope.keys or ()))
    connection.register("exported_catalogs", pa.table({"catalog": pa.array(scope.catalogs or (), pa.string())}))
    if scope.rules is not None:
        connection.register("exported_rules", scope.rules)
    entries: dict[str, FileEntry] = {}
    for folder, schema in schemas(connection).items():
        sql = _catalog_sql(connection, folder, scope) if folder in CATALOG else _record_sql(folder, scope)
        batch_rows = _BATCH_SKETCHES if folder == SKETCHES else _BATCH_ROWS
        reader = connection.sql(sql).to_arrow_reader(batch_rows)
        if not reader.schema.equals(schema):
            reader = reader.cast(schema)
        yield from _written(path_of(folder), schema, reader, entries)
    connection.execute("COMMIT")
    manifest = Manifest(FORMAT, _release(), VERSION, datetime.now(UTC), entries)
    yield Piece(MANIFEST, manifest.to_bytes())


def _written(
    file: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], entries: dict[str, FileEntry]
) -> Iterator[Piece]:
    """The pieces of a Parquet file; adds its entry in the end."""
    sink, rows = _Sink(), 0
    repeated = [field.name for field in schema if field.name != "data"]  # a sketch is not worth a dictionary
    with pq.ParquetWriter(pa.PythonFile(sink, "w"), schema, compression="zstd", use_dictionary=repeated) as writer:
        for group in _groups(batches):
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
            yield from (Piece(file, data) for data in sink.take(PIECE_BYTES))
    yield from (Piece(file, data) for data in sink.take(1))
    entries[file] = FileEntry(rows, sink.size, sink.digest.hexdigest())


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches in row groups."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)


class _Sink:
    """A file object that keeps what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._pending = bytearray()
        self.size, self.digest = 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._pending += data
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self, least: int) -> Iterator[bytes]:
        """Bytes written since the last call, in pieces of at most PIECE_BYTES; none if they are fewer than `least`."""
        if len(self._pending) < least:
            return
        pending, self._pending = bytes(self._pending), bytearray()
        for start in range(0, len(pending), PIECE_BYTES):
            yield pending[start : start + PIECE_BYTES]


def _release() -> str:
    try:
        return version("statflight")
    except PackageNotFoundError:  # run from its sources
        return "0"


# SQL of the rows.

_VISIBLE: Final = "c.table_key IN (SELECT key FROM exported_keys)"


def _of_tables(scope: Scope) -> str:
    """SQL that joins rows `t` with their tables `c`, as far as these are exported."""
    return f"JOIN tables c ON c.table_key = t.table_key AND NOT c.dropped{_and_visible(scope)}"


def _and_visible(scope: Scope) -> str:
    return "" if scope.keys is None else f" AND {_VISIBLE}"


def _catalog_sql(connection: Connection, name: str, scope: Scope) -> str:
    """SQL of the rows of a folder of the catalog."""
    folder = CATALOG[name]
    columns = catalog_columns(database_columns(connection, folder.table), folder)
    chosen = [f't."{column}" AS "{shown}"' for column, shown in columns.items()]
    if name == CONNECTORS:
        return _connectors_sql(columns, scope)
    if name == SCHEMATA:  # of those who see some tables, these tell the schemas
        return f"SELECT {', '.join(chosen)} FROM {folder.table} t WHERE {'true' if scope.keys is None else 'false'}"
    if folder.table == "tables":
        return f"SELECT {', '.join(chosen)} FROM tables t {_of_tables(scope)} ORDER BY t.table_key"
    keys = [f"c.{column}" for column in (*NAME, *(["table_id"] if folder.has_id else []))]
    where = _checks_where(scope) if name == _CHECKS else ""
    return f"SELECT {', '.join([*keys, *chosen])} FROM {folder.table} t {_of_tables(scope)}{where}"


def _connectors_sql(columns: Iterable[str], scope: Scope) -> str:
    """SQL of the connectors of exported tables, without options where the caller does not see the whole lake."""
    options = "CASE WHEN t.catalog IN (SELECT catalog FROM exported_catalogs) THEN t.options END AS options"
    hides = scope.catalogs is not None
    chosen = [options if name == "options" and hides else f't."{name}"' for name in columns]
    visible = f"t.catalog IN (SELECT c.table_catalog FROM tables c WHERE NOT c.dropped AND {_VISIBLE})"
    return f"SELECT {', '.join(chosen)} FROM connectors t WHERE {'true' if scope.keys is None else visible}"


def _checks_where(scope: Scope) -> str:
    """SQL of the condition that leaves out results of checks that may come from tables that the caller does not see."""
    if scope.rules is None:
        return ""
    measures = ", ".join(f"'{measure}'" for measure in scope.of_others)
    shown = "EXISTS (FROM exported_rules r WHERE r.table_key = t.table_key AND r.rule = t.rule)"
    return f" WHERE t.measure NOT IN ({measures}) OR {shown}"


def _record_sql(flight: str, scope: Scope) -> str:
    """SQL of the records of a flight."""
    if flight == SKETCHES:
        more = {"listed_from": "NULL::BIGINT", "listed_to": "NULL::BIGINT"}
        return f"{_by_snapshot_sql(flight, scope, more)} UNION ALL {_by_span_sql(FILE_SKETCHES, scope)}"
    return _by_snapshot_sql(flight, scope) if flight in BY_SNAPSHOT else _by_span_sql(flight, scope)


def _chosen(flight: str, snapshot: str, more: dict[str, str]) -> str:
    """SQL of the columns of records `t` of tables `c`."""
    keys = ", ".join(f"c.{name}" for name in (*NAME, "table_id"))
    values = ", ".join(f't."{name}"' for name in stored_columns(flight))
    added = "".join(f", {sql} AS {name}" for name, sql in more.items())
    return f"{keys}, {snapshot}, {values}, t.generation, t.created_at{added}"


def _by_snapshot_sql(flight: str, scope: Scope, more: dict[str, str] | None = None) -> str:
    return f"SELECT {_chosen(flight, 't.snapshot_id', more or {})} FROM {BY_SNAPSHOT[flight]} t {_of_tables(scope)}"


def _by_span_sql(family: str, scope: Scope) -> str:
    """SQL of rows of files: one per listing that contains them. Equal ones follow each other, and compress well."""
    more = {"listed_from": "t.from_pos", "listed_to": "t.to_pos"}
    return (
        f"SELECT {_chosen(family, 'f.snapshot_id', more)} FROM {BY_SPAN[family]} t {_of_tables(scope)}"
        f" JOIN file_snapshots f ON f.table_key = t.table_key AND f.family = '{family}'"
        " AND f.pos >= t.from_pos AND f.pos < t.to_pos"
    )

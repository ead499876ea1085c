"""Reads files of an Iceberg table by DuckDB's extension `iceberg`, which applies deletes of every kind.

The extension is used where it is installed (`INSTALL iceberg`); none is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.lake_readers import CannotRead, KeptFiles, plain
from flight_server.client.table_names import quote

_WHY: Final = "pyiceberg does not apply equality deletes"
_BATCH: Final = 100_000  # rows


def reader(metadata_location: str, kept: KeptFiles) -> DuckDBReader:
    """Loads the extension.

    Raises:
        CannotRead: It is not installed, or cannot read the table.
    """
    if kept.filesystem is not None:
        raise CannotRead(f"{_WHY}, and DuckDB takes no file system of pyarrow")
    if find_spec("duckdb") is None:
        raise CannotRead(f"{_WHY}; DuckDB with its extension iceberg would, and is not installed")
    import duckdb

    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    try:
        _quiet(connection).execute("LOAD iceberg")
    except duckdb.Error as error:
        first = str(error).splitlines()[0]
        raise CannotRead(f"{_WHY}; DuckDB's extension iceberg would, and cannot be loaded: {first}") from error
    try:
        found = DuckDBReader(connection, metadata_location, kept)
        found.check()
    except duckdb.Error as error:
        raise CannotRead(f"DuckDB: {error}") from error
    return found


class DuckDBReader:
    """Reads files by the table function `iceberg_scan`.

    Args:
        connection: A connection with the extension, the reader's own.
    """

    def __init__(self, connection: Any, metadata_location: str, kept: KeptFiles):
        self._connection, self._kept = connection, kept
        paths = ", ".join(_text(plain(path)) for path in kept.paths)
        self._rows = (
            f"FROM iceberg_scan({_text(metadata_location)}, snapshot_from_id = {int(kept.snapshot_id)})"
            f" WHERE regexp_replace(filename, '^(file:(//)?|[a-z0-9+]+://)', '') IN ({paths or 'NULL'})"
        )
        names = ", ".join(map(quote, kept.names))
        self.schema: pa.Schema = self._read(f"SELECT {names} {self._rows} LIMIT 0").schema

    def check(self) -> None:
        """Counts the rows that the extension finds, because version 1.5.5 deletes too many of some tables.

        Raises:
            CannotRead: They are not those that are known to be left, or these are not known.
        """
        counts = [count for count in self._kept.paths.values() if count is not None]
        ((found,),) = _quiet(self._connection).sql(f"SELECT count(*) {self._rows}").fetchall()
        if len(counts) < len(self._kept.paths):
            raise CannotRead(f"{_WHY}, and what DuckDB finds cannot be checked, because live rows are not counted")
        if found != sum(counts):
            raise CannotRead(f"{_WHY}; DuckDB finds {found} rows, and {sum(counts)} are known to be left")

    def batches(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Reads columns of all live rows; see `LakeReader`."""
        yield from self._read(f"SELECT {', '.join(map(quote, columns))} {self._rows}")

    def _read(self, statement: str) -> pa.RecordBatchReader:
        rows = _quiet(self._connection).sql(statement)
        found: pa.RecordBatchReader = rows.to_arrow_reader(_BATCH)
        return found


def _quiet(connection: Any) -> Any:
    """A cursor, whose settings are its own: before version 2 a bar goes to the output of the caller's program."""
    cursor = connection.cursor()
    cursor.execute("SET enable_progress_bar = false")
    return cursor


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"

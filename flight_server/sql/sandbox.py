"""A DuckDB in memory for statements: it holds nothing, reads no files, loads no extensions, and is locked so.

Rows of flights are registered on the cursor of a single statement, or kept in tables that only views on such a cursor
name. What a statement does wrong becomes one clear line; what it does to this DuckDB costs nobody else anything.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import duckdb
import pyarrow as pa

from flight_server.sql.kept_tables import KeptTable
from flight_server.sql.language import refusal
from flight_server.sql.whole_columns import MAX_BYTES
from store.database import Connection
from store.errors import InvalidArgument, ResourceExhausted, StatflightError, nearest

log = logging.getLogger("statflight.server")

MEMORY_MIB: Final = 512  # of all statements at once, besides the tables that are kept
BATCH_ROWS: Final = 16_384
_SETTINGS: Final = {
    "enable_external_access": "false", "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
    "allow_community_extensions": "false", "python_enable_replacements": "false", "temp_directory": "",
    "memory_limit": f"{MEMORY_MIB + (MAX_BYTES >> 20)}MiB", "threads": "2", "lock_configuration": "true",
}  # fmt: skip
_UNKNOWN: Final = (
    re.compile(r'Referenced column "([^"]*)" (?:was )?not found'),
    re.compile(r'does not have a column named "([^"]*)"'),
)


class View(NamedTuple):
    """A kept table, and the columns of it that may be ENUMs."""

    table: KeptTable
    keys: frozenset[str]


Rows: TypeAlias = pa.Table | View
"""Rows of a flight, as a statement reads them."""


class Sandbox:
    """Cursors of the DuckDB that runs statements; it is made when first asked for."""

    def __init__(self) -> None:
        self._database: Connection | None = None
        self._numbers = itertools.count(1)
        self.restarts = 0
        self._lock = threading.Lock()

    def cursor(self) -> Connection:
        """Opens a cursor for one statement.

        Returns:
            The cursor; the caller closes it.
        """
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(":memory:", config=_SETTINGS)
            return self._database.cursor()

    def close(self) -> None:
        """Closes the database, if it was made."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def keep(self, rows: pa.Table) -> KeptTable | None:
        """Makes a table for statements that start until `restarts` changes.

        Args:
            rows: The rows.

        Returns:
            The table; None where there is no memory for it.
        """
        try:
            return KeptTable(self.cursor(), f"kept {next(self._numbers)}", rows)
        except duckdb.OutOfMemoryException:
            return None

    def schema(self, sql: str, tables: Mapping[str, pa.Schema], known: Collection[str]) -> pa.Schema:
        """Describes the answer of a statement.

        Args:
            sql: The statement, without parameters.
            tables: The schemas of the tables that it reads, by name.
            known: The columns that a caller may have meant.

        Returns:
            The schema of its rows.

        Raises:
            InvalidArgument: DuckDB cannot bind it.
        """
        cursor = self.cursor()
        try:
            for name, schema in tables.items():
                cursor.register(name, schema.empty_table())
            return cursor.sql(sql).to_arrow_reader(1).schema
        except (duckdb.Error, pa.ArrowException) as trouble:
            raise self.error_for(trouble, known) from None
        finally:
            cursor.close()

    def rows(
        self, cursor: Connection, sql: str, parameters: Sequence[Any], tables: Mapping[str, Rows], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Runs a statement.

        Args:
            cursor: The caller's, who interrupts and closes it.
            sql: The statement.
            parameters: The values of its parameters.
            tables: The tables that it reads, by name.
            schema: The schema of its rows.

        Yields:
            Batches of at most BATCH_ROWS rows.

        Raises:
            InvalidArgument: The statement fails on these rows, such as a text that is no number.
            ResourceExhausted: It needs more memory than statements have.
        """
        try:
            for name, table in tables.items():
                if isinstance(table, View):
                    cursor.execute(f'CREATE TEMP VIEW "{name}" AS {table.table.query(table.keys)}')
                else:
                    cursor.register(name, table)
            reader = cursor.sql(sql, params=list(parameters) or None).to_arrow_reader(BATCH_ROWS)
            if reader.schema.equals(schema):
                yield from reader
                return
            for batch in reader:
                columns = [column.cast(type_) for column, type_ in zip(batch.columns, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except (duckdb.Error, pa.ArrowException, OSError) as trouble:
            raise self.error_for(trouble, ()) from None

    def error_for(self, trouble: BaseException, known: Collection[str]) -> BaseException:
        """Words an error of DuckDB for the caller.

        Args:
            trouble: The error.
            known: The columns that a caller may have meant.

        Returns:
            The error to raise; an interruption stays one.
        """
        text = str(trouble)
        if isinstance(trouble, duckdb.InterruptException) or "INTERRUPT" in text:
            return duckdb.InterruptException("interrupted")
        if isinstance(trouble, duckdb.OutOfMemoryException) or "Out of Memory" in text:
            return ResourceExhausted(f"statements have {MEMORY_MIB} MiB of memory, and this one needs more")
        if isinstance(trouble, duckdb.FatalException | duckdb.InternalException) or "FATAL" in text:
            log.error("a statement broke the DuckDB it ran in, which is started anew: %s", text.splitlines()[0][:300])
            with self._lock:
                self._database = None
                self.restarts += 1
            return refusal("the statement cannot be run")
        return _refusal(text, known)


def _refusal(text: str, known: Collection[str]) -> StatflightError:
    for pattern in _UNKNOWN:
        if found := pattern.search(text):
            name = found[1]
            hint = nearest(name.lower(), sorted(known))
            return InvalidArgument(
                f'no column "{name[:100]}"', code="UNKNOWN_COLUMN", hint=hint, params={"column": name}
            )
    line = re.split(r"\n|LINE \d+:", text)[0]
    line = re.sub(r"^(?:\w+ )*Error: ", "", line).strip()
    return refusal(line[:300] or "the statement cannot be run")

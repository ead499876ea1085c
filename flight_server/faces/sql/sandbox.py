"""An in-memory DuckDB for statements, locked so that it reads no files and loads no extensions.

Flights are registered on the cursor of a single statement, or kept in tables that statements reach only by temporary
views on their cursor. Errors of a statement become one clear line; a crash of this instance affects no stored
data.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import duckdb
import pyarrow as pa

from flight_server.faces.sql.kept_tables import MAX_BYTES, KeptTable
from flight_server.faces.sql.language import refusal
from store.duckdb.database import Connection
from store.model.errors import InvalidArgument, ResourceExhausted, StatflightError, nearest

log = logging.getLogger("statflight.server")

MEMORY_MIB: Final = 512  # shared by all running statements, in addition to the kept tables
BATCH_ROWS: Final = 16_384
_SETTINGS: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "memory_limit": f"{MEMORY_MIB + (MAX_BYTES >> 20)}MiB",
    "threads": "2",
    "lock_configuration": "true",
}
_UNKNOWN: Final = (
    re.compile(r'Referenced column "([^"]*)" (?:was )?not found'),
    re.compile(r'does not have a column named "([^"]*)"'),
)
_UNKNOWN_TABLE: Final = re.compile(r'Referenced table "([^"]*)" not found')


class Sandbox:
    """The DuckDB instance for statements; created at first use."""

    def __init__(self) -> None:
        self._database: Connection | None = None
        self._numbers = itertools.count(1)
        self.restarts = 0
        self._unused: deque[str] = deque()  # schemas of kept tables that nothing refers to
        self._lock = threading.Lock()

    def cursor(self) -> Connection:
        """A cursor for one statement; the caller closes it."""
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(":memory:", config=_SETTINGS)
            cursor = self._database.cursor()
        while self._unused:
            with suppress(duckdb.Error, IndexError):  # of an instance that was closed; taken by another thread
                cursor.execute(f'DROP SCHEMA "{self._unused.popleft()}" CASCADE')
        return cursor

    def close(self) -> None:
        """Closes the database, if it was created."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def keep(self, rows: pa.Table) -> KeptTable | None:
        """Creates a table that statements can use until `restarts` changes; None if there is not enough memory."""
        cursor = self.cursor()
        try:
            return KeptTable(cursor, f"kept {next(self._numbers)}", rows, self._unused)
        except duckdb.OutOfMemoryException:
            return None
        finally:
            cursor.close()

    def schema(
        self, cursor: Connection, sql: str, tables: Mapping[str, pa.Schema], known: Collection[str]
    ) -> pa.Schema:
        """The schema of a statement's result; the statement is bound and optimized, not run.

        Args:
            cursor: Cursor for the statement; the caller interrupts and closes it.
            sql: The statement, without parameters.
            tables: Schemas of the tables that it reads, by name.
            known: Existing columns, to suggest for unknown ones.

        Raises:
            InvalidArgument: DuckDB cannot bind the statement.
        """
        try:
            for name, schema in tables.items():
                cursor.register(name, schema.empty_table())
            bound = cursor.sql(sql)
            types = zip(bound.types, range(len(bound.columns)), strict=True)
            nulls = ", ".join(f'NULL::{type_} AS "{number}"' for type_, number in types)
            schema = cursor.sql(f"SELECT {nulls}").to_arrow_reader(1).schema
            return pa.schema([field.with_name(n) for field, n in zip(schema, bound.columns, strict=True)])
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self.error_for(error, known) from None

    def rows(
        self, cursor: Connection, sql: str, parameters: Sequence[Any], tables: Mapping[str, Any], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Runs a statement.

        Args:
            cursor: Cursor for the statement; the caller interrupts and closes it.
            tables: The tables that it reads, by name: kept tables, or objects that DuckDB can scan.

        Yields:
            Batches of at most BATCH_ROWS rows.

        Raises:
            InvalidArgument: The statement fails on these rows, such as a cast of a text that is not a number.
            ResourceExhausted: The statement exceeds the memory limit.
        """

        def batches(*, as_text: bool) -> Iterator[pa.RecordBatch]:
            for name, table in tables.items():
                if isinstance(table, KeptTable):
                    cursor.execute(f'CREATE OR REPLACE TEMP VIEW "{name}" AS {table.query(as_text=as_text)}')
                else:
                    cursor.register(name, table)
            reader = cursor.sql(sql, params=list(parameters) or None).to_arrow_reader(BATCH_ROWS)
            for batch in reader:
                if batch.schema.equals(schema):
                    yield batch
                    continue
                columns = [column.cast(type_) for column, type_ in zip(batch.columns, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

        try:
            found = batches(as_text=False)
            try:
                first = next(found, None)
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                kept = any(isinstance(table, KeptTable) for table in tables.values())
                if not kept or not isinstance(self.error_for(error, ()), InvalidArgument):
                    raise
                found = batches(as_text=True)  # a text may have been compared with an ENUM that does not have it
                first = next(found, None)
            if first is not None:
                yield first
                yield from found
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self.error_for(error, ()) from None

    def error_for(self, error: BaseException, known: Collection[str]) -> BaseException:
        """The error to raise to the caller for DuckDB's, with a hint at `known` columns; an interruption stays one."""
        text = str(error)
        if isinstance(error, duckdb.InterruptException) or "INTERRUPT" in text:
            return duckdb.InterruptException("interrupted")
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in text:
            return ResourceExhausted(f"the statement needs more than the {MEMORY_MIB} MiB of memory for statements")
        if isinstance(error, duckdb.FatalException | duckdb.InternalException) or "FATAL" in text:
            log.error("a statement crashed the DuckDB instance for statements: %s", text.splitlines()[0][:300])
            with self._lock:
                self._database = None
                self.restarts += 1
            return refusal("the statement cannot be run")
        return _refusal(text, known)


def _refusal(text: str, known: Collection[str]) -> StatflightError:
    for pattern in _UNKNOWN:
        if match := pattern.search(text):
            name = match[1]
            hint = nearest(name.lower(), sorted(known))
            return InvalidArgument(
                f'no column "{name[:100]}"', code="UNKNOWN_COLUMN", hint=hint, params={"column": name}
            )
    line = re.split(r"\n|LINE \d+:", text)[0]
    line = re.sub(r"^(?:\w+ )*Error: ", "", line).strip().rstrip(".!")
    if match := _UNKNOWN_TABLE.match(line):
        return refusal(f'no table "{match[1][:100]}" in the FROM clause')
    return refusal(line[:300] or "the statement cannot be run")

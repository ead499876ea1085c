"""Tables of an in-memory DuckDB with rows of a flight, shared by many statements."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from store.database import Connection

_MAX_MEMBERS: Final = 65_536  # columns with more distinct texts do not become ENUMs
_TEXT_BYTES: Final = 16  # size of a text in a table besides its characters


class KeptTable:
    """A DuckDB table in a schema of its own, dropped with the last reference to this object.

    Columns of texts that repeat are ENUMs, which are smaller and faster to group by.

    Args:
        cursor: A cursor for this object only.
        name: Name of the schema; must be unused.
        rows: The rows.

    Raises:
        duckdb.OutOfMemoryException: There is not enough memory.
    """

    def __init__(self, cursor: Connection, name: str, rows: pa.Table):
        self._cursor, self._name = cursor, name
        self.num_rows, self.nbytes = rows.num_rows, 0
        self._enums: set[str] = set()
        cursor.execute(f'CREATE SCHEMA "{name}"')
        columns = [self._encoded(field.name, rows[field.name]) for field in rows.schema]
        self.nbytes = sum(column.nbytes for column in columns)
        cursor.register("rows", pa.table(columns, names=rows.column_names))
        shown = (f'CAST("{n}" AS "{name}"."{n}") AS "{n}"' if n in self._enums else f'"{n}"' for n in rows.column_names)
        cursor.execute(f'CREATE TABLE "{name}"."rows" AS SELECT {", ".join(shown)} FROM rows')
        cursor.unregister("rows")
        self._columns = rows.column_names

    def _encoded(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if not pa.types.is_string(column.type):
            return column
        encoded = pc.dictionary_encode(column).unify_dictionaries()
        members = encoded.chunk(0).dictionary if encoded.num_chunks else column.slice(0, 0).combine_chunks()
        if not 0 < len(members) <= min(_MAX_MEMBERS, len(column) // 4):
            self.nbytes += _TEXT_BYTES * len(column)
            return column
        self._cursor.register("members", pa.table({"member": members.take(pc.sort_indices(members))}))
        self._cursor.execute(f'CREATE TYPE "{self._name}"."{name}" AS ENUM (SELECT member FROM members)')
        self._cursor.unregister("members")
        self._enums.add(name)
        return encoded

    def query(self, keys: Collection[str]) -> str:
        """The SELECT of all rows, with ENUMs cast to text except in the columns `keys`."""
        texts = self._enums.difference(keys)
        shown = (f'CAST("{name}" AS VARCHAR) AS "{name}"' if name in texts else f'"{name}"' for name in self._columns)
        return f'SELECT {", ".join(shown)} FROM "{self._name}"."rows"'

    def __del__(self) -> None:
        with suppress(duckdb.Error):
            self._cursor.execute(f'DROP SCHEMA "{self._name}" CASCADE')
            self._cursor.close()

"""Whole columns of flights, kept for repeated statements over all tables, such as those of dashboards."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.database import Connection
from store.duckdb.lru import LruCache

MAX_BYTES: Final = 64 << 20  # most bytes of kept columns
NOT_AGAIN_FOR_S: Final = 300.0  # time after which columns that were too large are tried again
_MAX_MEMBERS: Final = 65_536  # columns with more distinct texts do not become ENUMs
_TEXT_BYTES: Final = 16  # size of a text in a table besides its characters


class WholeColumns:
    """A cache of whole columns, valid for the newest commit.

    Args:
        epoch: Returns the number of the newest commit.
        most_bytes: Budget in bytes, at most MAX_BYTES; 0 turns the cache off.
    """

    def __init__(self, epoch: Callable[[], int], most_bytes: int):
        self._epoch = epoch
        self._kept: LruCache[Hashable, tuple[int, Any]] = LruCache(min(most_bytes, MAX_BYTES))
        self._too_large: LruCache[Hashable, float] = LruCache(1024)
        self.clear = self._kept.clear

    def get(self, key: Hashable, read: Callable[[int], Any]) -> Any:
        """The columns, from the cache if possible; None if they are too large.

        Args:
            read: Reads the columns, a value with `nbytes`; returns None if they have more bytes than its argument.
        """
        epoch = self._epoch()
        cached = self._kept.get(key)
        if cached is not None and cached[0] == epoch:
            return cached[1]
        if time.monotonic() < (self._too_large.get(key) or 0):
            return None
        columns = read(self._kept.limit)
        if columns is None:
            self._too_large.put(key, time.monotonic() + NOT_AGAIN_FOR_S)
        elif self._epoch() == epoch:
            self._kept.put(key, (epoch, columns), columns.nbytes)
        return columns


class KeptTable:
    """A DuckDB table in a schema of its own, which may be dropped once nothing refers to this object.

    Columns of texts that repeat are ENUMs, which are smaller and faster to group by.

    Args:
        cursor: A cursor; not used after the constructor.
        name: Name of the schema; must be new.
        unused: Gets the name of the schema once nothing refers to this object.

    Raises:
        duckdb.OutOfMemoryException: There is not enough memory.
    """

    def __init__(self, cursor: Connection, name: str, rows: pa.Table, unused: deque[str]):
        self._name, self._unused = name, unused
        self.num_rows, self.nbytes = rows.num_rows, 0
        self._enums: set[str] = set()
        cursor.execute(f'CREATE SCHEMA "{name}"')
        columns = [self._encoded(cursor, field.name, rows[field.name]) for field in rows.schema]
        self.nbytes = sum(column.nbytes for column in columns)
        cursor.register("rows", pa.table(columns, names=rows.column_names))
        shown = (f'CAST("{n}" AS "{name}"."{n}") AS "{n}"' if n in self._enums else f'"{n}"' for n in rows.column_names)
        cursor.execute(f'CREATE TABLE "{name}"."rows" AS SELECT {", ".join(shown)} FROM rows')
        cursor.unregister("rows")
        self._columns = rows.column_names

    def _encoded(self, cursor: Connection, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if not pa.types.is_string(column.type):
            return column
        encoded = pc.dictionary_encode(column).unify_dictionaries()
        members = encoded.chunk(0).dictionary if encoded.num_chunks else column.slice(0, 0).combine_chunks()
        if not 0 < len(members) <= min(_MAX_MEMBERS, len(column) // 4):
            self.nbytes += _TEXT_BYTES * len(column)
            return column
        cursor.register("members", pa.table({"member": members.take(pc.sort_indices(members))}))
        cursor.execute(f'CREATE TYPE "{self._name}"."{name}" AS ENUM (SELECT member FROM members)')
        cursor.unregister("members")
        self._enums.add(name)
        return encoded

    def query(self, *, as_text: bool) -> str:
        """The SELECT of all rows, with ENUMs cast to text if `as_text`."""
        texts = self._enums if as_text else ()
        shown = (f'CAST("{name}" AS VARCHAR) AS "{name}"' if name in texts else f'"{name}"' for name in self._columns)
        return f'SELECT {", ".join(shown)} FROM "{self._name}"."rows"'

    def __del__(self) -> None:
        self._unused.append(self._name)  # no SQL here: the garbage collector may run this in any thread

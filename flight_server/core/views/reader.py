"""The reader behind pages and commands: a client over Flight, or the server's own scans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import pyarrow as pa

from flight_server.client.table_names import COLUMNS, of_table, split_name
from store.duckdb.lru import LruCache

Leaf = dict[str, Any]
Name = tuple[str, str, str]
Kind = tuple[str, tuple[str, ...] | None, str, str | int | None, bool]

TABLES_AHEAD: Final = 64  # most tables of one read
READ_BYTES: Final = 4 << 20  # of a read beyond which the next one is of fewer tables
KEPT_BYTES: Final = 128 << 20  # of what was read


class Reader(Protocol):
    """Reads the flights of a server with the permissions of one caller."""

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
    ) -> pa.Table:
        """Reads a flight; the arguments are those of `StatsClient.read`."""

    def sql(self, statement: str) -> pa.Table:
        """Runs a SELECT."""

    def unique(self, table: str, column_id: int, snapshot: str | int) -> bool:
        """Reads a column of a table, by its full name; True if no value of it occurs twice among the live rows."""


def equal(column: str, *values: Any) -> Leaf:
    """The condition that a column equals one of the values."""
    return {"column": column, "op": "EQ" if len(values) == 1 else "IN", "values": list(values)}


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, as `to_pylist` returns them.

    Most columns of statistics repeat a few values, such as names, times and ids: each of these becomes a Python value
    once, which takes less than half the time.
    """
    names, columns = table.column_names, [_values(column) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    distinct = coded.dictionary.to_pylist()
    if 2 * len(distinct) > len(column):
        return list(column.to_pylist())
    return [distinct[place] for place in coded.indices.to_pylist()]


def read_table(
    reader: Reader,
    flight: str,
    name: str,
    columns: Sequence[str] | None = None,
    *more: Leaf,
    snapshot: str | int | None = None,
    allow_stale: bool = False,
) -> pa.Table:
    """Reads the rows of one table from any flight with table_catalog, table_schema and table_name."""
    if isinstance(reader, ReadAhead):
        return reader.read_table(flight, name, columns, more, snapshot, allow_stale)
    return reader.read(flight, columns, [*of_table(name), *more], snapshot, allow_stale)


def rows_of(reader: Reader, flight: str, name: str, *more: Leaf, **options: Any) -> list[dict[str, Any]]:
    """Reads all columns as `read_table` does, as dicts."""
    return as_rows(read_table(reader, flight, name, None, *more, **options))


class Forwarding:
    """A reader that hands all reads on to another one; subclasses change some."""

    def __init__(self, reader: Reader):
        self._reader = reader

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
    ) -> pa.Table:
        """Reads a flight; the arguments are those of `StatsClient.read`."""
        return self._reader.read(flight, columns, where, snapshot, allow_stale, limit)

    def sql(self, statement: str) -> pa.Table:
        """Runs a SELECT."""
        return self._reader.sql(statement)

    def unique(self, table: str, column_id: int, snapshot: str | int) -> bool:
        """Reads a column."""
        return self._reader.unique(table, column_id, snapshot)


class ReadAhead(Forwarding):
    """A reader of many tables in turn: `read_table` reads the same of the tables that follow, and keeps it.

    The first read of a kind is of one table, the next one of up to four times as many, if their rows are not large.

    Args:
        names: Full names of the tables, in the order in which they are read.
        whole: Columns by whose values rows of a table are asked for in turn: all its rows are read, and kept.
    """

    def __init__(self, reader: Reader, names: Sequence[str], whole: Collection[str] = ()):
        super().__init__(reader)
        self._whole = whole
        self._tables = list(dict.fromkeys(map(split_name, names)))
        self._places = {table: place for place, table in enumerate(self._tables)}
        self._sizes: dict[Kind, int] = {}  # number of tables of the next read, by kind
        self._known: LruCache[tuple[Name, Kind], pa.Table] = LruCache(
            KEPT_BYTES, overhead=1024
        )  # rows by table and kind of read

    def read_table(
        self,
        flight: str,
        name: str,
        columns: Sequence[str] | None,
        more: Sequence[Leaf],
        snapshot: str | int | None,
        allow_stale: bool,
    ) -> pa.Table:
        """The rows of one table; see the function of that name."""
        here = [leaf for leaf in more if leaf["column"] in self._whole]
        there = [leaf for leaf in more if leaf not in here]
        named = None if columns is None else tuple(columns)
        kind, table = (flight, named, repr(there), snapshot, allow_stale), split_name(name)
        rows = self._known.get((table, kind))
        if rows is None:
            rows = self._read(kind, table, there)
        for leaf in here:
            import pyarrow.compute as pc

            values = pa.array(leaf["values"], rows.schema.field(leaf["column"]).type)
            rows = rows.filter(pc.is_in(rows[leaf["column"]], values))
        return rows

    def _read(self, kind: Kind, table: Name, more: Sequence[Leaf]) -> pa.Table:
        """The rows of a table; keeps those of the next ones."""
        flight, columns, _, snapshot, allow_stale = kind
        place, size = self._places.get(table), self._sizes.get(kind, 1)
        tables = [table] if place is None else self._tables[place : place + size]
        named = columns and tuple(dict.fromkeys((*columns, *COLUMNS)))
        try:
            found = self._reader.read(flight, named, [*_among(tables), *more], snapshot, allow_stale)
        except Exception:
            if len(tables) == 1:
                raise
            self._sizes[kind] = 1  # a table that cannot be read spoils no other one's read
            return self._read(kind, table, more)
        self._sizes[kind] = min(4 * len(tables), TABLES_AHEAD, 1 + len(tables) * READ_BYTES // (found.nbytes + 1))
        parts = [part.select(columns) if columns else part for part in _parts(found, tables)]
        # Without rows at a snapshot a table may not have it, which is an error of a read of that table alone.
        are_sure = [part.num_rows or snapshot in (None, "current") or len(tables) == 1 for part in parts]
        for other, part, is_sure in zip(tables, parts, are_sure, strict=True):
            if is_sure:
                self._known.put((other, kind), part, part.nbytes)
        if are_sure[0]:
            return parts[0]
        return self._reader.read(flight, columns, [*_among([table]), *more], snapshot, allow_stale)


def _among(tables: Sequence[Name]) -> list[Leaf]:
    """Conditions that select the rows of tables, and those of others that share a schema's or a table's name."""
    return [
        equal(column, *dict.fromkeys(parts)) for column, parts in zip(COLUMNS, zip(*tables, strict=True), strict=True)
    ]


def _parts(rows: pa.Table, tables: Sequence[Name]) -> list[pa.Table]:
    """The rows of each table, in their order."""
    if len(tables) == 1:
        return [rows]
    import pyarrow.compute as pc

    named = pa.table(dict(zip(COLUMNS, map(pa.array, zip(*tables, strict=True)), strict=True)))
    of_rows, of_tables = codes_of([rows, named], COLUMNS)
    places = pc.index_in(of_rows, of_tables)
    rows = rows.take(pc.sort_indices(places))  # which keeps the order of equal ones; other tables' rows come last
    counts = {one["values"]: one["counts"] for one in pc.value_counts(places).to_pylist()}
    ends = [0, *accumulate(counts.get(place, 0) for place in range(len(tables)))]
    return [rows.slice(start, end - start) for start, end in pairwise(ends)]


def codes_of(tables: Sequence[pa.Table], names: Sequence[str]) -> list[pa.Array]:
    """A number for each row of each table, equal for equal values of the columns; a join by Acero takes three times as
    long. Without NumPy, which would be a third of the start of a command."""
    import pyarrow.compute as pc

    rows = pa.concat_tables(table.select(names) for table in tables)
    numbers = pa.repeat(0, rows.num_rows)
    for name in names:
        values = rows[name].combine_chunks().dictionary_encode("encode")
        if len(values.dictionary) > 1:  # catalog and schema often have one value
            numbers = pc.add(pc.multiply(numbers, len(values.dictionary)), values.indices)
            numbers = numbers.dictionary_encode().indices.cast(pa.int64())
    ends = [0, *accumulate(table.num_rows for table in tables)]
    return [numbers.slice(start, end - start) for start, end in pairwise(ends)]

"""Another schema for a snapshot whose statistics are stored: what each column is called, and which records stay.

Some formats change the schema of a table without a new snapshot, and give a snapshot its own schema back once it is no
longer current. The files stay as they are, so the statistics of a column hold for its id, whatever its name; those of a
column that is not in the new schema, or has another type there, are deleted. Only columns with ids of the format can be
followed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import execute, query
from store.duckdb.layout import BY_SPAN, OPEN_END, STORED, Connection, parts, stored_columns
from store.duckdb.segments import Segments
from store.history.file_listings import forget_mark
from store.history.file_spans import STORAGE_ID, end_staged, positions, remove_at
from store.model.catalog_entries import TableEntry
from store.model.puts import one_place
from store.model.targets import Target

_STAR = re.compile(r"[(,.]\s*\*")  # all columns, or all fields of a struct


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The difference between two schemas of one snapshot.

    Attributes:
        schema_hash: Hash of the new schema.
        names: Column id → name in the new schema, for the columns that are in both with the same type.
        renamed: Ids of those that have another name now.
        touched: Parts of the paths of the columns that differ, in lower case.
    """

    schema_hash: str
    names: Mapping[int, str]
    renamed: frozenset[int]
    touched: frozenset[str]

    @classmethod
    def of(
        cls,
        schema_hash: str,
        before: Sequence[Sequence[Any]],
        after: Sequence[Sequence[Any]],
        widened: frozenset[int] = frozenset(),
    ) -> SchemaChange | None:
        """The change from one schema to another; None if their columns cannot be told by ids.

        Args:
            before: [name, logical type, nullable, field id, path?] of each column.
            after: The same of the new schema.
            widened: Ids of columns whose type differs though the logical type does not.
        """
        if not before or any(column[3] is None for column in (*before, *after)):
            return None
        old, new = ({column[3]: column for column in columns} for columns in (before, after))
        names = {i: new[i][0] for i in old.keys() & new.keys() - widened if old[i][1] == new[i][1]}
        renamed = frozenset(i for i in names if old[i][0] != new[i][0] or _path(old[i]) != _path(new[i]))
        differing = (old.keys() | new.keys()) - (names.keys() - renamed)
        columns = [of[i] for of in (old, new) for i in differing if i in of]
        touched = frozenset(part.casefold() for column in columns for part in _path(column))
        return cls(schema_hash, names, renamed, touched)

    def touches(self, expression: str) -> bool:
        """True if the value of an expression may be another one under the new schema."""
        text = expression.casefold()
        return bool(self.touched) and (bool(_STAR.search(text)) or any(part in text for part in self.touched))


def _path(column: Sequence[Any]) -> list[str]:
    """The parts of a column's name; a part may have dots where they are not known."""
    return list(column[4]) if len(column) > 4 and column[4] else [column[0]]


def follow(
    connection: Connection,
    catalog: Catalog,
    table: TableEntry,
    snapshot_id: int,
    change: SchemaChange,
    *,
    is_current: bool,
) -> None:
    """Gives the records of a snapshot the names of its new schema, and deletes those that do not hold under it.

    Args:
        is_current: Later snapshots have the new schema, so that they may inherit what stays; else they have the one
            before, and may inherit what has the same name in both.
    """
    catalog.database.touch(table.table_key)
    catalog.spans.change([table.table_key])
    catalog.behind.deleted(table, snapshot_id, None)
    for flight in STORED:  # what stays is told again
        catalog.behind.stored(flight, one_place(table.table_key, snapshot_id))
    forget_mark(connection, table.table_key, snapshot_id)
    _Records(connection, table.table_key, snapshot_id, change).follow(is_current)
    _Files(connection, catalog.database.segments, table.table_key, snapshot_id, change).follow()


class _Records:
    """The records of one snapshot, but for those of files."""

    def __init__(self, connection: Connection, table_key: int, snapshot_id: int, change: SchemaChange):
        self._connection, self._change = connection, change
        self._of_these = f"table_key = {int(table_key)} AND snapshot_id = {int(snapshot_id)}"

    def follow(self, is_current: bool) -> None:
        self._columns(is_current)
        self._groups(is_current)
        self._expressions()
        self._sketches()

    def _columns(self, is_current: bool) -> None:
        change = self._change
        ids = change.names if is_current else change.renamed
        named = pa.table(
            {
                "column_id": pa.array(ids, pa.int64()),
                "name": pa.array([change.names[i] for i in ids], pa.string()),
            }
        )
        staying = pa.table({"column_id": pa.array(change.names, pa.int64())})
        for table in parts("stats.columns"):
            execute(
                self._connection,
                f"DELETE FROM {table} WHERE {self._of_these} AND column_id NOT IN (SELECT column_id FROM {{staying}})",
                staying=staying,
            )
            execute(
                self._connection,
                f"UPDATE {table} SET column_name = n.name, schema_hash = $hash FROM {{named}} n"
                f" WHERE {self._of_these} AND {table}.column_id = n.column_id",
                {"hash": change.schema_hash},
                named=named,
            )

    def _groups(self, is_current: bool) -> None:
        change = self._change
        for table in parts("stats.column_groups"):
            found = execute(self._connection, f"SELECT DISTINCT column_ids FROM {table} WHERE {self._of_these}")
            for (ids,) in found:
                where, given = f"{self._of_these} AND column_ids = $ids::BIGINT[]", {"ids": ids}
                if not change.names.keys() >= set(ids):
                    execute(self._connection, f"DELETE FROM {table} WHERE {where}", given)
                elif is_current or not change.renamed.isdisjoint(ids):
                    new = {"names": [change.names[i] for i in ids], "hash": change.schema_hash}
                    sets = "column_names = $names, schema_hash = $hash"
                    execute(self._connection, f"UPDATE {table} SET {sets} WHERE {where}", given | new)

    def _expressions(self) -> None:
        for table in parts("stats.expressions"):
            keys = execute(
                self._connection, f"SELECT DISTINCT engine_expression_key FROM {table} WHERE {self._of_these}"
            )
            for (key,) in keys:
                if self._change.touches(bytes(key).decode("utf-8", "replace")):
                    where = f"{self._of_these} AND engine_expression_key = $key"
                    execute(self._connection, f"DELETE FROM {table} WHERE {where}", {"key": key})

    def _sketches(self) -> None:
        """Deletes the sketches of targets without a record, and of columns that do not stay."""
        kept = pa.table({"storage_id": ["table", *(Target.column(i).storage_id for i in self._change.names)]})
        targets = (
            f"SELECT {STORAGE_ID[flight].format('r')} FROM {table} r WHERE {self._of_these}"
            for flight in ("stats.column_groups", "stats.expressions")
            for table in parts(flight)
        )
        having = " UNION ALL ".join(["SELECT storage_id FROM {kept}", *targets])
        for table in parts("stats.sketches"):
            where = f"{self._of_these} AND storage_id NOT IN ({having})"
            execute(self._connection, f"DELETE FROM {table} WHERE {where}", kept=kept)


class _Files:
    """The rows about columns in the files of one snapshot, which other listings may have, too."""

    def __init__(
        self, connection: Connection, segments: Segments, table_key: int, snapshot_id: int, change: SchemaChange
    ):
        self._connection, self._segments, self._key, self._change = connection, segments, table_key, change
        self._snapshot_id = snapshot_id

    def follow(self) -> None:
        for family in ("stats.file_columns", "file_sketches"):
            listings = positions(self._connection, self._key, family)
            if (pos := listings.get(self._snapshot_id)) is None:
                continue
            end_staged(self._connection, self._segments, family, [self._key])
            self._remove(family, pos, f"column_id IS NOT NULL AND column_id NOT IN ({_numbers(self._change.names)})")
            if family == "stats.file_columns" and self._change.renamed:
                self._rename(family, pos, is_newest=pos == max(listings.values()))

    def _rename(self, family: str, pos: int, *, is_newest: bool) -> None:
        """Replaces the rows of renamed columns in one listing by rows with the new names."""
        ids, change = self._change.renamed, self._change
        named = pa.table({"id": pa.array(ids, pa.int64()), "name": [change.names[i] for i in ids]})
        where = f"column_id IN ({_numbers(ids)})"
        columns = ("table_key", *stored_columns(family), "generation", "created_at")
        new = {"column_name": "n.name", "schema_hash": "$hash"}
        values = ", ".join(f'{new.get(name, f"t.{name}")} AS "{name}"' for name in columns)
        self._lift(family, pos, where)
        rows = query(
            self._connection,
            f"SELECT {pos} AS from_pos, {OPEN_END if is_newest else pos + 1} AS to_pos, {values}"
            f" FROM {BY_SPAN[family]} t JOIN {{named}} n ON n.id = t.column_id"
            f" WHERE {self._in_listing(pos)} AND {where}",
            {"hash": change.schema_hash},
            named=named,
        )
        self._remove(family, pos, where)
        execute(self._connection, f"INSERT INTO {BY_SPAN[family]} BY NAME SELECT * FROM {{rows}}", rows=rows)

    def _lift(self, family: str, pos: int, where: str) -> None:
        self._segments.lift(self._connection, family, [self._key], f"{self._in_listing(pos)} AND {where}")

    def _remove(self, family: str, pos: int, where: str) -> None:
        self._lift(family, pos, where)
        rids = query(
            self._connection,
            f"SELECT rowid AS rid FROM {BY_SPAN[family]} t WHERE {self._in_listing(pos)} AND {where}",
        )["rid"]
        listing = pa.table({"table_key": [self._key], "pos": [pos]})
        remove_at(self._connection, family, rids, f"table_key = {int(self._key)}", listing)

    def _in_listing(self, pos: int) -> str:
        return f"t.table_key = {int(self._key)} AND t.from_pos <= {pos} AND t.to_pos > {pos}"


def _numbers(ids: Mapping[int, str] | frozenset[int]) -> str:
    """SQL of ids as a list, which is never empty."""
    return ", ".join(str(int(i)) for i in (*ids, -1))

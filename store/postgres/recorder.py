"""The writer's connection of one transaction, which notes what its statements change (`changes`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from store.duckdb.arrow_sql import OverArrow, answer_of, execute, query
from store.duckdb.layout import Connection
from store.postgres.changes import Change, distinct, naming, one_of

_CHANGES: Final = re.compile(
    r"\s*(?:WITH\b.*?\)\s*)?(?P<how>INSERT INTO|UPDATE|DELETE FROM)\s+\"?(?P<table>\w+)\"?", re.DOTALL | re.IGNORECASE
)
_ASSIGNS: Final = re.compile(r"\bSET\b(?P<values>.*?)(?:\bWHERE\b|$)", re.DOTALL | re.IGNORECASE)
_INSERTS_ALL: Final = re.compile(r"INSERT INTO \w+ BY NAME FROM (?P<given>\w+)")
_RETURNS: Final = re.compile(r"\bRETURNING\b", re.IGNORECASE)
_OTHERS: Final = re.compile(r"[\s(]*(SELECT|FROM|SET|DROP|CREATE OR REPLACE TEMP TABLE|WITH|DESCRIBE)\b", re.IGNORECASE)


@cache
def first_own_row() -> int:
    """The first row id that DuckDB gives to rows that the running transaction has inserted."""
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (0)")
        (((first),),) = connection.execute("SELECT rowid FROM t").fetchall()
    return int(first)


class _Changed(NamedTuple):
    """The result of a statement that changes rows: how many, or the columns that it was to return."""

    rows: list[tuple[Any, ...]]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None


@dataclass
class _Touched:
    """What was done to a table of the database.

    Attributes:
        groups: Names of the rows that were updated or deleted.
        inserted: All rows that were inserted, if they are at hand and are as they were; else None.
    """

    groups: list[pa.Table] = field(default_factory=list)
    inserted: list[pa.Table] | None = field(default_factory=list)
    has_inserts: bool = False
    has_updates: bool = False


def prepare(connection: Connection) -> None:
    """Prepares a connection for recorders: Arrow tables are variables of the function that calls them, not of them."""
    connection.execute("SET python_scan_all_frames = true")


class Recorder(OverArrow):
    """Takes the place of a connection, which is prepared. Its only method is `execute`: what it does not know cannot go
    unnoticed.

    Args:
        layout: The shared tables of the database with their columns (`layout_of`).
        schemas: Table of the database → Arrow schema of its rows, filled as they are read; for recorders to come.
    """

    def __init__(
        self,
        connection: Connection,
        layout: Mapping[str, tuple[str, ...]],
        schemas: dict[str, pa.Schema] | None = None,
    ):
        self._connection, self._layout = connection, layout
        self._schemas = {} if schemas is None else schemas
        self._touched: dict[str, _Touched] = {}  # by table of the database, in the order of their first change

    def execute(self, sql: str, given: Any = None, tables: Mapping[str, pa.Table] = MappingProxyType({})) -> Any:
        """Runs a statement; arguments are those of `OverArrow`.

        Returns:
            What the connection returns; of a statement that changes rows an object with `fetchall` and `fetchone`.
        """
        found = _CHANGES.match(sql)
        if found is None:
            assert _OTHERS.match(sql), f"a statement of an unknown kind: {sql[:80]}"
            return self._connection.execute(sql, given)
        how, table = found["how"].upper(), found["table"]
        if table not in self._layout:
            return self._connection.execute(sql, given)
        touched = self._touched.setdefault(table, _Touched())
        if how == "INSERT INTO":
            touched.has_inserts = True
            if not self._note_inserted(touched, table, sql, tables):
                return self._inserted(touched, sql, given)
            return self._connection.execute(sql, given)
        touched.has_updates |= how == "UPDATE"
        names = self._names(how, table, sql)
        asked = _RETURNS.search(sql)
        returning = f"{',' if asked else ' RETURNING'} {', '.join(_quoted(names))}"
        changed = answer_of(self._connection.execute(sql + returning, given))
        own = changed.column_names[: changed.num_columns - len(names)]
        if changed.num_rows:
            touched.inserted = None if touched.has_inserts else touched.inserted
            touched.groups.append(pa.table(changed.columns[len(own) :], names=names))
        if not asked:
            return _Changed([(changed.num_rows,)])
        return _Changed(list(zip(*(column.to_pylist() for column in changed.columns[: len(own)]), strict=True)))

    def _note_inserted(self, touched: _Touched, table: str, sql: str, tables: Mapping[str, pa.Table]) -> bool:
        """Keeps the rows of an INSERT of a whole Arrow table, so that they need not be read; False if it is another."""
        whole, schema = _INSERTS_ALL.fullmatch(sql), self._schemas.get(table)
        rows = None if whole is None or schema is None else _as_stored(tables.get(whole["given"]), schema)
        if rows is None and whole is None and touched.inserted is not None and _RETURNS.search(sql) is None:
            return False
        if rows is None:
            touched.inserted = None
        elif touched.inserted is not None:
            touched.inserted.append(rows)
        return True

    def _inserted(self, touched: _Touched, sql: str, given: Any) -> _Changed:
        """Runs an INSERT, and keeps the rows that it returns: to read them takes longer."""
        rows = answer_of(self._connection.execute(f"{sql} RETURNING *", given))
        assert touched.inserted is not None
        touched.inserted.append(rows)
        return _Changed([(rows.num_rows,)])

    def _names(self, how: str, table: str, sql: str) -> list[str]:
        """The columns that name the groups of an UPDATE or DELETE: coarser ones if an UPDATE may change them."""
        names = naming(table, self._layout[table])
        if how == "UPDATE":
            assigned = _ASSIGNS.search(sql)
            assert assigned is not None
            values = assigned["values"]
            names = tuple(name for name in names if not re.search(rf"\b{re.escape(name)}\b\"?\s*=", values))
            assert names, f"a statement that renames rows: {sql[:80]}"
        return list(names)

    def changes(self) -> list[Change]:
        """What was changed, read before the commit."""
        found = (self._change(table, touched) for table, touched in self._touched.items())
        return [change for change in found if change is not None]

    def _change(self, table: str, touched: _Touched) -> Change | None:
        own, groups = f"rowid >= {first_own_row()}", None
        # updated rows may have ids as inserted ones have
        is_known = touched.inserted is not None and not (touched.has_inserts and touched.has_updates)
        found = list(touched.inserted or ()) if is_known else []
        wanted = [] if is_known else [own]
        given: dict[str, pa.Table] = {}
        if touched.groups:
            groups = _together(touched.groups)
            condition, given = one_of(table, groups)
            others = f"(NOT {own} AND {condition})"
            if touched.has_updates:
                wanted.append(condition)
            # a deletion leaves none, unless names are not unique, and to look costs little
            elif execute(self._connection, f"SELECT 1 FROM {table} WHERE {others} LIMIT 1", **given):
                wanted.append(others)
        if wanted:
            found.append(query(self._connection, f"SELECT * FROM {table} WHERE {' OR '.join(wanted)}", **given))
            self._schemas[table] = found[-1].schema
        rows = pa.concat_tables(found) if found else None
        if rows is not None and not rows.num_rows:
            rows = None
        return None if rows is None and groups is None else Change(table, groups, rows)


def _as_stored(rows: pa.Table | None, schema: pa.Schema) -> pa.Table | None:
    """Rows as they are read once they are inserted; None if that is not known."""
    if rows is None or not set(rows.column_names) <= set(schema.names):
        return None
    columns = []
    for wanted in schema:
        if wanted.name not in rows.column_names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, wanted.type)]))
        elif rows.schema.field(wanted.name).type == wanted.type:
            columns.append(rows[wanted.name])
        else:
            return None
    return pa.table(columns, schema=schema)


def _together(parts: list[pa.Table]) -> pa.Table:
    """The distinct groups, by the names that all parts have."""
    common = [name for name in parts[0].column_names if all(name in part.column_names for part in parts)]
    return distinct(pa.concat_tables([part.select(common) for part in parts]))


def _quoted(names: list[str]) -> list[str]:
    return [f'"{name}"' for name in names]

"""Flights as SQL tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from store.model.errors import NotFound, nearest
from store.model.flight import Flight
from store.model.schemas import FLIGHTS

CATALOG: Final = "statflight"
_OF_A_LAKE: Final = "the tables here are those of sys.flights; statistics of a lake's table are rows of stats.columns"
STORED_SCHEMA: Final = "stats_all"  # every stored row; `stats` has the current ones
NAIVE: Final = pa.timestamp("us")  # UTC, without a zone because drivers cannot read timestamps with zone


@dataclass(frozen=True)
class Table:
    """A flight as an SQL table."""

    schema: str
    name: str
    flight: Flight

    @property
    def snapshot(self) -> str | None:
        """The snapshot of its scans: "current", or None for all stored rows."""
        return "current" if self.schema == "stats" else None


def _tables() -> Iterator[Table]:
    for flight in FLIGHTS.values():
        schema, _, name = flight.name.partition(".")
        yield Table(schema, name, flight)
        if schema == "stats":
            yield Table(STORED_SCHEMA, name, flight)


TABLES: Final = {f"{table.schema}.{table.name}": table for table in _tables()}


def naive(schema: pa.Schema) -> pa.Schema:
    """A schema with all timestamps naive, as Flight SQL returns them."""
    return pa.schema([field.with_type(NAIVE) if pa.types.is_timestamp(field.type) else field for field in schema])


def sql_type(type_: pa.DataType) -> str:
    """The name of a type in SQL; of lists and structs that of DuckDB's form."""
    if pa.types.is_list(type_):
        return f"{sql_type(type_.value_type)}[]"
    if pa.types.is_struct(type_):
        return f"STRUCT({', '.join(f'{field.name} {sql_type(field.type)}' for field in type_)})"
    if pa.types.is_union(type_):
        return f"UNION({', '.join(f'{field.name} {sql_type(field.type)}' for field in type_)})"
    if pa.types.is_integer(type_):
        return "BIGINT" if type_.bit_width > 32 else "INTEGER"
    named = {
        pa.bool_(): "BOOLEAN",
        pa.float64(): "DOUBLE",
        pa.binary(): "BLOB",
        pa.date32(): "DATE",
        NAIVE: "TIMESTAMP",
    }
    return named.get(type_, "VARCHAR")


def find(node: exp.Table, common: Collection[str]) -> Table | None:
    """Resolves a table of a statement to that of its flight; None for a common table expression.

    Raises:
        NotFound: The table is neither.
    """
    parts = [part.name.lower() for part in (node.args.get("catalog"), node.args.get("db"), node.this) if part]
    if len(parts) == 1 and parts[0] in common:
        return None
    if len(parts) == 3 and parts[0] == CATALOG:
        parts = parts[1:]
    name = ".".join(parts)
    if table := TABLES.get(name):
        return table
    shown = ".".join(part.name for part in (node.args.get("catalog"), node.args.get("db"), node.this) if part)[:200]
    alike = [full for full in TABLES if full.endswith(f".{name}")]
    hint = f'did you mean "{alike[0]}"?' if alike else nearest(name, list(TABLES))
    raise NotFound(f'no table "{shown}"', code="UNKNOWN_TABLE", hint=hint or _OF_A_LAKE)


def renames_columns(node: exp.Expression) -> bool:
    """True for a FROM item whose alias renames its columns by position: `stats.columns AS t(a, b)`."""
    alias = node.args.get("alias")
    return alias is not None and bool(alias.args.get("columns"))
